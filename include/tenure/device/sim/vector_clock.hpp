#pragma once

/// \file
/// `sim::vector_clock`: which work is known to have come before.
///
/// Work is enqueued on *timelines* (a stream is one; so is one branch of a stream capture). A timeline's
/// `position` counts what has been enqueued on it. A clock maps timelines to positions: it stands after
/// everything up to there. At most one entry a timeline, in the order of the timelines' numbers; absent means
/// 0.
///
/// Complexity: lookup O(log k), join O(k), for k entries. Thread-compatible.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace tenure::sim {

using timeline_id = std::uint64_t; ///< never reused; 0 is none

/// All work enqueued on a timeline up to and including a position.
struct point {
    timeline_id timeline = 0;
    std::uint64_t position = 0;
};

class vector_clock {
    template <class Entries>
    static auto lower(Entries& entries, timeline_id timeline) noexcept {
        return std::lower_bound(entries.begin(), entries.end(), timeline,
                                [](const point& p, timeline_id t) { return p.timeline < t; });
    }

  public:
    [[nodiscard]] std::uint64_t at(timeline_id timeline) const noexcept {
        const auto it = lower(entries_, timeline);
        return it != entries_.end() && it->timeline == timeline ? it->position : 0;
    }

    /// Effects: stands after `p` too.
    void raise(point p) {
        const auto it = lower(entries_, p.timeline);
        if (it != entries_.end() && it->timeline == p.timeline)
            it->position = std::max(it->position, p.position);
        else
            entries_.insert(it, p);
    }

    /// Effects: stands after all that `other` does.
    void join(const vector_clock& other) {
        if (other.entries_.empty()) return;
        std::vector<point> both;
        both.reserve(entries_.size() + other.entries_.size());
        auto a = entries_.begin();
        for (const point& b : other.entries_) {
            while (a != entries_.end() && a->timeline < b.timeline) both.push_back(*a++);
            if (a != entries_.end() && a->timeline == b.timeline)
                both.push_back({b.timeline, std::max((a++)->position, b.position)});
            else
                both.push_back(b);
        }
        both.insert(both.end(), a, entries_.end());
        entries_ = std::move(both);
    }

    template <class Predicate>
    void erase_if(Predicate&& p) {
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), p), entries_.end());
    }

    [[nodiscard]] const std::vector<point>& entries() const noexcept { return entries_; }
    [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

  private:
    std::vector<point> entries_;
};

} // namespace tenure::sim
