#pragma once

/// \file
/// `private_pool`: memory that is kept apart, for captured graphs and for `torch.cuda.MemPool`.
///
///     segment  |--A--|---free---|-B-|------free------|     bought whole, from an arena or from a MemPool's own allocator
///
/// Blocks keep their address until they are freed, segments until the pool is released: what a graph has captured stays
/// where it is. Free blocks serve the stream of their segment only, best fit, and merge with free neighbours at once.
///
/// Invariants:
///   1. The blocks of a segment tile it, in address order; no two neighbours are both free.
///   2. `free_` holds exactly the free blocks: neither allocated nor pending.
///   3. Nothing here calls a device. Segments are bought and given back by the heap.
///
/// Sizes follow torch's rules, since its users count segments: requests up to 1 MiB share segments of 2 MiB, larger ones
/// segments of `large_segment` bytes (20 MiB), and from 10 MiB on each has a segment of its own, in steps of 2 MiB.
///
/// Complexity: O(log free blocks). Thread-safety: externally synchronised, by the heap's mutex.

#include "block.hpp"
#include "history.hpp"
#include "statistics.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/units.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace tenure::torch {

class private_pool;

struct pool_segment {
    void* base = nullptr;
    std::size_t bytes = 0;
    bool small = false;
    stream_handle stream = nullptr;
    arena_slot* slot = nullptr; ///< where it was bought; null: from the pool's own allocator
    std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> source{};
    private_pool* pool = nullptr;
    block* first = nullptr;
    context_ptr context{};

    [[nodiscard]] statistics::pool counted_in() const noexcept {
        return small ? statistics::pool::small : statistics::pool::large;
    }
    [[nodiscard]] bool idle() const noexcept {
        return !first->split() && !first->allocated && !first->pending;
    }
};

/// A pool's layout at one instant, to be made again later at the same addresses.
struct pool_checkpoint final : c10::cuda::CUDACachingAllocator::AllocatorState {
    struct piece {
        void* ptr;
        std::size_t size;
        std::size_t requested;
        bool allocated;
        stream_handle stream;
        std::vector<stream_handle> uses;
    };
    struct segment {
        void* base;
        std::vector<piece> pieces;
    };
    c10::MempoolId_t id{0, 0};
    std::vector<segment> segments{};
};

class private_pool {
  public:
    using allocator_ptr = std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>;

    static constexpr std::size_t granule = 512; ///< bytes
    static constexpr std::size_t small_limit = 1_MiB;

    private_pool(c10::MempoolId_t id, block_table& blocks, statistics& counters)
        : id_(id), blocks_(&blocks), counters_(&counters) {}
    private_pool(const private_pool&) = delete;
    private_pool& operator=(const private_pool&) = delete;

    [[nodiscard]] c10::MempoolId_t id() const noexcept { return id_; }

    int use_count = 0;
    bool use_on_oom = false;
    bool no_split = false;
    bool captured = false; ///< a capture has used it: even its free memory may be written by a replay
    allocator_ptr source{};

    static bool is_small(std::size_t rounded) noexcept { return rounded <= small_limit; }

    /// Returns: bytes of the segment to buy for a block of `rounded` bytes.
    static std::size_t segment_bytes(std::size_t rounded, std::size_t large_segment) noexcept {
        if (is_small(rounded)) return 2_MiB;
        if (rounded < 10_MiB) return std::max(large_segment, round_up(rounded, 2_MiB));
        return round_up(rounded, 2_MiB);
    }

    /// Returns: a live block of at least `rounded` bytes from what is free on `stream`, or null.
    /// Throws: `std::bad_alloc`, changing nothing.
    block* take(std::size_t requested, std::size_t rounded, stream_handle stream) {
        const auto it = free_.lower_bound(key{is_small(rounded), stream, rounded, nullptr});
        if (it == free_.end() || (*it)->stream != stream || (*it)->segment->small != is_small(rounded))
            return nullptr;
        block* const b = *it;
        if (splits(*b, rounded)) {
            block* const rest = blocks_->create();
            note_free_gone(*b);
            auto node = free_.extract(it); // its memory serves the rest
            rest->ptr = static_cast<char*>(b->ptr) + rounded;
            rest->size = b->size - rounded;
            rest->stream = b->stream;
            rest->segment = b->segment;
            rest->previous = b;
            rest->next = b->next;
            if (rest->next != nullptr) rest->next->previous = rest;
            b->next = rest;
            b->size = rounded;
            node.value() = rest;
            free_.insert(std::move(node));
            note_free(*rest);
        } else {
            note_free_gone(*b);
            free_.erase(it);
        }
        b->requested = requested;
        b->allocated = true;
        counters_->allocated(b->segment->counted_in(), *b);
        return b;
    }

    /// Effects: `b`, whose free has been counted as requested and whose uses are over, is free. Host memory: if it runs
    /// out here, the process ends.
    void put_back(block* b) noexcept {
        counters_->free_completed(b->segment->counted_in(), *b);
        b->allocated = b->pending = false;
        b->requested = 0;
        b->uses.clear();
        b->context.reset();
        if (block* const p = b->previous; p != nullptr && free_now(*p)) {
            remove_free(p);
            p->size += b->size;
            unlink(b);
            b = p;
        }
        if (block* const n = b->next; n != nullptr && free_now(*n)) {
            remove_free(n);
            b->size += n->size;
            unlink(n);
        }
        insert_free(b);
    }

    /// Effects: takes the segment over; it is one free block. Throws: `std::bad_alloc`, changing nothing.
    void add(std::unique_ptr<pool_segment> s) {
        block* const whole = blocks_->create();
        whole->ptr = s->base;
        whole->size = s->bytes;
        whole->stream = s->stream;
        whole->segment = s.get();
        s->first = whole;
        s->pool = this;
        const auto counted = s->counted_in();
        segments_.emplace(to_address(s->base), std::move(s));
        insert_free(whole);
        counters_->segment_added(counted);
    }

    /// Returns: the segments in which nothing is used; they are the caller's now.
    std::vector<std::unique_ptr<pool_segment>> take_idle() {
        std::vector<std::unique_ptr<pool_segment>> idle;
        idle.reserve(segments_.size());
        for (auto it = segments_.begin(); it != segments_.end();) {
            if (!it->second->idle()) {
                ++it;
                continue;
            }
            block* const whole = it->second->first;
            remove_free(whole);
            blocks_->destroy(whole);
            it->second->first = nullptr;
            counters_->segment_removed(it->second->counted_in());
            idle.push_back(std::move(it->second));
            it = segments_.erase(it);
        }
        return idle;
    }

    [[nodiscard]] bool has_idle() const noexcept {
        return std::any_of(segments_.begin(), segments_.end(),
                           [](const auto& s) { return s.second->idle(); });
    }
    [[nodiscard]] bool empty() const noexcept { return segments_.empty(); }

    /// Returns: the segment that starts there, or null.
    [[nodiscard]] pool_segment* segment_at(const void* base) const noexcept {
        const auto it = segments_.find(to_address(base));
        return it == segments_.end() ? nullptr : it->second.get();
    }

    /// Effects: f(segment), in address order.
    template <class F>
    void for_each_segment(F&& f) const {
        for (const auto& [address, s] : segments_) f(*s);
    }

    /// Requires: nothing is pending. Throws: `std::bad_alloc`.
    [[nodiscard]] std::shared_ptr<pool_checkpoint> checkpoint() const {
        auto state = std::make_shared<pool_checkpoint>();
        state->id = id_;
        for (const auto& [address, s] : segments_) {
            pool_checkpoint::segment saved{s->base, {}};
            for (const block* b = s->first; b != nullptr; b = b->next)
                saved.pieces.push_back({b->ptr, b->size, b->requested, b->allocated, b->stream, b->uses});
            state->segments.push_back(std::move(saved));
        }
        return state;
    }

    /// Effects: cuts the segment as `saved` says, with `f(block)` for each block that is live from now on.
    /// Requires: the segment is idle. Throws: `std::bad_alloc`; the segment is whole then.
    template <class F>
    void lay_out(pool_segment& s, const pool_checkpoint::segment& saved, F&& f) {
        std::vector<block*> fresh;
        fresh.reserve(saved.pieces.size());
        try {
            while (fresh.size() < saved.pieces.size()) fresh.push_back(blocks_->create());
        } catch (...) {
            for (block* const b : fresh) blocks_->destroy(b);
            throw;
        }
        remove_free(s.first);
        blocks_->destroy(s.first);
        block* before = nullptr;
        for (std::size_t i = 0; i < fresh.size(); ++i) {
            block* const b = fresh[i];
            b->ptr = saved.pieces[i].ptr;
            b->size = saved.pieces[i].size;
            b->requested = saved.pieces[i].requested;
            b->stream = saved.pieces[i].stream;
            b->segment = &s;
            b->previous = before;
            (before == nullptr ? s.first : before->next) = b;
            before = b;
        }
        for (std::size_t i = 0; i < fresh.size(); ++i) {
            block* const b = fresh[i];
            if (!saved.pieces[i].allocated) {
                b->requested = 0;
                insert_free(b);
                continue;
            }
            b->allocated = true;
            b->uses = saved.pieces[i].uses;
            counters_->allocated(s.counted_in(), *b);
            f(b);
        }
    }

    /// Returns: whether all invariants hold. Linear.
    [[nodiscard]] bool validate() const noexcept {
        std::size_t free_blocks = 0;
        for (const auto& [address, s] : segments_) {
            std::uint64_t at = address;
            const block* before = nullptr;
            for (const block* b = s->first; b != nullptr; before = b, b = b->next) {
                if (to_address(b->ptr) != at || b->previous != before || b->segment != s.get()) return false;
                if (free_now(*b)) {
                    ++free_blocks;
                    if (free_.find(const_cast<block*>(b)) == free_.end()) return false;
                    if (before != nullptr && free_now(*before)) return false;
                }
                at += b->size;
            }
            if (at != address + s->bytes) return false;
        }
        return free_blocks == free_.size();
    }

  private:
    struct key {
        bool small;
        stream_handle stream;
        std::size_t size;
        const void* ptr;
    };
    struct best_fit_order {
        using is_transparent = void;
        static auto of(const block* b) noexcept {
            return std::make_tuple(b->segment->small, to_address(b->stream), b->size, to_address(b->ptr));
        }
        static auto of(const key& k) noexcept {
            return std::make_tuple(k.small, to_address(k.stream), k.size, to_address(k.ptr));
        }
        template <class A, class B>
        bool operator()(const A& a, const B& b) const noexcept {
            return of(a) < of(b);
        }
    };

    static bool free_now(const block& b) noexcept { return !b.allocated && !b.pending; }

    [[nodiscard]] bool splits(const block& b, std::size_t rounded) const noexcept {
        if (no_split) return false;
        const std::size_t rest = b.size - rounded;
        return b.segment->small ? rest >= granule : rest > small_limit;
    }

    void insert_free(block* b) {
        free_.insert(b);
        note_free(*b);
    }
    void remove_free(block* b) noexcept {
        note_free_gone(*b);
        free_.erase(b);
    }
    void note_free(const block& b) noexcept {
        if (b.split()) counters_->inactive_split_added(b.segment->counted_in(), b.size);
    }
    void note_free_gone(const block& b) noexcept {
        if (b.split()) counters_->inactive_split_removed(b.segment->counted_in(), b.size);
    }

    void unlink(block* b) noexcept {
        if (b->previous != nullptr)
            b->previous->next = b->next;
        else
            b->segment->first = b->next;
        if (b->next != nullptr) b->next->previous = b->previous;
        blocks_->destroy(b);
    }

    c10::MempoolId_t id_;
    block_table* blocks_;
    statistics* counters_;
    std::set<block*, best_fit_order> free_;
    std::map<std::uint64_t, std::unique_ptr<pool_segment>> segments_; ///< by address
};

} // namespace tenure::torch
