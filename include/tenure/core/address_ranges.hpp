#pragma once

/// \file
/// `address_ranges`: a set of addresses, kept as the fewest disjoint ranges [begin, end).
///
/// Invariant: ranges neither overlap nor touch. Complexity: O(log ranges), amortised. Thread-safety: thread-compatible.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace tenure {

class address_ranges {
  public:
    /// Effects: the range is in the set. Throws: `std::bad_alloc`; then some of what was there may be missing.
    void insert(std::uint64_t begin, std::size_t size) {
        std::uint64_t end = begin + size;
        auto it = ranges_.upper_bound(begin);
        if (it != ranges_.begin() && std::prev(it)->second >= begin) {
            --it;
            if (it->second >= end) return;
            begin = it->first;
        }
        while (it != ranges_.end() && it->first <= end) {
            end = std::max(end, it->second);
            it = ranges_.erase(it);
        }
        ranges_.emplace_hint(it, begin, end);
    }

    [[nodiscard]] bool contains(std::uint64_t address) const noexcept {
        const auto after = ranges_.upper_bound(address);
        return after != ranges_.begin() && address < std::prev(after)->second;
    }

    void clear() noexcept { ranges_.clear(); }

  private:
    std::map<std::uint64_t, std::uint64_t> ranges_; ///< begin to end
};

} // namespace tenure
