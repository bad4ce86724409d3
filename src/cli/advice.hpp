#pragma once

/// \file
/// `advice`: which policy for this program, and how much memory would it save?
///
/// The best policy carries the whole program out and holds least at its peak. Of those that hold within one percent of the
/// least, the one that spends the least time in the driver is best: nobody notices the percent.
///
/// It is compared with, in this order, what the program's own allocator reserved when the trace was recorded, what
/// PyTorch's allocator reserved for the same program, and what PyTorch's scheme (`caching`) holds in the comparison itself.
///
/// Complexity: linear in the rows. Thread-compatible.

#include "comparison.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenure::cli {

struct advice {
    std::string trace;
    const comparison_row* best = nullptr;  ///< null: no policy carried the program out
    std::uint64_t needed = 0;              ///< bytes the program has live at its peak
    std::optional<std::uint64_t> baseline; ///< bytes; empty: nothing to compare with
    std::string baseline_name;             ///< whose bytes these are, as part of a sentence

    /// Returns: bytes that the best policy holds less than the baseline; negative when it holds more.
    [[nodiscard]] std::optional<std::int64_t> saved() const;
    /// Returns: one sentence for a person.
    [[nodiscard]] std::string text() const;
};

/// Returns: one a trace, in the order of the rows. Requires: `rows` outlives it.
std::vector<advice> advise(const comparison& rows);

/// Returns: one sentence about all traces together.
std::string summary_of(const std::vector<advice>& all);

/// Returns: the answer as a terminal shows it: a line a trace, and the summary if there are several.
std::string to_answer(const comparison& rows);

} // namespace tenure::cli
