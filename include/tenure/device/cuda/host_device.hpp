#pragma once

/// \file
/// `cuda::host_device`: pinned host memory that the GPU reads and writes, as a model of `tenure::device`.
///
///     host memory   |---- page-locked ----|     one address for the host and, if it reaches so far, for every GPU
///
/// The same policies run over it. A block may be touched by the host as well as by work on streams: what the host
/// writes, work that is launched later sees; what work writes, the host sees when it has waited for it.
///
/// Invariant: memory is portable (pinned for every context) and mapped, at the same address for host and GPU.
///
/// Cost: not measured here; pinning and unpinning go page by page and are dearer than `cudaMalloc`. Freeing waits for
/// the device. Thread-safety: thread-safe.

#include <tenure/device/cuda/basic_device.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstddef>

namespace tenure::cuda {

/// Host memory by `cudaHostAlloc`.
struct pinned_memory {
    static cudaError_t take(void** pointer, std::size_t bytes) noexcept {
        return cudaHostAlloc(pointer, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    }
    static cudaError_t give_back(void* pointer) noexcept { return cudaFreeHost(pointer); }

    /// Whole pages are pinned. No more than a page's alignment is promised.
    static std::size_t granularity() noexcept { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

    /// The host's memory; how much of it may be pinned nobody tells.
    static cudaError_t read(device_memory& m) noexcept {
        struct sysinfo host {};
        if (sysinfo(&host) != 0) return cudaErrorUnknown;
        m.free = static_cast<std::size_t>(host.freeram) * host.mem_unit;
        m.total = static_cast<std::size_t>(host.totalram) * host.mem_unit;
        return cudaSuccess;
    }
};

inline namespace TENURE_CUDA_DEFAULT_STREAM {

using host_device = basic_device<pinned_memory>;
static_assert(tenure::device<host_device>);

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
