#pragma once

/// \file
/// Which device a comparison runs on, as the command line names it: `sim`, `cuda`, `cuda:N`.
///
/// In a build without CUDA everything but `sim` is refused. The GPU stays an incomplete type to all that need not touch
/// it. Thread-compatible.

#include "errors.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tenure::cli {

class gpu_device;

enum class device_kind : std::uint8_t { sim, cuda };

struct device_choice {
    device_kind kind = device_kind::sim;
    int ordinal = 0;
};

/// Throws: `usage_error` for a name that is none, or whose device this program cannot use.
device_choice parse_device(const std::string& name);

/// Returns: null for the simulated device. Throws: `usage_error` if there is no such GPU here.
std::shared_ptr<gpu_device> open_gpu(const device_choice& choice);

/// Returns: bytes that nobody uses now. Throws: `device_failure`.
std::size_t free_bytes(gpu_device& gpu);

/// Returns: the GPU's name and the versions of driver and runtime, one line.
std::string description(gpu_device& gpu);

} // namespace tenure::cli
