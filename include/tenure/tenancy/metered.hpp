#pragma once

/// \file
/// `metered<Device>`: a device whose memory somebody pays for. It stands between a policy and the real device and
/// models the same concepts, so a policy does not know it is there.
///
///     policy --> metered --charge--> meter
///                   |
///                   +--take--> device
///
/// Invariants:
///   1. Bytes taken from the device through it are charged before they are taken and refunded after they are given
///      back: `held <= charged <= max` at every instant.
///   2. Whatever fails, the charge of what was not taken goes back.
///
/// Driver pools grow by themselves, in steps of `pool_step()`. An allocation can make a pool grow by at most
/// its size rounded up to a step, and never beyond the pool's own limit; that bound is charged before the
/// call, and what the pool did not take is refunded after reading how much it holds. The pool's own limit is
/// set to the largest multiple of the step that fits under `max` when the pool is made, so that a pool which
/// is full to its limit can still serve from what it holds. Raising `max` later does not raise that limit.
/// Lowering it works at once; below what the pool holds and might grow by, the pool then serves nothing,
/// because whether an allocation makes it grow is not known before.
///
/// Virtual memory is charged by its physical part: addresses are free, and so are more mappings of the same memory.
/// Memory stays taken until its handle is released *and* nothing shows it any more, in whichever order, and exactly so
/// long it is charged:
///
///     create_memory --> held by the handle <-- map --> held by each mapping       the last to let go refunds
///
/// A handle that was not made here is passed on and paid for by nobody here.
///
/// Cost: one uncontended lock a call that takes memory or maps it, there held over the device's call (a driver has one
/// lock anyway); nothing on the others. Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/tenancy/meter.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace tenure {

/// A device that wants to know who takes memory from it, as a `hub` does.
template <class D>
concept tenant_device = device<D> && requires(D& d, std::size_t n, meter& m) {
    { d.allocate(n, m) }
    noexcept->std::same_as<result<void*, status>>;
};

template <device Device>
class metered {
  public:
    metered(Device& upstream, meter& m) noexcept : device_(&upstream), meter_(&m) {}

    metered(const metered&) = delete;
    metered& operator=(const metered&) = delete;

    // ---- memory: charged ----

    result<void*, status> allocate(std::size_t bytes) noexcept {
        result<meter::ticket, status> charge = meter_->reserve_settled(taken_for(bytes));
        if (!charge) return charge.error();
        result<void*, status> p = take(bytes);
        if (p) charge->commit();
        return p;
    }

    status deallocate(void* p, std::size_t bytes) noexcept {
        const status s = device_->deallocate(p, bytes);
        if (s == status::ok) meter_->refund(taken_for(bytes));
        return s;
    }

    // ---- driver pools: charged by what they hold ----

    [[nodiscard]] std::size_t pool_step() const noexcept requires pool_device<Device> {
        return device_->pool_step();
    }

    result<pool_handle, status>
    create_pool(const pool_properties& wanted) noexcept requires pool_device<Device> {
        pool_properties properties = wanted;
        if (const std::size_t max = meter_->read().max; max != no_limit) {
            // A limit of zero steps cannot be said to the driver (0 means none); such a pool is never asked.
            const std::size_t fence = std::max(round_down(max, pool_step()), pool_step());
            properties.max_bytes = properties.max_bytes == 0 ? fence : std::min(properties.max_bytes, fence);
        }
        const std::lock_guard lock(mutex_);
        try {
            pools_.reserve(pools_.size() + 1);
        } catch (...) {
            return status::failed;
        }
        result<pool_handle, status> pool = device_->create_pool(properties);
        if (pool) pools_.push_back({*pool, 0, round_up(properties.max_bytes, pool_step())});
        return pool;
    }

    /// Waits for the device: the driver keeps the memory until the frees in it have passed, and then nobody can ask any
    /// more how much that is.
    status destroy_pool(pool_handle pool) noexcept requires pool_device<Device> {
        if constexpr (requires { device_->synchronize(); }) (void)device_->synchronize();
        const std::lock_guard lock(mutex_);
        const status s = device_->destroy_pool(pool);
        if (s != status::ok) return s;
        if (account* const a = account_of(pool)) {
            meter_->refund(a->held);
            *a = pools_.back();
            pools_.pop_back();
        }
        return s;
    }

    result<void*, status> allocate_from(pool_handle pool, std::size_t bytes,
                                        stream_handle stream) noexcept requires pool_device<Device> {
        const std::lock_guard lock(mutex_);
        account* const a = account_of(pool);
        if (a == nullptr) return status::invalid_value;
        const std::size_t wanted = round_up(bytes, pool_step());
        std::size_t growth = a->growth_for(wanted);
        result<meter::ticket, status> charge = meter_->reserve_settled(growth);
        if (!charge) { // the driver may have taken memory from the pool by itself
            lower(*a, device_->memory_of(pool));
            growth = a->growth_for(wanted);
            charge = meter_->reserve_settled(growth);
        }
        if (!charge) return charge.error();
        result<void*, status> p = device_->allocate_from(pool, bytes, stream);
        const result<pool_memory, status> now = device_->memory_of(pool);
        // Unknown: the most that it can be, until it is known.
        const std::size_t grown = now ? now->reserved - std::min(now->reserved, a->held) : growth;
        charge->commit(std::min(grown, growth));
        a->held += std::min(grown, growth);
        lower(*a, now);
        // The pool's own limit stands for the tenant's.
        if (!p && p.error() == status::out_of_memory && growth < wanted) return status::over_limit;
        return p;
    }

    status deallocate_to(pool_handle pool, void* p,
                         stream_handle stream) noexcept requires pool_device<Device> {
        return device_->deallocate_to(pool, p, stream);
    }

    status trim_pool(pool_handle pool, std::size_t keep) noexcept requires pool_device<Device> {
        const std::lock_guard lock(mutex_);
        const status s = device_->trim_pool(pool, keep);
        if (account* const a = account_of(pool)) lower(*a, device_->memory_of(pool));
        return s;
    }

    /// What the driver took from the pool by itself (`release_threshold`) is refunded here, too.
    result<pool_memory, status> memory_of(pool_handle pool) noexcept requires pool_device<Device> {
        const std::lock_guard lock(mutex_);
        const result<pool_memory, status> now = device_->memory_of(pool);
        if (account* const a = account_of(pool)) lower(*a, now);
        return now;
    }

    // ---- virtual memory: charged while a handle or a mapping holds it ----

    result<memory_handle, status> create_memory(std::size_t bytes) noexcept requires vmm_device<Device> {
        const std::lock_guard lock(mutex_); // before the charge: who has one takes no lock of ours any more
        result<meter::ticket, status> charge = meter_->reserve_settled(taken_for(bytes));
        if (!charge) return charge.error();
        std::map<memory_handle, physical>
            one; // nothing can fail any more once the device has given the memory
        try {
            one.emplace(0, std::make_shared<const std::size_t>(taken_for(bytes)));
        } catch (...) {
            return status::failed;
        }
        const result<memory_handle, status> made = create(bytes);
        if (!made) return made;
        charge->commit();
        auto node = one.extract(one.begin());
        node.key() = *made;
        handles_.insert(std::move(node));
        return made;
    }

    status release_memory(memory_handle handle) noexcept requires vmm_device<Device> {
        const std::lock_guard lock(mutex_);
        const status s = device_->release_memory(handle);
        if (s != status::ok) return s;
        if (const auto it = handles_.find(handle); it != handles_.end()) {
            let_go(it->second);
            handles_.erase(it);
        }
        return s;
    }

    status map(void* p, memory_handle handle) noexcept requires vmm_device<Device> {
        const std::lock_guard lock(mutex_);
        const auto paid = handles_.find(handle);
        if (paid == handles_.end()) return device_->map(p, handle);
        const auto key = to_address(p);
        bool fresh = false;
        try {
            fresh = mappings_.emplace(key, paid->second).second;
        } catch (...) {
            return status::failed;
        }
        const status s = device_->map(p, handle);
        if (s != status::ok && fresh) mappings_.erase(key);
        return s;
    }

    status unmap(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        const std::lock_guard lock(mutex_);
        const status s = device_->unmap(p, bytes);
        if (s != status::ok) return s;
        auto it = mappings_.lower_bound(to_address(p));
        while (it != mappings_.end() && it->first - to_address(p) < bytes) {
            let_go(it->second);
            it = mappings_.erase(it);
        }
        return s;
    }

    [[nodiscard]] bool supports_vmm() const noexcept requires vmm_device<Device> {
        return device_->supports_vmm();
    }
    result<void*, status> reserve_address(std::size_t bytes,
                                          std::size_t alignment) noexcept requires vmm_device<Device> {
        return device_->reserve_address(bytes, alignment);
    }
    status free_address(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        return device_->free_address(p, bytes);
    }
    status set_access(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        return device_->set_access(p, bytes);
    }

    status synchronize() noexcept requires vmm_device<Device> { return device_->synchronize(); }

    /// See `hub::wipe_around`; `ok` where the device wipes nothing.
    status wipe_around(void* allocation, std::size_t allocated, void* p, std::size_t bytes) noexcept {
        if constexpr (requires { device_->wipe_around(allocation, allocated, p, bytes); })
            return device_->wipe_around(allocation, allocated, p, bytes);
        else
            return status::ok;
    }
    /// Effects: tells a device that asks who has its memory that this tenant has the segment at `p` now.
    void take_over(void* p) noexcept {
        if constexpr (requires { device_->pass_on(p, *meter_); }) device_->pass_on(p, *meter_);
    }
    [[nodiscard]] const Device* upstream() const noexcept { return device_; }

    // ---- everything else: passed on ----

    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return device_->allocation_granularity();
    }
    result<device_memory, status> memory() noexcept { return device_->memory(); }
    result<stream_state, status> describe(stream_handle stream) noexcept { return device_->describe(stream); }
    [[nodiscard]] bool permanent(stream_handle stream) const noexcept { return device_->permanent(stream); }
    result<event_handle, status> create_event() noexcept { return device_->create_event(); }
    status destroy_event(event_handle event) noexcept { return device_->destroy_event(event); }
    status record(event_handle event, stream_handle stream) noexcept {
        return device_->record(event, stream);
    }
    status query(event_handle event) noexcept { return device_->query(event); }
    status synchronize(event_handle event) noexcept { return device_->synchronize(event); }
    status synchronize(stream_handle stream) noexcept { return device_->synchronize(stream); }
    status wait(stream_handle stream, event_handle event) noexcept { return device_->wait(stream, event); }

    // ---- limits, as they are now ----

    /// Returns: bytes that could be taken at this instant as far as limits go; see `meter::room`.
    [[nodiscard]] std::size_t room() const noexcept { return meter_->room(); }

    /// Returns: bytes that may be held at the very most; see `meter::limit`.
    [[nodiscard]] std::size_t limit() const noexcept { return meter_->limit(); }

    /// Says whose limit it was: that of the tenant's level which refused, else the device's.
    void explain(allocation_failure& failure) noexcept {
        device_->explain(failure);
        if (failure.driver_status != status::over_limit) return;
        if (const std::optional<refusal> why = meter_->last_refusal()) {
            failure.arena = why->path;
            failure.cause = why->ancestor ? failure_cause::ancestor_limit : failure_cause::arena_limit;
            failure.used = why->used;
            failure.min = why->min;
            failure.max = why->max;
            return;
        }
        const meter_reading now =
            meter_->read(); // not refused to this thread: a driver pool at its own limit
        failure.arena = short_text(meter_->name());
        failure.cause = failure_cause::arena_limit;
        failure.used = now.charged;
        failure.min = now.min;
        failure.max = now.max;
    }

  private:
    struct account {
        pool_handle pool;
        std::size_t held;  ///< bytes charged for it
        std::size_t fence; ///< the pool's own limit in bytes; 0: none

        /// Returns: the most by which the pool can grow for an allocation of `wanted` bytes.
        [[nodiscard]] std::size_t growth_for(std::size_t wanted) const noexcept {
            return fence == 0 ? wanted : std::min(wanted, fence - std::min(fence, held));
        }
    };

    /// Bytes of physical memory, shared by all that hold it: its handle and its mappings.
    using physical = std::shared_ptr<const std::size_t>;

    /// Effects: one holder less is about to hold it; after the last it is refunded. Requires: `mutex_` is held.
    void let_go(const physical& m) noexcept {
        if (m.use_count() == 1) meter_->refund(*m);
    }

    result<void*, status> take(std::size_t bytes) noexcept {
        if constexpr (tenant_device<Device>)
            return device_->allocate(bytes, *meter_);
        else
            return device_->allocate(bytes);
    }
    result<memory_handle, status> create(std::size_t bytes) noexcept {
        if constexpr (tenant_device<Device>)
            return device_->create_memory(bytes, *meter_);
        else
            return device_->create_memory(bytes);
    }

    [[nodiscard]] std::size_t taken_for(std::size_t bytes) const noexcept {
        return round_up(bytes, device_->allocation_granularity());
    }

    /// Returns: null if the pool was not made here.
    account* account_of(pool_handle pool) noexcept {
        const auto it =
            std::find_if(pools_.begin(), pools_.end(), [pool](const account& a) { return a.pool == pool; });
        return it == pools_.end() ? nullptr : &*it;
    }

    /// Effects: refunds what the account was charged for and the pool does not hold.
    void lower(account& a, const result<pool_memory, status>& now) noexcept {
        if (!now || now->reserved >= a.held) return;
        meter_->refund(a.held - now->reserved);
        a.held = now->reserved;
    }

    Device* device_;
    meter* meter_;
    std::mutex
        mutex_; ///< guards what follows, and keeps the bytes a pool holds from changing between reads, and a
                ///< handle or an address from being given to another thread before it is forgotten here;
                ///< taken before the meter's
    std::vector<account> pools_;
    std::map<memory_handle, physical> handles_;
    std::map<std::uint64_t, physical> mappings_; ///< by address
};

} // namespace tenure
