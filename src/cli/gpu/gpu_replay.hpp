#pragma once

/// \file
/// `replay_on`: carries a trace out through a policy on a real GPU.
///
///     trace ---> play ---> tenants ---> timed_device ---> cuda::device
///
/// Passes, each with a policy of its own:
///   1. *observed*: peaks, refusals, calls of the driver, each of them timed and beside it what the cost model says;
///   2. *pictured*, if a footprint is kept: what lies where at the event that was the peak of the first pass. Streams run as
///      they like, so a little more or less of it may be waiting than was then;
///   3. *timed*, `repeat` times: host time of the allocator's calls alone, nothing else measured;
///   4. *verified*, if asked for: every block has a content that is checked, see `verifier.hpp`.
///
/// The program's own calls (streams, events that order its streams, kernels) go past the timed device and are counted
/// nowhere.
///
/// Invariant: after each pass nothing of it is left on the device, and no error of the runtime; else `replay_error`.
/// Thread-compatible.

#include "../replay.hpp"
#include "../timed_device.hpp"
#include "gpu.hpp"
#include "gpu_machine.hpp"
#include "verifier.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tenure::cli {

using timed_gpu = timed_device<cuda::device>;

/// A resource with a stopwatch around what a replay calls; two clock readings a call are part of what it measures.
template <resource R>
class clocked : public R {
  public:
    using R::R;

    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a) noexcept {
        const lap here(*this);
        return R::try_allocate(s, n, a);
    }
    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        const lap here(*this);
        R::deallocate(s, p, n, a);
    }
    void record_use(void* p, stream_handle s) noexcept {
        const lap here(*this);
        R::record_use(p, s);
    }
    [[nodiscard]] std::chrono::nanoseconds time() const noexcept { return time_; }

  private:
    struct lap {
        explicit lap(clocked& c) noexcept : owner(c), begin(std::chrono::steady_clock::now()) {}
        ~lap() { owner.time_ += std::chrono::steady_clock::now() - begin; }
        clocked& owner;
        std::chrono::steady_clock::time_point begin;
    };
    std::chrono::nanoseconds time_{0};
};

/// One pass. `first(device, pools)` is called before the program begins; `and_then(device, pools, state)` reads the figures
/// while the policy still lives.
template <resource R, class Make, class Watch, class First, class Then>
void play_on(gpu_device& gpu, const trace& t, const Make& make, late_free late, bool observe, Watch& watch,
             First&& first, Then&& and_then) {
    const auto holds = static_cast<std::size_t>(
        std::count_if(t.blocks.begin(), t.blocks.end(), [](const block& b) { return b.outlives_free; }));
    gpu_machine machine(gpu, holds);
    timed_gpu device(gpu.device(),
                     {.observe = observe, .before_wait = [&machine] { machine.before_waiting(); }});
    program_world<gpu_machine> world(machine, t.streams);
    {
        const tenants<R> pools = make(device);
        first(device, pools);
        play_state state;
        play<R>(t, pools, world, watch, late, state);
        and_then(device, pools, state);
        machine.before_waiting();
        unwind<R>(t, pools, world, watch, state);
    }
    world.clear();
    must(cudaDeviceSynchronize(), "the GPU has failed during the replay");
    must(cudaGetLastError(), "an error is left behind that nobody has handled");
    if (device.reserved() != 0 || device.live_events() != 0)
        throw replay_error("the policy leaks device memory or events");
}

/// Effects: replays `t` through the resources that `make(device)` returns, `tenants<R>`, one an arena of the trace.
/// Throws: `replay_error` when the policy breaks a promise, `device_failure` when the GPU fails; whatever `make` throws. What
/// a verified pass finds is no exception: it is in the result.
template <resource R, class Make>
replay_result replay_on(gpu_device& gpu, const trace& t, const Make& make, const replay_options& options,
                        late_free late) {
    replay_result r;
    tally seen;
    const auto nothing = [](auto&&...) {};
    const auto keep_footprint = [&](timed_gpu& device, const auto&) {
        if (options.footprint) seen.keep_footprint(t.events.size(), [&device] { return device.reserved(); });
    };
    play_on<R>(gpu, t, make, late, true, seen, keep_footprint,
               [&](timed_gpu& device, const auto& pools, const play_state&) {
                   seen.report(r);
                   r.reserved_peak = device.reserved_peak();
                   const auto counts = device.call_counts();
                   for (std::size_t i = 0; i < counts.size(); ++i) {
                       if (counts[i] != 0)
                           r.driver_calls.emplace_back(to_string(static_cast<sim::call>(i)), counts[i]);
                   }
                   r.times = device.times();
                   r.driver_us = std::chrono::duration<double, std::micro>(r.times.total().real).count();
                   for (const auto& pool : pools) {
                       r.segments += pool->usage().segments.peak;
                       if (!pool->validate()) throw replay_error("the policy's own invariants do not hold");
                   }
                   if (!t.sets_limits && t.arenas.size() == 1 && r.reserved_peak > options.limit)
                       throw replay_error("the policy held more than its limit");
               });

    if (r.course) {
        onlooker look(*r.course);
        play_on<R>(
            gpu, t, make, late, false, look,
            [&look](timed_gpu& device, const auto& pools) { look.look_at(device, pools); }, nothing);
    }

    std::vector<double> times;
    for (unsigned pass = 0; pass < options.repeat; ++pass) {
        unwatched nobody;
        play_on<R>(gpu, t, make, late, false, nobody, nothing,
                   [&](timed_gpu&, const auto& pools, const play_state& state) {
                       std::chrono::duration<double, std::nano> sum{0};
                       for (const auto& pool : pools) sum += pool->time();
                       times.push_back(state.calls == 0 ? 0.0
                                                        : sum.count() / static_cast<double>(state.calls));
                   });
    }
    r.ns_per_op = median(std::move(times));

    if (options.verify) {
        static std::uint64_t salt = 0;
        verifier looking(t, ++salt);
        play_on<R>(gpu, t, make, late, false, looking, nothing, nothing);
        r.verified = looking.finish();
    }
    return r;
}

} // namespace tenure::cli
