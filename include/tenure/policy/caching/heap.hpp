#pragma once

/// \file
/// `heap`: the memory of a `caching_pool` and its books; it decides nothing. The pool says when, the heap
/// does it.
///
///     segment   [ block | free | block | free ]     bought for one lane, for small or for large blocks
///
/// One best-fit layout spans all segments; colours keep lanes, and small and large blocks, apart.
///
/// States of a block:
///
///     free --hand_out--> allocated --set_pending--> pending --events pass--> retire
///                            |                                                 ^
///                            +-------------------------------------------------+
///     retire --> free, in its lane; or captured, until its captures are released
///
/// Invariants:
///   1. Every live block is in the pointer map, and its record holds its size as requested and its lane.
///   2. `captured` is what only a capture may have: blocks that wait for a capture's release, and free memory of
///      capture lanes. `allocated` is that, and what live and pending blocks take; the rest of `reserved` is free.
///   3. A segment belongs to small or to large blocks for good, and no free block crosses two segments.
///   4. What the driver could not order ends in lane `lost`, never in a lane that somebody may take from.
///
/// Complexity: O(log n) a block; books of segments O(1). Thread-safety: thread-compatible.

#include <tenure/backing/segments.hpp>
#include <tenure/core.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/pointer_map.hpp>
#include <tenure/device/device.hpp>
#include <tenure/layout/best_fit.hpp>
#include <tenure/ordering/event_cache.hpp>
#include <tenure/ordering/pending_uses.hpp>
#include <tenure/policy/caching/lane_table.hpp>
#include <tenure/policy/caching_options.hpp>
#include <tenure/resource/usage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace tenure::caching {

template <device Device>
class heap {
  public:
    using block_id = layout::block_id;
    using candidate = layout::best_fit::candidate;

    /// What the layout does not know about a used block.
    struct block_record {
        std::size_t requested = 0;
        std::uint32_t holds = 0; ///< captures, beside its lane's, that it waits for
        lane_id lane = lane_table::shared;
        block_state state = block_state::free;
        bool small = false; ///< of a segment for small blocks
        bool lost = false;  ///< a use of it could not be noted: its reuse must wait for one knows not what
    };

    /// What is known about a segment.
    struct segment_record {
        std::uint64_t capture = 0;  ///< which may replay into it
        std::uint64_t freed_at = 0; ///< when a block of it was last freed, by the clock of garbage collection
        bool small = false;         ///< for small blocks
        bool settled = true;        ///< of a capture: all its blocks were freed inside the capture
    };

    heap(Device& device, const caching_options& options) noexcept
        : options_(&options)
        , backing_granularity_(device.allocation_granularity())
        , backing_(device)
        , events_(device)
        , uses_(device, events_) {}

    heap(const heap&) = delete;
    heap& operator=(const heap&) = delete;

    [[nodiscard]] lane_table& lanes() noexcept { return lanes_; }
    [[nodiscard]] const lane_table& lanes() const noexcept { return lanes_; }
    [[nodiscard]] layout::best_fit& blocks() noexcept { return blocks_; }
    [[nodiscard]] const layout::best_fit& blocks() const noexcept { return blocks_; }
    [[nodiscard]] event_cache<Device>& events() noexcept { return events_; }
    [[nodiscard]] pending_uses<Device>& uses() noexcept { return uses_; }
    [[nodiscard]] const segments<Device>& backing() const noexcept { return backing_; }
    [[nodiscard]] const usage_counters& counters() const noexcept { return counters_; }
    [[nodiscard]] block_record& record(block_id id) noexcept { return records_[id]; }
    [[nodiscard]] const block_record& record(block_id id) const noexcept { return records_[id]; }

    void count_failure() noexcept { ++counters_.failures; }

    /// Returns: the id of the live block that starts at `p`.
    [[nodiscard]] std::optional<block_id> live_block(const void* p) const noexcept {
        return live_.find(to_address(p));
    }

    // ---- allocation ----

    /// Returns: the smallest block of these domains that may serve `bytes`, if the best one is acceptable.
    [[nodiscard]] std::optional<candidate> find(std::size_t bytes, std::size_t alignment,
                                                std::span<const layout::domain> domains) noexcept {
        if (!options_->is_small(bytes)) ++searches_;
        std::optional<candidate> best = blocks_.find(bytes, alignment, domains);
        if (best && !options_->acceptable(bytes, best->size)) best.reset();
        return best;
    }

    /// Effects: takes a block for `lane` from a candidate, splitting it by the options' rules.
    /// Returns: its address. Throws: `std::bad_alloc`, changing nothing.
    void* hand_out(const candidate& c, lane_id lane, std::size_t requested, std::size_t bytes,
                   std::size_t alignment) {
        const layout::domain color = blocks_.domain_of(c.id);
        const std::size_t room = c.size - static_cast<std::size_t>(round_up(c.offset, alignment) - c.offset);
        const block_id id = blocks_.take(c, options_->splits(bytes, room) ? bytes : room, alignment);
        try {
            if (id >= records_.size()) records_.resize(std::size_t{id} + 1);
            live_.insert(blocks_.offset(id), id);
        } catch (...) {
            blocks_.deallocate(id, color);
            throw;
        }
        const std::size_t size = blocks_.size(id);
        records_[id] = {requested, 0, lane, block_state::allocated, lane_table::is_small(color), false};
        lanes_.attach(lane);
        if (lanes_.capture(lane_table::lane_of(color)) != 0)
            counters_.captured -= size;
        else
            counters_.allocated.add(size);
        counters_.requested.add(requested);
        counters_.blocks.add(1);
        return to_pointer(blocks_.offset(id));
    }

    // ---- free ----

    /// Effects: the block is nobody's any more; its memory is still used. To be followed by `retire`, at once
    /// or, after `set_pending`, when its events have passed.
    void forget(block_id id) noexcept {
        block_record& b = records_[id];
        live_.erase(blocks_.offset(id));
        counters_.requested.subtract(b.requested);
        counters_.blocks.subtract(1);
        b.requested = 0;
    }

    void set_pending(block_id id) noexcept {
        records_[id].state = block_state::pending;
        counters_.pending += blocks_.size(id);
    }

    /// Effects: the block waits for `capture` too, from its free on. Without host memory to remember which
    /// capture it was, it waits until the pool's end.
    void hold(block_id id, std::uint64_t capture) noexcept {
        try {
            for (const auto& h : holds_)
                if (h.block == id && h.capture == capture) return;
            holds_.push_back({id, capture});
        } catch (...) {
        }
        ++records_[id].holds;
    }

    /// To be called when a block of a capture lane is freed outside that capture: work outside the graph may
    /// still use it when the graph is long over.
    void unsettle(block_id id) noexcept { segments_.find(blocks_.range_of(id).base)->second.settled = false; }

    /// Effects: memory of a forgotten block, whose uses are over unless it is `lost`, goes where it may be
    /// reused.
    void retire(block_id id) noexcept {
        block_record& b = records_[id];
        const std::size_t size = blocks_.size(id);
        if (b.state == block_state::pending) counters_.pending -= size;
        const bool of_capture = lanes_.capture(b.lane) != 0;
        if (of_capture || b.holds != 0)
            counters_.captured += size;
        else
            counters_.allocated.subtract(size);
        if (b.holds != 0 || (of_capture && b.lost)) {
            b.state = block_state::captured;
            ++waiting_for_captures_;
            return;
        }
        give_to_lane(id);
    }

    /// Effects: nothing replays `capture` any more, and all work of its graphs is over. What waited for it
    /// alone becomes free, and segments that it alone has used serve everybody.
    void release_captured(std::uint64_t capture) noexcept {
        if (capture == 0) return;
        std::size_t kept = 0;
        for (const auto& h : holds_) {
            if (h.capture == capture)
                --records_[h.block].holds;
            else
                holds_[kept++] = h;
        }
        holds_.resize(kept);
        drop_from_captures(spare_segments_of(capture));
        const std::size_t before = lanes_.captured_bytes(blocks_);
        for (auto& [base, s] : segments_)
            if (s.capture == capture) s.capture = 0;
        lanes_.release(capture, blocks_);
        drop_from_captures(before - lanes_.captured_bytes(blocks_));
        for (block_id id = 0; waiting_for_captures_ != 0 && id < records_.size(); ++id) {
            block_record& b = records_[id];
            if (b.state != block_state::captured || b.holds != 0 || lanes_.capture(b.lane) != 0) continue;
            --waiting_for_captures_;
            drop_from_captures(blocks_.size(id));
            give_to_lane(id);
        }
    }

    // ---- segments ----

    /// Effects: gets a segment for a lane, of at least `bytes` and large enough for `block` bytes at the
    /// alignment: a spare one, or else a new one from the device.
    /// Returns: its free block, or the device's answer. Throws: `std::bad_alloc`, changing nothing.
    result<candidate, status> grow(lane_id lane, bool small, std::size_t bytes, std::size_t block,
                                   std::size_t alignment) {
        const std::size_t given = std::max(backing_granularity_, layout::granule); // how segments are aligned
        if (alignment > given) bytes = std::max(bytes, saturating_add(block, alignment - given));
        if (const std::optional<candidate> spare = take_spare(lane, small, bytes, alignment)) return *spare;
        segments_.reserve(segments_.size() + 2);
        const std::size_t count = backing_.count();
        const result<segment_range, status> got =
            backing_.acquire(bytes, std::clamp(alignment, layout::granule, given));
        count_segments();
        if (got) return candidate{adopt({got->base, got->size}, lane, small), got->base, got->size};
        if (backing_.count() > count) { // bought, of no use for this request, and not taken back
            layout::range stray;
            backing_.for_each([&](const segment_range& s) {
                if (!segments_.contains(s.base)) stray = {s.base, s.size};
            });
            adopt(stray, lane, small);
        }
        return got.error();
    }

    /// Effects: gives the wholly free segment at `base` back. Returns: `ok`, or the device's answer; then it
    /// is kept.
    status give_back(std::uint64_t base) noexcept {
        const status s = backing_.give_back(base);
        if (s != status::ok) return s;
        blocks_.remove(base);
        segments_.erase(base);
        count_segments();
        return s;
    }

    /// Calls f(range, segment_record) for each wholly free segment that no capture needs, in address order.
    template <class F>
    void for_each_releasable(F&& f) const {
        blocks_.for_each_free_range([&](const layout::range& r) {
            const segment_record& s = segments_.at(r.base);
            if (s.capture == 0) f(r, s);
        });
    }

    /// Returns: how many searches for large blocks there have been: the clock of garbage collection.
    [[nodiscard]] std::uint64_t searches() const noexcept { return searches_; }

    // ---- pictures ----

    [[nodiscard]] block_snapshot describe(const layout::block_view& b) const noexcept {
        if (!b.free) {
            const block_record& r = records_[b.id];
            return {b.offset, b.size, r.requested, r.state, lanes_.stream(r.lane)};
        }
        const lane_id l = lane_table::lane_of(b.color);
        const block_state state = lanes_.capture(l) != 0 ? block_state::captured : block_state::free;
        return {b.offset, b.size, 0, state, lanes_.stream(l)};
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!blocks_.validate() || !live_.validate()) return false;
        if (backing_.bytes() != counters_.reserved.current || backing_.count() != counters_.segments.current)
            return false;
        if (segments_.size() != backing_.count() || live_.size() != counters_.blocks.current) return false;
        bool good = true;
        std::size_t requested = 0, allocated = 0, pending = 0, live = 0, waiting = 0;
        std::size_t captured = lanes_.captured_bytes(blocks_);
        allocated += captured;
        blocks_.for_each_block([&](const layout::block_view& b) {
            const segment_range in = backing_.find(b.offset);
            const auto segment = segments_.find(in.base);
            good = good && segment != segments_.end() && b.offset + b.size <= in.base + in.size;
            if (b.free) {
                const lane_id l = lane_table::lane_of(b.color);
                good = good && lanes_.in_use(l) && segment->second.small == lane_table::is_small(b.color);
                return;
            }
            const block_record& r = records_[b.id];
            good = good && lanes_.in_use(r.lane) && r.requested <= b.size;
            requested += r.requested;
            allocated += b.size;
            if (r.state == block_state::captured) {
                captured += b.size;
                ++waiting;
            }
            if (r.state == block_state::pending) pending += b.size;
            if (r.state == block_state::allocated) {
                ++live;
                good = good && live_.find(b.offset) == std::optional<std::uint32_t>(b.id);
            }
        });
        return good && live == counters_.blocks.current && requested == counters_.requested.current &&
               allocated == counters_.allocated.current && pending == counters_.pending &&
               captured == counters_.captured && waiting == waiting_for_captures_;
    }

  private:
    struct hold_record {
        block_id block;
        std::uint64_t capture;
    };

    void give_to_lane(block_id id) noexcept {
        block_record& b = records_[id];
        const lane_id to = b.lost ? lane_table::lost : lanes_.destination(b.lane);
        if (options_->garbage_collection_threshold > 0)
            segments_.find(blocks_.range_of(id).base)->second.freed_at = searches_;
        b.state = block_state::free;
        blocks_.deallocate(id, lane_table::domain_of(to, b.small));
        lanes_.detach(b.lane);
    }

    void keep_for_capture(std::size_t bytes) noexcept {
        counters_.captured += bytes;
        counters_.allocated.add(bytes);
    }
    void drop_from_captures(std::size_t bytes) noexcept {
        counters_.captured -= bytes;
        counters_.allocated.subtract(bytes);
    }

    /// A whole free block changes its lane. Throws: `std::bad_alloc`, changing nothing.
    void move_segment(const candidate& c, lane_id to) {
        const bool small = lane_table::is_small(blocks_.domain_of(c.id));
        blocks_.deallocate(blocks_.take(c, c.size, layout::granule), lane_table::domain_of(to, small));
    }

    std::optional<candidate> take_spare(lane_id lane, bool small, std::size_t bytes, std::size_t alignment) {
        const layout::domain spare[] = {lane_table::domain_of(lane_table::spare, small)};
        const std::optional<candidate> c = blocks_.find(bytes, alignment, spare);
        if (!c || !options_->acceptable(bytes, c->size)) return std::nullopt;
        segment_record& s = segments_.find(c->offset)->second;
        move_segment(*c, lane);
        s.capture = lanes_.capture(lane);
        s.settled = true;
        if (s.capture != 0) keep_for_capture(c->size);
        return c;
    }

    /// Effects: makes the wholly free segments of a capture spare. Returns: their bytes.
    std::size_t spare_segments_of(std::uint64_t capture) noexcept {
        std::size_t bytes = 0;
        try {
            std::vector<candidate> whole;
            blocks_.for_each_block([&](const layout::block_view& b) {
                if (b.free && lanes_.capture(lane_table::lane_of(b.color)) == capture &&
                    blocks_.is_whole_range(b.id) && segments_.at(b.offset).settled)
                    whole.push_back({b.id, b.offset, b.size});
            });
            for (const candidate& c : whole) {
                move_segment(c, lane_table::spare);
                bytes += c.size;
            }
        } catch (...) { // the rest goes home, to the stream it was bought for
        }
        return bytes;
    }

    block_id adopt(const layout::range& r, lane_id lane, bool small) {
        block_id id = layout::no_block;
        try {
            id = blocks_.add(r, lane_table::domain_of(lane, small));
            segments_.insert({r.base, {lanes_.capture(lane), searches_, small, true}});
        } catch (...) {
            blocks_.remove(r.base);
            backing_.give_back(r.base);
            count_segments();
            throw;
        }
        if (lanes_.capture(lane) != 0) keep_for_capture(r.size);
        return id;
    }

    void count_segments() noexcept {
        const auto follow = [](gauge& g, std::size_t now) {
            if (now > g.current)
                g.add(now - g.current);
            else
                g.subtract(g.current - now);
        };
        follow(counters_.reserved, backing_.bytes());
        follow(counters_.segments, backing_.count());
    }

    const caching_options* options_;
    const std::size_t backing_granularity_;
    segments<Device> backing_;
    event_cache<Device> events_;
    pending_uses<Device> uses_;
    lane_table lanes_;
    layout::best_fit blocks_;
    pointer_map live_;                                           ///< address of a live block -> id
    own_lines_vector<block_record> records_;                     ///< by block id
    own_lines_vector<hold_record> holds_;                        ///< which captures a block waits for
    std::unordered_map<std::uint64_t, segment_record> segments_; ///< by base
    usage_counters counters_;
    std::size_t waiting_for_captures_ = 0; ///< blocks in state `captured`
    std::uint64_t searches_ = 0;
};

} // namespace tenure::caching
