#pragma once

/// \file
/// `replay_result`: what one replay of one trace through one policy measured. Plain values;
/// thread-compatible.

#include "call_times.hpp"
#include "footprint.hpp"
#include "verification.hpp"

#include <tenure/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

class gpu_device;

struct replay_options {
    gpu_device* gpu = nullptr;                     ///< null: the simulated device
    bool verify = false;                           ///< on a GPU: every block has a content that is checked
    std::size_t capacity = std::size_t{141} << 30; ///< bytes of the simulated device: an H200
    std::size_t limit = no_limit;                  ///< bytes each arena may hold
    unsigned repeat = 3;                           ///< timed passes
    bool footprint = false;                        ///< keep what a page of the comparison draws
};

/// The first allocation that was refused. Bytes.
struct refusal {
    std::uint64_t event = 0; ///< its place among the trace's events, from 0
    std::uint64_t requested = 0;
    failure_cause cause = failure_cause::device;
    std::optional<std::uint64_t> limit; ///< of whoever refused: the arena's `max` or the device's capacity
    std::uint64_t used = 0;             ///< of that limit

    static refusal of(std::uint64_t index, const allocation_failure& f) {
        refusal r{index, f.requested, f.cause, std::nullopt, f.used};
        if (f.max != no_limit) r.limit = f.max;
        return r;
    }
};

struct replay_result {
    std::uint64_t requested_peak =
        0; ///< bytes of the blocks that were handed out, each from allocation to completion
    std::uint64_t live_peak = 0;     ///< the same, each block rounded up to 512 bytes
    std::uint64_t reserved_peak = 0; ///< bytes taken from the device, all arenas together
    std::uint64_t segments = 0; ///< highest number of ranges held from the device; of several arenas, the sum
    std::vector<std::pair<std::string, std::uint64_t>>
        driver_calls;     ///< by the allocator; kinds with at least one
    double driver_us = 0; ///< time in those calls: modelled on the simulated device, measured on a GPU
    std::optional<double>
        growth_us; ///< of it until 99 % of the live peak lived for the first time; only modelled
    std::optional<double>
        warm_share;       ///< driver time in the second half of the events, as a part of the program's time
                          ///< there; only modelled, and only where the trace has times
    double ns_per_op = 0; ///< host time of one allocate or deallocate call: median over the timed passes
    call_times times;     ///< on a GPU: those calls, measured and modelled
    std::optional<verification> verified; ///< on a GPU, if asked for
    std::uint64_t oom_count = 0;
    std::optional<refusal> first_oom;
    std::optional<cli::footprint> course; ///< if asked for

    /// Returns: reserved per live byte at the peaks; 0 when nothing lived.
    [[nodiscard]] double ratio() const noexcept {
        return live_peak == 0 ? 0.0 : static_cast<double>(reserved_peak) / static_cast<double>(live_peak);
    }
    /// Returns: whether every event of the trace was carried out.
    [[nodiscard]] bool completed() const noexcept { return oom_count == 0; }
};

} // namespace tenure::cli
