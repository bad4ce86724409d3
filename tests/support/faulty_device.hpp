#pragma once

/// \file
/// `faulty_device`: a device some of whose calls do not happen, and answer what a test says instead.
///
/// It stands in front of any device, as the simulated one can do for itself. Calls are those that `sim::device` counts: not
/// `explain`, and not `describe` of a permanent stream. Thread-safety: thread-safe.

#include <tenure/device/device.hpp>
#include <tenure/device/sim/call.hpp>
#include <tenure/device/vmm_device.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace tenure::test {

template <device Upstream>
class faulty_device {
  public:
    explicit faulty_device(Upstream& upstream) noexcept : upstream_(&upstream) {}
    faulty_device(const faulty_device&) = delete;
    faulty_device& operator=(const faulty_device&) = delete;

    /// Effects: the nth call (1: the next) of this kind from now on, and the `count - 1` after it, answer `with`.
    void fail_call(sim::call kind, std::uint64_t nth, status with, std::uint64_t count = 1) {
        const std::lock_guard lock(mutex_);
        plans_[sim::index(kind)] = {nth, count, with};
    }
    void clear_faults() {
        const std::lock_guard lock(mutex_);
        plans_ = {};
    }

    // --- tenure::device ---

    result<void*, status> allocate(std::size_t n) noexcept {
        if (const auto s = fault(sim::call::allocate)) return *s;
        return upstream_->allocate(n);
    }
    status deallocate(void* p, std::size_t n) noexcept {
        if (const auto s = fault(sim::call::deallocate)) return *s;
        return upstream_->deallocate(p, n);
    }
    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return upstream_->allocation_granularity();
    }
    result<device_memory, status> memory() noexcept {
        if (const auto s = fault(sim::call::memory)) return *s;
        return upstream_->memory();
    }
    result<stream_state, status> describe(stream_handle s) noexcept {
        if (!upstream_->permanent(s))
            if (const auto f = fault(sim::call::describe)) return *f;
        return upstream_->describe(s);
    }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return upstream_->permanent(s); }
    result<event_handle, status> create_event() noexcept {
        if (const auto s = fault(sim::call::create_event)) return *s;
        return upstream_->create_event();
    }
    status destroy_event(event_handle e) noexcept {
        if (const auto s = fault(sim::call::destroy_event)) return *s;
        return upstream_->destroy_event(e);
    }
    status record(event_handle e, stream_handle s) noexcept {
        if (const auto f = fault(sim::call::record)) return *f;
        return upstream_->record(e, s);
    }
    status query(event_handle e) noexcept {
        if (const auto s = fault(sim::call::query)) return *s;
        return upstream_->query(e);
    }
    status synchronize(event_handle e) noexcept {
        if (const auto s = fault(sim::call::synchronize_event)) return *s;
        return upstream_->synchronize(e);
    }
    status synchronize(stream_handle s) noexcept {
        if (const auto f = fault(sim::call::synchronize_stream)) return *f;
        return upstream_->synchronize(s);
    }
    status wait(stream_handle s, event_handle e) noexcept {
        if (const auto f = fault(sim::call::wait)) return *f;
        return upstream_->wait(s, e);
    }
    void explain(allocation_failure& f) noexcept { upstream_->explain(f); }

    // --- tenure::pool_device ---

    [[nodiscard]] std::size_t pool_step() const noexcept requires pool_device<Upstream> {
        return upstream_->pool_step();
    }
    result<pool_handle, status>
    create_pool(const pool_properties& p) noexcept requires pool_device<Upstream> {
        if (const auto s = fault(sim::call::create_pool)) return *s;
        return upstream_->create_pool(p);
    }
    status destroy_pool(pool_handle pool) noexcept requires pool_device<Upstream> {
        if (const auto s = fault(sim::call::destroy_pool)) return *s;
        return upstream_->destroy_pool(pool);
    }
    result<void*, status> allocate_from(pool_handle pool, std::size_t n,
                                        stream_handle s) noexcept requires pool_device<Upstream> {
        if (const auto f = fault(sim::call::allocate_from)) return *f;
        return upstream_->allocate_from(pool, n, s);
    }
    status deallocate_to(pool_handle pool, void* p, stream_handle s) noexcept requires pool_device<Upstream> {
        if (const auto f = fault(sim::call::deallocate_to)) return *f;
        return upstream_->deallocate_to(pool, p, s);
    }
    status trim_pool(pool_handle pool, std::size_t keep) noexcept requires pool_device<Upstream> {
        if (const auto s = fault(sim::call::trim_pool)) return *s;
        return upstream_->trim_pool(pool, keep);
    }
    result<pool_memory, status> memory_of(pool_handle pool) noexcept requires pool_device<Upstream> {
        if (const auto s = fault(sim::call::memory_of)) return *s;
        return upstream_->memory_of(pool);
    }

    // --- tenure::vmm_device ---

    [[nodiscard]] bool supports_vmm() const noexcept requires vmm_device<Upstream> {
        return upstream_->supports_vmm();
    }
    result<void*, status> reserve_address(std::size_t n, std::size_t a,
                                          std::uint64_t near = 0) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::reserve_address)) return *s;
        return upstream_->reserve_address(n, a, near);
    }
    status free_address(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::free_address)) return *s;
        return upstream_->free_address(p, n);
    }
    result<memory_handle, status> create_memory(std::size_t n) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::create_memory)) return *s;
        return upstream_->create_memory(n);
    }
    status release_memory(memory_handle h) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::release_memory)) return *s;
        return upstream_->release_memory(h);
    }
    status map(void* p, memory_handle h) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::map)) return *s;
        return upstream_->map(p, h);
    }
    status set_access(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::set_access)) return *s;
        return upstream_->set_access(p, n);
    }
    status unmap(void* p, std::size_t n) noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::unmap)) return *s;
        return upstream_->unmap(p, n);
    }
    status synchronize() noexcept requires vmm_device<Upstream> {
        if (const auto s = fault(sim::call::synchronize_device)) return *s;
        return upstream_->synchronize();
    }

  private:
    struct plan {
        std::uint64_t before = 0; ///< calls until the first that fails, that one included; 0: none does
        std::uint64_t count = 0;  ///< that fail
        status with = status::ok;
    };

    /// Returns: what this call answers instead of happening, if it is to.
    std::optional<status> fault(sim::call kind) noexcept {
        const std::lock_guard lock(mutex_);
        plan& p = plans_[sim::index(kind)];
        if (p.count == 0) return std::nullopt;
        if (p.before > 1) {
            --p.before;
            return std::nullopt;
        }
        --p.count;
        return p.with;
    }

    Upstream* upstream_;
    std::mutex mutex_; ///< guards `plans_`
    std::array<plan, sim::call_kinds> plans_{};
};

} // namespace tenure::test
