#pragma once

/// \file
/// `standing_on<Device>`: what a device that stands on another one passes on as it is: streams and events, and the questions
/// whose answers it does not change. The base of `metered` and of `hub`, which say what they do about memory themselves.
///
///     class filter : public standing_on<Device> { ... allocate, deallocate, memory, explain ... };
///
/// Requires: the device below outlives it. Thread-safety: that of the device below.

#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/device/vmm_device.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tenure {

template <device Device>
class standing_on {
  public:
    standing_on(const standing_on&) = delete;
    standing_on& operator=(const standing_on&) = delete;

    /// The device below.
    [[nodiscard]] const Device* upstream() const noexcept { return device_; }

    // ---- `device` ----

    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return device_->allocation_granularity();
    }
    result<stream_state, status> describe(stream_handle stream) noexcept { return device_->describe(stream); }
    [[nodiscard]] bool permanent(stream_handle stream) const noexcept { return device_->permanent(stream); }
    result<event_handle, status> create_event() noexcept { return device_->create_event(); }
    status destroy_event(event_handle event) noexcept { return device_->destroy_event(event); }
    status record(event_handle event, stream_handle stream) noexcept {
        return device_->record(event, stream);
    }
    status query(event_handle event) noexcept { return device_->query(event); }
    status synchronize(event_handle event) noexcept { return device_->synchronize(event); }
    status synchronize(stream_handle stream) noexcept { return device_->synchronize(stream); }
    status wait(stream_handle stream, event_handle event) noexcept { return device_->wait(stream, event); }

    /// See `stream_waits`.
    [[nodiscard]] stream_waits& waits() noexcept requires tells_waits<Device> { return device_->waits(); }

    [[nodiscard]] std::chrono::nanoseconds now() const requires tells_time<Device> { return device_->now(); }

    // ---- `vmm_device`, `filling_device`, `pool_device` ----

    status synchronize() noexcept requires requires(Device& d) { d.synchronize(); }
    { return device_->synchronize(); }
    [[nodiscard]] bool supports_vmm() const noexcept requires vmm_device<Device> {
        return device_->supports_vmm();
    }
    result<void*, status> reserve_address(std::size_t bytes, std::size_t alignment,
                                          std::uint64_t near = 0) noexcept requires vmm_device<Device> {
        return device_->reserve_address(bytes, alignment, near);
    }
    status free_address(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        return device_->free_address(p, bytes);
    }
    [[nodiscard]] std::size_t pool_step() const noexcept requires pool_device<Device> {
        return device_->pool_step();
    }
    status deallocate_to(pool_handle pool, void* p,
                         stream_handle stream) noexcept requires pool_device<Device> {
        return device_->deallocate_to(pool, p, stream);
    }

  protected:
    explicit standing_on(Device& below) noexcept : device_(&below) {}
    ~standing_on() = default;

    Device* device_;
};

} // namespace tenure
