#pragma once

/// \file
/// `tenure::cuda::device`: the GPU, as a thin model of `tenure::device` and `tenure::pool_device`.
///
/// One call of the CUDA runtime behind each member, and around it only what makes that safe in an allocator:
///
///     current device -> relaxed capture -> the call -> translate the error, clear it if handled
///
/// Invariants:
///   1. No member invalidates a stream capture, of this thread or another, except as rule 5 says.
///   2. The caller's current device and capture mode are the same after a member as before.
///   3. A failure leaves no last error behind unless its status is `failed` (see `cuda/error.hpp`).
///   4. Nothing links the driver library; without one the constructor says so and nothing else can be called.
///   5. A stream that is being captured is never synchronised, allocated from or freed to, and the legacy
///      default stream is not used at all while a blocking stream is captured (it would join in): that is
///      seen before the call and answers `capture_violation`. Not seen: a capture that another thread begins
///      between the question and the call; and an event that was recorded *inside* a capture: querying or
///      waiting for it answers `capture_violation` too, but the driver invalidates that capture.
///
/// Cost, medians on an H200 with driver 580 and CUDA 13.0. To be added: `relaxed_capture` (114 ns, a mean)
/// where marked R, a capture query (79 ns) where marked C, and `current_device` (48 ns, or 262 ns if another
/// is current) where the process sees several devices.
///
/// | member | runtime call | cost |
/// |---|---|---|
/// | `allocate` R | `cudaMalloc` | 36-46 us up to 20 MiB, 248 us for 1 GiB; does not wait for the device |
/// | `deallocate` R | `cudaFree` | 32-41 us up to 20 MiB, 683 us for 1 GiB; **waits for the device** |
/// | `memory`, `explain` | `cudaMemGetInfo` | 7.3 us |
/// | `describe` | `cudaStreamGetId` + `cudaStreamGetCaptureInfo` | 171 ns; the legacy default stream: none |
/// | `create_event` + `destroy_event` | `cudaEventCreateWithFlags`, `cudaEventDestroy` | 480 ns |
/// | `record`, C on the legacy default stream | `cudaEventRecord` | 445 ns |
/// | `query` R | `cudaEventQuery` | 290-330 ns |
/// | `wait`, C on the legacy default stream | `cudaStreamWaitEvent` | 440 ns |
/// | `synchronize(stream)` R C | `cudaStreamSynchronize` | 1.7-2.0 us when idle |
/// | `allocate_from` R C, growing | `cudaMallocFromPoolAsync` | 107-130 us up to 20 MiB, 1.6 ms for 1 GiB |
/// | `allocate_from` R C + `deallocate_to` R C, warm | the same, `cudaFreeAsync` | 0.7-1.0 us |
///
/// Compiles with a plain C++ compiler (link `cudart`, static or shared) and with nvcc. CUDA 12.4 or newer.
///
/// Thread-safety: thread-safe; the object does not change after construction.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/cuda/error.hpp>
#include <tenure/device/cuda/guards.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

static_assert(CUDART_VERSION >= 12040, "tenure::cuda::device needs CUDA 12.4 or newer");

namespace tenure::cuda {

// With per-thread default streams a null handle means another stream, in every call below. Translation units
// compiled with and without must not share one inline function, so they do not share the type.
#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline namespace per_thread_default_stream {
inline constexpr bool null_is_legacy = false;
#else
inline namespace legacy_default_stream {
inline constexpr bool null_is_legacy = true;
#endif

class device {
  public:
    /// Effects: initialises the device's primary context if nobody has yet (some 140 ms and 530 MiB).
    /// Throws: `driver_error`; with `status::no_device` if there is no driver, no GPU, or not this ordinal.
    explicit device(int ordinal = 0) : ordinal_(ordinal) {
        int driver = 0;
        (void)settle(cudaDriverGetVersion(&driver));
        if (driver == 0)
            throw driver_error(status::no_device, "CUDA: no driver is installed or visible in this process");

        int count = 0;
        must(cudaGetDeviceCount(&count), "CUDA: cannot list devices, driver " + version_text(driver) +
                                             ", runtime " + version_text(CUDART_VERSION));
        if (ordinal < 0 || ordinal >= count) {
            throw driver_error(status::no_device, "CUDA: no device " + std::to_string(ordinal) +
                                                      ", this process sees " + std::to_string(count));
        }
        only_one_ = count == 1;

        const relaxed_capture relaxed;
        must(cudaInitDevice(ordinal_, 0, 0), "CUDA: cannot initialise device " + std::to_string(ordinal_));
        int pools = 0; // some virtual GPUs have none
        must(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, ordinal_),
             "CUDA: cannot query the device");
        has_pools_ = pools != 0;
    }

    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

    // --- memory ---

    result<void*, status> allocate(std::size_t bytes) noexcept {
        const current_device here(ordinal_, only_one_);
        const relaxed_capture relaxed;
        void* pointer = nullptr;
        if (const status s = settle(cudaMalloc(&pointer, bytes)); s != status::ok) return s;
        return pointer;
    }

    status deallocate(void* pointer, std::size_t /*bytes*/) noexcept {
        const current_device here(ordinal_, only_one_);
        const relaxed_capture relaxed;
        return settle(cudaFree(pointer));
    }

    [[nodiscard]] std::size_t allocation_granularity() const noexcept { return 2_MiB; }

    result<device_memory, status> memory() noexcept {
        const current_device here(ordinal_, only_one_);
        device_memory m;
        if (const status s = settle(cudaMemGetInfo(&m.free, &m.total)); s != status::ok) return s;
        return m;
    }

    /// Effects: where the device itself refused, sets `cause` and how much of the device is used, by
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

    // --- streams and events ---

    /// Returns: identity and capture of `stream`. Asking a capturing stream for its id would invalidate the capture
    /// (observed, driver 580), so the capture is asked first, and inside one the identity is made of the handle, which
    /// cannot be destroyed or recycled before the capture ends. A capture that has been invalidated but not ended has
    /// an identity of its own (all ones): it will never run, yet the stream is not usable before its end.
    /// Requires: `stream` has not been destroyed; the driver crashes on a handle that no stream has any more.
    result<stream_state, status> describe(stream_handle stream) noexcept {
        if (is_legacy(stream)) return stream_state{legacy_stream_id, 0};
        const current_device here(ordinal_, only_one_); // cudaStreamPerThread is one of the current device
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        unsigned long long capture_id = 0;
        if (const status s = settle(cudaStreamGetCaptureInfo(stream, &capture, &capture_id)); s != status::ok)
            return s;
        constexpr std::uint64_t of_handle = std::uint64_t{1} << 62;
        if (capture == cudaStreamCaptureStatusActive)
            return stream_state{of_handle | to_address(stream), capture_id};
        if (capture == cudaStreamCaptureStatusInvalidated)
            return stream_state{of_handle | to_address(stream), std::numeric_limits<std::uint64_t>::max()};
        unsigned long long id = 0;
        if (const status s = settle(cudaStreamGetId(stream, &id)); s != status::ok) return s;
        return stream_state{id, 0};
    }

    /// Every other handle may name another stream later, or for another thread.
    [[nodiscard]] bool permanent(stream_handle stream) const noexcept { return is_legacy(stream); }

    result<event_handle, status> create_event() noexcept {
        const current_device here(ordinal_, only_one_);
        event_handle event = nullptr;
        if (const status s = settle(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            s != status::ok)
            return s;
        return event;
    }

    status destroy_event(event_handle event) noexcept { return settle(cudaEventDestroy(event)); }

    status record(event_handle event, stream_handle stream) noexcept {
        const current_device here(ordinal_, only_one_);
        if (const status s = joins_no_capture(stream); s != status::ok) return s;
        return settle(cudaEventRecord(event, stream));
    }

    status query(event_handle event) noexcept {
        const relaxed_capture relaxed;
        return settle(cudaEventQuery(event));
    }

    status synchronize(event_handle event) noexcept {
        const relaxed_capture relaxed;
        return settle(cudaEventSynchronize(event));
    }

    status synchronize(stream_handle stream) noexcept {
        const current_device here(ordinal_, only_one_);
        if (const status s = not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaStreamSynchronize(stream));
    }

    status wait(stream_handle stream, event_handle event) noexcept {
        const current_device here(ordinal_, only_one_);
        if (const status s = joins_no_capture(stream); s != status::ok) return s;
        return settle(cudaStreamWaitEvent(stream, event, 0));
    }

    // --- driver pools ---

    /// The driver grows pools, and rounds their limit up, in steps of this size; it offers no query for it.
    [[nodiscard]] std::size_t pool_step() const noexcept { return 32_MiB; }

    /// Returns: a pool for this process, with the driver's default ways of reusing freed memory.
    result<pool_handle, status> create_pool(const pool_properties& properties) noexcept {
        if (!has_pools_) return status::not_supported;
        const relaxed_capture relaxed;
        cudaMemPoolProps p{};
        p.allocType = cudaMemAllocationTypePinned;
        p.handleTypes = cudaMemHandleTypeNone;
        p.location.type = cudaMemLocationTypeDevice;
        p.location.id = ordinal_;
        p.maxSize = properties.max_bytes;
        pool_handle pool = nullptr;
        if (const status s = settle(cudaMemPoolCreate(&pool, &p)); s != status::ok) return s;
        std::uint64_t threshold = properties.release_threshold;
        const status s = settle(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
        if (s != status::ok) {
            (void)settle(cudaMemPoolDestroy(pool));
            return s;
        }
        return pool;
    }

    status destroy_pool(pool_handle pool) noexcept {
        const relaxed_capture relaxed;
        return settle(cudaMemPoolDestroy(pool));
    }

    result<void*, status> allocate_from(pool_handle pool, std::size_t bytes, stream_handle stream) noexcept {
        const current_device here(ordinal_, only_one_);
        if (const status s = not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        void* pointer = nullptr;
        if (const status s = settle(cudaMallocFromPoolAsync(&pointer, bytes, pool, stream)); s != status::ok)
            return s;
        return pointer;
    }

    /// A free on a capturing stream is refused too: it would become a node that frees again at every launch.
    status deallocate_to(pool_handle /*pool*/, void* pointer, stream_handle stream) noexcept {
        const current_device here(ordinal_, only_one_);
        if (const status s = not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaFreeAsync(pointer, stream));
    }

    status trim_pool(pool_handle pool, std::size_t bytes_to_keep) noexcept {
        const relaxed_capture relaxed;
        return settle(cudaMemPoolTrimTo(pool, bytes_to_keep));
    }

    result<pool_memory, status> memory_of(pool_handle pool) noexcept {
        const relaxed_capture relaxed;
        std::uint64_t reserved = 0;
        std::uint64_t used = 0;
        if (const status s =
                settle(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
            s != status::ok) {
            return s;
        }
        if (const status s = settle(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
            s != status::ok) {
            return s;
        }
        return pool_memory{reserved, used};
    }

  private:
    static void must(cudaError_t error, const std::string& doing) {
        if (const status s = settle(error); s != status::ok) {
            throw driver_error(s, doing + ": " + cudaGetErrorString(error));
        }
    }

    /// "13.0" for 13000.
    static std::string version_text(int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    static bool is_legacy(stream_handle stream) noexcept {
        return stream == cudaStreamLegacy || (null_is_legacy && stream == nullptr);
    }

    /// Returns: `ok`; `capture_violation` if `stream` is in a capture, or is the legacy default stream while
    /// a blocking stream is; or the error of asking. Disturbs no capture.
    static status not_capturing(stream_handle stream) noexcept {
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        if (const status s = settle(cudaStreamIsCapturing(stream, &capture)); s != status::ok) return s;
        return capture == cudaStreamCaptureStatusNone ? status::ok : status::capture_violation;
    }

    /// The same for calls that are allowed in a capture: the legacy default stream must not join another's.
    static status joins_no_capture(stream_handle stream) noexcept {
        return is_legacy(stream) ? not_capturing(stream) : status::ok;
    }

    /// Identity of the legacy default stream. The driver has one for it too, but asking would invalidate the
    /// capture of a blocking stream. The driver's count up from small numbers.
    static constexpr std::uint64_t legacy_stream_id = std::uint64_t{1} << 63;

    int ordinal_;
    bool only_one_ = false;
    bool has_pools_ = false;
};

static_assert(tenure::device<device>);
static_assert(tenure::pool_device<device>);

} // namespace per_thread_default_stream or legacy_default_stream
} // namespace tenure::cuda
