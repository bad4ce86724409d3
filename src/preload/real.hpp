#pragma once

/// \file
/// `real`: the runtime's own functions behind those that this library stands before. All go to the program's runtime.
/// Where there is none, which no program that calls them can bring about, they answer `cudaErrorInitializationError`.
///
/// Thread-safety: thread-safe.

#include "runtime.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace tenure::preload::real {

#define TENURE_REAL(result, name, parameters, arguments)                                                     \
    inline result name parameters noexcept {                                                                 \
        static runtime_function<result parameters> function(#name);                                          \
        return function.call arguments;                                                                      \
    }
#define TENURE_NONE cudaErrorInitializationError

// clang-format off: one function a line
TENURE_REAL(cudaError_t, cudaMalloc, (void** p, std::size_t n), (TENURE_NONE, p, n))
TENURE_REAL(cudaError_t, cudaFree, (void* p), (TENURE_NONE, p))
TENURE_REAL(cudaError_t, cudaMallocAsync, (void** p, std::size_t n, cudaStream_t s), (TENURE_NONE, p, n, s))
TENURE_REAL(cudaError_t, cudaMallocAsync_ptsz, (void** p, std::size_t n, cudaStream_t s),
            (TENURE_NONE, p, n, s))
TENURE_REAL(cudaError_t, cudaFreeAsync, (void* p, cudaStream_t s), (TENURE_NONE, p, s))
TENURE_REAL(cudaError_t, cudaFreeAsync_ptsz, (void* p, cudaStream_t s), (TENURE_NONE, p, s))
TENURE_REAL(cudaError_t, cudaMallocFromPoolAsync,
            (void** p, std::size_t n, cudaMemPool_t pool, cudaStream_t s), (TENURE_NONE, p, n, pool, s))
TENURE_REAL(cudaError_t, cudaMallocFromPoolAsync_ptsz,
            (void** p, std::size_t n, cudaMemPool_t pool, cudaStream_t s), (TENURE_NONE, p, n, pool, s))
TENURE_REAL(cudaError_t, cudaMallocManaged, (void** p, std::size_t n, unsigned flags),
            (TENURE_NONE, p, n, flags))
TENURE_REAL(cudaError_t, cudaMallocPitch,
            (void** p, std::size_t* pitch, std::size_t width, std::size_t height),
            (TENURE_NONE, p, pitch, width, height))
TENURE_REAL(cudaError_t, cudaMalloc3D, (cudaPitchedPtr * p, cudaExtent e), (TENURE_NONE, p, e))
TENURE_REAL(cudaError_t, cudaMallocArray,
            (cudaArray_t * a, const cudaChannelFormatDesc* d, std::size_t width, std::size_t height,
             unsigned flags),
            (TENURE_NONE, a, d, width, height, flags))
TENURE_REAL(cudaError_t, cudaMalloc3DArray,
            (cudaArray_t * a, const cudaChannelFormatDesc* d, cudaExtent e, unsigned flags),
            (TENURE_NONE, a, d, e, flags))
TENURE_REAL(cudaError_t, cudaMallocMipmappedArray,
            (cudaMipmappedArray_t * a, const cudaChannelFormatDesc* d, cudaExtent e, unsigned levels,
             unsigned flags),
            (TENURE_NONE, a, d, e, levels, flags))
TENURE_REAL(cudaError_t, cudaFreeArray, (cudaArray_t a), (TENURE_NONE, a))
TENURE_REAL(cudaError_t, cudaFreeMipmappedArray, (cudaMipmappedArray_t a), (TENURE_NONE, a))
TENURE_REAL(cudaError_t, cudaMemGetInfo, (std::size_t * free, std::size_t* total), (TENURE_NONE, free, total))
TENURE_REAL(cudaError_t, cudaDeviceReset, (), (TENURE_NONE))
TENURE_REAL(cudaError_t, cudaIpcGetMemHandle, (cudaIpcMemHandle_t * h, void* p), (TENURE_NONE, h, p))
TENURE_REAL(cudaError_t, cudaGraphAddMemAllocNode,
            (cudaGraphNode_t * n, cudaGraph_t g, const cudaGraphNode_t* d, std::size_t count,
             cudaMemAllocNodeParams* p),
            (TENURE_NONE, n, g, d, count, p))

TENURE_REAL(cudaError_t, cudaDeviceSynchronize, (), (TENURE_NONE))
TENURE_REAL(cudaError_t, cudaGetDevice, (int* device), (TENURE_NONE, device))
TENURE_REAL(cudaError_t, cudaSetDevice, (int device), (TENURE_NONE, device))
TENURE_REAL(cudaError_t, cudaStreamGetDevice, (cudaStream_t s, int* device), (TENURE_NONE, s, device))
TENURE_REAL(cudaError_t, cudaStreamIsCapturing, (cudaStream_t s, cudaStreamCaptureStatus* c),
            (TENURE_NONE, s, c))
TENURE_REAL(cudaError_t, cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * m), (TENURE_NONE, m))
TENURE_REAL(cudaError_t, cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int device),
            (TENURE_NONE, pool, device))
TENURE_REAL(cudaError_t, cudaDeviceGetGraphMemAttribute,
            (int device, cudaGraphMemAttributeType a, void* value), (TENURE_NONE, device, a, value))
TENURE_REAL(cudaError_t, cudaRuntimeGetVersion, (int* version), (TENURE_NONE, version))
TENURE_REAL(cudaError_t, cudaGetLastError, (), (TENURE_NONE))
// clang-format on

#undef TENURE_NONE
#undef TENURE_REAL

} // namespace tenure::preload::real
