#pragma once

/// \file
/// `cuda::canary_memory`: fills and reads canaries (`guard_canary`) on a GPU, with memset and copy alone.
///
///     fill     cudaMemsetAsync(p, 0xa5, n, stream)
///     check    cudaMemcpyAsync(slot of pinned host memory, p, n, stream), then an event on the stream
///     collect  the event has passed: the host compares the slot
///
/// There are `slots` slots of 512 bytes; when all are under way, the oldest is waited for, which is the only wait besides the
/// one that `collect(true, f)` asks for. On a capturing stream nothing is enqueued, and nothing on the legacy default stream
/// while a stream that it waits for is being captured, because that would end the capture: those blocks are not checked.
///
/// Thread-safety: thread-safe.

#include <tenure/core/handles.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/cuda/error.hpp>
#include <tenure/device/cuda/guards.hpp>
#include <tenure/device/cuda/process.hpp>
#include <tenure/device/cuda_device.hpp>

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tenure::cuda {
inline namespace TENURE_CUDA_DEFAULT_STREAM {

class canary_memory {
  public:
    static constexpr int value = 0xa5;
    static constexpr std::size_t slot_bytes = 512;

    /// Requires: the device outlives this. Throws: `std::bad_alloc` if there is no pinned memory.
    explicit canary_memory(device& on, std::size_t slots = 1024) : device_(&on) {
        const relaxed_capture relaxed;
        void* memory = nullptr;
        if (settle(cudaHostAlloc(&memory, slots * slot_bytes, cudaHostAllocPortable)) != status::ok)
            throw std::bad_alloc();
        memory_ = static_cast<unsigned char*>(memory);
        free_.reserve(slots);
        for (std::size_t i = 0; i < slots; ++i) free_.push_back(memory_ + i * slot_bytes);
    }

    canary_memory(const canary_memory&) = delete;
    canary_memory& operator=(const canary_memory&) = delete;

    /// Effects: drops what is under way.
    ~canary_memory() {
        while (!under_way_.empty()) {
            (void)device_->synchronize(under_way_.front().passed);
            (void)device_->destroy_event(under_way_.front().passed);
            under_way_.pop_front();
        }
        if (process_state() != status::ok) return;
        const relaxed_capture relaxed;
        (void)settle(cudaFreeHost(memory_));
    }

    bool fill(stream_handle stream, void* p, std::size_t n) noexcept {
        if (process_state() != status::ok) return false;
        const current_device here(device_->ordinal(), device_->only_one_device());
        if (!may_enqueue(stream)) return false;
        return settle(cudaMemsetAsync(p, value, n, stream)) == status::ok;
    }

    bool check(stream_handle stream, void* p, std::size_t n, void* block) noexcept {
        if (n > slot_bytes || process_state() != status::ok) return false;
        const current_device here(device_->ordinal(), device_->only_one_device());
        if (!may_enqueue(stream)) return false;
        const std::lock_guard lock(mutex_);
        if (free_.empty()) {
            if (under_way_.empty()) return false;
            (void)device_->synchronize(under_way_.front().passed);
            finish_front();
        }
        const result<event_handle, status> event = device_->create_event();
        if (!event) return false;
        unsigned char* const slot = free_.back();
        if (settle(cudaMemcpyAsync(slot, p, n, cudaMemcpyDeviceToHost, stream)) == status::ok &&
            device_->record(*event, stream) == status::ok) {
            try {
                under_way_.push_back({slot, static_cast<unsigned char*>(p), n, block, *event});
                free_.pop_back();
                return true;
            } catch (...) {
                (void)device_->synchronize(*event); // before the slot is used again
            }
        }
        (void)device_->destroy_event(*event);
        return false;
    }

    /// Returns: a stream that nobody else waits for; the default stream where there is none.
    stream_handle quiet_stream() noexcept {
        const result<stream_handle, status> own = device_->own_stream();
        return own ? *own : default_stream;
    }

    template <class F>
    void collect(bool wait, F&& f) noexcept {
        while (true) {
            damage found;
            {
                const std::lock_guard lock(mutex_);
                if (found_.empty()) {
                    if (under_way_.empty()) return;
                    const status s = wait ? device_->synchronize(under_way_.front().passed)
                                          : device_->query(under_way_.front().passed);
                    if (s == status::not_ready || s == status::capture_violation) return;
                    finish_front();
                    continue;
                }
                found = found_.front();
                found_.pop_front();
            }
            f(found.block, found.bytes, found.first); // without the lock
        }
    }

  private:
    struct reading {
        unsigned char* slot;
        unsigned char* from;
        std::size_t bytes;
        void* block;
        event_handle passed;
    };
    struct damage {
        void* block = nullptr;
        std::size_t bytes = 0;
        std::size_t first = 0;
    };

    /// Unlike `describe`, this also knows of captures that work on the legacy stream would join and so end.
    static bool may_enqueue(stream_handle stream) noexcept {
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        return settle(cudaStreamIsCapturing(stream, &capture)) == status::ok &&
               capture == cudaStreamCaptureStatusNone;
    }

    /// Requires: the lock, and that the front has passed.
    void finish_front() noexcept {
        const reading r = under_way_.front();
        under_way_.pop_front();
        free_.push_back(r.slot); // there is room
        (void)device_->destroy_event(r.passed);
        const auto begin = static_cast<std::size_t>(r.from - static_cast<unsigned char*>(r.block));
        for (std::size_t i = 0; i < r.bytes; ++i) {
            if (r.slot[i] == value) continue;
            try {
                found_.push_back({r.block, begin, begin + i});
            } catch (...) { // no host memory to say so
            }
            return;
        }
    }

    device* device_;
    unsigned char* memory_ = nullptr;
    std::mutex mutex_; ///< guards what follows
    std::vector<unsigned char*> free_;
    std::deque<reading> under_way_;
    std::deque<damage> found_;
};

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
