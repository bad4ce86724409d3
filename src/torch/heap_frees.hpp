#pragma once

/// \file
/// `heap_frees<Device>`: what becomes of a block that torch has freed.
///
///     requested --> its streams are done?          complete: back to its arena or its pool
///          |            no --> marked, polled by later calls          ^
///          +--> a capture is under way --> deferred to its end -------+
///
/// and what becomes of an arena when its last block is free: closed ones go.
///
/// Invariant: while a capture is under way nothing is marked, polled or waited for, and no memory goes back.
/// Thread-safety: externally synchronised, by the heap's mutex.

#include "block.hpp"
#include "heap_state.hpp"
#include "settled_block.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/device/device.hpp>

#include <algorithm>
#include <cstddef>

namespace tenure::torch {

template <device Device>
class heap_frees {
  public:
    explicit heap_frees(heap_state<Device>& s) noexcept : all_(&s) {}

    /// Effects: the application has freed `b`. It is complete as soon as nothing uses it any more.
    void request(block* b, const context_ptr& context) {
        all_->blocks.leave(b);
        all_->counters.free_requested(all_->counted_in(*b), *b);
        all_->note(trace_entry::FREE_REQUESTED, *b, context);
        b->allocated = false;
        b->pending = true;
    }

    /// Effects: the block, whose free has been requested, is free now or later.
    void settle(block* b) {
        if (b->uses.empty() &&
            (all_->routes.empty() || b->slot == nullptr || !all_->routes.in_capture(b->stream)))
            complete(b);
        else if (b->uses.empty() || all_->routes.capture_under_way())
            all_->pending.defer(b);
        else if (!all_->pending.add(b))
            complete(b);
    }

    /// Effects: nobody uses `b` any more: it is free.
    void complete(block* b) {
        all_->note(trace_entry::FREE_COMPLETED, *b, b->context);
        if (b->slot == nullptr) {
            b->segment->pool->put_back(b);
            return;
        }
        all_->counters.free_completed(statistics::pool::large, *b);
        arena_slot* const slot = b->slot;
        void* const p = b->ptr;
        const stream_handle stream = b->stream;
        const std::size_t bytes = b->requested;
        all_->blocks.destroy(b);
        slot->memory().deallocate(stream, p, bytes, block_alignment);
        if (--slot->blocks == 0 && !slot->owner->open()) [[unlikely]]
            retire(slot);
    }

    /// Effects: what waited for a capture or for streams, and need not any more, is free.
    void catch_up() {
        if (all_->pending.empty() || all_->routes.capture_under_way()) return;
        for (block* const b : all_->pending.take_deferred()) {
            if (b->uses.empty() && b->slot != nullptr && all_->routes.in_capture(b->stream))
                all_->pending.defer(b); // captured by somebody else than torch
            else if (b->uses.empty() || !all_->pending.add(b))
                complete(b);
        }
        if (all_->pending.any_marked()) all_->pending.poll([this](block* b) { complete(b); });
    }

    /// Effects: what is marked on streams has passed and is free. Requires: no capture is under way.
    void drain() {
        catch_up();
        if (!all_->pending.any_marked()) return;
        all_->counters.waited();
        (void)all_->pending.wait([this](block* b) { complete(b); });
    }

    /// Requires: the arena is closed and nothing is left in it. Effects: its memory goes back; if that cannot be now, at
    /// the end of a capture or at the next `empty_cache`.
    void retire(arena_slot* slot) noexcept {
        if (all_->routes.capture_under_way()) {
            all_->give_back_later = true;
            return;
        }
        if (!all_->wait_for_device()) return; // its memory may still be in use
        const auto it = std::find_if(all_->slots.begin(), all_->slots.end(),
                                     [slot](const auto& s) { return s.get() == slot; });
        slot->owner->set_slot(all_->ordinal, nullptr);
        all_->slots.erase(it);
        all_->pools_changed = true;
        all_->keep_a_byte();
    }

    void retire_closed() noexcept {
        for (std::size_t i = all_->slots.size(); i-- > 0;)
            if (all_->slots[i]->blocks == 0 && !all_->slots[i]->owner->open()) retire(all_->slots[i].get());
    }

  private:
    heap_state<Device>* all_;
};

} // namespace tenure::torch
