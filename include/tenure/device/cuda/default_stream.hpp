#pragma once

/// \file
/// What a null stream means in this translation unit.
///
/// With per-thread default streams (`nvcc --default-stream per-thread`) a null handle means another stream, in every
/// call of the runtime. Translation units compiled with and without must not share one inline function, so they do not
/// share the types: whatever makes such a call lives in the inline namespace that is named here.
///
/// Constants only; thread-safe.

#include <tenure/core/handles.hpp>

#include <cuda_runtime_api.h>

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#define TENURE_CUDA_DEFAULT_STREAM per_thread_default_stream
#else
#define TENURE_CUDA_DEFAULT_STREAM legacy_default_stream
#endif

namespace tenure::cuda {
inline namespace TENURE_CUDA_DEFAULT_STREAM {

#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
inline constexpr bool null_is_legacy = false;
#else
inline constexpr bool null_is_legacy = true;
#endif

/// Returns: whether the handle names the legacy default stream, the only one that is the same for the life of the
/// process and for all threads.
inline bool is_legacy(stream_handle stream) noexcept {
    return stream == cudaStreamLegacy || (null_is_legacy && stream == nullptr);
}

/// Returns: whether which stream the handle names depends on the calling thread's current device.
inline bool follows_current_device(stream_handle stream) noexcept {
    return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
