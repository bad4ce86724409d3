#pragma once

/// \file
/// `segment_source`: an arena for `torch.cuda.MemPool`, with torch's own allocator (or this one) in charge.
///
///     MemPool --> torch's allocator --malloc function of slot k--> segment_source k --> arena --> device
///
/// Torch takes two plain C functions, without a word of context, so each source has functions of its own: `sources` has
/// a fixed number of slots, and `functions(k)` are those of slot k.
///
/// A malloc function answers null when the arena is at its limit; torch takes that for a full device, and says so with
/// its own OutOfMemoryError. Segments are usable on every stream at once, and when torch gives one back, all work of the
/// device is waited for first, as `cudaFree` does.
///
/// Invariant: nothing is kept. Torch caches segments; what it gives back is for everybody on the device.
/// Thread-safety: thread-safe.

#include "gate.hpp"
#include "options.hpp"
#include "policies.hpp"
#include "settled_block.hpp"

#include "../policies/named_arena.hpp"

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>
#include <tenure/policy/caching_options.hpp>
#include <tenure/tenancy/meter.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tenure::torch {

template <class World>
class segment_source {
  public:
    using device_type = typename World::device_type;

    /// What it has on one device.
    struct place {
        place(std::unique_ptr<device_type> d, const std::string& name)
            : device(std::move(d)), unlimited(name, no_limit), through(*device, unlimited) {}
        std::unique_ptr<device_type> device;
        meter unlimited;
        gate<device_type> through;
        std::unique_ptr<policies::named_arena> arena;
        std::size_t live = 0;

        /// Waiting for a device takes a byte of it, also when it is full.
        void keep_a_byte() noexcept {
            if constexpr (requires { device->keep_a_byte(); }) device->keep_a_byte();
        }
    };

    segment_source(World& world, std::string name, std::size_t max, policy_choice policy, sharing share)
        : world_(&world), name_(std::move(name)), max_(max), policy_(std::move(policy)), share_(share) {
        check_policy(policy_);
    }

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] const policy_choice& policy() const noexcept { return policy_; }

    /// Returns: null if there is no memory for it, or it is closed. Throws: what opening a device throws.
    void* allocate(std::size_t bytes, int device) {
        const std::lock_guard lock(mutex_);
        if (closed_) return nullptr;
        place& at = place_on(device);
        const allocate_result r = allocate_settled(at.arena->memory(), bytes);
        if (!r) return nullptr;
        ++at.live;
        return *r;
    }

    void deallocate(void* p, std::size_t bytes, int device) {
        const std::lock_guard lock(mutex_);
        place& at = place_on(device);
        if (at.device->synchronize() != status::ok) { // perhaps for want of a byte
            at.arena->memory().trim(0);
            if (at.device->synchronize() != status::ok) return; // the device is gone, and the memory with it
        }
        at.arena->memory().deallocate_sync(p, bytes, block_alignment);
        --at.live;
        at.arena->memory().trim(0);
        at.keep_a_byte();
    }

    /// Effects: no segment is given out any more. Returns: false if some are out; then nothing has changed.
    bool close() {
        const std::lock_guard lock(mutex_);
        for (const auto& [d, p] : places_)
            if (p->live != 0) return false;
        closed_ = true;
        return true;
    }

    [[nodiscard]] std::size_t live() const {
        const std::lock_guard lock(mutex_);
        std::size_t n = 0;
        for (const auto& [d, p] : places_) n += p->live;
        return n;
    }

    std::size_t trim(int device, std::size_t keep) {
        const std::lock_guard lock(mutex_);
        std::size_t n = 0;
        for (const auto& [d, p] : places_)
            if (device < 0 || device == d) n += p->arena->memory().trim(keep);
        return n;
    }

    void set_max(int device, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        if (device < 0) max_ = bytes;
        for (const auto& [d, p] : places_)
            if (device < 0 || device == d) (void)p->arena->node().enforce_max(bytes);
    }

    [[nodiscard]] std::size_t max() const {
        const std::lock_guard lock(mutex_);
        return max_;
    }

    /// Effects: f(device, named_arena) for each device it has been used on.
    template <class F>
    void for_each(F&& f) const {
        const std::lock_guard lock(mutex_);
        for (const auto& [d, p] : places_) f(d, *p->arena);
    }

  private:
    /// For policy `caching`: what torch asks for is a segment already, 2 MiB or more, and is bought as it is.
    static constexpr caching_options whole_segments{.large_segment = 4_MiB, .min_large_alloc = 2_MiB};

    place& place_on(int device) {
        if (const auto it = places_.find(device); it != places_.end()) return *it->second;
        auto fresh = std::make_unique<place>(world_->open(device, share_), name_);
        fresh->arena = policies::make_named_arena(
            policy_, nullptr, fresh->through,
            {.name = name_, .max = max_, .at_destruction = leftovers::release, .on_pressure = {}},
            whole_segments);
        fresh->keep_a_byte();
        return *(places_[device] = std::move(fresh));
    }

    World* world_;
    const std::string name_;
    std::size_t max_; ///< bytes
    const policy_choice policy_;
    const sharing share_;
    mutable std::mutex mutex_; ///< guards what follows, and `max_`
    bool closed_ = false;
    std::map<int, std::unique_ptr<place>> places_;
};

/// All sources of the process, and the C functions of each. `Entry` has `static void* allocate(std::size_t slot, ...)` and
/// `static void deallocate(std::size_t slot, ...)`.
inline constexpr std::size_t most_sources = 64;

using malloc_function = void* (*)(std::size_t bytes, int device, CUstream_st* stream);
using free_function = void (*)(void* p, std::size_t bytes, int device, CUstream_st* stream);

template <class Entry, std::size_t... Slot>
std::pair<malloc_function, free_function> functions_of(std::size_t slot,
                                                       std::index_sequence<Slot...>) noexcept {
    static constexpr malloc_function mallocs[] = {
        [](std::size_t n, int d, CUstream_st* s) -> void* { return Entry::allocate(Slot, n, d, s); }...};
    static constexpr free_function frees[] = {
        [](void* p, std::size_t n, int d, CUstream_st* s) { Entry::deallocate(Slot, p, n, d, s); }...};
    return {mallocs[slot], frees[slot]};
}

/// Returns: the C functions of a slot. Requires: slot < most_sources.
template <class Entry>
std::pair<malloc_function, free_function> functions_of(std::size_t slot) noexcept {
    return functions_of<Entry>(slot, std::make_index_sequence<most_sources>());
}

} // namespace tenure::torch
