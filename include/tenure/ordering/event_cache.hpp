#pragma once

/// \file
/// `event_cache`: events that are not in use, kept because creating one costs as much as recording it.
///
/// Events, though asking about one costs a driver call: a counter that the stream writes into host memory would be read for
/// nothing, but `cuStreamWriteValue32` takes four times as long to enqueue as `cuEventRecord` (1.1 us, H200), and the barrier
/// that makes it say something about the work before it doubled the time of a chain of small kernels. And plain ones: an event
/// made for other processes is asked about in 0.1 us whatever other streams do, not 0.2 to 2, but takes 0.7 to 1.0 us to record,
/// not 0.2; and a pool records more than it asks.
///
/// Invariant: every event that came from `acquire` goes back by `release`, and none outlives the cache.
/// Complexity: O(1) besides the driver call. Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/device/device.hpp>

namespace tenure {

template <device Device>
class event_cache {
  public:
    explicit event_cache(Device& device) noexcept : device_(&device) {}

    event_cache(const event_cache&) = delete;
    event_cache& operator=(const event_cache&) = delete;

    ~event_cache() {
        for (event_handle e : idle_)
            if (device_->destroy_event(e) != status::ok) (void)device_->destroy_event(e);
    }

    /// Returns: an event that nobody else holds, or the device's answer.
    result<event_handle, status> acquire() noexcept {
        if (idle_.empty()) return device_->create_event();
        const event_handle e = idle_.back();
        idle_.pop_back();
        return e;
    }

    /// Returns: an event that marks the work `stream` holds now, or the device's answer; then nothing is held.
    result<event_handle, status> mark(stream_handle stream) noexcept {
        result<event_handle, status> event = acquire();
        if (!event) return event;
        if (const status s = device_->record(*event, stream); s != status::ok) {
            release(*event);
            return s;
        }
        return event;
    }

    void release(event_handle e) noexcept {
        try {
            idle_.push_back(e);
        } catch (...) { // no room to remember it
            (void)device_->destroy_event(e);
        }
    }

  private:
    Device* device_;
    own_lines_vector<event_handle> idle_;
};

} // namespace tenure
