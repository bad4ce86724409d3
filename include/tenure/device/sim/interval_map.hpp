#pragma once

/// \file
/// `sim::interval_map`: values over disjoint ranges of numbers.
///
///     0x100 |---- A ----| 0x200      | B | 0x300 |-- A --|
///
/// Intervals never overlap; neighbours are not merged. Complexity: O(log n + k) for k intervals touched.
/// Thread-compatible.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace tenure::sim {

/// [begin, end), in bytes.
struct extent {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
};

template <class T>
class interval_map {
    struct interval {
        std::uint64_t end = 0;
        T value;
    };
    using map = std::map<std::uint64_t, interval>;

    /// The first interval that ends after `begin`.
    template <class Map>
    static auto first_of(Map& intervals, std::uint64_t begin) {
        auto it = intervals.upper_bound(begin);
        if (it != intervals.begin() && std::prev(it)->second.end > begin) --it;
        return it;
    }
    auto first(std::uint64_t begin) { return first_of(intervals_, begin); }
    auto first(std::uint64_t begin) const { return first_of(intervals_, begin); }

  public:
    /// Effects: `value` over all of `e`, replacing what was there.
    void assign(extent e, const T& value) {
        erase(e);
        intervals_.emplace(e.begin, interval{e.end, value});
    }

    /// Effects: nothing over `e`; intervals that reach beyond it are cut.
    void erase(extent e) {
        auto it = first(e.begin);
        while (it != intervals_.end() && it->first < e.end) {
            const std::uint64_t begin = it->first;
            interval old = std::move(it->second);
            it = intervals_.erase(it);
            if (begin < e.begin) intervals_.emplace(begin, interval{e.begin, old.value});
            if (e.end < old.end) it = intervals_.emplace(e.end, std::move(old)).first;
        }
    }

    /// Effects: erases every interval whose value `p(value)` picks.
    template <class Predicate>
    void erase_if(Predicate&& p) {
        for (auto it = intervals_.begin(); it != intervals_.end();)
            it = p(it->second.value) ? intervals_.erase(it) : std::next(it);
    }

    /// Effects: f(part, value) for every interval that overlaps `e`, cut to it, in order. f must not change
    /// the map.
    template <class F>
    void for_each(extent e, F&& f) const {
        for (auto it = first(e.begin); it != intervals_.end() && it->first < e.end; ++it)
            f(extent{it->first < e.begin ? e.begin : it->first,
                     it->second.end < e.end ? it->second.end : e.end},
              it->second.value);
    }

    template <class F>
    void for_each(F&& f) const {
        for (const auto& [begin, i] : intervals_) f(extent{begin, i.end}, i.value);
    }

    [[nodiscard]] bool overlaps(extent e) const {
        const auto it = first(e.begin);
        return it != intervals_.end() && it->first < e.end;
    }

    [[nodiscard]] std::size_t size() const noexcept { return intervals_.size(); }

  private:
    map intervals_;
};

} // namespace tenure::sim
