#pragma once

/// \file
/// `vmm_backed<Device>`: a device whose `allocate` is virtual memory: one reservation, one handle, one mapping each. So
/// any policy can be run over a `vmm_device`, through a meter and on a GPU alike.
///
/// `windowed_pool<Device>` is `best_fit_pool` over it, as a policy that an arena can hold.
///
/// A `vmm_device` waits for nothing, but what is given back must not be in use: `deallocate` needs `settle`, which makes
/// the host wait for all work of the device. Thread-safe.

#include <tenure/device/vmm_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include <cstddef>

namespace tenure::test {

template <vmm_device Device>
class vmm_backed {
  public:
    using settler = void (*)();
    /// `settle`: waits for all work; null where nothing runs by itself.
    explicit vmm_backed(Device& upstream, settler settle = nullptr) : device_(&upstream), settle_(settle) {}

    result<void*, status> allocate(std::size_t bytes) noexcept {
        const auto p = device_->reserve_address(bytes, 0, 0);
        if (!p) return p;
        const auto h = device_->create_memory(bytes);
        if (!h) {
            (void)device_->free_address(*p, bytes);
            return h.error();
        }
        status s = device_->map(*p, *h);
        if (s == status::ok) {
            s = device_->set_access(*p, bytes);
            if (s != status::ok) (void)device_->unmap(*p, bytes);
        }
        const status released = device_->release_memory(*h); // the mapping holds it from now on
        if (s == status::ok && released == status::ok) return *p;
        if (s == status::ok) (void)device_->unmap(*p, bytes);
        (void)device_->free_address(*p, bytes);
        return s == status::ok ? released : s;
    }

    status deallocate(void* p, std::size_t bytes) noexcept {
        if (settle_ != nullptr) settle_();
        const status s = device_->unmap(p, bytes);
        return s == status::ok ? device_->free_address(p, bytes) : s;
    }

    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return device_->allocation_granularity();
    }
    result<device_memory, status> memory() noexcept { return device_->memory(); }
    result<stream_state, status> describe(stream_handle s) noexcept { return device_->describe(s); }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return device_->permanent(s); }
    result<event_handle, status> create_event() noexcept { return device_->create_event(); }
    status destroy_event(event_handle e) noexcept { return device_->destroy_event(e); }
    status record(event_handle e, stream_handle s) noexcept { return device_->record(e, s); }
    status query(event_handle e) noexcept { return device_->query(e); }
    status synchronize(event_handle e) noexcept { return device_->synchronize(e); }
    status synchronize(stream_handle s) noexcept { return device_->synchronize(s); }
    status wait(stream_handle s, event_handle e) noexcept { return device_->wait(s, e); }
    void explain(allocation_failure& f) noexcept { device_->explain(f); }

  private:
    Device* device_;
    settler settle_;
};

template <vmm_device Device>
struct windows {
    explicit windows(Device& d) : backing(d) {}
    vmm_backed<Device> backing;
};

template <class Device>
class windowed_pool : private windows<Device>, public best_fit_pool<vmm_backed<Device>> {
  public:
    using device_type = Device;
    using options_type = pool_options;
    explicit windowed_pool(Device& d, pool_options options = {})
        : windows<Device>(d), best_fit_pool<vmm_backed<Device>>(this->backing, options) {}
};

} // namespace tenure::test
