#pragma once

/// \file
/// `gate<Device>`: where the memory of all arenas of one device comes through. A device itself, between the arenas and
/// the GPU.
///
///     arena "torch" --+
///     arena "alice" --+--> gate: one meter over all of them, who is told what happens, what is mapped where --> device
///     arena "bob"   --+
///
/// The gate's meter carries the limits that torch knows: the memory fraction of the process, and `limit=`. To the arenas
/// its refusal looks like a full device (`out_of_memory`), since no single arena is at fault; `explain` says whose limit
/// it was. Every change of what is held increments `changes()`, so that statistics need to look only when something
/// has happened.
///
/// Invariants: those of `metered`; and `extents()` holds exactly what is allocated or mapped through this gate.
/// Cost: one more lock a driver call. Thread-safety: thread-safe; the listener is called by whoever makes the call.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace tenure::torch {

/// Told about every driver call that takes or gives back memory, after it has succeeded.
class gate_listener {
  public:
    virtual void segment_taken(void* p, std::size_t bytes) noexcept = 0;
    virtual void segment_given_back(void* p, std::size_t bytes) noexcept = 0;
    virtual void range_mapped(void* p, std::size_t bytes) noexcept = 0;
    virtual void range_unmapped(void* p, std::size_t bytes) noexcept = 0;

  protected:
    ~gate_listener() = default;
};

/// What lies at an address: an allocation (`memory` is 0), or one mapping of a handle.
struct extent {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    memory_handle memory = 0;
};

template <device Device>
class gate : public metered<Device> {
  public:
    gate(Device& device, meter& m, gate_listener* listener = nullptr)
        : metered<Device>(device, m), device_(&device), meter_(&m), listener_(listener) {}

    /// Returns: a number that has grown whenever memory may have been taken or given back.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::uint64_t given_back() const noexcept {
        return given_back_.load(std::memory_order_relaxed);
    }

    result<void*, status> allocate(std::size_t bytes) noexcept {
        result<void*, status> p = metered<Device>::allocate(bytes);
        if (!p) return refusal(p.error());
        count(taken_);
        remember({to_address(*p), bytes, 0});
        if (listener_ != nullptr) listener_->segment_taken(*p, bytes);
        return p;
    }

    status deallocate(void* p, std::size_t bytes) noexcept {
        forget(to_address(p), 1); // before another thread can be given the address
        const status s = metered<Device>::deallocate(p, bytes);
        if (s != status::ok) {
            remember({to_address(p), bytes, 0});
            return s;
        }
        count(given_back_);
        if (listener_ != nullptr) listener_->segment_given_back(p, bytes);
        return s;
    }

    result<void*, status> allocate_from(pool_handle pool, std::size_t bytes,
                                        stream_handle stream) noexcept requires pool_device<Device> {
        result<void*, status> p = metered<Device>::allocate_from(pool, bytes, stream);
        count(changes_);
        if (!p) return refusal(p.error());
        return p;
    }
    status trim_pool(pool_handle pool, std::size_t keep) noexcept requires pool_device<Device> {
        const status s = metered<Device>::trim_pool(pool, keep);
        count(changes_);
        return s;
    }
    result<pool_handle, status>
    create_pool(const pool_properties& properties) noexcept requires pool_device<Device> {
        const std::lock_guard lock(mutex_);
        try {
            pools_.reserve(pools_.size() + 1);
        } catch (...) {
            return status::failed;
        }
        result<pool_handle, status> made = metered<Device>::create_pool(properties);
        if (!made) return made;
        for (const auto& [peer, how] : peers_)
            if (const status s = how.to_pool(*device_, *made, peer); s != status::ok) {
                (void)metered<Device>::destroy_pool(*made);
                return s;
            }
        pools_.push_back(*made);
        return made;
    }
    status destroy_pool(pool_handle pool) noexcept requires pool_device<Device> {
        {
            const std::lock_guard lock(mutex_);
            pools_.erase(std::remove(pools_.begin(), pools_.end(), pool), pools_.end());
        }
        const status s = metered<Device>::destroy_pool(pool);
        count(changes_);
        return s;
    }

    result<memory_handle, status> create_memory(std::size_t bytes) noexcept requires vmm_device<Device> {
        result<memory_handle, status> made = metered<Device>::create_memory(bytes);
        if (!made) return refusal(made.error());
        count(taken_);
        try {
            const std::lock_guard lock(mutex_);
            sizes_[*made] = bytes;
        } catch (...) { // such memory works, but cannot be found by its address
        }
        return made;
    }

    status release_memory(memory_handle handle) noexcept requires vmm_device<Device> {
        {
            const std::lock_guard lock(mutex_);
            sizes_.erase(handle);
            attached_.erase(handle);
        }
        const status s = metered<Device>::release_memory(handle);
        if (s == status::ok) count(given_back_);
        return s;
    }

    status map(void* p, memory_handle handle) noexcept requires vmm_device<Device> {
        const status s = metered<Device>::map(p, handle);
        if (s != status::ok) return s;
        std::size_t bytes = 0;
        {
            const std::lock_guard lock(mutex_);
            if (const auto it = sizes_.find(handle); it != sizes_.end()) bytes = it->second;
        }
        count(changes_);
        if (bytes == 0) return s;
        remember({to_address(p), bytes, handle});
        if (listener_ != nullptr) listener_->range_mapped(p, bytes);
        return s;
    }

    status set_access(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        const status s = metered<Device>::set_access(p, bytes);
        if (s != status::ok) return s;
        const std::lock_guard lock(mutex_);
        for (const auto& [peer, how] : peers_)
            if (const status granted = how.to_range(*device_, p, bytes, peer); granted != status::ok)
                return granted;
        return s;
    }

    status unmap(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        const status s = metered<Device>::unmap(p, bytes);
        if (s != status::ok) return s;
        forget(to_address(p), bytes);
        count(changes_);
        if (listener_ != nullptr) listener_->range_unmapped(p, bytes);
        return s;
    }

    /// The device's, and where it was the limit of all arenas together: that.
    void explain(allocation_failure& failure) noexcept {
        device_->explain(failure);
        if (failure.driver_status != status::out_of_memory) return;
        const meter_reading now = meter_->read();
        if (now.max == no_limit) return;
        if (now.charged <= now.max && failure.rounded <= now.max - now.charged) return;
        failure.arena = short_text(meter_->name());
        failure.cause = failure_cause::ancestor_limit;
        failure.used = now.charged;
        failure.max = now.max;
    }

    /// Returns: what is allocated or mapped in [p, p + bytes), in order, without a gap; empty if there is one, or if
    /// it lies elsewhere.
    [[nodiscard]] std::vector<extent> extents(const void* p, std::size_t bytes) const {
        const std::lock_guard lock(mutex_);
        std::vector<extent> found;
        std::uint64_t at = to_address(p);
        const std::uint64_t end = at + bytes;
        auto it = extents_.upper_bound(at);
        if (it == extents_.begin()) return {};
        for (--it; at < end; ++it) {
            if (it == extents_.end() || it->second.begin > at || at - it->second.begin >= it->second.bytes)
                return {};
            found.push_back(it->second);
            at = it->second.begin + it->second.bytes;
        }
        return found;
    }

    /// How another device is let use memory: mapped at [p, p + bytes), and of a driver pool.
    struct grant {
        status (*to_range)(Device&, void* p, std::size_t bytes, int peer) noexcept = nullptr;
        status (*to_pool)(Device&, pool_handle pool, int peer) noexcept = nullptr;
    };

    /// Effects: device `peer` may use what is mapped, and what driver pools hold, now and later. Memory of `allocate` is
    /// not the gate's to grant. Returns: `ok`, or the device's answer; then the peer is not admitted.
    status admit(int peer, grant how) {
        const std::lock_guard lock(mutex_);
        if (peers_.count(peer) != 0) return status::ok;
        for (const auto& [begin, e] : extents_) {
            if (e.memory == 0) continue;
            if (const status s = how.to_range(*device_, to_pointer(begin), e.bytes, peer); s != status::ok)
                return s;
        }
        for (const pool_handle pool : pools_)
            if (const status s = how.to_pool(*device_, pool, peer); s != status::ok) return s;
        peers_.emplace(peer, how);
        return status::ok;
    }

    /// Something that lives as long as the handle: what other processes know it by. `make` is called if there is none.
    template <class T, class Make>
    std::shared_ptr<T> attached(memory_handle handle, Make&& make) {
        const std::lock_guard lock(mutex_);
        std::shared_ptr<void>& kept = attached_[handle];
        if (!kept) kept = make();
        return std::static_pointer_cast<T>(kept);
    }

    [[nodiscard]] Device& upstream() noexcept { return *device_; }

  private:
    /// An arena would take `over_limit` for its own.
    static status refusal(status s) noexcept { return s == status::over_limit ? status::out_of_memory : s; }

    void count(std::atomic<std::uint64_t>& what) noexcept {
        what.fetch_add(1, std::memory_order_relaxed);
        if (&what != &changes_) changes_.fetch_add(1, std::memory_order_relaxed);
    }

    void remember(extent e) noexcept {
        try {
            const std::lock_guard lock(mutex_);
            extents_[e.begin] = e;
        } catch (...) { // such memory works, but cannot be shared
        }
    }

    void forget(std::uint64_t begin, std::size_t bytes) noexcept {
        const std::lock_guard lock(mutex_);
        extents_.erase(extents_.lower_bound(begin), extents_.lower_bound(begin + bytes));
    }

    Device* device_;
    meter* meter_;
    gate_listener* listener_;
    std::atomic<std::uint64_t> changes_{0};
    std::atomic<std::uint64_t> taken_{0};
    std::atomic<std::uint64_t> given_back_{0};
    mutable std::mutex mutex_; ///< guards what follows; taken last but for the device's own
    std::map<std::uint64_t, extent> extents_;
    std::map<memory_handle, std::size_t> sizes_; ///< bytes
    std::map<memory_handle, std::shared_ptr<void>> attached_;
    std::vector<pool_handle> pools_;
    std::map<int, grant> peers_;
};

} // namespace tenure::torch
