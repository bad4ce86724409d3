#pragma once

/// \file
/// `heap_pools<Device>`: the private pools of a device, as torch speaks of them: users, routes, checkpoints.
///
///     MemPool, graph --create_or_incref, begin--> users 1, 2, ...  --release--> 0: what is free of it may go back
///     CUDA graph trees: checkpoint --> layout of the pool --> restore, to the same addresses
///
/// A pool is known by torch's id; (n, 0) are those that graphs made for themselves, (0, n) those that somebody asked for.
///
/// Thread-safety: externally synchronised, by the heap's mutex.

#include "heap_frees.hpp"
#include "heap_state.hpp"
#include "pool_routes.hpp"
#include "private_pool.hpp"

#include <tenure/device/device.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::torch {

template <device Device>
class heap_pools {
  public:
    using pool_id = c10::MempoolId_t;
    using filter = typename pool_routes<Device>::filter;

    heap_pools(heap_state<Device>& s, heap_frees<Device>& f) noexcept : all_(&s), frees_(&f) {}

    /// Effects: one user more; the pool is made if there is none. `source`: where its segments come from, null: arenas.
    void create_or_incref(pool_id id, private_pool::allocator_ptr source) {
        private_pool& p = all_->pool_of(id);
        if (source) p.source = std::move(source);
        ++p.use_count;
    }

    [[nodiscard]] int use_count(pool_id id) const {
        const auto it = all_->pools.find(id);
        return it == all_->pools.end() ? 0 : it->second->use_count;
    }

    /// Effects: one user less. Without users, what is free of the pool can go back to the device.
    void release(pool_id id) {
        const auto it = all_->pools.find(id);
        TORCH_CHECK(it != all_->pools.end() && it->second->use_count > 0, "releasePool: no such pool in use");
        all_->user_gone(*it->second);
    }

    // ---- routes ----

    /// Effects: one user more; from now on what `accepts` accepts is allocated in the pool; the latest begun is asked
    /// first. `current`: the stream that the calling thread stands on.
    void begin(pool_id id, filter accepts, stream_handle current) {
        all_->routes.drop_failed([this](private_pool& p) { all_->user_gone(p); }, id, current);
        TORCH_CHECK(!all_->routes.leads_to(id), "beginAllocateToPool: already recording to mempool_id");
        private_pool& p = all_->pool_of(id);
        ++p.use_count;
        try {
            all_->routes.begin(p, std::move(accepts), current);
        } catch (...) {
            all_->user_gone(p);
            throw;
        }
    }

    void end(pool_id id) {
        TORCH_CHECK(all_->routes.end(id), "endAllocatePool: not currently recording to mempool_id");
    }

    /// Returns: the pool that serves an allocation on the stream; null: none.
    [[nodiscard]] private_pool* pool_for(stream_handle stream) {
        drop_failed_captures();
        return all_->routes.pool_for(stream);
    }

    /// Effects: pools of captures that have failed lose the user that would never have gone. See `pool_routes`.
    void drop_failed_captures() {
        if (!all_->routes.empty()) all_->routes.drop_failed([this](private_pool& p) { all_->user_gone(p); });
    }

    // ---- checkpoints ----

    /// Returns: whether the live blocks of the pool are exactly these.
    [[nodiscard]] bool live_blocks_are(pool_id id, const std::unordered_set<void*>& expected) const {
        const auto it = all_->pools.find(id);
        TORCH_CHECK(it != all_->pools.end(), "Could not find pool of id");
        std::size_t found = 0;
        bool all = true;
        it->second->for_each_segment([&](const pool_segment& s) {
            for (const block* b = s.first; b != nullptr; b = b->next) {
                if (!b->allocated) continue;
                ++found;
                all = all && expected.count(b->ptr) != 0;
            }
        });
        return all && found == expected.size();
    }

    /// Returns: the pool's layout; frees that wait for streams are waited for first.
    [[nodiscard]] std::shared_ptr<pool_checkpoint> checkpoint(pool_id id) { return drained(id).checkpoint(); }

    /// Effects: the pool's live blocks are those of the checkpoint, at the same addresses; others are freed.
    native::CheckpointDelta restore(const pool_checkpoint& state, c10::DeleterFnPtr deleter) {
        private_pool& p = drained(state.id);
        for (const pool_checkpoint::segment& saved : state.segments)
            TORCH_CHECK(p.segment_at(saved.base) != nullptr,
                        "a segment of the checkpoint has been given back to the device");
        native::CheckpointDelta delta;
        std::vector<block*> live;
        p.for_each_segment([&](const pool_segment& s) {
            for (block* b = s.first; b != nullptr; b = b->next)
                if (b->allocated) live.push_back(b);
        });
        for (block* const b : live) {
            delta.ptrs_freed.push_back(b->ptr);
            frees_->request(b, b->context);
            frees_->complete(b);
        }
        for (const pool_checkpoint::segment& saved : state.segments)
            p.lay_out(*p.segment_at(saved.base), saved, [&](block* b) {
                all_->blocks.enter(b);
                all_->note(trace_entry::ALLOC, *b, nullptr);
                delta.dataptrs_allocd.emplace_back(b->ptr, b->ptr, deleter,
                                                   c10::Device(c10::kCUDA, all_->index()));
            });
        return delta;
    }

  private:
    /// Returns: the pool, with nothing pending in it.
    private_pool& drained(pool_id id) {
        const auto it = all_->pools.find(id);
        TORCH_CHECK(it != all_->pools.end(), "Could not find pool of id");
        if (!all_->routes.capture_under_way()) frees_->drain();
        bool pending = false;
        it->second->for_each_segment([&](const pool_segment& s) {
            for (const block* b = s.first; b != nullptr; b = b->next) pending = pending || b->pending;
        });
        TORCH_CHECK(!pending, "Events should have synchronized when checkpointing block");
        return *it->second;
    }

    heap_state<Device>* all_;
    heap_frees<Device>* frees_;
};

} // namespace tenure::torch
