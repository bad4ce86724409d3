#pragma once

/// \file
/// `timed_device<Upstream>`: a device that measures what is asked of it.
///
///     policy --> timed_device --> upstream
///                   |  counts      every call, by kind
///                   |  ledger      bytes taken from the device, and their peak
///                   |  stopwatch   real time of each call, beside the time that the cost model gives it
///
/// It models the same concepts as the upstream and changes nothing, so a policy does not know that it is there. Counted
/// is what `sim::device` counts: not `explain`, and not `describe` of a permanent stream, which asks no driver.
///
/// Invariants:
///   1. Upstream calls are made with no lock held and are alone inside of the stopwatch's two readings.
///   2. `reserved_peak()` is exact while calls come one after the other. Allocations and physical memory are counted as
///      they come and go; driver pools, which grow by themselves, are read after each allocation while `observe` is
///      on, else before whatever makes memory less. A pool with a release threshold may shrink unseen.
///
/// Cost: two clock readings (some 40 ns) a call with `observe`, an atomic increment without.
/// Thread-safety: as the upstream; the figures are exact when no call is under way.

#include "call_times.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim/call.hpp>
#include <tenure/device/sim/costs.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/device/vmm_device.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace tenure::cli {

struct timing_options {
    sim::costs model = sim::costs::h200();
    bool observe = true; ///< off: calls are counted, not timed
    std::function<void()>
        before_wait{}; ///< runs, outside of all timing, before a call that may wait for work
};

template <device Upstream>
class timed_device {
  public:
    explicit timed_device(Upstream& upstream, timing_options options = {})
        : upstream_(&upstream), options_(std::move(options)) {}
    timed_device(const timed_device&) = delete;
    timed_device& operator=(const timed_device&) = delete;

    // ---- tenure::device ----

    result<void*, status> allocate(std::size_t n) noexcept {
        auto p =
            call(sim::call::allocate, n, options_.model.allocate(n), [&] { return upstream_->allocate(n); });
        if (p && *p != nullptr) more(taken_for(n));
        return p;
    }
    status deallocate(void* p, std::size_t n) noexcept {
        wait_is_near();
        const status s = call(sim::call::deallocate, n, options_.model.deallocate(n),
                              [&] { return upstream_->deallocate(p, n); });
        if (s == status::ok && p != nullptr) less(taken_for(n));
        return s;
    }
    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return upstream_->allocation_granularity();
    }
    result<device_memory, status> memory() noexcept {
        return call(sim::call::memory, 0, {}, [&] { return upstream_->memory(); });
    }
    result<stream_state, status> describe(stream_handle s) noexcept {
        if (upstream_->permanent(s)) return upstream_->describe(s);
        return call(sim::call::describe, 0, {}, [&] { return upstream_->describe(s); });
    }
    [[nodiscard]] stream_waits& waits() noexcept requires tells_waits<Upstream> { return upstream_->waits(); }
    [[nodiscard]] std::chrono::nanoseconds now() const requires tells_time<Upstream> {
        return upstream_->now();
    }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return upstream_->permanent(s); }
    result<event_handle, status> create_event() noexcept {
        auto e = call(sim::call::create_event, 0, {}, [&] { return upstream_->create_event(); });
        if (e) live_events_.fetch_add(1, std::memory_order_relaxed);
        return e;
    }
    status destroy_event(event_handle e) noexcept {
        const status s = call(sim::call::destroy_event, 0, {}, [&] { return upstream_->destroy_event(e); });
        if (s == status::ok) live_events_.fetch_sub(1, std::memory_order_relaxed);
        return s;
    }
    status record(event_handle e, stream_handle s) noexcept {
        return call(sim::call::record, 0, {}, [&] { return upstream_->record(e, s); });
    }
    status query(event_handle e) noexcept {
        counts_[index(sim::call::query)].fetch_add(1, std::memory_order_relaxed);
        if (!options_.observe) return upstream_->query(e);
        const auto begin = clock::now();
        const status s = upstream_->query(e);
        const auto end = clock::now();
        if (s == status::ok)
            note({sim::call::query, 0, call_case::passed}, end - begin, options_.model.passed);
        else
            note({sim::call::query, 0}, end - begin, {});
        return s;
    }
    status synchronize(event_handle e) noexcept {
        wait_is_near();
        return call(sim::call::synchronize_event, 0, {}, [&] { return upstream_->synchronize(e); });
    }
    status synchronize(stream_handle s) noexcept {
        wait_is_near();
        return call(sim::call::synchronize_stream, 0, {}, [&] { return upstream_->synchronize(s); });
    }
    status wait(stream_handle s, event_handle e) noexcept {
        return call(sim::call::wait, 0, {}, [&] { return upstream_->wait(s, e); });
    }
    void explain(allocation_failure& f) noexcept { upstream_->explain(f); }

    // ---- tenure::pool_device ----

    [[nodiscard]] std::size_t pool_step() const noexcept requires pool_device<Upstream> {
        return upstream_->pool_step();
    }
    result<pool_handle, status>
    create_pool(const pool_properties& properties) noexcept requires pool_device<Upstream> {
        auto pool = call(sim::call::create_pool, 0, {}, [&] { return upstream_->create_pool(properties); });
        if (pool) {
            const std::lock_guard lock(mutex_);
            pools_.emplace(*pool, 0);
        }
        return pool;
    }
    status destroy_pool(pool_handle pool) noexcept requires pool_device<Upstream> {
        read_pools();
        const status s = call(sim::call::destroy_pool, 0, {}, [&] { return upstream_->destroy_pool(pool); });
        if (s == status::ok) {
            const std::lock_guard lock(mutex_);
            pools_.erase(pool);
        }
        return s;
    }
    result<void*, status> allocate_from(pool_handle pool, std::size_t n,
                                        stream_handle s) noexcept requires pool_device<Upstream> {
        if (!options_.observe) {
            return call(sim::call::allocate_from, n, {},
                        [&] { return upstream_->allocate_from(pool, n, s); });
        }
        counts_[index(sim::call::allocate_from)].fetch_add(1, std::memory_order_relaxed);
        const auto begin = clock::now();
        result<void*, status> p = upstream_->allocate_from(pool, n, s);
        const auto end = clock::now();
        const std::size_t grown = read_pool(pool);
        note({sim::call::allocate_from, call_times::size_class(grown != 0 ? grown : n),
              grown != 0 ? call_case::growing : call_case::plain},
             end - begin, grown != 0 ? options_.model.grow_pool(grown) : std::chrono::nanoseconds{0});
        return p;
    }
    status deallocate_to(pool_handle pool, void* p, stream_handle s) noexcept requires pool_device<Upstream> {
        return call(sim::call::deallocate_to, 0, {}, [&] { return upstream_->deallocate_to(pool, p, s); });
    }
    status trim_pool(pool_handle pool, std::size_t keep) noexcept requires pool_device<Upstream> {
        read_pools();
        const status s = call(sim::call::trim_pool, 0, {}, [&] { return upstream_->trim_pool(pool, keep); });
        read_pool(pool);
        return s;
    }
    result<pool_memory, status> memory_of(pool_handle pool) noexcept requires pool_device<Upstream> {
        return call(sim::call::memory_of, 0, {}, [&] { return upstream_->memory_of(pool); });
    }

    // ---- tenure::vmm_device ----

    status synchronize() noexcept requires vmm_device<Upstream> {
        wait_is_near();
        return call(sim::call::synchronize_device, 0, {}, [&] { return upstream_->synchronize(); });
    }
    [[nodiscard]] bool supports_vmm() const noexcept requires vmm_device<Upstream> {
        return upstream_->supports_vmm();
    }
    result<void*, status> reserve_address(std::size_t n, std::size_t a,
                                          std::uint64_t near = 0) noexcept requires vmm_device<Upstream> {
        return call(sim::call::reserve_address, n, {},
                    [&] { return upstream_->reserve_address(n, a, near); });
    }
    status free_address(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        return call(sim::call::free_address, n, {}, [&] { return upstream_->free_address(p, n); });
    }
    result<memory_handle, status> create_memory(std::size_t n) noexcept requires vmm_device<Upstream> {
        auto h = call(sim::call::create_memory, n, options_.model.create_memory(n),
                      [&] { return upstream_->create_memory(n); });
        if (h) {
            const std::lock_guard lock(mutex_);
            handles_[*h] = {n, 0, false};
            add(n);
        }
        return h;
    }
    status release_memory(memory_handle h) noexcept requires vmm_device<Upstream> {
        const std::size_t n = bytes_of(h);
        const status s = call(sim::call::release_memory, n, cost_of_release(options_.model, n),
                              [&] { return upstream_->release_memory(h); });
        if (s == status::ok) {
            read_pools();
            const std::lock_guard lock(mutex_);
            if (const auto it = handles_.find(h); it != handles_.end()) {
                it->second.released = true;
                forget_if_gone(it);
            }
        }
        return s;
    }
    status map(void* p, memory_handle h) noexcept requires vmm_device<Upstream> {
        const status s = call(sim::call::map, bytes_of(h), {}, [&] { return upstream_->map(p, h); });
        if (s == status::ok) {
            const std::lock_guard lock(mutex_);
            mappings_[to_address(p)] = h;
            ++handles_[h].mappings;
        }
        return s;
    }
    status set_access(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        return call(sim::call::set_access, n, for_each_handle(options_.model.set_access, p, n),
                    [&] { return upstream_->set_access(p, n); });
    }
    status unmap(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        const status s = call(sim::call::unmap, n, for_each_handle(options_.model.unmap, p, n),
                              [&] { return upstream_->unmap(p, n); });
        if (s == status::ok) {
            read_pools();
            const std::lock_guard lock(mutex_);
            const auto first = mappings_.lower_bound(to_address(p));
            const auto last = mappings_.lower_bound(to_address(p) + n);
            for (auto it = first; it != last; ++it) {
                const auto owner = handles_.find(it->second);
                --owner->second.mappings;
                forget_if_gone(owner);
            }
            mappings_.erase(first, last);
        }
        return s;
    }

    // ---- figures ----

    [[nodiscard]] std::array<std::uint64_t, sim::call_kinds> call_counts() const noexcept {
        std::array<std::uint64_t, sim::call_kinds> counts{};
        for (std::size_t i = 0; i < counts.size(); ++i)
            counts[i] = counts_[i].load(std::memory_order_relaxed);
        return counts;
    }
    /// Returns: empty unless `observe` is on.
    [[nodiscard]] call_times times() const {
        const std::lock_guard lock(mutex_);
        return times_;
    }
    /// Returns: bytes held from the upstream now.
    [[nodiscard]] std::size_t reserved() noexcept {
        read_pools();
        const std::lock_guard lock(mutex_);
        return taken_ + in_pools();
    }
    [[nodiscard]] std::size_t reserved_peak() noexcept {
        read_pools();
        const std::lock_guard lock(mutex_);
        return peak_;
    }
    [[nodiscard]] std::size_t live_events() const noexcept {
        return live_events_.load(std::memory_order_relaxed);
    }
    [[nodiscard]] std::size_t live_pools() const noexcept {
        const std::lock_guard lock(mutex_);
        return pools_.size();
    }

  private:
    using clock = std::chrono::steady_clock;

    struct physical {
        std::size_t bytes = 0;
        std::size_t mappings = 0;
        bool released = false;
    };

    /// `bytes` tell classes of calls apart; `extra` is the model's cost on top of the fixed one.
    template <class F>
    auto call(sim::call kind, std::size_t bytes, std::chrono::nanoseconds extra, F&& f) noexcept
        -> decltype(f()) {
        counts_[index(kind)].fetch_add(1, std::memory_order_relaxed);
        if (!options_.observe) return f();
        const auto begin = clock::now();
        auto answer = f();
        const auto end = clock::now();
        note({kind, call_times::size_class(bytes)}, end - begin, extra);
        return answer;
    }

    /// A model may have one cost for all sizes.
    template <class Costs>
    static std::chrono::nanoseconds cost_of_release(const Costs& model, std::size_t n) {
        if constexpr (requires { model.release_memory(n); }) return model.release_memory(n);
        return {};
    }

    void note(const call_class& of, std::chrono::nanoseconds real, std::chrono::nanoseconds extra) {
        const std::lock_guard lock(mutex_);
        times_.add(of, real, options_.model.fixed[index(of.kind)] + extra);
    }

    void wait_is_near() {
        if (options_.before_wait) options_.before_wait();
    }

    [[nodiscard]] std::size_t taken_for(std::size_t n) const noexcept {
        return round_up(n, upstream_->allocation_granularity());
    }

    void more(std::size_t n) {
        const std::lock_guard lock(mutex_);
        add(n);
    }
    void less(std::size_t n) {
        read_pools();
        const std::lock_guard lock(mutex_);
        taken_ -= n;
    }

    // Below: the mutex is held, unless said otherwise.

    void add(std::size_t n) noexcept {
        taken_ += n;
        peak_ = std::max(peak_, taken_ + in_pools());
    }

    [[nodiscard]] std::size_t in_pools() const noexcept {
        std::size_t sum = 0;
        for (const auto& [pool, bytes] : pools_) sum += bytes;
        return sum;
    }

    /// Not held. Effects: notes what a pool holds. Returns: how much more that is than before.
    std::size_t read_pool(pool_handle pool) noexcept {
        if constexpr (pool_device<Upstream>) {
            const result<pool_memory, status> now = upstream_->memory_of(pool);
            if (!now) return 0;
            const std::lock_guard lock(mutex_);
            const auto it = pools_.find(pool);
            if (it == pools_.end()) return 0;
            const std::size_t before = it->second;
            it->second = now->reserved;
            peak_ = std::max(peak_, taken_ + in_pools());
            return now->reserved > before ? now->reserved - before : 0;
        } else {
            (void)pool;
            return 0;
        }
    }
    /// Not held.
    void read_pools() noexcept {
        std::map<pool_handle, std::size_t> all;
        {
            const std::lock_guard lock(mutex_);
            all = pools_;
        }
        for (const auto& [pool, bytes] : all) read_pool(pool);
    }

    /// Not held.
    [[nodiscard]] std::size_t bytes_of(memory_handle h) const {
        const std::lock_guard lock(mutex_);
        const auto it = handles_.find(h);
        return it == handles_.end() ? 0 : it->second.bytes;
    }

    /// Not held. Returns: the sum of a cost over the handles that are mapped in the range.
    [[nodiscard]] std::chrono::nanoseconds for_each_handle(const sim::cost_curve& cost, void* p,
                                                           std::size_t n) const {
        const std::lock_guard lock(mutex_);
        std::chrono::nanoseconds sum{0};
        const std::uint64_t end = to_address(p) + n;
        for (auto it = mappings_.lower_bound(to_address(p)); it != mappings_.end() && it->first < end; ++it)
            sum += cost(handles_.at(it->second).bytes);
        return sum;
    }

    void forget_if_gone(typename std::map<memory_handle, physical>::iterator it) {
        if (!it->second.released || it->second.mappings != 0) return;
        taken_ -= it->second.bytes;
        handles_.erase(it);
    }

    Upstream* upstream_;
    timing_options options_;
    std::array<std::atomic<std::uint64_t>, sim::call_kinds> counts_{};
    std::atomic<std::size_t> live_events_{0};
    mutable std::mutex mutex_; ///< guards all below
    call_times times_;
    std::size_t taken_ = 0; ///< by allocations and physical memory
    std::size_t peak_ = 0;  ///< of that and the pools
    std::map<pool_handle, std::size_t> pools_;
    std::map<memory_handle, physical> handles_;
    std::map<std::uint64_t, memory_handle> mappings_; ///< by address
};

} // namespace tenure::cli
