#pragma once

/// \file
/// Where a benchmark runs: a device and its streams. A world has
///
/// | expression | |
/// |---|---|
/// | `World::device_type` | a `tenure::pool_device` and a `tenure::vmm_device` |
/// | `w.device()` | the device, one for the whole run |
/// | `w.stream(i)` | the i-th created stream; made on first demand, lives as long as the world; `i < max_streams` |
/// | `w.describe()` | names and values for the results' context |
///
/// `sim_world` is here, `cuda_world` in `cuda_world.hpp`.

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/device/vmm_device.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using context = std::vector<std::pair<std::string, std::string>>;

/// The simulated device as a GPU that has nothing to do: all work has passed at once, so what is asked about
/// streams and events is answered without a look. Through `sim::device` itself, which locks and keeps a
/// history, these calls would cost more than the policies that make them. Memory and driver pools are the
/// simulated device's, with all costs zero.
class idle_device : public tenure::sim::device {
  public:
    idle_device() : device({.cost = tenure::sim::costs::zero(), .check_overlap = false}) {}

    tenure::result<tenure::stream_state, tenure::status> describe(tenure::stream_handle s) noexcept {
        if (permanent(s)) return device::describe(s);
        return tenure::stream_state{created | tenure::to_address(s), 0};
    }
    tenure::result<tenure::event_handle, tenure::status> create_event() noexcept {
        const std::uint64_t number = events_.fetch_add(1, std::memory_order_relaxed);
        return reinterpret_cast<tenure::event_handle>(tenure::to_pointer(16 * number));
    }
    tenure::status destroy_event(tenure::event_handle) noexcept { return tenure::status::ok; }
    tenure::status record(tenure::event_handle, tenure::stream_handle) noexcept { return tenure::status::ok; }
    tenure::status query(tenure::event_handle) noexcept { return tenure::status::ok; }
    using device::synchronize; // the whole device, after which memory is unmapped
    tenure::status synchronize(tenure::event_handle) noexcept { return tenure::status::ok; }
    tenure::status synchronize(tenure::stream_handle) noexcept { return tenure::status::ok; }
    tenure::status wait(tenure::stream_handle, tenure::event_handle) noexcept { return tenure::status::ok; }

  private:
    static constexpr std::uint64_t created = std::uint64_t{1}
                                             << 62; ///< apart from the default stream's identity
    std::atomic<std::uint64_t> events_{1};
};

static_assert(tenure::pool_device<idle_device> && tenure::vmm_device<idle_device>);

inline constexpr std::size_t max_streams = 256;

class sim_world {
  public:
    using device_type = idle_device;
    static constexpr const char* name = "sim";

    sim_world() {
        streams_.reserve(max_streams);
        while (streams_.size() < max_streams) streams_.push_back(device_.create_stream());
    }
    sim_world(const sim_world&) = delete;
    sim_world& operator=(const sim_world&) = delete;

    [[nodiscard]] device_type& device() noexcept { return device_; }
    [[nodiscard]] tenure::stream_handle stream(std::size_t i) { return streams_.at(i); }
    [[nodiscard]] context describe() const {
        return {
            {"device", "simulated, driver calls free of charge; `async` measures the model of the driver"}};
    }

  private:
    device_type device_;
    std::vector<tenure::stream_handle> streams_;
};

} // namespace bench
