#pragma once

/// \file
/// `opened_device`: a device with a hub before it, behind one interface, so that it can be chosen by name.
///
///     arenas --> hub --> "cuda:0" or "sim"
///
/// Adds nothing to either. Thread-safety: that of the device.

#include "../policies/named_arena.hpp"

#include <tenure/core/result.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/tenancy/hub.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace tenure::c {

struct device_settings {
    hub_options hub{};
    std::size_t capacity = 1_GiB; ///< bytes, of "sim"
};

class opened_device {
  public:
    virtual ~opened_device() = default;

    [[nodiscard]] virtual std::unique_ptr<policies::named_arena>
    make_arena(const policies::policy_choice& policy, meter* parent, arena_options options) = 0;

    [[nodiscard]] virtual result<device_memory, status> memory() noexcept = 0;
    [[nodiscard]] virtual bool host() const noexcept = 0;
    [[nodiscard]] virtual int ordinal() const noexcept = 0;

    [[nodiscard]] virtual result<stream_handle, status> create_stream() = 0;
    virtual status synchronize(stream_handle stream) noexcept = 0;
    /// Effects: the host waits for all work of the device.
    virtual status synchronize_all() noexcept = 0;
    virtual status destroy_stream(stream_handle stream) = 0;
};

/// What is the same for all devices.
template <class Device>
class opened_device_of : public opened_device {
  public:
    template <class... Arguments>
    explicit opened_device_of(const hub_options& options, Arguments&&... arguments)
        : device_(std::forward<Arguments>(arguments)...), hub_(device_, options) {}

    std::unique_ptr<policies::named_arena> make_arena(const policies::policy_choice& policy, meter* parent,
                                                      arena_options options) override {
        return policies::make_named_arena(policy, parent, hub_, std::move(options));
    }
    result<device_memory, status> memory() noexcept override { return device_.memory(); }
    status synchronize(stream_handle stream) noexcept override { return device_.synchronize(stream); }
    status synchronize_all() noexcept override { return device_.synchronize(); }

  protected:
    Device device_;

  private:
    hub<Device> hub_;
};

/// Throw: `driver_error` where the device cannot be had.
[[nodiscard]] std::unique_ptr<opened_device> open_sim(const device_settings& settings);
[[nodiscard]] std::unique_ptr<opened_device> open_cuda(int ordinal, const device_settings& settings);

} // namespace tenure::c
