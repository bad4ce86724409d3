#pragma once

/// \file
/// `heap_picture<Device>`: what a heap holds, drawn for snapshots and summed up for whoever asks.
///
///     every reserved byte is drawn once:   arenas, without the segments of private pools
///                                          private pools, a segment each
///                                          free memory of driver pools, of which nobody says where it is
///
/// Invariant: the sums over the picture equal the heap's statistics, which `adds_up` checks.
/// Complexity: O(n log n) in blocks. Thread-safety: externally synchronised, by the heap's mutex.

#include "heap_state.hpp"
#include "picture.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/device.hpp>
#include <tenure/resource/usage.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tenure::torch {

/// One private pool. Bytes.
struct pool_facts {
    c10::MempoolId_t id{0, 0};
    int use_count = 0;
    std::size_t segments = 0, bytes = 0, live = 0, live_bytes = 0;
    bool use_on_oom = false, no_split = false, captured = false;
};

template <device Device>
class heap_picture {
  public:
    using pool_id = c10::MempoolId_t;

    explicit heap_picture(const heap_state<Device>& s) noexcept : all_(&s) {}

    /// Effects: appends all segments ({0, 0}), or those of one pool, in address order. Returns: active bytes in them.
    std::size_t draw(pool_id only, std::vector<segment_info>& out) const {
        const std::size_t first = out.size();
        if (only == pool_id{0, 0}) {
            known_blocks known;
            all_->blocks.for_each_live([&](const block& b) { known.emplace(to_address(b.ptr), &b); });
            all_->pending.for_each([&](const block& b) { known.emplace(to_address(b.ptr), &b); });
            std::map<const arena_slot*, holes> cut;
            for (const auto& [id, pool] : all_->pools)
                pool->for_each_segment([&](const pool_segment& s) {
                    if (s.slot != nullptr) cut[s.slot].emplace(to_address(s.base), s.bytes);
                });
            for (const auto& s : all_->slots) draw_arena(*s, known, cut[s.get()], out);
        }
        for (const auto& [id, pool] : all_->pools)
            if (only == pool_id{0, 0} || only == id) draw_pool(*pool, out);
        std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                  [](const segment_info& a, const segment_info& b) { return a.address < b.address; });
        std::size_t active = 0;
        for (std::size_t i = first; i < out.size(); ++i) active += out[i].active_size;
        return active;
    }

    /// Returns: whether the sums over the picture equal the statistics, and each segment is tiled by its blocks.
    [[nodiscard]] bool adds_up(const statistics::values& now) const {
        std::vector<segment_info> picture;
        draw({0, 0}, picture);
        std::size_t reserved = 0, allocated = 0, active = 0, requested = 0, split = 0;
        for (const segment_info& s : picture) {
            reserved += s.total_size;
            allocated += s.allocated_size;
            active += s.active_size;
            requested += s.requested_size;
            std::size_t tiled = 0;
            for (const block_info& b : s.blocks) {
                tiled += b.size;
                if (!s.is_expandable && s.blocks.size() > 1 && !b.active) split += b.size;
            }
            if (tiled != s.total_size) return false;
        }
        const auto is = [](const statistics::array& a, std::size_t n) {
            return a[0].current == static_cast<std::int64_t>(n);
        };
        return is(now.reserved_bytes, reserved) && is(now.allocated_bytes, allocated) &&
               is(now.active_bytes, active) && is(now.requested_bytes, requested) &&
               is(now.inactive_split_bytes, split);
    }

    [[nodiscard]] std::vector<pool_facts> pools() const {
        std::vector<pool_facts> all;
        for (const auto& [id, p] : all_->pools) {
            pool_facts f{id, p->use_count, 0, 0, 0, 0, p->use_on_oom, p->no_split, p->captured};
            p->for_each_segment([&](const pool_segment& s) {
                ++f.segments;
                f.bytes += s.bytes;
                for (const block* b = s.first; b != nullptr; b = b->next) {
                    if (!b->allocated) continue;
                    ++f.live;
                    f.live_bytes += b->size;
                }
            });
            all.push_back(f);
        }
        return all;
    }

    /// Returns: bytes that one request may hope for without buying: an upper bound where memory can be joined, else the
    /// largest free block there is.
    [[nodiscard]] std::size_t largest_free() const {
        std::size_t best = 0;
        for (const auto& s : all_->slots) {
            if (s->arena->remaps()) {
                const usage_counters u = s->memory().usage();
                best = std::max(best, u.reserved.current - std::min(u.reserved.current, u.allocated.current));
                continue;
            }
            for (const segment_snapshot& seg : s->memory().snapshot().segments)
                for (const block_snapshot& b : seg.blocks)
                    if (b.state == block_state::free) best = std::max(best, b.size);
        }
        return best;
    }

  private:
    void draw_arena(const arena_slot& s, const known_blocks& known, const holes& cut,
                    std::vector<segment_info>& out) const {
        const std::size_t first = out.size();
        arena_painter(all_->index(), known, cut, out).draw(s.memory().snapshot());
        std::size_t drawn = s.in_segments;
        for (std::size_t i = first; i < out.size(); ++i) drawn += out[i].total_size;
        const std::size_t reserved = s.memory().usage().reserved.current;
        if (drawn >= reserved) return;
        // A driver pool does not say where its free memory is: it is drawn behind the last block.
        segment_info unknown;
        unknown.device = all_->index();
        unknown.is_large = true;
        unknown.is_expandable = true;
        if (first < out.size()) unknown.address = out.back().address + out.back().total_size;
        draw_block(unknown, reserved - drawn, nullptr);
        out.push_back(std::move(unknown));
    }

    void draw_pool(const private_pool& p, std::vector<segment_info>& out) const {
        p.for_each_segment([&](const pool_segment& s) {
            segment_info shown;
            shown.device = all_->index();
            shown.address = to_address(s.base);
            shown.stream = s.stream;
            shown.is_large = !s.small;
            shown.owner_private_pool_id = p.id();
            shown.context_when_allocated = s.context;
            for (const block* b = s.first; b != nullptr; b = b->next)
                draw_block(shown, b->size, b->allocated || b->pending ? b : nullptr);
            shown.stream = s.stream;
            out.push_back(std::move(shown));
        });
    }

    const heap_state<Device>* all_;
};

} // namespace tenure::torch
