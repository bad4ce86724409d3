#pragma once

/// \file
/// `stream_order`: when is freed memory safe to reuse, and for whom?
///
/// Memory freed on a stream may be reused on that stream at once: the stream itself keeps the order. For every other
/// stream it is safe when the work that the freeing stream held at the time has passed. This class turns the rule into
/// *domains*, the colours that a layout puts on its free blocks:
///
///     domain 0, settled     every stream may take it: the host has seen the work pass
///     domain 1, lost        nobody may: what it waits for is not known (a driver call failed), until all work has passed
///     a lane per stream     open      freed on this stream, no event recorded since
///                           marked    freed before an event of this stream, up to four generations (one while there
///                                     is no other stream)
///
///     free on s ------> open(s) --mark: record event--> marked(s) --event passed: poll--> settled
///     allocate on s <-- open(s), marked(s), settled; of others, what s is known to stand behind
///     miss on s:        neighbours among these are taken together; what is left of them stays what it was
///
/// Where the device keeps a book of what streams wait for (`stream_waits`) and somebody writes in it, a stream takes, too,
/// what another one freed before a point that it stands behind; and what the host has waited for is settled with no
/// question to the driver. So that frees after such a point do not hide those before it, `open` is marked at the first of
/// them.
///
/// Freeing and reusing on one stream makes no driver call. An event is recorded once per `mark_bytes` of
/// freed memory (divided by the number of lanes), on the default stream when others look for as much, or when another
/// stream has asked in vain, and at the first free after a record that the book knows of; else never once per free.
///
/// The exact rule for destroyed streams: an event is recorded on a stream only inside a call that names the
/// stream (the caller vouches that it lives), or when the handle is permanent (the default stream). Lanes are
/// keyed by the identity of the stream, not by its handle, so a new stream that got a dead one's handle
/// inherits nothing. Memory freed on a stream that died before its next mark stays in that lane until all work of the
/// device is known to have passed (`all_passed`): whenever a segment is given back, since the device waits then. That is
/// at most `mark_bytes` of it, what its frees still waited for on other streams, and what calls have freed that do not
/// name it (`release`) or may not mark it (while it captures).
///
/// Capture: nothing is recorded on a capturing stream. What an allocation inside a capture may use is only `settled`.
///
/// Invariants:
///   1. A domain belongs to one lane at a time; domains 0 and 1 to none.
///   2. Everything in a marked generation was freed before its event was recorded.
///   3. A lane without free memory and without marks may be forgotten at any time.
///   4. The stamps in `open` and in a generation are at most the one that is kept with it; frees from before the first word
///      have none, and came before all that have.
///
/// Complexity: O(1) a free. A miss: one query per lane with marks (2 us each on a GPU at work) where work passes as
/// fast as it comes, at most one a generation; and recolouring linear in the free
/// blocks that change hands. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/ordering/event_cache.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace tenure {

template <device Device>
class stream_order {
  public:
    using domain = layout::domain;
    using lane_id = std::uint32_t;

    static constexpr domain settled = 0;
    static constexpr domain lost = 1;
    static constexpr lane_id no_lane = std::numeric_limits<lane_id>::max();
    static constexpr std::size_t max_generations = 4;

    /// Domains that one request may take memory from.
    class domain_list {
      public:
        /// Does nothing if the list is full.
        void push(domain d) noexcept {
            if (size_ < domains_.size()) domains_[size_++] = d;
        }
        [[nodiscard]] std::span<const domain> view() const noexcept { return {domains_.data(), size_}; }

      private:
        std::array<domain, 4 * (max_generations + 1)> domains_;
        std::size_t size_ = 0;
    };

    /// `mark_bytes`: see above; `no_limit`: only when somebody asks.
    stream_order(Device& device, event_cache<Device>& events, std::size_t mark_bytes) noexcept
        : device_(&device), events_(&events), mark_bytes_(mark_bytes) {}

    stream_order(const stream_order&) = delete;
    stream_order& operator=(const stream_order&) = delete;

    ~stream_order() {
        for (lane& l : lanes_)
            for (std::size_t g = 0; g < l.generations; ++g) events_->release(l.marked[g].event);
    }

    /// Effects: when there are many lanes, polls, and forgets those that hold nothing. Lanes found before are
    /// void then: to be called at the beginning of a call, before it asks for any.
    template <layout::layout Layout>
    void tidy(Layout& blocks) noexcept {
        if (by_id_.size() < sweep_at_ && !short_of_domains_) return;
        poll(blocks);
        sweep(blocks);
    }

    /// Effects: finds or makes the lane of a stream. Returns: it, or `no_lane` when all domains hold memory
    /// or host memory is missing; memory freed on such a stream is `lost`.
    lane_id lane_of(std::uint64_t stream_id) noexcept {
        if (last_ != no_lane && lanes_[last_].id == stream_id && lanes_[last_].in_use) return last_;
        if (const auto it = by_id_.find(stream_id); it != by_id_.end()) return last_ = it->second;
        const domain open = take_domain();
        if (open == settled) return no_lane;
        try {
            if (idle_lanes_.empty()) {
                idle_lanes_.reserve(lanes_.size() + 1);
                lanes_.emplace_back();
                idle_lanes_.push_back(static_cast<lane_id>(lanes_.size() - 1));
            }
            by_id_.emplace(stream_id, idle_lanes_.back());
        } catch (...) {
            free_domains_.push_back(open); // room is reserved with every domain taken
            return no_lane;
        }
        const lane_id id = idle_lanes_.back();
        idle_lanes_.pop_back();
        lanes_[id] = lane{};
        lanes_[id].in_use = true;
        lanes_[id].id = stream_id;
        lanes_[id].open = open;
        for (lane& l : lanes_) { // the place may have been another stream's
            if (l.stands_behind.size() > id) l.stands_behind[id] = 0;
            l.learned = 0;
        }
        return last_ = id;
    }

    /// Effects: the lane that was made for the identity `before`, if any, is `after`'s; unless that has one.
    void rename(std::uint64_t before, std::uint64_t after) noexcept {
        const auto it = by_id_.find(before);
        if (it == by_id_.end() || by_id_.contains(after)) return;
        lanes_[it->second].id = after;
        auto node = by_id_.extract(it);
        node.key() = after;
        by_id_.insert(std::move(node));
    }

    /// Returns: where memory freed on this lane goes.
    [[nodiscard]] domain open(lane_id id) const noexcept { return id == no_lane ? lost : lanes_[id].open; }

    /// Returns: identity of the lane's stream.
    [[nodiscard]] std::uint64_t stream_id(lane_id id) const noexcept { return lanes_[id].id; }

    /// Returns: where an allocation of this lane may take memory from; of `no_lane`: what every stream may take.
    [[nodiscard]] domain_list usable(lane_id id) const noexcept {
        domain_list list;
        if (id == no_lane) {
            list.push(settled);
            return list;
        }
        const lane& l = lanes_[id];
        list.push(l.open);
        for (std::size_t g = l.generations; g-- > 0;) list.push(l.marked[g].color);
        list.push(settled);
        for (lane_id other = 0; other < l.stands_behind.size(); ++other) {
            const lane& o = lanes_[other];
            if (l.stands_behind[other] == 0 || other == id || !o.in_use) continue;
            if (behind(id, other, o.latest)) list.push(o.open);
            for (std::size_t g = 0; g < o.generations && behind(id, other, o.marked[g].latest); ++g)
                list.push(o.marked[g].color);
        }
        return list;
    }

    /// Effects: what has been said in the device's book since the last time counts: what the host has waited for is
    /// settled, and the lane stands behind what its stream stands behind. Returns: whether anything became settled.
    template <layout::layout Layout>
    bool learn(lane_id id, Layout& blocks) noexcept requires tells_waits<Device> {
        const stream_waits& book = device_->waits();
        const std::uint64_t now = book.changes();
        bool any = false;
        if (now != settled_at_ && by_id_.size() > 1) {
            any = settle_known(blocks);
            settled_at_ = now;
        }
        if (id == no_lane || lanes_[id].learned == now) return any;
        lane& l = lanes_[id];
        l.learned = now;
        l.recorded = book.recorded_up_to(l.id);
        try {
            l.stands_behind.resize(lanes_.size());
        } catch (...) {
            return any;
        }
        for (lane_id other = 0; other < lanes_.size(); ++other)
            l.stands_behind[other] = lanes_[other].in_use ? book.before(l.id, lanes_[other].id) : 0;
        return any;
    }

    /// To be called before a free into `open(id)` in a call that names `stream`, which is not capturing.
    /// Effects: if others may stand behind all frees so far, but not behind this one, these are kept apart from it.
    template <layout::layout Layout>
    void part_recorded(lane_id id, stream_handle stream,
                       Layout& blocks) noexcept requires tells_waits<Device> {
        if (id == no_lane || by_id_.size() == 1) return;
        lane& l = lanes_[id];
        if (l.learned != device_->waits().changes()) l.recorded = device_->waits().recorded_up_to(l.id);
        if (l.latest != 0 && l.latest < l.recorded) mark(l, stream, blocks);
    }

    /// Returns: whether no other stream has a lane.
    [[nodiscard]] bool is_sole(lane_id id) const noexcept { return id != no_lane && by_id_.size() == 1; }

    /// To be called after `bytes` bytes were freed into `open(id)`.
    void freed(lane_id id, std::size_t bytes) noexcept {
        if (id == no_lane) return;
        lanes_[id].unmarked = saturating_add(lanes_[id].unmarked, bytes);
        if constexpr (tells_waits<Device>)
            lanes_[id].latest = std::max(lanes_[id].latest, device_->waits().freed());
    }

    /// To be called at the end of a call that names `stream`, which is not capturing.
    /// Effects: records an event if enough has been freed since the last one, or somebody has asked.
    template <layout::layout Layout>
    void mark_if_due(lane_id id, stream_handle stream, Layout& blocks) noexcept {
        if (id == no_lane || lanes_[id].unmarked == 0) return;
        lane& l = lanes_[id];
        if (device_->permanent(stream)) l.permanent_handle = stream, l.permanent = true;
        if (l.wanted || (!l.permanent && is_much(l.unmarked))) mark(l, stream, blocks);
    }

    /// To be called for the only lane when it missed, in a call that names its stream.
    /// Effects: marks now, so that what was freed since the last mark merges with what was freed before.
    /// Returns: whether anything changed.
    template <layout::layout Layout>
    bool gather(lane_id id, stream_handle stream, Layout& blocks) noexcept {
        lane& l = lanes_[id];
        return l.generations != 0 && blocks.free_bytes(l.open) != 0 && mark(l, stream, blocks);
    }

    /// Effects: asks which marks have passed, and settles what was freed before them. Returns: whether any had.
    template <layout::layout Layout>
    bool poll(Layout& blocks) noexcept {
        return settle_where(blocks, [this](event_handle e) { return device_->query(e) == status::ok; });
    }

    /// The same, but the host waits for all marks. What the device refuses to wait for stays marked.
    template <layout::layout Layout>
    bool synchronize(Layout& blocks) noexcept {
        return settle_where(blocks, [this](event_handle e) { return device_->synchronize(e) == status::ok; });
    }

    /// Effects: the host has seen all work of the device pass: all free memory is settled, what was lost too.
    template <layout::layout Layout>
    void all_passed(Layout& blocks) noexcept {
        for (lane& l : lanes_) {
            if (!l.in_use) continue;
            while (l.generations > 0) {
                generation& g = l.marked[--l.generations];
                blocks.recolor(g.color, settled);
                retire(g);
            }
            blocks.recolor(l.open, settled);
            l.unmarked = 0;
            l.latest = 0;
            l.wanted = false;
        }
        blocks.recolor(lost, settled);
    }

    /// Effects: asks all lanes but `asker` to mark what they have: permanent streams at once, others at their
    /// next call. Returns: whether an event was recorded.
    template <layout::layout Layout>
    bool ask_others(lane_id asker, Layout& blocks) noexcept {
        bool recorded = false;
        for (lane_id id = 0; id < lanes_.size(); ++id) {
            lane& l = lanes_[id];
            if (!l.in_use || id == asker || l.unmarked == 0 || blocks.free_bytes(l.open) == 0 ||
                behind(asker, id, l.latest))
                continue;
            l.wanted = true;
            if (l.permanent) recorded |= mark_permanent(l, blocks);
        }
        return recorded;
    }

    /// Effects: marks what other permanent streams hold unmarked, where that is `bytes` or more. Nothing else marks it
    /// before somebody misses, and a mark that is recorded as late as that stands behind work enqueued since.
    template <layout::layout Layout>
    void mark_others(lane_id asker, std::size_t bytes, Layout& blocks) noexcept {
        for (lane_id id = 0; id < lanes_.size(); ++id) {
            lane& l = lanes_[id];
            if (l.in_use && id != asker && l.permanent && l.unmarked != 0 &&
                blocks.free_bytes(l.open) >= bytes && !behind(asker, id, l.latest))
                (void)mark_permanent(l, blocks);
        }
    }

    /// Returns: bytes free that wait for marks of other streams than this lane's.
    template <layout::layout Layout>
    [[nodiscard]] std::size_t marked_by_others(lane_id asker, const Layout& blocks) const noexcept {
        std::size_t bytes = 0;
        for (lane_id id = 0; id < lanes_.size(); ++id)
            for (std::size_t g = 0; id != asker && g < lanes_[id].generations; ++g)
                if (!behind(asker, id, lanes_[id].marked[g].latest))
                    bytes += blocks.free_bytes(lanes_[id].marked[g].color);
        return bytes;
    }

    /// Returns: bytes free that only other streams than this lane's may use now.
    template <layout::layout Layout>
    [[nodiscard]] std::size_t bytes_of_others(lane_id id, const Layout& blocks) const noexcept {
        std::size_t own = 0;
        const domain_list list = usable(id);
        for (const domain d : list.view()) own += blocks.free_bytes(d);
        return blocks.free_bytes() - own;
    }

    /// Returns: identity of the stream that a free block of this colour waits for; 0 if settled.
    [[nodiscard]] std::uint64_t stream_of(domain color) const noexcept {
        for (const lane& l : lanes_) {
            if (!l.in_use) continue;
            if (l.open == color) return l.id;
            for (std::size_t g = 0; g < l.generations; ++g)
                if (l.marked[g].color == color) return l.id;
        }
        return 0;
    }

  private:
    using stamp = stream_waits::stamp;

    struct generation {
        domain color = settled;
        event_handle event = nullptr;
        stamp latest = 0; ///< of the frees in it
    };
    struct lane {
        std::uint64_t id = 0;
        std::size_t unmarked = 0; ///< bytes freed into `open`, an upper bound of what is still there
        stream_handle permanent_handle = nullptr;
        std::array<generation, max_generations> marked{}; ///< oldest first
        std::size_t generations = 0;
        domain open = settled;
        bool in_use = false;
        bool permanent = false;
        bool wanted = false;
        bool had_passed = false; ///< all marks, at the last look
        stamp latest = 0;        ///< of the frees in `open`; 0: none since it was opened
        // What the book said when it was read last:
        stamp recorded = 0;               ///< some record on the stream comes after all frees before this one
        std::vector<stamp> stands_behind; ///< by lane: of whose frees, up to which one
        std::uint64_t learned = 0;        ///< as of which change
    };

    /// Returns: whether what the lane `later` does from now on comes after the free on `earlier` with this stamp.
    [[nodiscard]] bool behind(lane_id later, lane_id earlier, stamp free) const noexcept {
        return later != no_lane && earlier < lanes_[later].stands_behind.size() &&
               free < lanes_[later].stands_behind[earlier];
    }

    /// The more lanes there are, the less each may hold unmarked: were all n lanes those of destroyed
    /// streams, they would hold less than mark_bytes * (1 + ln n) in all.
    [[nodiscard]] bool is_much(std::size_t unmarked) const noexcept {
        return mark_bytes_ != no_limit && unmarked >= mark_bytes_ / by_id_.size();
    }

    /// Closes `open` into a new generation. A refusing driver changes nothing; the next call tries again.
    template <layout::layout Layout>
    bool mark(lane& l, stream_handle stream, Layout& blocks) noexcept {
        if (blocks.free_bytes(l.open) == 0) {
            l.unmarked = 0;
            l.latest = 0;
            return false;
        }
        drop_empty(l, blocks);
        if (l.recorded != 0 && l.generations == max_generations) join_oldest(l, blocks);
        // What is being marked now joins the newest generation when there are enough of them, or nobody else who
        // waits for one: then all but the newest frees stays merged. The cost is that of what was freed since.
        const bool joins = l.generations == max_generations || (l.generations != 0 && by_id_.size() == 1);
        const domain fresh = joins ? settled : take_domain();
        if (!joins && fresh == settled) return false;
        const result<event_handle, status> event = events_->mark(stream);
        if (!event) {
            if (!joins) free_domains_.push_back(fresh);
            return false;
        }
        if (joins) {
            generation& newest = l.marked[l.generations - 1];
            blocks.recolor(l.open, newest.color);
            events_->release(newest.event);
            newest.event = *event;
            newest.latest = std::max(newest.latest, l.latest);
        } else {
            l.marked[l.generations++] = {l.open, *event, l.latest};
            l.open = fresh;
        }
        l.unmarked = 0;
        l.latest = 0;
        l.wanted = false;
        return true;
    }

    template <layout::layout Layout>
    bool mark_permanent(lane& l, Layout& blocks) noexcept {
        const result<stream_state, status> state = device_->describe(l.permanent_handle);
        return state && !state->capturing() && mark(l, l.permanent_handle, blocks);
    }

    template <layout::layout Layout, class Passed>
    bool settle_where(Layout& blocks, Passed passed) noexcept {
        bool any = false;
        for (lane& l : lanes_) {
            if (l.generations == 0) continue;
            // The newest mark tells of all, since marks of a stream pass in order. It is asked first where it had passed
            // at the last look: so a stream that keeps up costs one query.
            const bool newest_first = l.generations > 1 && l.had_passed;
            std::size_t done = 0;
            if (newest_first && passed(l.marked[l.generations - 1].event)) done = l.generations;
            const std::size_t unknown = newest_first ? l.generations - 1 : l.generations;
            while (done < unknown && passed(l.marked[done].event)) ++done;
            l.had_passed = done == l.generations;
            any = settle_oldest(l, done, blocks) || any;
        }
        return any;
    }

    /// Effects: settles what the host is known to have waited for.
    template <layout::layout Layout>
    bool settle_known(Layout& blocks) noexcept requires tells_waits<Device> {
        bool any = false;
        for (lane& l : lanes_) {
            if (!l.in_use) continue;
            const stamp passed = device_->waits().passed(l.id);
            std::size_t done = 0;
            while (done < l.generations && l.marked[done].latest < passed) ++done;
            any = settle_oldest(l, done, blocks) || any;
            if (l.generations != 0 || l.latest == 0 || l.latest >= passed) continue;
            any = any || blocks.free_bytes(l.open) != 0;
            blocks.recolor(l.open, settled);
            l.unmarked = 0;
            l.latest = 0;
        }
        return any;
    }

    /// Others may stand behind the newest long before it has passed: it is kept apart, and the two oldest are not.
    template <layout::layout Layout>
    void join_oldest(lane& l, Layout& blocks) noexcept {
        blocks.recolor(l.marked[0].color, l.marked[1].color);
        retire(l.marked[0]);
        std::rotate(l.marked.begin(), l.marked.begin() + 1, l.marked.begin() + l.generations);
        --l.generations;
    }

    /// Effects: the oldest `done` generations are settled. Returns: whether there are any.
    template <layout::layout Layout>
    bool settle_oldest(lane& l, std::size_t done, Layout& blocks) noexcept {
        for (std::size_t g = 0; g < done; ++g) {
            blocks.recolor(l.marked[g].color, settled);
            retire(l.marked[g]);
        }
        for (std::size_t g = done; g < l.generations; ++g) l.marked[g - done] = l.marked[g];
        l.generations -= done;
        return done != 0;
    }

    /// Generations whose memory the lane has used again need no event.
    template <layout::layout Layout>
    void drop_empty(lane& l, const Layout& blocks) noexcept {
        std::size_t kept = 0;
        for (std::size_t g = 0; g < l.generations; ++g) {
            if (blocks.free_bytes(l.marked[g].color) == 0)
                retire(l.marked[g]);
            else
                std::swap(l.marked[kept++], l.marked[g]);
        }
        l.generations = kept;
    }

    void retire(generation& g) noexcept {
        events_->release(g.event);
        free_domains_.push_back(g.color);
        g = {};
    }

    /// Returns: a domain that no free block has, or `settled` when there is none. Reserves the room to give it back.
    domain take_domain() noexcept {
        if (!free_domains_.empty()) {
            const domain d = free_domains_.back();
            free_domains_.pop_back();
            return d;
        }
        if (next_domain_ == std::numeric_limits<domain>::max()) {
            short_of_domains_ = true;
            return settled;
        }
        try {
            free_domains_.reserve(std::size_t{next_domain_} + 1);
        } catch (...) {
            return settled;
        }
        return next_domain_++;
    }

    /// Forgets lanes that hold nothing.
    template <layout::layout Layout>
    void sweep(const Layout& blocks) noexcept {
        for (lane_id id = 0; id < lanes_.size(); ++id) {
            lane& l = lanes_[id];
            if (!l.in_use || l.generations != 0 || blocks.free_bytes(l.open) != 0) continue;
            by_id_.erase(l.id);
            free_domains_.push_back(l.open);
            idle_lanes_.push_back(id); // room was reserved when the lane was made
            l.in_use = false;
        }
        sweep_at_ = std::max<std::size_t>(64, 2 * by_id_.size());
        short_of_domains_ = false;
    }

    Device* device_;
    event_cache<Device>* events_;
    std::size_t mark_bytes_;
    own_lines_vector<lane> lanes_;
    own_lines_vector<lane_id> idle_lanes_;
    own_lines_vector<domain> free_domains_;
    own_lines_map<std::uint64_t, lane_id> by_id_;
    lane_id last_ = no_lane;
    domain next_domain_ = 2;
    std::size_t sweep_at_ = 64;
    std::uint64_t settled_at_ = 0; ///< the book's change that `settle_known` looked at
    bool short_of_domains_ = false;
};

} // namespace tenure
