#pragma once

/// \file
/// `cuda::stream_device`: what every model of a device on a GPU shares: which GPU it is, its streams and its events.
///
///     stream_device <-- basic_device<Memory> <-- device            GPU memory; also driver pools and virtual memory
///                                            <-- host_device       pinned host memory
///                                            <-- managed_device    memory that moves
///
/// Capture questions, identities and `record` go to the driver directly, and to the runtime only if the driver has no
/// answer: on a thread that has not used CUDA yet the runtime first makes a context current. A failure is always the
/// runtime's, so the rules of `cuda/error.hpp` hold for both ways.
///
/// Invariants: see `cuda_device.hpp`, whose table of costs counts these members, too.
///
/// Thread-safety: thread-safe; the object does not change after construction.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/cuda/default_stream.hpp>
#include <tenure/device/cuda/driver_api.hpp>
#include <tenure/device/cuda/error.hpp>
#include <tenure/device/cuda/guards.hpp>
#include <tenure/device/cuda/process.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>

static_assert(CUDART_VERSION >= 12040, "tenure's CUDA devices need CUDA 12.4 or newer");

namespace tenure::cuda {
inline namespace TENURE_CUDA_DEFAULT_STREAM {

class stream_device {
  public:
    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

    /// Returns: whether this process sees no other device, so that the current one need not be looked at.
    [[nodiscard]] bool only_one_device() const noexcept { return only_one_; }

    /// The driver's own entry points, for what needs more than the concepts offer.
    [[nodiscard]] const driver_api& driver() const noexcept { return driver_; }

    // --- streams ---

    /// Returns: identity and capture of `stream`. Asking a capturing stream for its id would invalidate the capture
    /// (observed, driver 580), so the capture is asked first, and inside one the identity is made of the handle, which
    /// cannot be destroyed or recycled before the capture ends; for `cudaStreamPerThread` it is made of the calling
    /// thread. A capture that has been invalidated but not ended has
    /// an identity of its own (all ones): it will never run, yet the stream is not usable before its end.
    /// Requires: `stream` has not been destroyed; the driver crashes on a handle that no stream has any more.
    result<stream_state, status> describe(stream_handle stream) noexcept {
        if (is_legacy(stream)) return stream_state{legacy_stream_id, 0};
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal_, only_one_ || !follows_current_device(stream));
        if (driver_.stream_is_capturing != nullptr && driver_.stream_get_id != nullptr) {
            CUstreamCaptureStatus capture{};
            unsigned long long id = 0;
            if (driver_.stream_is_capturing(stream, &capture) == CUDA_SUCCESS &&
                capture == CU_STREAM_CAPTURE_STATUS_NONE &&
                driver_.stream_get_id(stream, &id) == CUDA_SUCCESS)
                return stream_state{id, 0};
        }
        return describe_by_runtime(stream);
    }

    /// See `stream_waits`; streams go by the identities of `describe`.
    [[nodiscard]] stream_waits& waits() noexcept { return waits_; }

    /// See `tells_time`.
    [[nodiscard]] std::chrono::nanoseconds now() const noexcept {
        return std::chrono::steady_clock::now().time_since_epoch();
    }

    /// Every other handle may name another stream later, or for another thread.
    [[nodiscard]] bool permanent(stream_handle stream) const noexcept { return is_legacy(stream); }

    status synchronize(stream_handle stream) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal_, only_one_);
        if (const status s = not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaStreamSynchronize(stream));
    }

    // --- events ---

    result<event_handle, status> create_event() noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal_, only_one_);
        event_handle event = nullptr;
        if (const status s = settle(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
            s != status::ok)
            return s;
        return event;
    }

    status destroy_event(event_handle event) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        return settle(cudaEventDestroy(event));
    }

    status record(event_handle event, stream_handle stream) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal_, only_one_ || !follows_current_device(stream));
        if (const status s = joins_no_capture(stream); s != status::ok) return s;
        if (driver_.event_record != nullptr && driver_.event_record(event, stream) == CUDA_SUCCESS)
            return status::ok;
        const current_device there(ordinal_, only_one_);
        return settle(cudaEventRecord(event, stream));
    }

    status query(event_handle event) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaEventQuery(event));
    }

    status synchronize(event_handle event) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaEventSynchronize(event));
    }

    status wait(stream_handle stream, event_handle event) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal_, only_one_);
        if (const status s = joins_no_capture(stream); s != status::ok) return s;
        return settle(cudaStreamWaitEvent(stream, event, 0));
    }

  protected:
    /// Effects: initialises the device's primary context if nobody has yet (some 140 ms and 530 MiB).
    /// Throws: `driver_error`; with `status::no_device` if there is no driver, no GPU, or not this ordinal.
    explicit stream_device(int ordinal) : ordinal_(ordinal) {
        if (process_state() != status::ok)
            throw driver_error(process_state(), "CUDA: cannot be used in the child of a fork, nor at exit");
        int version = 0;
        (void)settle(cudaDriverGetVersion(&version));
        if (version == 0)
            throw driver_error(status::no_device, "CUDA: no driver is installed or visible in this process");

        int count = 0;
        must(cudaGetDeviceCount(&count), "CUDA: cannot list devices, driver " + version_text(version) +
                                             ", runtime " + version_text(CUDART_VERSION));
        if (ordinal < 0 || ordinal >= count) {
            throw driver_error(status::no_device, "CUDA: no device " + std::to_string(ordinal) +
                                                      ", this process sees " + std::to_string(count));
        }
        only_one_ = count == 1;

        const relaxed_capture relaxed;
        must(cudaInitDevice(ordinal_, 0, 0), "CUDA: cannot initialise device " + std::to_string(ordinal_));
        watch_process();
        driver_ = driver_api(null_is_legacy);
    }
    ~stream_device() = default;
    stream_device(const stream_device&) = delete;
    stream_device& operator=(const stream_device&) = delete;

    /// Throws: `driver_error` if `error` is one.
    static void must(cudaError_t error, const std::string& doing) {
        if (const status s = settle(error); s != status::ok)
            throw driver_error(s, doing + ": " + cudaGetErrorString(error));
    }

    /// Returns: `ok`; `capture_violation` if `stream` is in a capture, or is the legacy default stream while
    /// a blocking stream is; or the error of asking. Disturbs no capture.
    status not_capturing(stream_handle stream) const noexcept {
        if (driver_.stream_is_capturing != nullptr) {
            CUstreamCaptureStatus capture{};
            if (driver_.stream_is_capturing(stream, &capture) == CUDA_SUCCESS)
                return capture == CU_STREAM_CAPTURE_STATUS_NONE ? status::ok : status::capture_violation;
        }
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        if (const status s = settle(cudaStreamIsCapturing(stream, &capture)); s != status::ok) return s;
        return capture == cudaStreamCaptureStatusNone ? status::ok : status::capture_violation;
    }

    /// The same for calls that are allowed in a capture: the legacy default stream must not join another's.
    status joins_no_capture(stream_handle stream) const noexcept {
        return is_legacy(stream) ? not_capturing(stream) : status::ok;
    }

  private:
    result<stream_state, status> describe_by_runtime(stream_handle stream) noexcept {
        const current_device here(ordinal_, only_one_);
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        unsigned long long capture_id = 0;
        if (const status s = settle(cudaStreamGetCaptureInfo(stream, &capture, &capture_id)); s != status::ok)
            return s;
        if (capture == cudaStreamCaptureStatusActive) return stream_state{made_up(stream), capture_id};
        if (capture == cudaStreamCaptureStatusInvalidated)
            return stream_state{made_up(stream), std::numeric_limits<std::uint64_t>::max()};
        unsigned long long id = 0;
        if (const status s = settle(cudaStreamGetId(stream, &id)); s != status::ok) return s;
        return stream_state{id, 0};
    }

    /// Returns: an identity that no other stream has in the same capture.
    static std::uint64_t made_up(stream_handle stream) noexcept {
        constexpr std::uint64_t mark = std::uint64_t{1} << 62;
        static thread_local const char this_thread = 0;
        return mark | (is_shared_handle(stream) ? to_address(&this_thread) : to_address(stream));
    }

    /// "13.0" for 13000.
    static std::string version_text(int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    /// Identity of the legacy default stream. The driver has one for it too, but asking would invalidate the
    /// capture of a blocking stream. The driver's count up from small numbers.
    static constexpr std::uint64_t legacy_stream_id = std::uint64_t{1} << 63;

    int ordinal_;
    bool only_one_ = false;
    driver_api driver_;
    stream_waits waits_;
};

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
