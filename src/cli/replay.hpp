#pragma once

/// \file
/// `replay`: carries a trace out through a policy, once under observation and then for time.
///
///     trace ---> play ---> tenants (one resource an arena of the trace) ---> sim::device
///                  \---> watcher: peaks, refusals, no two blocks overlap
///
/// How a block ends. Where its completion lies behind other events, some stream still uses it after its free,
/// and the trace says when that is over, not which stream it was. So a stream of the replay's own (a *hold*)
/// uses the block
/// (`record_use`) from before the free until the completion: the policy sees a real pending use, and must
/// cope with it as in production. All other blocks end with their free, as far as the uses that the trace
/// records (`u`) allow.
///
/// Invariants:
///   1. A refused allocation is counted, and all later events of its block are skipped.
///   2. All passes make the same calls in the same order.
///   3. After the last pass nothing is left on the device; a leak is a `replay_error`.
///
/// The watched pass runs on a device with the measured costs and the overlap check; the timed passes on one
/// without either. The time of a timed pass includes what the simulated device itself takes, which is little:
/// the aim is to compare policies, and `benchmarks/` measures them alone.
///
/// Complexity: linear in the trace, times the policy's. Thread-compatible.

#include "replay_result.hpp"
#include "sim_world.hpp"
#include "trace.hpp"
#include "watch.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tenure::cli {

/// One resource an arena of the trace, in the trace's order.
template <resource R>
using tenants = std::vector<std::unique_ptr<R>>;

/// The program while it runs: where its blocks are, and what holds them.
struct play_state {
    struct place {
        void* pointer = nullptr; ///< null: not handed out (yet, or any more)
        stream_handle held_by = nullptr;
        sim_world::identity born_on = 0;
    };
    std::vector<place> blocks; ///< by id
    std::uint64_t calls = 0;   ///< allocate and deallocate calls made
};

/// Effects: carries all events out.
template <resource R, class Watch>
void play(const trace& t, const tenants<R>& pools, sim_world& world, Watch& watch, play_state& state) {
    state.blocks.resize(t.blocks.size());
    const bool needs_clock = Watch::watches || t.has_work;
    for (std::size_t i = 0; i < t.events.size(); ++i) {
        const event& e = t.events[i];
        if (needs_clock) world.advance_to(e.t_us);
        switch (e.kind) {
        case op::allocate: {
            const stream_handle s = world.stream(e.stream);
            const allocate_result got = pools[e.arena]->try_allocate(s, e.bytes, default_alignment);
            ++state.calls;
            if (!got) {
                watch.refused(i, got.error());
                break;
            }
            state.blocks[e.id] = {*got, nullptr, world.identity_of(e.stream)};
            watch.allocated(*got, e.bytes, s);
            break;
        }
        case op::free: {
            play_state::place& b = state.blocks[e.id];
            if (b.pointer == nullptr) break;
            void* const p = b.pointer;
            const bool ends = !t.blocks[e.id].outlives_free;
            const stream_handle s = world.stream(e.stream);
            if (b.born_on != world.identity_of(e.stream)) world.order(b.born_on, e.stream);
            if (!ends) {
                b.held_by = world.hold();
                pools[e.arena]->record_use(p, b.held_by);
                watch.used(p, b.held_by);
            }
            watch.freed(p, s);
            if (ends) watch.ended(p, e.bytes);
            if constexpr (Watch::watches) {
                const deallocate_result done =
                    pools[e.arena]->try_deallocate(s, p, e.bytes, default_alignment);
                if (!done)
                    throw replay_error("the policy does not take its block back: " + done.error().text());
            } else {
                pools[e.arena]->deallocate(s, p, e.bytes, default_alignment);
            }
            ++state.calls;
            if (ends) b.pointer = nullptr;
            break;
        }
        case op::complete: {
            play_state::place& b = state.blocks[e.id];
            if (b.pointer == nullptr) break; // refused, or ended with its free
            watch.ended(b.pointer, e.bytes);
            world.let_go(b.held_by);
            b = {};
            break;
        }
        case op::use: {
            void* const p = state.blocks[e.id].pointer;
            if (p == nullptr) break;
            const stream_handle s = world.stream(e.stream);
            pools[e.arena]->record_use(p, s);
            watch.used(p, s);
            break;
        }
        case op::work: world.launch(e.stream, e.bytes); break;
        case op::wait: world.wait_for(e.stream); break;
        case op::destroy: world.destroy(e.stream); break;
        case op::set_max:
            if constexpr (requires(R & r) { r.set_max(std::size_t{}); })
                pools[e.arena]->set_max(e.bytes);
            else
                throw replay_error("a limit is set (op m), but the policy runs outside an arena");
            break;
        }
    }
}

/// Effects: lets go of all holds and frees all blocks that are left.
template <resource R>
void unwind(const trace& t, const tenants<R>& pools, sim_world& world, play_state& state, bool watched) {
    for (play_state::place& b : state.blocks) {
        if (b.held_by == nullptr) continue;
        world.let_go(b.held_by);
        b = {}; // the program's free was made
    }
    std::uint64_t end_us = t.events.back().t_us;
    for (const event& e : t.events)
        if (e.kind == op::work) end_us += e.bytes;
    world.settle(end_us);
    for (const event& e : t.events) {
        if (e.kind != op::allocate) continue;
        void* const p = state.blocks[e.id].pointer;
        if (p == nullptr) continue;
        if (watched) world.device().block_freed_sync(p);
        pools[e.arena]->deallocate_sync(p, e.bytes, default_alignment);
    }
    world.clear();
}

/// Effects: replays `t` through the resources that `make(device)` returns: `tenants<R>`, one an arena of the
/// trace. Throws: `replay_error` when the policy breaks a promise; whatever `make` throws.
template <resource R, class Make>
replay_result replay(const trace& t, const Make& make, const replay_options& options) {
    replay_result r;
    {
        sim::device device({.capacity = options.capacity});
        sim_world world(device, t.streams);
        watcher watch(device);
        {
            const tenants<R> pools = make(device);
            play_state state;
            play<R>(t, pools, world, watch, state);

            watch.report(r);
            r.reserved_peak = device.reserved_peak();
            const auto counts = world.allocator_calls();
            for (std::size_t i = 0; i < counts.size(); ++i) {
                if (counts[i] != 0)
                    r.driver_calls.emplace_back(to_string(static_cast<sim::call>(i)), counts[i]);
            }
            r.driver_us = std::chrono::duration<double, std::micro>(world.allocator_time()).count();
            for (const auto& pool : pools) {
                r.segments += pool->usage().segments.peak;
                if (!pool->validate()) throw replay_error("the policy's own invariants do not hold");
            }
            unwind<R>(t, pools, world, state, true);
        }
        if (const std::vector<std::string> wrong = device.violations(); !wrong.empty())
            throw replay_error(wrong.front());
        if (device.reserved() != 0 || device.live_events() != 0)
            throw replay_error("the policy leaks device memory or events");
        if (!t.sets_limits && t.arenas.size() == 1 && r.reserved_peak > options.limit)
            throw replay_error("the policy held more than its limit");
    }

    std::vector<double> times;
    for (unsigned pass = 0; pass < options.repeat; ++pass) {
        sim::device device(
            {.capacity = options.capacity, .cost = sim::costs::zero(), .check_overlap = false});
        sim_world world(device, t.streams);
        const tenants<R> pools = make(device);
        unwatched nobody;
        play_state state;
        const auto begin = std::chrono::steady_clock::now();
        play<R>(t, pools, world, nobody, state);
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
        if (state.calls != 0) times.push_back(took.count() / static_cast<double>(state.calls));
        unwind<R>(t, pools, world, state, false);
    }
    if (!times.empty()) {
        const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
        std::nth_element(times.begin(), middle, times.end());
        r.ns_per_op = *middle;
    }
    return r;
}

} // namespace tenure::cli
