#pragma once

/// \file
/// `heap_segments<Device>`: the memory of private pools, bought whole and given back whole.
///
///     pool misses --> buy --> arena of who asks --> gate --> device
///                        \--> the MemPool's own allocator, unlocked; charged to the same limit
///
///     pool released --> idle segments --> all work of the device is over --> where they came from
///
/// Invariants:
///   1. Nobody else's code is called under the heap's mutex, and a pool on whose behalf the mutex is let go stays.
///   2. What a MemPool's own allocator gives is charged to the heap's limit before it is asked for, and refunded when it
///      is given back.
///   3. While a capture is under way nothing is given back.
///
/// Thread-safety: externally synchronised, by the heap's mutex, which the members that say so let go for a while.

#include "heap_frees.hpp"
#include "heap_state.hpp"
#include "outside_captures.hpp"
#include "settled_block.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>

#include <c10/util/Exception.h>

#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure::torch {

/// A request on its way to a block. Bytes.
struct request {
    std::size_t bytes;   ///< as asked
    std::size_t rounded; ///< to 512
    stream_handle stream;
    tenant* who;
    private_pool* pool; ///< null: the tenant's arena serves it
    context_ptr context;
    allocation_failure failure; ///< why nothing was found, the last time
};

template <device Device>
class heap_segments {
  public:
    using pool_id = c10::MempoolId_t;
    using mutex_lock = std::unique_lock<std::mutex>;
    using segments = std::vector<std::unique_ptr<pool_segment>>;

    heap_segments(heap_state<Device>& s, heap_frees<Device>& f) noexcept : all_(&s), frees_(&f) {}

    /// Effects: f() without the lock; the request's pool stays, whoever lets go of it meanwhile. Throws: what f throws,
    /// with the lock held again.
    template <class F>
    void unlocked(mutex_lock& lock, private_pool* pool, F&& f) {
        struct pause {
            pause(mutex_lock& l, heap_state<Device>& s, private_pool* p) : lock(l), all(s), pool(p) {
                if (pool != nullptr) ++pool->use_count;
                lock.unlock();
            }
            ~pause() {
                lock.lock();
                if (pool != nullptr) all.let_go(*pool); // the last one: it goes with the released ones
            }
            mutex_lock& lock;
            heap_state<Device>& all;
            private_pool* pool;
        } const paused(lock, *all_, pool);
        f();
    }

    /// Effects: the request's pool has a new segment that it fits in. Returns: whether; if not, `q.failure` says why.
    /// Lets the lock go if the pool has an allocator of its own. Throws: what that throws.
    bool buy(mutex_lock& lock, request& q) {
        const std::size_t wanted = private_pool::segment_bytes(q.rounded, all_->settings.large_segment);
        auto s = std::make_unique<pool_segment>();
        s->small = private_pool::is_small(q.rounded);
        s->stream = q.stream;
        s->context = q.context;
        if (!(q.pool->source ? buy_from_source(lock, q, *s, wanted) : buy_from_arena(q, *s, wanted)))
            return false;
        (s->small ? all_->small_segments : all_->large_segments) += s->bytes;
        all_->pools_changed = true;
        if (s->source)
            all_->history.add(trace_entry::SEGMENT_ALLOC, all_->index(), to_address(s->base), s->bytes,
                              s->stream, q.pool->id(), s->context);
        q.pool->add(std::move(s));
        return true;
    }

    /// Effects: idle segments of released pools go back to where they came from, of all ({0, 0}) or of one; those of other
    /// allocators are added to `gone`. Requires: no capture is under way.
    void give_back_released(pool_id only, segments& gone) {
        for (auto it = all_->pools.begin(); it != all_->pools.end();) {
            private_pool& p = *it->second;
            if (p.use_count != 0 || (only != pool_id{0, 0} && only != it->first)) {
                ++it;
                continue;
            }
            give_back_idle(p, gone);
            it = p.empty() ? all_->pools.erase(it) : std::next(it);
        }
    }

    /// Effects: the same of this pool, whether it is released or not. Requires: no graph is captured in it.
    void give_back_idle(private_pool& p, segments& gone) {
        if (!p.has_idle()) return;
        // Replays of graphs are nobody's recorded use: only the end of all work ends them.
        if (!all_->wait_for_device()) return;
        for (std::unique_ptr<pool_segment>& s : p.take_idle()) {
            (s->small ? all_->small_segments : all_->large_segments) -= s->bytes;
            all_->pools_changed = true;
            if (s->source) {
                all_->history.add(trace_entry::SEGMENT_FREE, all_->index(), to_address(s->base), s->bytes,
                                  s->stream, p.id(), s->context);
                gone.push_back(std::move(s));
                continue;
            }
            arena_slot* const slot = s->slot;
            slot->in_segments -= s->bytes;
            slot->memory().deallocate_sync(s->base, s->bytes, block_alignment);
            if (--slot->blocks == 0 && !slot->owner->open()) frees_->retire(slot);
        }
    }

    /// Effects: what was asked for during a capture is done, if none is under way.
    void give_back_now_if_asked(segments& gone) {
        if ((!all_->give_back_later && !all_->trim_later) || all_->routes.capture_under_way()) return;
        if (std::exchange(all_->give_back_later, false)) {
            give_back_released({0, 0}, gone);
            frees_->retire_closed();
        }
        if (std::exchange(all_->trim_later, false)) all_->trim_arenas();
        all_->look_at_reserve();
    }

    /// Effects: segments of other allocators go back to them. Requires: the heap's mutex is not held.
    void give_to_sources(segments& gone) {
        if (gone.empty()) return;
        [[maybe_unused]] const outside_captures<Device> relaxed{};
        for (const auto& s : gone) {
            s->source->raw_delete(s->base);
            all_->limit.refund(s->bytes);
        }
        gone.clear();
    }

  private:
    bool buy_from_arena(request& q, pool_segment& s, std::size_t wanted) {
        const std::size_t needed = private_pool::is_small(q.rounded) ? wanted : round_up(q.rounded, 2_MiB);
        arena_slot& slot = all_->slot_of(*q.who);
        allocate_result r = allocate_settled(slot.memory(), wanted);
        s.bytes = wanted;
        if (!r && needed < wanted) {
            r = allocate_settled(slot.memory(), needed);
            s.bytes = needed;
        }
        if (!r) {
            q.failure = r.error();
            q.failure.requested = q.bytes;
            return false;
        }
        s.base = *r;
        s.slot = &slot;
        slot.in_segments += s.bytes;
        ++slot.blocks;
        return true;
    }

    bool buy_from_source(mutex_lock& lock, request& q, pool_segment& s, std::size_t wanted) {
        auto charge = all_->limit.reserve_settled(wanted);
        if (!charge) return refused(q, wanted);
        charge->commit(); // before the mutex goes: whoever waits for an open charge has the mutex
        s.source = q.pool->source;
        try {
            unlocked(lock, q.pool, [&] {
                [[maybe_unused]] const outside_captures<Device> relaxed{};
                try {
                    s.base = s.source->raw_alloc(wanted);
                } catch (const c10::OutOfMemoryError&) {
                    s.base = nullptr;
                }
            });
        } catch (...) {
            all_->limit.refund(wanted);
            throw;
        }
        s.bytes = wanted;
        if (s.base != nullptr) return true;
        all_->limit.refund(wanted);
        return refused(q, wanted);
    }

    bool refused(request& q, std::size_t wanted) noexcept {
        q.failure.requested = q.bytes;
        q.failure.rounded = wanted;
        q.failure.cause = failure_cause::device;
        q.failure.driver_status = status::out_of_memory;
        all_->through.explain(q.failure);
        return false;
    }

    heap_state<Device>* all_;
    heap_frees<Device>* frees_;
};

} // namespace tenure::torch
