#pragma once

/// \file
/// `timeline`: what each arena of a recorded run held at each time, and what it was allowed; ready to be drawn.
///
/// A run is a trace (what the program asked for: live bytes of each arena, each block rounded up to 512 bytes, limits
/// from `m` events), or the output of `tenure top --json` over time (what each arena held from the device, and its `max`).
///
/// A long run is cut into at most `most_points` spans; a span is shown by the instant at which all arenas together held
/// most. So no peak of the sum is lost, and every column is a state that there really was. An arena's own peak is often at
/// another instant: it is counted apart (`series::peak`), over all that was recorded. Memory: twice `most_points` states,
/// however long the run.
///
/// Plain values; thread-compatible.

#include "trace.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tenure::cli {

struct timeline {
    static constexpr std::size_t most_points = 1200;
    static constexpr std::uint64_t no_value = std::numeric_limits<std::uint64_t>::max();

    struct series {
        std::string name;
        std::string kind = "arena";          ///< or group, accounts, account
        std::vector<std::uint64_t> held{};   ///< bytes, by point
        std::vector<std::uint64_t> limit{};  ///< bytes, by point; `no_value`: none
        std::uint64_t peak = 0;              ///< bytes: the most it ever held, also between the points
        std::uint64_t last_limit = no_value; ///< bytes: at the end of the run
    };

    std::string source;         ///< of the run
    std::string what;           ///< what `held` means, for a person
    std::vector<double> time_s; ///< seconds since the run began, by point, rising
    std::vector<series> arenas; ///< what is stacked
    std::vector<series>
        groups; ///< limits and sums of what is above the arenas, or of accounts in them; not stacked
    std::uint64_t more = 0; ///< arenas and groups, at most, that the record does not show
    std::string warning;    ///< what was left out, for a person; empty: nothing
};

timeline timeline_of(const trace& t);

/// Reads a trace or lines of `tenure top --json`. A last line that was cut, as an interrupt or a full disk leaves it, is left
/// out. Throws: `input_error`.
timeline load_timeline(const std::string& path);

} // namespace tenure::cli
