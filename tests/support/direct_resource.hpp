#pragma once

/// \file
/// `direct_resource`: the simplest model of `tenure::resource`: every block is an allocation of the device, and every
/// free gives it back. It shows that the contract asks for nothing that needs a pool, and is what pools are measured
/// against.
///
/// The device waits for all its work when memory goes back to it, so no order between streams is left to keep. A free
/// that the device refuses (work that never ends) is kept and tried again by later calls. What a graph uses that is
/// being captured is kept until `release_captured`.
/// Thread-safety: thread-safe.

#include <tenure/core.hpp>
#include <tenure/device/device.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure::test {

struct direct_options {};

template <device Device>
class direct_resource {
  public:
    using device_type = Device;
    using options_type = direct_options;

    explicit direct_resource(Device& device, direct_options = {}) : device_(&device) {}
    direct_resource(const direct_resource&) = delete;
    direct_resource& operator=(const direct_resource&) = delete;

    ~direct_resource() {
        if (!live_.empty())
            report_misuse({.kind = misuse_kind::live_at_destruction,
                           .bytes = usage_.requested.current,
                           .expected = live_.size()});
        for (auto& [address, b] : live_) {
            refused_.push_back(b);
            usage_.pending += b.bytes;
        }
        for (block& b : captured_) {
            refused_.push_back(b);
            usage_.pending += b.bytes;
        }
        retry();
        retry();
    }

    void* allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) {
        const allocate_result r = try_allocate(s, n, a);
        if (!r) throw_failure(r.error());
        return *r;
    }

    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) noexcept {
        if (n == 0) return static_cast<void*>(nullptr);
        allocation_failure f{.requested = n, .rounded = n};
        if (!is_power_of_two(a) || a > max_alignment) {
            f.cause = failure_cause::invalid_alignment;
            return f;
        }
        const std::size_t granularity = device_->allocation_granularity();
        const std::size_t bytes =
            round_up(saturating_add(n, a > granularity ? a - granularity : 0), granularity);
        f.rounded = bytes;
        const std::lock_guard lock(mutex_);
        retry();
        const result<stream_state, status> state = device_->describe(s);
        result<void*, status> got = status::out_of_memory;
        if (!state)
            got = state.error();
        else if (bytes <= max_block_bytes)
            got = device_->allocate(bytes);
        if (!got) {
            ++usage_.failures;
            f.driver_status = got.error();
            f.pending = usage_.pending;
            device_->explain(f);
            f.cause = got.error() == status::over_limit          ? failure_cause::arena_limit
                      : got.error() == status::capture_violation ? failure_cause::capture
                      : got.error() != status::out_of_memory     ? failure_cause::driver
                      : usage_.pending >= bytes                  ? failure_cause::stream_pending
                                                                 : failure_cause::device;
            return f;
        }
        const std::uint64_t address = round_up(to_address(*got), a);
        live_.insert({address, {*got, n, bytes, state->capture, {}}});
        known_.push_back({to_address(*got), to_address(*got) + bytes});
        usage_.requested.add(n);
        usage_.allocated.add(bytes);
        usage_.reserved.add(bytes);
        usage_.blocks.add(1);
        usage_.segments.add(1);
        return to_pointer(address);
    }

    void* allocate_sync(std::size_t n, std::size_t a = default_alignment) {
        return allocate(default_stream, n, a);
    }

    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n,
                                     std::size_t = default_alignment) noexcept {
        return take_back(s, p, n);
    }
    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t = default_alignment) noexcept {
        report(take_back(s, p, n));
    }
    void deallocate_sync(void* p, std::size_t n, std::size_t = default_alignment) noexcept {
        report(take_back(default_stream, p, n));
    }
    void release(void* p) noexcept { report(take_back(default_stream, p, no_limit)); }

    /// Only for captures: giving memory back waits for the work of every stream.
    void record_use(void* p, stream_handle s) noexcept {
        const std::lock_guard lock(mutex_);
        if (const auto it = live_.find(to_address(p)); it != live_.end()) it->second.users.push_back(s);
    }

    /// Effects: the graphs made from this capture are gone and their work is over.
    void release_captured(std::uint64_t capture) noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < captured_.size();) {
            if (captured_[i].capture != capture) {
                ++i;
                continue;
            }
            usage_.captured -= captured_[i].bytes;
            usage_.pending += captured_[i].bytes;
            refused_.push_back(captured_[i]);
            captured_[i] = captured_.back();
            captured_.pop_back();
        }
        retry();
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return live_.count(to_address(p)) != 0;
    }

    [[nodiscard]] usage_counters usage() const {
        const std::lock_guard lock(mutex_);
        return usage_;
    }

    std::size_t trim(std::size_t) {
        const std::lock_guard lock(mutex_);
        const std::size_t before = usage_.reserved.current;
        retry();
        return before - usage_.reserved.current;
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot picture;
        const auto add = [&picture](const block& b, std::size_t requested, block_state state) {
            const std::uint64_t base = to_address(b.base);
            picture.segments.push_back({base, b.bytes, {{base, b.bytes, requested, state, 0}}});
        };
        for (const auto& [address, b] : live_) add(b, b.requested, block_state::allocated);
        for (const block& b : refused_) add(b, 0, block_state::pending);
        for (const block& b : captured_) add(b, 0, block_state::captured);
        std::sort(picture.segments.begin(), picture.segments.end(),
                  [](const auto& x, const auto& y) { return x.address < y.address; });
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        return usage_.blocks.current == live_.size() &&
               usage_.segments.current == live_.size() + refused_.size() + captured_.size() &&
               usage_.allocated.current == usage_.reserved.current;
    }

  private:
    struct block {
        void* base;
        std::size_t requested;
        std::size_t bytes;
        std::uint64_t capture; ///< a graph that uses it; 0: none
        std::vector<stream_handle> users;
    };
    struct extent {
        std::uint64_t begin;
        std::uint64_t end;
    };

    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }

    deallocate_result take_back(stream_handle s, void* p, std::size_t n) noexcept {
        if (p == nullptr) return freed{};
        const std::lock_guard lock(mutex_);
        const std::uint64_t address = to_address(p);
        const auto it = live_.find(address);
        if (it == live_.end()) {
            misuse m{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = n};
            for (const extent& e : known_)
                if (address >= e.begin && address < e.end) m.kind = misuse_kind::double_free;
            for (const auto& [start, b] : live_)
                if (address >= to_address(b.base) && address < to_address(b.base) + b.bytes)
                    m.kind = misuse_kind::interior_pointer;
            return m;
        }
        if (n != no_limit && n != it->second.requested)
            return misuse{.kind = misuse_kind::size_mismatch,
                          .pointer = p,
                          .bytes = n,
                          .expected = it->second.requested};
        usage_.requested.subtract(it->second.requested);
        usage_.blocks.subtract(1);
        block b = it->second;
        live_.erase(it);
        b.users.push_back(s);
        for (const stream_handle user : b.users)
            if (const auto state = device_->describe(user); state && state->capturing())
                b.capture = state->capture;
        if (b.capture != 0) {
            usage_.captured += b.bytes;
            captured_.push_back(b);
            return freed{};
        }
        usage_.pending += b.bytes;
        refused_.push_back(b);
        retry();
        return freed{};
    }

    void retry() noexcept {
        for (std::size_t i = 0; i < refused_.size();) {
            const block b = refused_[i];
            if (device_->deallocate(b.base, b.bytes) != status::ok) {
                ++i;
                continue;
            }
            usage_.pending -= b.bytes;
            usage_.allocated.subtract(b.bytes);
            usage_.reserved.subtract(b.bytes);
            usage_.segments.subtract(1);
            refused_[i] = refused_.back();
            refused_.pop_back();
        }
    }

    Device* device_;
    mutable std::mutex mutex_;
    std::map<std::uint64_t, block> live_;
    std::vector<block> refused_;
    std::vector<block> captured_;
    std::vector<extent> known_;
    usage_counters usage_;
};

} // namespace tenure::test
