#pragma once

/// \file
/// What `tenure compare` found: one row a trace and policy. Plain values; thread-compatible.

#include "peers.hpp"
#include "replay_result.hpp"
#include "trace.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenure::cli {

struct comparison_row {
    std::string trace;
    std::string policy;
    std::string device;
    std::optional<std::uint64_t> limit; ///< bytes
    std::uint64_t events = 0;
    std::uint64_t duration_us = 0; ///< of the recorded program; 0 where the trace has no times
    replay_result result;
    peaks needed;                ///< by the trace, had nothing been refused
    std::optional<peers> peer{}; ///< on a real GPU

    [[nodiscard]] bool on_gpu() const noexcept { return device != "sim"; }
};

using comparison = std::vector<comparison_row>;

/// Returns: the rows as an array of JSON objects, a line end behind it. Sizes in bytes, times in the unit
/// that the key names. Peers are not part of it. A row measured on a GPU has the key `gpu`.
std::string to_json(const comparison& rows);

/// Returns: the rows as a table for people. Columns about peers, about the cost model beside measured times and about
/// verification are left out if no row knows any; so are, and that is said, those for which a line of `room` characters (0: no
/// end) is too short.
std::string to_table(const comparison& rows, std::size_t room = 0);

/// Returns: all rows' driver calls by kind and size, measured and modelled. `room`: as in `to_table`.
std::string to_cost_table(const comparison& rows, std::size_t room = 0);

} // namespace tenure::cli
