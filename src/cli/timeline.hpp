#pragma once

/// \file
/// `timeline`: what each arena of a recorded run held at each time, and what it was allowed; ready to be drawn.
///
/// A run is a trace (what the program asked for: live bytes of each arena, each block rounded up to 512 bytes, limits
/// from `m` events), or the output of `tenure top --json` over time (what each arena held from the device, and its `max`).
///
/// A run of millions of events is cut into at most `most_points` spans; a span is shown by the instant at which all arenas
/// together held most. So no peak of the sum is lost, and every column is a state that there really was.
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
        std::vector<std::uint64_t> held;  ///< bytes, by point
        std::vector<std::uint64_t> limit; ///< bytes, by point; `no_value`: none
    };

    std::string source;         ///< of the run
    std::string what;           ///< what `held` means, for a person
    std::vector<double> time_s; ///< seconds since the run began, by point, rising
    std::vector<series> arenas; ///< what is stacked
    std::vector<series> groups; ///< limits and sums of what is above the arenas; not stacked
};

timeline timeline_of(const trace& t);

/// Reads a trace or lines of `tenure top --json`. Throws: `input_error`.
timeline load_timeline(const std::string& path);

} // namespace tenure::cli
