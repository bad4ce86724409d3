#pragma once

/// \file
/// `sim_canary_memory`: a `canary_memory` whose bytes are kept here, since the simulated device has none. Checks come back
/// when the work that was on their stream has passed, as on a GPU.

#include <tenure/core/bits.hpp>
#include <tenure/device/sim_device.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace tenure::test {

class sim_canary_memory {
  public:
    static constexpr unsigned char value = 0xa5;

    explicit sim_canary_memory(sim::device& on) : device_(&on) {}

    /// Effects: a program writes a byte.
    void write(const void* p, std::size_t offset, unsigned char byte = 0) {
        const std::lock_guard lock(mutex_);
        bytes_[to_address(p) + offset] = byte;
    }
    [[nodiscard]] std::size_t fills() const { return fills_; }
    [[nodiscard]] std::size_t checks() const { return checks_; }

    bool fill(stream_handle s, void* p, std::size_t n) noexcept {
        if (device_->describe(s)->capturing()) return false;
        const std::lock_guard lock(mutex_);
        ++fills_;
        for (std::size_t i = 0; i < n; ++i) bytes_[to_address(p) + i] = value;
        return true;
    }

    bool check(stream_handle s, void* p, std::size_t n, void* block) noexcept {
        if (device_->describe(s)->capturing()) return false;
        const event_handle e = *device_->create_event();
        (void)device_->record(e, s);
        const std::lock_guard lock(mutex_);
        ++checks_;
        reading r{e, block, to_address(p) - to_address(block), {}};
        for (std::size_t i = 0; i < n; ++i) r.bytes.push_back(bytes_[to_address(p) + i]);
        under_way_.push_back(r);
        return true;
    }

    stream_handle quiet_stream() noexcept { return *device_->own_stream(); }

    template <class F>
    void collect(bool wait, F&& f) noexcept {
        for (;;) {
            reading r;
            {
                const std::lock_guard lock(mutex_);
                if (under_way_.empty()) return;
                const event_handle e = under_way_.front().passed;
                if ((wait ? device_->synchronize(e) : device_->query(e)) == status::not_ready) return;
                r = under_way_.front();
                under_way_.pop_front();
                (void)device_->destroy_event(e);
            }
            for (std::size_t i = 0; i < r.bytes.size(); ++i)
                if (r.bytes[i] != value) {
                    f(r.block, r.begin, r.begin + i);
                    break;
                }
        }
    }

  private:
    struct reading {
        event_handle passed{};
        void* block = nullptr;
        std::size_t begin = 0;
        std::vector<unsigned char> bytes;
    };
    sim::device* device_;
    std::mutex mutex_;
    std::map<std::uint64_t, unsigned char> bytes_;
    std::deque<reading> under_way_;
    std::size_t fills_ = 0;
    std::size_t checks_ = 0;
};

} // namespace tenure::test
