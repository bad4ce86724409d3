#pragma once

/// \file
/// `gpu`: a real device that replays run on, and what its program needs there.
///
/// Thread-compatible; a process opens one.

#include <tenure/device/cuda_device.hpp>

#include <cstddef>
#include <string>

namespace tenure::cli {

class gpu_device {
  public:
    /// Effects: makes room for 32 streams at the same time and loads all kernels, unless the environment has a say in
    /// this (CUDA_DEVICE_MAX_CONNECTIONS, CUDA_MODULE_LOADING); makes the device current.
    /// Requires: nothing in this process has used CUDA before. Throws: `driver_error`.
    explicit gpu_device(int ordinal);

    [[nodiscard]] cuda::device& device() noexcept { return device_; }
    /// "NVIDIA H200, driver 13.0, runtime 13.0"
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

  private:
    cuda::device device_;
    std::string text_;
};

/// Throws: `device_failure` for an error of the runtime.
void must(cudaError_t error, const char* what);

} // namespace tenure::cli
