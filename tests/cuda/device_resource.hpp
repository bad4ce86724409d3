#pragma once

/// \file
/// `device_resource`: the plainest resource over a device, one device allocation a block. It counts and
/// remembers, so that a test sees who called it. Frees wait for the device, so every block is safe to reuse.
/// Thread-compatible.

#include <tenure/device/device.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>
#include <map>

namespace tenure::test {

template <device Device>
class device_resource {
  public:
    explicit device_resource(Device& d) : device_(&d) {}
    device_resource(const device_resource&) = delete;
    device_resource& operator=(const device_resource&) = delete;

    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a) noexcept {
        if (n == 0) return static_cast<void*>(nullptr);
        const auto p = device_->allocate(n);
        if (!p) {
            allocation_failure f;
            f.requested = f.rounded = n;
            f.driver_status = p.error();
            device_->explain(f);
            return f;
        }
        blocks_.emplace(*p, n);
        ++allocations_;
        last_stream_ = s;
        last_alignment_ = a;
        return *p;
    }
    void* allocate(stream_handle s, std::size_t n, std::size_t a) {
        const auto r = try_allocate(s, n, a);
        if (!r) throw_failure(r.error());
        return *r;
    }
    void* allocate_sync(std::size_t n, std::size_t a) { return allocate(default_stream, n, a); }
    deallocate_result try_deallocate(stream_handle, void* p, std::size_t n, std::size_t) noexcept {
        if (p == nullptr) return freed{};
        const auto block = blocks_.find(p);
        misuse m;
        m.pointer = p;
        m.bytes = n;
        if (block == blocks_.end()) return m;
        if (block->second != n) {
            m.kind = misuse_kind::size_mismatch;
            m.expected = block->second;
            return m;
        }
        m.kind = misuse_kind::driver;
        m.driver_status = device_->deallocate(p, n);
        if (m.driver_status != status::ok) return m;
        blocks_.erase(block);
        return freed{};
    }
    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        if (const auto r = try_deallocate(s, p, n, a); !r) report_misuse(r.error());
    }
    void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept {
        deallocate(default_stream, p, n, a);
    }
    void release(void* p) noexcept {
        const auto block = blocks_.find(p);
        deallocate(default_stream, p, block == blocks_.end() ? 0 : block->second, 1);
    }
    void record_use(void*, stream_handle) noexcept {}
    bool owns(void* p) const noexcept { return blocks_.count(p) != 0; }
    usage_counters usage() const { return {}; }
    std::size_t trim(std::size_t) { return 0; }
    memory_snapshot snapshot() const { return {}; }
    bool validate() const noexcept { return true; }

    [[nodiscard]] std::size_t allocations() const noexcept { return allocations_; }
    [[nodiscard]] std::size_t live() const noexcept { return blocks_.size(); }
    [[nodiscard]] stream_handle last_stream() const noexcept { return last_stream_; }
    [[nodiscard]] std::size_t last_alignment() const noexcept { return last_alignment_; }

  private:
    Device* device_;
    std::map<void*, std::size_t> blocks_;
    std::size_t allocations_ = 0;
    stream_handle last_stream_ = nullptr;
    std::size_t last_alignment_ = 0;
};

} // namespace tenure::test
