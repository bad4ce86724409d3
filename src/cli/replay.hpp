#pragma once

/// \file
/// `replay`: carries a trace out through a policy, once under observation and then for time.
///
///     trace ---> play ---> tenants (one resource an arena of the trace) ---> sim::device
///                  \---> watcher: peaks, refusals, no two blocks overlap
///
/// `play` and `unwind` know of no device: `gpu/gpu_replay.hpp` carries the same program out on a GPU.
///
/// How a block ends. Where its completion lies behind other events, some stream still uses it after its free,
/// and the trace says when that is over, not which stream it was. So a stream of the replay's own uses the block from before
/// the free until the completion (a *hold*): the policy sees a real pending use (`record_use`) and must cope with it as in
/// production. There are as few such streams as can be where work on one ends in order. All other blocks end with their free, as far as the
/// uses that the trace records (`u`) allow.
///
/// A policy that orders reuse on streams, as the driver's pools do, hands such a block out again before its
/// use is over, and is right to: whoever gets it stands behind that use. But invariant 2 is stricter, so its
/// blocks are given back only at their completion (`late_free::at_completion`).
///
/// The program says what it has made wait for what (`w`, `y`), in the book of the device (`stream_waits`). How the replay
/// orders streams by itself, for frees and holds, is said to nobody: a policy learns no more than the trace knows.
///
/// Invariants:
///   1. A refused allocation is counted, and all later events of its block are skipped.
///   2. A block is never handed out again between its free and its completion.
///   3. All passes make the same calls in the same order.
///   4. After the last pass nothing is left on the device; a leak is a `replay_error`.
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
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure::cli {

/// One resource an arena of the trace, in the trace's order.
template <resource R>
using tenants = std::vector<std::unique_ptr<R>>;

/// What becomes of a block that outlives its free.
enum class late_free : std::uint8_t {
    held,          ///< it is freed, with a use that is pending until its completion
    at_completion, ///< it is freed at its completion
};

/// The program while it runs: where its blocks are, and what holds them.
struct play_state {
    using identity = std::uint32_t; ///< of a stream

    struct place {
        void* pointer = nullptr;         ///< null: not handed out (yet, or any more)
        stream_handle held_by = nullptr; ///< null: not freed yet
        identity born_on = 0;
        identity freed_on = 0;
    };
    std::vector<place> blocks;                                        ///< by id
    std::unordered_map<std::uint32_t, std::vector<identity>> used_on; ///< by id, until the free
    std::uint64_t calls = 0;                                          ///< allocate and deallocate calls made
};

/// Effects: carries all events out.
template <resource R, class World, class Watch>
void play(const trace& t, const tenants<R>& pools, World& world, Watch& watch, late_free late,
          play_state& state) {
    const auto give_back = [&](const event& e, void* p, stream_handle s) {
        R& pool = *pools[e.arena];
        watch.freed(e.id, p, s);
        ++state.calls;
        if constexpr (Watch::watches) {
            const deallocate_result done = pool.try_deallocate(s, p, e.bytes, default_alignment);
            if (!done) throw replay_error("the policy does not take its block back: " + done.error().text());
        } else {
            pool.deallocate(s, p, e.bytes, default_alignment);
        }
    };

    const auto forget_uses = [&](std::uint32_t id) {
        if (state.used_on.empty()) return;
        const auto uses = state.used_on.find(id);
        if (uses == state.used_on.end()) return;
        for (const play_state::identity s : uses->second) world.unneeded(s);
        state.used_on.erase(uses);
    };

    state.blocks.resize(t.blocks.size());
    const bool needs_clock = Watch::watches || t.has_work;
    for (std::size_t i = 0; i < t.events.size(); ++i) {
        const event& e = t.events[i];
        if (i == t.events.size() / 2) watch.half_way();
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
            state.blocks[e.id] = {*got, nullptr, world.identity_of(e.stream), 0};
            watch.allocated(e.id, *got, e.bytes, s);
            break;
        }
        case op::free: {
            play_state::place& b = state.blocks[e.id];
            void* const p = b.pointer;
            if (p == nullptr) break; // refused, or of no bytes
            // Who frees on another stream than the block's own has ordered the two.
            if (b.born_on != world.identity_of(e.stream)) world.order(b.born_on, world.stream(e.stream));
            if (!t.blocks[e.id].outlives_free) {
                watch.ended(p, e.bytes);
                b = {};
            } else if (late == late_free::held) {
                b.held_by = world.hold(t.blocks[e.id].holder);
                pools[e.arena]->record_use(p, b.held_by);
                if constexpr (Watch::looks) world.order(b.born_on, b.held_by);
                watch.used(e.id, p, b.held_by);
            } else {
                b.freed_on = world.identity_of(e.stream);
                world.needed(b.freed_on);
                break;
            }
            give_back(e, p, world.stream(e.stream));
            forget_uses(e.id);
            break;
        }
        case op::complete: {
            play_state::place& b = state.blocks[e.id];
            if (b.pointer == nullptr) break; // refused, or ended with its free
            watch.ended(b.pointer, e.bytes);
            if (late == late_free::held) {
                world.let_go(b.held_by);
            } else {
                give_back(e, b.pointer, world.handle_of(b.freed_on));
                world.unneeded(b.freed_on);
            }
            forget_uses(e.id);
            b = {};
            break;
        }
        case op::use: {
            void* const p = state.blocks[e.id].pointer;
            if (p == nullptr) break;
            const stream_handle s = world.stream(e.stream);
            pools[e.arena]->record_use(p, s);
            // What has no content needs no order to be used.
            if constexpr (Watch::looks) world.order(state.blocks[e.id].born_on, s);
            watch.used(e.id, p, s);
            state.used_on[e.id].push_back(world.identity_of(e.stream));
            world.needed(world.identity_of(e.stream));
            break;
        }
        case op::work: world.launch(e.stream, e.bytes); break;
        case op::stream_wait: world.make_wait(e.stream, e.id); break;
        case op::host_wait: world.wait_for(e.stream); break;
        case op::destroy: world.destroy(e.stream); break;
        case op::set_max:
            if constexpr (requires(R & r) { r.set_max(std::size_t{}); })
                pools[e.arena]->set_max(e.bytes);
            else
                throw replay_error("a limit is set (op m), but the policy runs outside an arena");
            break;
        }
        watch.carried_out(i, e.t_us);
    }
}

/// Effects: lets go of all holds and frees all blocks that are left.
template <resource R, class World, class Watch>
void unwind(const trace& t, const tenants<R>& pools, World& world, Watch& watch, play_state& state) {
    for (play_state::place& b : state.blocks) {
        if (b.held_by == nullptr) continue;
        world.let_go(b.held_by);
        b = {}; // the program's free was made
    }
    if constexpr (Watch::looks) {
        for (std::uint32_t id = 0; id < state.blocks.size(); ++id) {
            const play_state::place& b = state.blocks[id];
            if (b.pointer == nullptr) continue;
            if (b.born_on != 0) world.order(b.born_on, default_stream);
            watch.used(id, b.pointer, default_stream);
        }
    }
    world.settle();
    for (const event& e : t.events) {
        if (e.kind != op::allocate) continue;
        void* const p = state.blocks[e.id].pointer;
        if (p == nullptr) continue;
        watch.freed_sync(p);
        pools[e.arena]->deallocate_sync(p, e.bytes, default_alignment);
    }
}

/// Returns: 0 for no values.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// Returns: all that the watched pass measures. Throws: `replay_error`.
template <resource R, class Make>
replay_result replay_watched(const trace& t, const Make& make, const replay_options& options,
                             late_free late) {
    replay_result r;
    sim::device device({.capacity = options.capacity});
    sim_machine machine(device);
    sim_world world(machine, t.streams);
    watcher watch(device, [&] { return machine.allocator_time(); });
    if (options.footprint) watch.keep_footprint(t.events.size(), [&] { return device.reserved(); });
    {
        const tenants<R> pools = make(device);
        play_state state;
        play<R>(t, pools, world, watch, late, state);

        watch.report(r);
        r.reserved_peak = device.reserved_peak();
        const auto counts = machine.allocator_calls();
        for (std::size_t i = 0; i < counts.size(); ++i) {
            if (counts[i] != 0) r.driver_calls.emplace_back(to_string(static_cast<sim::call>(i)), counts[i]);
        }
        r.driver_us = std::chrono::duration<double, std::micro>(machine.allocator_time()).count();
        r.growth_us = std::chrono::duration<double, std::micro>(watch.growth()).count();
        const double warm_us =
            std::chrono::duration<double, std::micro>(machine.allocator_time() - watch.first_half()).count();
        const double took_us = static_cast<double>(t.events.back().t_us - t.events[t.events.size() / 2].t_us);
        if (took_us > 0) r.warm_share = warm_us / took_us;
        for (const auto& pool : pools) {
            r.segments += pool->usage().segments.peak;
            if (!pool->validate()) throw replay_error("the policy's own invariants do not hold");
        }
        unwind<R>(t, pools, world, watch, state);
    }
    world.clear();
    if (const std::vector<std::string> wrong = device.violations(); !wrong.empty())
        throw replay_error(wrong.front());
    if (device.reserved() != 0 || device.live_events() != 0)
        throw replay_error("the policy leaks device memory or events");
    if (!t.sets_limits && t.arenas.size() == 1 && r.reserved_peak > options.limit)
        throw replay_error("the policy held more than its limit");
    return r;
}

/// Effects: adds to the footprint what lay where at the peak. The device's clock decides what has passed, so its calls cost
/// what they did in the watched pass.
template <resource R, class Make>
void picture_peak(const trace& t, const Make& make, const replay_options& options, late_free late,
                  footprint& course) {
    sim::device device({.capacity = options.capacity, .check_overlap = false});
    sim_machine machine(device);
    sim_world world(machine, t.streams);
    const tenants<R> pools = make(device);
    onlooker look(course);
    look.look_at(device, pools);
    play_state state;
    play<R>(t, pools, world, look, late, state);
    unwind<R>(t, pools, world, look, state);
}

/// Returns: host nanoseconds of one allocate or deallocate call, on average over the trace; 0 if it makes
/// none.
template <resource R, class Make>
double replay_timed(const trace& t, const Make& make, const replay_options& options, late_free late) {
    sim::device device({.capacity = options.capacity, .cost = sim::costs::zero(), .check_overlap = false});
    sim_machine machine(device);
    sim_world world(machine, t.streams);
    const tenants<R> pools = make(device);
    unwatched nobody;
    play_state state;
    const auto begin = std::chrono::steady_clock::now();
    play<R>(t, pools, world, nobody, late, state);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    unwind<R>(t, pools, world, nobody, state);
    return state.calls == 0 ? 0.0 : took.count() / static_cast<double>(state.calls);
}

/// Effects: replays `t` through the resources that `make(device)` returns: `tenants<R>`, one an arena of the
/// trace. Throws: `replay_error` when the policy breaks a promise; whatever `make` throws.
template <resource R, class Make>
replay_result replay(const trace& t, const Make& make, const replay_options& options,
                     late_free late = late_free::held) {
    replay_result r = replay_watched<R>(t, make, options, late);
    if (r.course) picture_peak<R>(t, make, options, late, *r.course);
    std::vector<double> times;
    for (unsigned pass = 0; pass < options.repeat; ++pass)
        times.push_back(replay_timed<R>(t, make, options, late));
    r.ns_per_op = median(std::move(times));
    return r;
}

} // namespace tenure::cli
