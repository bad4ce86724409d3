#pragma once

/// \file
/// `verification`: what a verifying replay saw. Plain values; thread-compatible.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenure::cli {

/// A block that did not hold what was written into it.
struct mismatch {
    std::uint64_t block = 0; ///< in the order of the trace's allocations, from 0
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;
    std::uint64_t first_bad = 0;        ///< byte offset, of a word of 16 bytes
    std::uint64_t bad_words = 0;        ///< of 16 bytes
    bool side_stream = false;           ///< found by a use on another stream than the one that frees
    std::optional<std::uint64_t> owner; ///< the block whose content was found there

    /// Returns: one line for a person.
    [[nodiscard]] std::string text() const;
};

struct verification {
    std::uint64_t blocks = 0; ///< filled
    std::uint64_t checks = 0;
    std::uint64_t bytes = 0;          ///< written and read by both
    double seconds = 0;               ///< of the replay, until the GPU was idle
    std::vector<mismatch> mismatches; ///< in the order of the checks; at most `findings::capacity`
    bool more = false;                ///< there were more than are listed

    [[nodiscard]] bool good() const noexcept { return mismatches.empty() && !more; }
};

} // namespace tenure::cli
