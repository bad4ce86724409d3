#pragma once

/// \file
/// `cuda::managed_device`: managed memory, which moves between host and GPU by itself, as a model of `tenure::device`.
///
/// For programs that want more memory than the GPU has, or one pointer for both sides, and accept page faults for it.
/// Blocks keep where their pages were: a block that is reused begins where its predecessor's pages lie.
///
/// Invariant: memory is attached globally: every stream of every GPU may use it.
///
/// Cost: not measured here. Thread-safety: thread-safe.

#include <tenure/core/units.hpp>
#include <tenure/device/cuda/basic_device.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tenure::cuda {

/// Memory by `cudaMallocManaged`.
struct managed_memory {
    static cudaError_t take(void** pointer, std::size_t bytes) noexcept {
        return cudaMallocManaged(pointer, bytes, cudaMemAttachGlobal);
    }
    static cudaError_t give_back(void* pointer) noexcept { return cudaFree(pointer); }

    /// The step in which pages move to the GPU; smaller pieces would share one.
    static std::size_t granularity() noexcept {
        using namespace literals;
        return 2_MiB;
    }

    /// The GPU's memory. It is no limit: what does not fit there stays with the host.
    static cudaError_t read(device_memory& m) noexcept { return cudaMemGetInfo(&m.free, &m.total); }
};

inline namespace TENURE_CUDA_DEFAULT_STREAM {

using managed_device = basic_device<managed_memory>;
static_assert(tenure::device<managed_device>);

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
