#pragma once

/// \file
/// `device_pool`: the pool for device memory when you have no reason to name another.
///
/// It is a `remap_pool` where the device has virtual memory management, and a `caching_pool` with PyTorch's settings but
/// sharing between streams where it has not (some virtual GPUs). Which one is decided once, when it is made, by asking
/// the device.
///
/// Invariant: there is exactly one pool inside for as long as this one lives. Complexity and thread-safety are that
/// pool's; a call costs one well predicted branch more.

#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>
#include <cstdint>
#include <variant>

namespace tenure {

struct device_pool_options {
    remap_options remap{};
    caching_options caching{.cross_stream_reuse = true};
};

template <vmm_device Device>
class device_pool {
  public:
    using device_type = Device;
    using options_type = device_pool_options;

    /// Throws: what the pool's construction throws.
    explicit device_pool(Device& device, const device_pool_options& options = {}) {
        if (device.supports_vmm())
            pool_.template emplace<remap_pool<Device>>(device, options.remap);
        else
            pool_.template emplace<caching_pool<Device>>(device, options.caching);
    }

    device_pool(const device_pool&) = delete;
    device_pool& operator=(const device_pool&) = delete;

    /// Returns: whether free memory is shown behind new addresses here.
    [[nodiscard]] bool remaps() const noexcept { return std::holds_alternative<remap_pool<Device>>(pool_); }

    /// See `resource`, all of these.
    void* allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) {
        return with([&](auto& p) { return p.allocate(s, n, a); });
    }
    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) noexcept {
        return with([&](auto& p) { return p.try_allocate(s, n, a); });
    }
    void* allocate_sync(std::size_t n, std::size_t a) {
        return with([&](auto& p) { return p.allocate_sync(n, a); });
    }
    void deallocate(stream_handle s, void* q, std::size_t n, std::size_t a = default_alignment) noexcept {
        with([&](auto& p) { p.deallocate(s, q, n, a); });
    }
    deallocate_result try_deallocate(stream_handle s, void* q, std::size_t n,
                                     std::size_t a = default_alignment) noexcept {
        return with([&](auto& p) { return p.try_deallocate(s, q, n, a); });
    }
    void deallocate_sync(void* q, std::size_t n, std::size_t a) noexcept {
        with([&](auto& p) { p.deallocate_sync(q, n, a); });
    }
    void release(void* q) noexcept {
        with([&](auto& p) { p.release(q); });
    }
    void record_use(void* q, stream_handle s) noexcept {
        with([&](auto& p) { p.record_use(q, s); });
    }
    [[nodiscard]] bool owns(const void* q) const noexcept {
        return with([&](const auto& p) { return p.owns(q); });
    }
    [[nodiscard]] usage_counters usage() const {
        return with([](const auto& p) { return p.usage(); });
    }
    std::size_t trim(std::size_t bytes_to_keep) {
        return with([&](auto& p) { return p.trim(bytes_to_keep); });
    }
    void release_captured(std::uint64_t capture) noexcept {
        with([&](auto& p) { p.release_captured(capture); });
    }
    [[nodiscard]] memory_snapshot snapshot() const {
        return with([](const auto& p) { return p.snapshot(); });
    }
    [[nodiscard]] bool validate() const noexcept {
        return with([](const auto& p) { return p.validate(); });
    }

  private:
    template <class F>
    decltype(auto) with(F&& f) {
        if (auto* const remap = std::get_if<remap_pool<Device>>(&pool_)) return f(*remap);
        return f(*std::get_if<caching_pool<Device>>(&pool_));
    }
    template <class F>
    decltype(auto) with(F&& f) const {
        if (auto* const remap = std::get_if<remap_pool<Device>>(&pool_)) return f(*remap);
        return f(*std::get_if<caching_pool<Device>>(&pool_));
    }

    std::variant<std::monostate, remap_pool<Device>, caching_pool<Device>> pool_;
};

template <vmm_device Device>
device_pool(Device&, device_pool_options = {}) -> device_pool<Device>;

} // namespace tenure
