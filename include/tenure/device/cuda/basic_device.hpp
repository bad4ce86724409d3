#pragma once

/// \file
/// `cuda::basic_device<Memory>`: a model of `tenure::device` whose memory comes from one pair of runtime calls.
///
/// A kind of memory is a type with static members and no state:
///
/// | member | what it is |
/// |---|---|
/// | `cudaError_t take(void**, std::size_t)` | the call that allocates |
/// | `cudaError_t give_back(void*)` | the call that frees |
/// | `std::size_t granularity()` | bytes: what `take` takes is a multiple of it |
/// | `cudaError_t read(device_memory&)` | free and total bytes of what it is taken from |
///
///     current device -> relaxed capture -> the call -> translate the error, clear it if handled
///
/// Streams, events and captures are those of the GPU, whatever the memory is.
///
/// Thread-safety: thread-safe.

#include <tenure/core/error.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/cuda/stream_device.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>

namespace tenure::cuda {
inline namespace TENURE_CUDA_DEFAULT_STREAM {

template <class Memory>
class basic_device : public stream_device {
  public:
    /// Effects, Throws: see `stream_device`.
    explicit basic_device(int ordinal = 0) : stream_device(ordinal) {}

    basic_device(const basic_device&) = delete;
    basic_device& operator=(const basic_device&) = delete;

    ~basic_device() {
        if (void* const spare = spare_.exchange(nullptr)) (void)deallocate(spare, 1);
    }

    result<void*, status> allocate(std::size_t bytes) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal(), only_one_device());
        const relaxed_capture relaxed;
        void* pointer = nullptr;
        if (const status s = settle(Memory::take(&pointer, bytes)); s != status::ok) return s;
        return pointer;
    }

    status deallocate(void* pointer, std::size_t /*bytes*/) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal(), only_one_device());
        const relaxed_capture relaxed;
        return settle(Memory::give_back(pointer));
    }

    using stream_device::synchronize;

    /// Effects: the host waits for all work of the device. Freeing a byte does that and harms no capture;
    /// `cudaDeviceSynchronize` would invalidate captures of other threads. Returns: `ok`, or the answer of one of the
    /// two calls: `out_of_memory` on a device that is full to the byte, unless `keep_a_byte` was called before it was.
    status synchronize() noexcept {
        if (void* const spare = spare_.exchange(nullptr)) return deallocate(spare, 1);
        const result<void*, status> byte = allocate(1);
        return byte ? deallocate(*byte, 1) : byte.error();
    }

    /// Effects: `synchronize` can do without free memory once. Takes a byte, for which the driver may take 2 MiB.
    void keep_a_byte() noexcept {
        if (spare_.load(std::memory_order_relaxed) != nullptr) return;
        const result<void*, status> byte = allocate(1);
        if (!byte) return;
        void* none = nullptr;
        if (!spare_.compare_exchange_strong(none, *byte)) (void)deallocate(*byte, 1);
    }

    [[nodiscard]] std::size_t allocation_granularity() const noexcept { return Memory::granularity(); }

    result<device_memory, status> memory() noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal(), only_one_device());
        device_memory m;
        if (const status s = settle(Memory::read(m)); s != status::ok) return s;
        return m;
    }

    /// Effects: where the device itself refused, sets `cause` and how much of the memory is used, by
    /// everybody on it. A refusal by a meter above this device is left as it is.
    void explain(allocation_failure& failure) noexcept {
        switch (failure.driver_status) {
        case status::out_of_memory:
            failure.cause = failure_cause::device;
            if (const auto m = memory()) {
                failure.used = m->total - m->free;
                failure.max = m->total;
            }
            break;
        case status::capture_violation: failure.cause = failure_cause::capture; break;
        case status::ok:
        case status::not_ready:
        case status::over_limit: break;
        default: failure.cause = failure_cause::driver;
        }
    }

  private:
    std::atomic<void*> spare_{nullptr};
};

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
