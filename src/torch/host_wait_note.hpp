#pragma once

/// \file
/// `host_wait_note<Device>`: one host wait for a stream that this thread was about to make, until it is known to be over.
///
/// Torch tells of such a wait before it makes it, and never whether it made it: a copy before it may have been refused, or
/// a capture may have forbidden it. So an event of our own is recorded where the wait would end, and the thread's next
/// call looks whether that has passed:
///
///     keep(device, stream, what the host will have seen)  ...  torch waits, or throws  ...  settle(): passed? say so
///
/// Invariant: the book is told of nothing that the device does not say has passed.
/// Cost: a record a wait, and a query at the thread's next call; all other calls test a flag. Each thread keeps one event.
/// Thread-safety: each thread has its own note.

#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>

#include <utility>

namespace tenure::torch {

template <device Device>
class host_wait_note {
  public:
    /// Effects: what this thread has waited for since its last call is known. For the beginning of every call.
    static void settle() noexcept {
        if (due()) [[unlikely]]
            mine().look();
    }

    /// Effects: `w` will be known when what `stream` holds now has passed. Requires: nothing is kept.
    static void keep(Device& device, stream_handle stream, stream_waits::host_wait w) noexcept {
        if (gone()) return;
        host_wait_note& n = mine();
        if (!n.belongs_to(device) || device.record(n.event_, stream) != status::ok) return;
        n.wait_ = std::move(w);
        due() = true;
    }

    /// Effects: the thread keeps nothing, and no event. For devices that go before their threads.
    static void drop() noexcept {
        due() = false;
        if (!gone()) mine().give_up_event();
    }

    host_wait_note(const host_wait_note&) = delete;
    host_wait_note& operator=(const host_wait_note&) = delete;

  private:
    host_wait_note() noexcept = default;
    ~host_wait_note() { // tensors of this thread may be freed after it
        due() = false;
        gone() = true;
        give_up_event();
    }

    static bool& due() noexcept {
        thread_local bool kept = false;
        return kept;
    }
    static bool& gone() noexcept {
        thread_local bool ended = false;
        return ended;
    }
    static host_wait_note& mine() noexcept {
        thread_local host_wait_note note;
        return note;
    }

    void look() noexcept {
        due() = false;
        if (device_->query(event_) == status::ok) device_->waits().has_waited(wait_);
    }

    /// Effects: the event is one of the device's, if it will give one. Returns: whether it is.
    bool belongs_to(Device& device) noexcept {
        if (device_ == &device) return true;
        give_up_event();
        const result<event_handle, status> event = device.create_event();
        if (!event) return false;
        device_ = &device;
        event_ = *event;
        return true;
    }

    void give_up_event() noexcept {
        if (device_ != nullptr) (void)device_->destroy_event(event_);
        device_ = nullptr;
    }

    Device* device_ = nullptr; ///< whose the event is; null: there is none
    event_handle event_ = nullptr;
    stream_waits::host_wait wait_{};
};

} // namespace tenure::torch
