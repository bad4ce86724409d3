#pragma once

/// \file
/// The driver's opaque handles, named without including CUDA.
///
/// `cudaStream_t`, `CUstream`, `cudaEvent_t` and `cudaMemPool_t` are pointers to these incomplete types, so a
/// `tenure::stream_handle` *is* a `cudaStream_t`: code that has CUDA passes its own handles, code that has not still
/// compiles. The simulated device hands out numbers dressed as these pointers; nobody dereferences them.

#include <cstdint>

struct CUstream_st;
struct CUevent_st;
struct CUmemPoolHandle_st;

namespace tenure {

using stream_handle = ::CUstream_st*;
using event_handle = ::CUevent_st*;
using pool_handle = ::CUmemPoolHandle_st*;

/// The legacy default stream. It can be neither destroyed nor captured.
inline constexpr stream_handle default_stream = nullptr;

/// Returns: whether the handle is one of CUDA's constants (null, `cudaStreamLegacy`, `cudaStreamPerThread`): such a handle
/// may stand for another stream in each thread or on each device. All others are one stream's, until it is destroyed.
inline bool is_shared_handle(stream_handle s) noexcept {
    return reinterpret_cast<std::uintptr_t>(s) <= 2;
}

} // namespace tenure
