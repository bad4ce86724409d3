#pragma once

/// \file
/// Two scopes that a runtime call may need around it: `relaxed_capture` and `current_device`.
///
/// `relaxed_capture`: a stream capture in global mode, on *any* thread, forbids most calls that allocate,
/// free, wait or query, and does not only refuse them but is invalidated by them. Inside this scope the
/// calling thread's calls are allowed and harm no capture, except synchronising the device, and querying or
/// synchronising what is captured.
///
/// `current_device`: some calls act on the thread's current device. Inside this scope it is the wanted one;
/// after it, the caller's own is current again. Invariant: makes no call if the process sees one device only,
/// and changes nothing if the wanted one is current.
///
/// Cost on an H200 with driver 580: `relaxed_capture` 114 ns (mean of 10^6: two exchanges);
/// `current_device` 48 ns (`cudaGetDevice`), and if another device is current 214 ns more.
///
/// Thread-safety: each scope belongs to one thread.

#include <cuda_runtime_api.h>

namespace tenure::cuda {

class relaxed_capture {
  public:
    relaxed_capture() noexcept : entered_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
    ~relaxed_capture() {
        if (entered_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    }
    relaxed_capture(const relaxed_capture&) = delete;
    relaxed_capture& operator=(const relaxed_capture&) = delete;

  private:
    cudaStreamCaptureMode mode_ =
        cudaStreamCaptureModeRelaxed; ///< after construction: the mode to go back to
    bool entered_;
};

class current_device {
  public:
    /// `only_one`: whether the process sees a single device.
    current_device(int wanted, bool only_one) noexcept {
        if (only_one) return;
        int now = wanted;
        if (cudaGetDevice(&now) != cudaSuccess || now == wanted) return;
        if (cudaSetDevice(wanted) == cudaSuccess) previous_ = now;
    }
    ~current_device() {
        if (previous_ != none) (void)cudaSetDevice(previous_);
    }
    current_device(const current_device&) = delete;
    current_device& operator=(const current_device&) = delete;

  private:
    static constexpr int none = -1;
    int previous_ = none;
};

} // namespace tenure::cuda
