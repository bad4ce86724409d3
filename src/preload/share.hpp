#pragma once

/// \file
/// `share`: what the program may have of one device, and what it has.
///
///     cuda:0              the limit
///       program           the arena: cudaMalloc, cudaMallocAsync, the default pool
///       not_pooled        what the runtime gives itself, counted: managed and pitched memory, arrays, other pools, graphs
///
/// Invariants: those of arenas: what is held from the device by both together never passes the limit, except by what
/// is charged as of right: a graph's own memory, which nobody is asked for.
///
/// Thread-safety: thread-safe, except construction and destruction.

#include "real.hpp"
#include "settings.hpp"

#include "../policies/named_arena.hpp"

#include <tenure/core/error.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/hub.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace tenure::preload {

class share {
  public:
    /// Throws: `driver_error` where the device cannot be had; `std::invalid_argument` for a policy that is none.
    share(int ordinal, const settings& s)
        : device_(ordinal)
        , hub_(device_, {.max_shelved = 0}) // one tenant: what it gives back is the driver's
        , root_({.name = "cuda:" + std::to_string(ordinal), .max = s.limit, .on_high = {}})
        , counted_(root_.node(), "not_pooled", {})
        , arena_(policies::make_named_arena(
              s.policy, &root_.node(), hub_,
              {.name = "program", .at_destruction = leftovers::release, .on_pressure = {}})) {}

    [[nodiscard]] resource_ref memory() const noexcept { return arena_->memory(); }
    [[nodiscard]] cuda::device& device() noexcept { return device_; }
    [[nodiscard]] meter_reading limits() const noexcept { return root_.limits(); }

    // ---- what the runtime gives itself ----

    /// Returns: whether so much more may be held; then it is charged. Idle memory of the arena makes room for it.
    [[nodiscard]] bool charge(std::size_t bytes) noexcept {
        if (charge_once(bytes)) return true;
        make_room(bytes);
        return charge_once(bytes);
    }
    void charge_as_of_right(std::size_t bytes) noexcept {
        counted_.charge_as_of_right(bytes);
        make_room(0);
    }
    void refund(std::size_t bytes) noexcept { counted_.refund(bytes); }

    /// Effects: what graphs hold by now is charged.
    void count_graphs() noexcept {
        if (!graphs_seen_.load(std::memory_order_relaxed)) return;
        std::uint64_t now = 0;
        if (real::cudaDeviceGetGraphMemAttribute(device_.ordinal(), cudaGraphMemAttrReservedMemCurrent,
                                                 &now) != cudaSuccess) {
            (void)real::cudaGetLastError();
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            if (now > in_graphs_) counted_.charge_as_of_right(now - in_graphs_);
            if (now < in_graphs_) counted_.refund(in_graphs_ - now);
            in_graphs_ = now;
        }
        make_room(0);
    }
    void expect_graphs() noexcept { graphs_seen_.store(true, std::memory_order_relaxed); }

  private:
    /// Effects: gives idle memory of the arena back until `bytes` more fit under the limit, or there is none.
    void make_room(std::size_t bytes) noexcept {
        const meter_reading r = root_.limits();
        if (bytes > r.max || r.charged <= r.max - bytes) return;
        const std::size_t over = r.charged - (r.max - bytes);
        try {
            const std::size_t own = memory().usage().reserved.current;
            (void)memory().trim(own - std::min(own, over));
        } catch (...) { // no host memory: what is idle stays
        }
    }

    [[nodiscard]] bool charge_once(std::size_t bytes) noexcept {
        result<meter::ticket, status> ticket = counted_.reserve_settled(bytes);
        if (!ticket) return false;
        ticket->commit();
        return true;
    }

    cuda::device device_;
    hub<cuda::device> hub_;
    arena_group root_;
    meter counted_;
    std::unique_ptr<policies::named_arena> arena_;
    std::atomic<bool> graphs_seen_{false};
    std::mutex mutex_; ///< guards what follows
    std::uint64_t in_graphs_ = 0;
};

} // namespace tenure::preload
