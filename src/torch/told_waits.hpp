#pragma once

/// \file
/// `told_waits<World>`: what torch says of events, streams and host waits, written into the books of its devices
/// (`stream_waits`).
///
///     torch --trace_hook--> told_waits --current device, identity of the stream--> the book of that device
///
/// | torch says | when | the book is told |
/// |---|---|---|
/// | an event is recorded, a stream waits for one | after the call | the same, at once |
/// | an event is made or destroyed | | that nothing is known of it |
/// | the host waits for an event or the device | before the call | what has passed; the wait is made here, torch's own then returns at once |
/// | the host waits for a stream | before a copy and the call | at the thread's next call, see `host_wait_note` |
///
/// The host waits for events and devices here because torch does not say whether it did: inside a capture the call fails,
/// the program may catch that, and nothing has passed.
///
/// Invariants:
///   1. A record is told before the thread calls anything else that could bring it up to date (see `stream_waits`).
///   2. A book knows of an event only the last record of it: all others forget it when one is told.
///   3. An event that was once recorded in a capture, or where nobody says that it was in none, is never believed again:
///      replays record it, and tell nobody.
///   4. Nothing is said of streams that are being captured, nor of devices without a heap, and no heap is made.
///
/// What is not seen is an event of torch's that others record with plain CUDA calls, in this process or in another.
///
/// Cost: a record or a wait asks the driver for the stream's identity and writes the book. Nothing throws.
/// Thread-safety: thread-safe. Of locks only its own and the book's are taken, one at a time.

#include "allocator.hpp"
#include "host_wait_note.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/stream_waits.hpp>

#include <atomic>
#include <cstddef>
#include <mutex>
#include <unordered_set>

namespace tenure::torch {

template <class World>
class told_waits {
  public:
    using device_type = typename World::device_type;

    told_waits(World& world, allocator<World>& a) noexcept : world_(&world), allocator_(&a) {}

    /// The event has been made, or is about to be destroyed: its handle stands for nothing yet, or any more.
    void fresh(event_handle event) noexcept {
        forget(event, nullptr);
        if (!any_captured_.load(std::memory_order_relaxed)) return;
        const std::lock_guard lock(mutex_);
        captured_.erase(event);
    }

    void recorded(event_handle event, stream_handle stream) noexcept {
        device_type* const here = current();
        forget(event, here);
        if (here == nullptr) return remember_captured(event); // for all that is known
        const auto state = here->describe(stream);
        const bool captured = !state || state->capturing();
        if (captured) remember_captured(event);
        if (captured || was_captured(event))
            here->waits().forget(event);
        else
            here->waits().recorded(event, state->id);
    }

    void waited(stream_handle stream, event_handle event) noexcept {
        device_type* const here = current();
        if (here == nullptr || !here->waits().told()) return;
        if (const auto state = here->describe(stream); state && !state->capturing())
            here->waits().waited(state->id, event);
    }

    /// The event may be of any device.
    void host_waits(event_handle event) noexcept {
        settle();
        allocator_->for_each_heap([&](auto& h) {
            device_type& d = h.upstream();
            if (!d.waits().told()) return;
            const stream_waits::host_wait w = d.waits().about_to_wait(event);
            if (!w.empty() && d.synchronize(event) == status::ok) d.waits().has_waited(w);
        });
    }

    void host_waits(stream_handle stream) noexcept {
        settle();
        device_type* const here = current();
        if (here == nullptr || !here->waits().told()) return;
        const auto state = here->describe(stream);
        if (!state || state->capturing()) return;
        stream_waits::enter();
        host_wait_note<device_type>::keep(*here, stream, here->waits().about_to_wait_for(state->id));
    }

    /// For the current device.
    void host_waits() noexcept {
        settle();
        device_type* const here = current();
        if (here == nullptr || !here->waits().told()) return;
        stream_waits::enter();
        const stream_waits::host_wait w = here->waits().about_to_wait_for_all();
        if (world_->wait_for_current_device(*here) == status::ok) here->waits().has_waited(w);
    }

  private:
    static constexpr std::size_t most_captured = 65536;

    static void settle() noexcept { host_wait_note<device_type>::settle(); }

    /// Returns: the current device, or null if it has no heap or nobody says which it is.
    device_type* current() const noexcept {
        try {
            auto* const h = allocator_->heap_if_any(world_->current_device());
            return h == nullptr ? nullptr : &h->upstream();
        } catch (...) {
            return nullptr;
        }
    }

    /// Effects: no device but `except` knows of the event.
    void forget(event_handle event, const device_type* except) noexcept {
        allocator_->for_each_heap([&](auto& h) {
            if (&h.upstream() != except && h.upstream().waits().told()) h.upstream().waits().forget(event);
        });
    }

    void remember_captured(event_handle event) noexcept {
        const std::lock_guard lock(mutex_);
        any_captured_.store(true, std::memory_order_relaxed);
        try {
            if (captured_.size() < most_captured)
                captured_.insert(event);
            else
                lost_count_ = true;
        } catch (...) {
            lost_count_ = true;
        }
    }
    bool was_captured(event_handle event) noexcept {
        if (!any_captured_.load(std::memory_order_relaxed)) return false;
        const std::lock_guard lock(mutex_);
        return lost_count_ || captured_.contains(event);
    }

    World* world_;
    allocator<World>* allocator_;
    std::atomic<bool> any_captured_{false};
    std::mutex mutex_; ///< guards what follows
    std::unordered_set<event_handle> captured_;
    bool lost_count_ = false; ///< of captured events: then any may be one
};

} // namespace tenure::torch
