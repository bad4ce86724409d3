#pragma once

/// \file
/// `sim::address_space`: hands out ranges of made-up addresses, the lowest that fit first.
///
///     begin |##taken##|   gap   |##taken##|#taken#|            gap            | end
///
/// Lowest first on purpose: ranges from different calls often touch, and a freed address comes back at once,
/// so code that merges across ranges or remembers stale addresses is found out.
///
///   1. Gaps are disjoint, never empty, and never touch each other.
///   2. What is taken and the gaps together are exactly [begin, end).
///
/// Complexity: taking is linear in the number of gaps, giving back logarithmic. Thread-compatible.

#include <tenure/core/bits.hpp>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>

namespace tenure::sim {

class address_space {
  public:
    /// Requires: begin < end.
    address_space(std::uint64_t begin, std::uint64_t end) { gaps_.emplace(begin, end); }

    /// Requires: n > 0, `alignment` a power of two. Returns: the base of n bytes that are now taken.
    std::optional<std::uint64_t> take(std::uint64_t n, std::uint64_t alignment) {
        for (auto it = gaps_.begin(); it != gaps_.end(); ++it) {
            const auto [begin, end] = *it;
            const std::uint64_t base = round_up(begin, alignment);
            if (base < begin || base >= end || end - base < n) continue;
            return cut(it, base, n);
        }
        return std::nullopt;
    }

    /// Requires: n > 0. Returns: `base`, if the n bytes there were free; now they are taken. Complexity: logarithmic.
    std::optional<std::uint64_t> take_at(std::uint64_t base, std::uint64_t n) {
        auto it = gaps_.upper_bound(base);
        if (it == gaps_.begin()) return std::nullopt;
        --it;
        if (base >= it->second || it->second - base < n) return std::nullopt;
        return cut(it, base, n);
    }

    /// Requires: [base, base + n) was taken and has not been given back.
    void give_back(std::uint64_t base, std::uint64_t n) {
        std::uint64_t end = base + n;
        auto next = gaps_.lower_bound(base);
        if (next != gaps_.end() && next->first == end) {
            end = next->second;
            next = gaps_.erase(next);
        }
        if (next != gaps_.begin()) {
            const auto previous = std::prev(next);
            if (previous->second == base) {
                previous->second = end;
                return;
            }
        }
        gaps_.emplace(base, end);
    }

  private:
    using gap = std::map<std::uint64_t, std::uint64_t>::iterator;

    /// Requires: the n bytes at `base` lie in the gap. Effects: they are taken. Returns: `base`.
    std::uint64_t cut(gap it, std::uint64_t base, std::uint64_t n) {
        const auto [begin, end] = *it;
        gaps_.erase(it);
        if (begin < base) gaps_.emplace(begin, base);
        if (base + n < end) gaps_.emplace(base + n, end);
        return base;
    }

    std::map<std::uint64_t, std::uint64_t> gaps_; // begin to end
};

} // namespace tenure::sim
