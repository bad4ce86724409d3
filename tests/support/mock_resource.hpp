#pragma once

/// \file
/// `mock_resource`: a resource of addresses without memory, for tests of what stands in front of a resource.
///
/// Addresses are handed out upwards from 1 TiB; a freed one is handed out again for the same size, so that
/// reuse is met soon. Misuse is recognised and answered as the concept says. Thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace tenure::test {

class mock_resource {
  public:
    /// Effects: the next `count` allocations are refused.
    void fail_next(std::size_t count) {
        const std::lock_guard lock(mutex_);
        failures_ahead_ = count;
    }

    [[nodiscard]] std::size_t live() const {
        const std::lock_guard lock(mutex_);
        return live_.size();
    }

    /// Returns: the calls that have no other visible effect, in order: "record_use", "trim".
    [[nodiscard]] std::vector<std::string> calls() const {
        const std::lock_guard lock(mutex_);
        return calls_;
    }

    void* allocate(stream_handle s, std::size_t n, std::size_t a) {
        const allocate_result r = try_allocate(s, n, a);
        if (!r) throw_failure(r.error());
        return *r;
    }
    allocate_result try_allocate(stream_handle, std::size_t n, std::size_t) noexcept {
        const std::lock_guard lock(mutex_);
        if (n == 0) return static_cast<void*>(nullptr);
        if (failures_ahead_ != 0) {
            --failures_ahead_;
            ++usage_.failures;
            return allocation_failure{.requested = n, .rounded = n};
        }
        std::uint64_t at = next_;
        if (std::vector<std::uint64_t>& reusable = free_[n]; !reusable.empty()) {
            at = reusable.back();
            reusable.pop_back();
        } else {
            next_ += round_up(n, 512);
        }
        live_[at] = n;
        usage_.requested.add(n);
        usage_.blocks.add(1);
        return to_pointer(at);
    }
    void* allocate_sync(std::size_t n, std::size_t a) { return allocate(default_stream, n, a); }

    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        const deallocate_result r = try_deallocate(s, p, n, a);
        if (!r) report_misuse(r.error());
    }
    deallocate_result try_deallocate(stream_handle, void* p, std::size_t n, std::size_t) noexcept {
        if (p == nullptr) return freed{};
        const std::lock_guard lock(mutex_);
        const auto block = live_.find(to_address(p));
        if (block == live_.end())
            return misuse{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = n};
        if (block->second != n)
            return misuse{
                .kind = misuse_kind::size_mismatch, .pointer = p, .bytes = n, .expected = block->second};
        free_[n].push_back(block->first);
        live_.erase(block);
        usage_.requested.subtract(n);
        usage_.blocks.subtract(1);
        return freed{};
    }
    void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept {
        deallocate(default_stream, p, n, a);
    }
    void release(void* p) noexcept {
        std::size_t n = 0;
        {
            const std::lock_guard lock(mutex_);
            if (const auto block = live_.find(to_address(p)); block != live_.end()) n = block->second;
        }
        deallocate(default_stream, p, n, 1);
    }
    void record_use(void*, stream_handle) noexcept {
        const std::lock_guard lock(mutex_);
        calls_.emplace_back("record_use");
    }
    bool owns(void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return live_.count(to_address(p)) != 0;
    }
    usage_counters usage() const {
        const std::lock_guard lock(mutex_);
        return usage_;
    }
    std::size_t trim(std::size_t keep) {
        const std::lock_guard lock(mutex_);
        calls_.emplace_back("trim");
        return keep + 1; // a value that a forwarder can only get from here
    }
    memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot s;
        for (const auto& [at, n] : live_) s.segments.push_back({at, n, {}});
        return s;
    }
    bool validate() const noexcept { return valid; }

    bool valid = true;

  private:
    mutable std::mutex mutex_;
    std::map<std::uint64_t, std::size_t> live_;
    std::map<std::size_t, std::vector<std::uint64_t>> free_; ///< by size
    std::uint64_t next_ = std::uint64_t{1} << 40;
    std::size_t failures_ahead_ = 0;
    usage_counters usage_;
    std::vector<std::string> calls_;
};

static_assert(resource<mock_resource>);

} // namespace tenure::test
