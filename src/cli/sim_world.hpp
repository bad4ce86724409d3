#pragma once

/// \file
/// `sim_world`: the program of a replay on the simulated device.
///
/// What the program itself asks of the device (waiting, ordering its streams) is not the allocator's doing: such
/// calls are made through `as_program`, which keeps them out of the counts.
///
/// On a GPU `cudaFree` would wait for a hold; here it does not, because the event that ends the hold cannot come
/// first. Externally synchronised.

#include "program_world.hpp"

#include <tenure/device/sim_device.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tenure::cli {

class sim_machine {
  public:
    explicit sim_machine(sim::device& device) noexcept : device_(&device) {}

    [[nodiscard]] sim::device& device() const noexcept { return *device_; }

    template <class F>
    void as_program(F&& calls) {
        const auto before = device_->call_counts();
        const auto since = device_->driver_time();
        calls();
        const auto after = device_->call_counts();
        for (std::size_t i = 0; i < after.size(); ++i) program_calls_[i] += after[i] - before[i];
        program_time_ += device_->driver_time() - since;
    }

    [[nodiscard]] stream_handle create_stream() { return device_->create_stream(); }
    void destroy_stream(stream_handle s) { device_->destroy_stream(s); }
    void launch(stream_handle s, std::chrono::microseconds length) { device_->launch(s, length); }
    void hold(stream_handle s) { device_->hold(s, false); }
    void finish_oldest(stream_handle s) { device_->finish_oldest(s); }
    /// Driver calls and waiting take time, too: it may be later already.
    void advance_to(std::chrono::microseconds t) { device_->advance_to(t); }
    void before_waiting() noexcept {}

    /// Returns: the device's calls so far that were not the program's own.
    [[nodiscard]] std::array<std::uint64_t, sim::call_kinds> allocator_calls() const {
        std::array<std::uint64_t, sim::call_kinds> counts = device_->call_counts();
        for (std::size_t i = 0; i < counts.size(); ++i) counts[i] -= program_calls_[i];
        return counts;
    }
    /// Returns: the modelled time in those calls.
    [[nodiscard]] std::chrono::nanoseconds allocator_time() const {
        return device_->driver_time() - program_time_;
    }

  private:
    sim::device* device_;
    std::array<std::uint64_t, sim::call_kinds> program_calls_{};
    std::chrono::nanoseconds program_time_{0};
};

using sim_world = program_world<sim_machine>;

} // namespace tenure::cli
