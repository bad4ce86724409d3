#pragma once

/// \file
/// `lane_table`: whose is a block? A *lane* is a stream, or a stream inside one graph capture.
///
/// Every block of a `caching_pool` belongs to a lane from its allocation on, and when it is free, its colour
/// in the layout says which lane may have it. Small and large blocks never mix, so a lane has two domains:
///
///     domain = 2 * lane + (large ? 1 : 0)
///
///     0 shared   blocks of `allocate_sync`: all work on them is over, every stream may take them
///     1 lost     freed, but the driver could not say when the work on them ends. Nobody may take them;
///                giving the segment back to the device, which waits for all work, ends this
///     2 spare    whole segments, all work on which is over: as good as new ones for everybody
///     3 ...      one for a stream, keyed by its identity, never by its handle: a new stream with the
///                handle of a dead one is another lane and inherits nothing
///
/// A *capture lane* (stream, capture) holds what was allocated on the stream while the capture was active. A
/// graph may replay into that memory, so no other lane sees it until the capture is released; then the lane
/// *forwards* to the stream's own lane, its home.
///
/// Invariants:
///   1. A lane exists while it has blocks or free memory, or a capture lane forwards to it.
///   2. A capture lane's home is an ordinary lane, and exists.
///
/// Complexity: O(1). Lanes of streams without memory are swept when the table has doubled.
/// Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace tenure::caching {

using lane_id = std::uint16_t;

class lane_table {
  public:
    static constexpr lane_id shared = 0;
    static constexpr lane_id lost = 1;
    static constexpr lane_id spare = 2;
    static constexpr lane_id none = std::numeric_limits<lane_id>::max();

    [[nodiscard]] static constexpr layout::domain domain_of(lane_id l, bool small) noexcept {
        return static_cast<layout::domain>(2u * l + (small ? 0u : 1u));
    }
    [[nodiscard]] static constexpr lane_id lane_of(layout::domain d) noexcept {
        return static_cast<lane_id>(d / 2u);
    }
    [[nodiscard]] static constexpr bool is_small(layout::domain d) noexcept { return d % 2u == 0; }

    lane_table() : lanes_(first) {}

    /// Effects: finds or makes the lane of a stream (`capture` 0), or of a stream in a capture.
    /// Returns: it, or `none` when all 32 764 lanes hold memory. Throws: `std::bad_alloc`, changing nothing.
    template <class Layout>
    lane_id find_or_make(std::uint64_t stream, std::uint64_t capture, const Layout& blocks) {
        const key k{stream, capture};
        if (last_ != none && lanes_[last_].in_use && lanes_[last_].who == k) return last_;
        if (const auto it = by_key_.find(k); it != by_key_.end()) return last_ = it->second;
        if (by_key_.size() >= sweep_at_) sweep(blocks);
        lane_id home = none;
        if (capture != 0) {
            home = find_or_make(stream, 0, blocks);
            if (home == none) return none;
        }
        const lane_id l = make(k);
        if (l == none) return none;
        if (home != none) {
            ++lanes_[home].users;
            lanes_[l].home = home;
            ++capture_lanes_;
        }
        return last_ = l;
    }

    /// Returns: the lane of a stream outside captures, or `none`.
    [[nodiscard]] lane_id find(std::uint64_t stream) const noexcept {
        const auto it = by_key_.find(key{stream, 0});
        return it == by_key_.end() ? none : it->second;
    }

    /// Effects: the home lane that was made for the identity `before`, if any, is `after`'s; unless that has one.
    void rename(std::uint64_t before, std::uint64_t after) noexcept {
        const auto it = by_key_.find(key{before, 0});
        if (it == by_key_.end() || by_key_.contains(key{after, 0})) return;
        lane& l = lanes_[it->second];
        l.who.stream = after;
        if (l.moving != none) lanes_[l.moving].who.stream = after;
        auto node = by_key_.extract(it);
        node.key() = l.who;
        by_key_.insert(std::move(node));
    }

    /// A block begins, or ceases, to belong to the lane.
    void attach(lane_id l) noexcept { ++lanes_[l].users; }
    void detach(lane_id l) noexcept {
        if (--lanes_[l].users == 0 && lanes_[l].released) retire(l);
    }

    /// Returns: identity of the stream; 0 for the lanes of no stream.
    [[nodiscard]] std::uint64_t stream(lane_id l) const noexcept { return lanes_[l].who.stream; }

    /// Returns: the capture whose graph may still replay into this lane's memory, or 0.
    [[nodiscard]] std::uint64_t capture(lane_id l) const noexcept {
        return lanes_[l].released ? 0 : lanes_[l].who.capture;
    }

    /// Returns: the lane to which memory freed in this one goes: itself, or its home once its capture is released.
    [[nodiscard]] lane_id destination(lane_id l) const noexcept {
        return lanes_[l].released ? lanes_[l].home : l;
    }

    /// Returns: the stream's lane outside captures.
    [[nodiscard]] lane_id home(lane_id l) const noexcept {
        return lanes_[l].home == none ? l : lanes_[l].home;
    }

    /// Returns: whether there is memory that only captures may have.
    [[nodiscard]] bool any_captured() const noexcept { return capture_lanes_ != 0; }

    /// Returns: bytes free that only captures may have.
    template <class Layout>
    [[nodiscard]] std::size_t captured_bytes(const Layout& blocks) const noexcept {
        std::size_t sum = 0;
        if (!any_captured()) return 0;
        for (lane_id l = first; l < lanes_.size(); ++l)
            if (lanes_[l].in_use && capture(l) != 0) sum += free_bytes(l, blocks);
        return sum;
    }

    /// Effects: nothing replays `capture` any more; its free memory goes home, and so will what is still live.
    template <class Layout>
    void release(std::uint64_t capture_id, Layout& blocks) noexcept {
        for (lane_id l = first; l < lanes_.size(); ++l) {
            if (lanes_[l].seen_capture == capture_id) lanes_[l].seen_capture = 0;
            if (!lanes_[l].in_use || capture(l) != capture_id || capture_id == 0) continue;
            for (const bool small : {true, false})
                blocks.recolor(domain_of(l, small), domain_of(lanes_[l].home, small));
            lanes_[l].released = true;
            --capture_lanes_;
            by_key_.erase(lanes_[l].who);
            if (lanes_[l].users == 0) retire(l);
        }
    }

    /// To be called when a call names the stream of a home lane: the capture it is in now, or 0.
    void note_capture(lane_id l, std::uint64_t capture_id) noexcept { lanes_[l].seen_capture = capture_id; }

    /// Returns: the capture that the stream of a home lane was last seen in, if it may still be active; or 0.
    [[nodiscard]] std::uint64_t seen_capture(lane_id l) const noexcept { return lanes_[l].seen_capture; }

    // ---- memory on its way to other streams, see `lane_marks` ----

    /// Effects: gives the lane a second one, its *moving* lane. Requires: it has none.
    /// Returns: that, or `none` when there are no more. Throws: `std::bad_alloc`, changing nothing.
    lane_id add_moving(lane_id l) {
        const lane_id m = take_idle();
        if (m == none) return none;
        lanes_[m] = lane{};
        lanes_[m].who.stream = lanes_[l].who.stream;
        lanes_[m].in_use = true;
        lanes_[m].users = 1; // held by l
        lanes_[l].moving = m;
        ++lanes_[l].users;
        return m;
    }

    /// Requires: it has a moving lane, without memory.
    void drop_moving(lane_id l) noexcept {
        const lane_id m = lanes_[l].moving;
        lanes_[m].in_use = false;
        idle_.push_back(m);
        lanes_[l].moving = none;
        --lanes_[l].users;
    }

    /// Returns: the moving lane, or `none`.
    [[nodiscard]] lane_id moving(lane_id l) const noexcept { return lanes_[l].moving; }

    /// Whether another stream has asked in vain for what this lane has free.
    [[nodiscard]] bool wanted(lane_id l) const noexcept { return lanes_[l].wanted; }
    void want(lane_id l, bool yes) noexcept { lanes_[l].wanted = yes; }

    /// Calls f(lane_id) for each lane of a stream outside captures, moving lanes excepted.
    template <class F>
    void for_each_home(F&& f) const {
        for (const auto& [k, l] : by_key_)
            if (k.capture == 0) f(l);
    }

    template <class Layout>
    [[nodiscard]] static std::size_t free_bytes(lane_id l, const Layout& blocks) noexcept {
        return blocks.free_bytes(domain_of(l, true)) + blocks.free_bytes(domain_of(l, false));
    }

    [[nodiscard]] bool in_use(lane_id l) const noexcept {
        return l < first || (l < lanes_.size() && lanes_[l].in_use);
    }

  private:
    static constexpr lane_id first = 3; ///< of those made for streams

    struct key {
        std::uint64_t stream = 0;
        std::uint64_t capture = 0;
        friend bool operator==(const key&, const key&) = default;
    };
    struct hash {
        std::size_t operator()(const key& k) const noexcept {
            return static_cast<std::size_t>((k.stream ^ (k.capture * 0x9e3779b97f4a7c15u)) *
                                            0xff51afd7ed558ccdu);
        }
    };
    struct lane {
        key who;
        std::uint64_t seen_capture = 0;
        std::uint32_t users = 0;
        lane_id home = none;   ///< of a capture lane
        lane_id moving = none; ///< memory of this lane that waits for an event
        bool wanted = false;
        bool in_use = false;
        bool released = false; ///< its capture is over for good
    };

    static constexpr std::size_t most = std::size_t{std::numeric_limits<layout::domain>::max()} / 2;

    lane_id take_idle() {
        if (idle_.empty()) {
            if (lanes_.size() >= most) return none;
            idle_.reserve(lanes_.size() + 1); // every lane may become idle, and that must not fail
            lanes_.emplace_back();
            return static_cast<lane_id>(lanes_.size() - 1);
        }
        const lane_id l = idle_.back();
        idle_.pop_back();
        return l;
    }

    lane_id make(const key& k) {
        const lane_id l = take_idle();
        if (l == none) return none;
        try {
            by_key_.emplace(k, l);
        } catch (...) {
            idle_.push_back(l);
            throw;
        }
        lanes_[l] = lane{};
        lanes_[l].who = k;
        lanes_[l].in_use = true;
        return l;
    }

    /// A released capture lane that nobody belongs to any more.
    void retire(lane_id l) noexcept {
        last_ = none;
        lanes_[l].in_use = false;
        idle_.push_back(l);
        --lanes_[lanes_[l].home].users;
    }

    template <class Layout>
    void sweep(const Layout& blocks) noexcept {
        last_ = none;
        for (lane_id l = first; l < lanes_.size(); ++l) {
            lane& x = lanes_[l];
            if (!x.in_use || x.released || x.users != 0 || free_bytes(l, blocks) != 0) continue;
            if (x.who.capture != 0) {
                --capture_lanes_;
                --lanes_[x.home].users;
            }
            by_key_.erase(x.who);
            x.in_use = false;
            idle_.push_back(l);
        }
        sweep_at_ = std::max<std::size_t>(64, 2 * by_key_.size());
    }

    own_lines_vector<lane> lanes_;
    own_lines_vector<lane_id> idle_;
    own_lines_map<key, lane_id, hash> by_key_;
    lane_id last_ = none;
    std::size_t capture_lanes_ = 0;
    std::size_t sweep_at_ = 64;
};

} // namespace tenure::caching
