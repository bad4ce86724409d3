#pragma once

/// \file
/// `roundup_divisions`: rounding sizes up to a fraction of a power of two, so that sizes which vary a little
/// from step to step become the same size and reuse each other's blocks.
///
/// With d divisions, the way from one power of two to the next is cut into d equal steps, and a size goes up
/// to the next step:
///
///     d = 4:   1024 ..... 1280 ..... 1536 ..... 1792 ..... 2048        1200 becomes 1280
///
/// d may differ per *interval*: interval i holds the sizes from 2^i MiB up to (not including) 2^(i+1) MiB, i
/// from 0 to 15; smaller sizes count as interval 0, larger ones (64 GiB and up) as interval 15. 0 and 1 mean
/// "no rounding to steps here".
///
/// Invariants: `round` never makes a size smaller, leaves powers of two alone, is monotonic inside an
/// interval, and wastes at most 1/d of the power of two below the size. Plain values; thread-compatible.

#include <tenure/core/bits.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tenure {

struct roundup_divisions {
    static constexpr std::size_t intervals = 16;
    static constexpr unsigned first_log2 = 20; ///< interval 0 begins at 1 MiB

    /// Steps per power of two, by interval. 0, or a power of two.
    std::array<std::size_t, intervals> values{};

    /// Requires: `bytes > 0`. Returns: the steps that apply to a size.
    [[nodiscard]] constexpr std::size_t at(std::size_t bytes) const noexcept {
        const unsigned log2 = log2_floor(bytes);
        return values[std::min<std::size_t>(log2 < first_log2 ? 0 : log2 - first_log2, intervals - 1)];
    }

    /// Requires: `bytes > 0`; `divisions` >= 2 is a power of two. Returns: the smallest step that is >=
    /// bytes, or the largest power of two when that does not fit in 64 bits.
    [[nodiscard]] static constexpr std::size_t round(std::size_t bytes, std::size_t divisions) noexcept {
        if (is_power_of_two(bytes)) return bytes;
        const unsigned log2 = log2_floor(bytes);
        const std::size_t step = (std::size_t{1} << log2) >> log2_floor(divisions);
        return round_up(bytes, step == 0 ? 1 : step);
    }

    friend bool operator==(const roundup_divisions&, const roundup_divisions&) = default;
};

/// Reads divisions in either of PyTorch's spellings (`roundup_power2_divisions`). Blanks are ignored.
///
///   * one number: `8`, for all intervals;
///   * a list: `[256:1,512:2,1024:4,>:8]`. A key is where an interval begins, in MiB, and a power of two;
///   sizes below
///     the first key get the first key's value, `>` stands for everything above the key before it, and
///     intervals that the list skips are not rounded to steps. Keys must ascend, and `>` comes last.
///
/// Returns: the divisions. Throws: `std::invalid_argument`, which quotes the text and says what is wrong with
/// it.
inline roundup_divisions parse_roundup_power2_divisions(std::string_view text) {
    std::string packed;
    for (const char c : text)
        if (c != ' ' && c != '\t') packed += c;
    std::string_view rest = packed;

    const auto fail = [text](const std::string& why) {
        throw std::invalid_argument(
            "invalid power-of-two divisions \"" + std::string(text) + "\": " + why +
            " (write a power of two, 8, or a list by size in MiB, [256:1,512:2,>:8])");
    };
    const auto number = [&](const char* what) {
        std::size_t n = 0;
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), n);
        if (error != std::errc{}) fail(std::string("expected ") + what);
        rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
        return n;
    };
    const auto division = [&] {
        const std::size_t n = number("a number of divisions");
        if (n != 0 && !is_power_of_two(n)) fail("divisions must be 0 or a power of two");
        return n;
    };
    const auto take = [&](char c) {
        if (rest.empty() || rest.front() != c) return false;
        rest.remove_prefix(1);
        return true;
    };

    roundup_divisions result;
    if (!take('[')) {
        result.values.fill(division());
        if (!rest.empty()) fail("unexpected text after the number");
        return result;
    }
    std::size_t next = 0; // the first interval not yet spoken of
    bool first = true;
    bool closed = false;
    do {
        if (closed) fail("\">\" must come last");
        std::size_t begin = next;
        std::size_t end = roundup_divisions::intervals;
        if (take('>')) {
            if (first) fail("\">\" needs a size before it");
            closed = true;
        } else {
            const std::size_t key = number("a size in MiB");
            if (!is_power_of_two(key)) fail("sizes must be powers of two");
            const std::size_t interval =
                std::min<std::size_t>(log2_floor(key), roundup_divisions::intervals - 1);
            if (interval < next) fail("sizes must ascend");
            begin = first ? 0 : interval;
            end = interval + 1;
        }
        if (!take(':')) fail("expected \":\" and a number of divisions");
        const std::size_t d = division();
        std::fill(result.values.begin() + static_cast<std::ptrdiff_t>(begin),
                  result.values.begin() + static_cast<std::ptrdiff_t>(end), d);
        next = end;
        first = false;
    } while (take(','));
    if (!take(']')) fail("expected \"]\"");
    if (!rest.empty()) fail("unexpected text after \"]\"");
    return result;
}

} // namespace tenure
