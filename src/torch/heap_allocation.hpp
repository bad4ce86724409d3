#pragma once

/// \file
/// `heap_allocation<Device>`: from a request to a live block, or to c10::OutOfMemoryError.
///
///     a pool is active for the stream?
///        no  --> the tenant's arena
///        yes --> the pool's free blocks, else a new segment for it
///
/// The ladder, when neither can serve, and an arena has already done all it can by itself:
///   1. torch's callbacks (memory that other processes have let go of), then again
///   2. pools that lend when memory is short (`use_on_oom`), to requests outside of pools, captures and arenas' limits
///   3. unless a capture is under way: wait for pending frees, give back the free memory of all arenas, and what released
///      pools and, in a pool that no graph knows, idle segments hold; then again
///   4. unless one is: what others hold for no use (`out_of_memory_watch::make_room`); then again
///   5. the failure: observers, then the exception
///
/// Invariant: nothing of torch or of the application is called under the mutex, except pool filters and trace trackers.
/// Thread-safety: externally synchronised, by the heap's mutex, which is let go for the calls above.

#include "failure.hpp"
#include "heap_frees.hpp"
#include "heap_segments.hpp"
#include "heap_state.hpp"
#include "outside_captures.hpp"
#include "settled_block.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/device/device.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace tenure::torch {

/// Asked and told, with no lock held, when memory runs out.
class out_of_memory_watch {
  public:
    /// Effects: gives back to the device what others than this heap hold for no use. Returns: whether there may be any.
    /// Called when no capture is under way on the heap.
    virtual bool make_room() = 0;

    /// An allocation is about to fail. Bytes.
    virtual void ran_out(int device, std::size_t requested, std::size_t total, std::size_t free) = 0;

  protected:
    ~out_of_memory_watch() = default;
};

template <device Device>
class heap_allocation {
  public:
    using pool_id = c10::MempoolId_t;
    using mutex_lock = std::unique_lock<std::mutex>;

    heap_allocation(heap_state<Device>& s, heap_frees<Device>& f, heap_segments<Device>& g) noexcept
        : all_(&s), frees_(&f), segments_(&g) {}

    /// Returns: a live block. Throws: `c10::OutOfMemoryError`, `c10::Error`; then the lock is not held.
    block& run(mutex_lock& lock, request& q, out_of_memory_watch& watch) {
        if (block* const b = find(lock, q)) [[likely]]
            return *b;
        return last_resort(lock, q, watch);
    }

  private:
    /// Returns: a live block, or null with the reason in `q.failure`.
    block* find(mutex_lock& lock, request& q) {
        block* const b = q.pool == nullptr ? from_arena(q) : from_pool(lock, q);
        if (b == nullptr) return nullptr;
        b->context = std::move(q.context);
        all_->note(trace_entry::ALLOC, *b, b->context);
        return b;
    }

    block* from_arena(request& q) {
        arena_slot& slot = all_->slot_of(*q.who);
        block* const b = all_->blocks.create();
        const allocate_result r = slot.memory().try_allocate(q.stream, q.bytes, block_alignment);
        if (!r) {
            all_->blocks.destroy(b);
            q.failure = r.error();
            return nullptr;
        }
        b->ptr = *r;
        b->size = q.rounded;
        b->requested = q.bytes;
        b->stream = q.stream;
        b->slot = &slot;
        b->allocated = true;
        try {
            all_->blocks.enter(b);
        } catch (...) {
            slot.memory().deallocate(q.stream, b->ptr, q.bytes, block_alignment);
            all_->blocks.destroy(b);
            throw;
        }
        ++slot.blocks;
        all_->counters.allocated(statistics::pool::large, *b);
        return b;
    }

    block* from_pool(mutex_lock& lock, request& q) {
        block* b = q.pool->take(q.bytes, q.rounded, q.stream);
        if (b == nullptr) {
            if (!segments_->buy(lock, q)) return nullptr;
            b = q.pool->take(q.bytes, q.rounded, q.stream); // under the lock since the pool has the segment
            if (b == nullptr) return nullptr;
        }
        all_->blocks.enter(b);
        return b;
    }

    /// Returns: a block from a pool that lends when memory is short, or null.
    block* borrow(request& q) {
        // A graph would write to it at each replay, though it holds the pool no more than any other borrower does. And an
        // arena's limit is a limit, whoever has memory to spare.
        if (q.pool != nullptr || q.failure.cause == failure_cause::arena_limit) return nullptr;
        if (all_->routes.in_capture(q.stream)) return nullptr;
        for (const auto& [id, pool] : all_->pools) {
            if (!pool->use_on_oom || pool->use_count == 0 || pool->captured) continue;
            if (block* const b = pool->take(q.bytes, q.rounded, q.stream)) {
                all_->blocks.enter(b);
                b->context = std::move(q.context);
                all_->note(trace_entry::ALLOC, *b, b->context);
                return b;
            }
        }
        return nullptr;
    }

    block& last_resort(mutex_lock& lock, request& q, out_of_memory_watch& watch) {
        if (q.failure.cause == failure_cause::driver) {
            lock.unlock();
            TORCH_CHECK(false, "CUDA error: tenure: ", q.failure.text());
        }
        if (all_->settings.run_callbacks && run_callbacks(lock, q))
            if (block* const b = find(lock, q)) return *b;
        if (block* const b = borrow(q)) return *b;
        if (!all_->routes.capture_under_way()) {
            give_back_all(lock, q);
            if (block* const b = find(lock, q)) return *b;
        }
        if (refused_by_device(q) && !all_->routes.capture_under_way()) {
            bool room = false;
            segments_->unlocked(lock, q.pool, [&] {
                [[maybe_unused]] const outside_captures<Device> relaxed{};
                room = watch.make_room();
            });
            if (room)
                if (block* const b = find(lock, q)) return *b;
        }
        fail(lock, q, watch);
    }

    static bool refused_by_device(const request& q) noexcept {
        return q.failure.cause != failure_cause::arena_limit &&
               q.failure.cause != failure_cause::ancestor_limit;
    }

    void give_back_all(mutex_lock& lock, request& q) {
        all_->counters.retried();
        frees_->drain();
        all_->trim_arenas(); // first: waiting for a device that is full takes a byte of it
        typename heap_segments<Device>::segments gone;
        segments_->give_back_released({0, 0}, gone);
        if (q.pool != nullptr && !q.pool->captured) segments_->give_back_idle(*q.pool, gone);
        all_->trim_arenas();
        all_->keep_a_byte();
        if (!gone.empty()) segments_->unlocked(lock, q.pool, [&] { segments_->give_to_sources(gone); });
    }

    /// Effects: torch's own ways of freeing memory, unlocked. Returns: whether one says that it has.
    bool run_callbacks(mutex_lock& lock, const request& q) {
        bool freed = false;
        segments_->unlocked(lock, q.pool, [&] {
            for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
                freed = c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute() || freed;
        });
        return freed;
    }

    [[noreturn]] void fail(mutex_lock& lock, const request& q, out_of_memory_watch& watch) {
        all_->counters.failed();
        all_->look_at_reserve();
        failure_report report;
        report.device = all_->ordinal;
        report.requested = q.bytes;
        report.reason = q.failure;
        if (const auto m = all_->device->memory()) {
            report.device_total = m->total;
            report.device_free = m->free;
        }
        report.allowed = all_->limit.read().max;
        report.allocated = all_->counters.allocated_bytes();
        report.reserved = all_->counters.reserved_bytes();
        for (const auto& [id, pool] : all_->pools)
            pool->for_each_segment([&](const pool_segment& s) {
                for (const block* b = s.first; b != nullptr; b = b->next)
                    if (b->allocated) report.in_private_pools += b->size;
            });
        all_->history.add(trace_entry::OOM, all_->index(), report.device_free, q.bytes, q.stream,
                          q.pool != nullptr ? q.pool->id() : pool_id{0, 0}, q.context);
        lock.unlock();
        c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(q.bytes), report.allocated,
                                         report.reserved, c10::Device(c10::kCUDA, all_->index()));
        watch.ran_out(all_->ordinal, q.bytes, report.allowed_or_total(), report.device_free);
        TORCH_CHECK_WITH(OutOfMemoryError, false, report.text());
    }

    heap_state<Device>* all_;
    heap_frees<Device>* frees_;
    heap_segments<Device>* segments_;
};

} // namespace tenure::torch
