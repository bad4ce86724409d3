#pragma once

/// \file
/// `heap_state<Device>`: all that a heap knows of one device; what the parts of a heap share.
///
///     heap ------------ the lock, and the interface of it all
///       heap_allocation   request -> block, with the ladder to the exception
///       heap_segments     what private pools buy and give back
///       heap_frees        block -> free, when its uses have passed
///       heap_pools        private pools: users, routes, checkpoints
///       heap_picture      what there is, for snapshots
///         heap_state      <- this: tables, accounts, the gate to the device
///
/// Invariants:
///   1. Every live block is in `blocks`; every block that is freed but still used is in `pending`.
///   2. `counters` equal the sums over what `heap_picture` draws, whenever the heap's mutex is free.
///
/// Thread-safety: externally synchronised, by the heap's mutex; the gate and the meter also take calls without it.

#include "arena_slot.hpp"
#include "block.hpp"
#include "gate.hpp"
#include "history.hpp"
#include "pending_frees.hpp"
#include "pool_routes.hpp"
#include "private_pool.hpp"
#include "statistics.hpp"
#include "tenant.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/policy/caching_options.hpp>
#include <tenure/tenancy/meter.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tenure::torch {

namespace native = c10::cuda::CUDACachingAllocator;

/// What all heaps have in common.
struct heap_settings {
    caching_options caching{};                         ///< what policy `caching` starts from
    std::size_t limit = no_limit;                      ///< bytes, all arenas of a device together
    double fraction = 1.0;                             ///< of the device, that they may hold
    std::size_t large_segment = std::size_t{20} << 20; ///< bytes, of private pools
    bool run_callbacks = true;                         ///< torch's `FreeCudaMemoryCallbacksRegistry`
};

template <device Device>
class heap_state final : private gate_listener {
  public:
    using pool_id = c10::MempoolId_t;

    heap_state(int device_ordinal, std::unique_ptr<Device> d, const heap_settings& s, const recorder& r)
        : ordinal(device_ordinal)
        , device(std::move(d))
        , settings(s)
        , limit("torch, all arenas of device " + std::to_string(device_ordinal), s.limit)
        , through(*device, limit, this)
        , history(r)
        , pending(*device)
        , routes(*device)
        , fraction(s.fraction) {
        if (const auto m = device->memory()) total = m->total;
        keep_a_byte();
    }
    heap_state(const heap_state&) = delete;
    heap_state& operator=(const heap_state&) = delete;

    [[nodiscard]] c10::DeviceIndex index() const noexcept { return static_cast<c10::DeviceIndex>(ordinal); }

    /// Returns: the tenant's memory on this device, made now if there is none. Throws: what making an arena throws.
    arena_slot& slot_of(tenant& who) {
        if (arena_slot* const s = who.slot(ordinal)) [[likely]]
            return *s;
        auto fresh = std::make_unique<arena_slot>();
        fresh->owner = who.shared_from_this();
        fresh->arena = policies::make_named_arena(who.policy(), nullptr, through,
                                                  {.name = who.name(),
                                                   .max = who.max(ordinal),
                                                   .at_destruction = leftovers::release,
                                                   .on_pressure = {}},
                                                  settings.caching);
        slots.push_back(std::move(fresh));
        who.set_slot(ordinal, slots.back().get());
        return *slots.back();
    }

    private_pool& pool_of(pool_id id) {
        auto& p = pools[id];
        if (!p) p = std::make_unique<private_pool>(id, blocks, counters);
        return *p;
    }

    /// Effects: the pool has one user less. Without users nothing is routed to it, and it lends nothing.
    void let_go(private_pool& p) noexcept {
        if (--p.use_count != 0) return;
        routes.forget(p);
        p.use_on_oom = false;
    }
    /// Effects: the same; a pool without users that is empty is gone.
    void user_gone(private_pool& p) {
        let_go(p);
        if (p.use_count == 0 && p.empty()) pools.erase(p.id());
    }

    // ---- the device ----

    /// Effects: all work of the device is over, and idle memory of the arenas may have gone back to it.
    /// Returns: whether that is so. Requires: no capture is under way.
    ///
    /// Waiting for a device takes a byte of it. One is kept for that, but it is good for one time only.
    bool wait_for_device() noexcept {
        if constexpr (requires { device->synchronize(); }) {
            if (device->synchronize() == status::ok) return true;
            try {
                for (const auto& s : slots) s->memory().trim(0);
            } catch (...) { // host memory: what has gone back helps
            }
            return device->synchronize() == status::ok;
        }
        return true;
    }

    /// Effects: the next `wait_for_device` works on a full device, too. For whenever memory has gone back.
    void keep_a_byte() noexcept {
        if constexpr (requires { device->keep_a_byte(); }) device->keep_a_byte();
    }

    void trim_arenas() {
        for (const auto& s : slots) s->memory().trim(0);
    }

    // ---- accounts ----

    static statistics::pool counted_in(const block& b) noexcept {
        return b.segment != nullptr ? b.segment->counted_in() : statistics::pool::large;
    }

    void note(trace_entry::Action action, const block& b, const context_ptr& context) noexcept {
        if (!history.active()) [[likely]]
            return;
        history.add(action, index(), to_address(b.ptr), b.requested, b.stream,
                    b.segment != nullptr ? b.segment->pool->id() : pool_id{0, 0}, context);
    }

    /// Effects: the statistics know what is reserved now. Costs one load if nothing has changed.
    void look_at_reserve() {
        const std::uint64_t now = through.changes();
        if (now == seen_changes_ && !pools_changed) [[likely]]
            return;
        seen_changes_ = now;
        pools_changed = false;
        std::size_t arenas = 0;
        std::size_t in_segments = 0;
        for (const auto& s : slots) {
            arenas += s->memory().usage().reserved.current;
            in_segments += s->in_segments;
        }
        counters.set_reserved({small_segments, arenas - std::min(arenas, in_segments) + large_segments});
    }

    /// Effects: the meter's limit is the smaller of the fraction's and `settings.limit`. Memory above it goes back, after
    /// a capture if one is under way.
    void apply_limits() {
        const auto part = static_cast<double>(total) * fraction;
        const std::size_t by_fraction = fraction >= 1.0 ? no_limit : static_cast<std::size_t>(part);
        if (limit.set_max(std::min(by_fraction, settings.limit)) == 0) return;
        if (routes.capture_under_way()) {
            trim_later = true;
            return;
        }
        trim_arenas();
        look_at_reserve();
    }

    // ---- the parts of it ----

    const int ordinal;
    std::unique_ptr<Device> device;
    heap_settings settings;
    meter limit; ///< over all arenas
    gate<Device> through;
    trace history;
    statistics counters;
    block_table blocks;
    pending_frees<Device> pending;
    std::vector<std::unique_ptr<arena_slot>> slots;
    std::map<pool_id, std::unique_ptr<private_pool>> pools;
    pool_routes<Device> routes;
    double fraction;
    std::size_t total = 0;          ///< bytes of the device
    std::size_t small_segments = 0; ///< bytes of segments of private pools
    std::size_t large_segments = 0;
    bool pools_changed = false; ///< `counters` do not know yet what is reserved

    // Asked for while a capture was under way.
    bool give_back_later = false; ///< released pools and closed arenas
    bool trim_later = false;      ///< free memory of arenas

  private:
    // ---- gate_listener: by calls of the arenas, under the mutex ----

    void segment_taken(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_ALLOC, p, n);
    }
    void segment_given_back(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_FREE, p, n);
    }
    void range_mapped(void* p, std::size_t n) noexcept override { segment(trace_entry::SEGMENT_MAP, p, n); }
    void range_unmapped(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_UNMAP, p, n);
    }
    void segment(trace_entry::Action action, void* p, std::size_t n) noexcept {
        if (history.active()) history.add(action, index(), to_address(p), n, nullptr, {0, 0}, nullptr);
    }

    std::uint64_t seen_changes_ = 0;
};

} // namespace tenure::torch
