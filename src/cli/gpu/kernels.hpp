#pragma once

/// \file
/// What a replay runs on a GPU. Each function enqueues one kernel on a stream and returns what the launch answered; none
/// waits. `p` may have any alignment and `n` any size; with p aligned to 16 bytes they run at the memory's bandwidth.
///
/// `fill` and `check` use half of each multiprocessor's threads, so that those of two streams run side by side: a
/// replay that is to find races must not serialise its kernels.
///
/// Thread-safety: thread-safe, as launches are.

#include "pattern.hpp"

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tenure::cli::gpu {

/// Effects: loads every kernel and runs each once, and waits for that. A kernel that is loaded later may wait for the
/// device, which may be waiting for the host. Requires: the device is current.
cudaError_t prepare();

/// Effects: the stream is busy for this long.
cudaError_t spin(cudaStream_t stream, std::chrono::microseconds length);

/// Effects: the stream is busy until `*word`, in pinned host memory, is not 0; at most for `longest`, so that a host that
/// waits for the stream is only late.
cudaError_t hold(cudaStream_t stream, const std::uint32_t* word, std::chrono::microseconds longest);

/// Effects: writes the pattern of `key` into all n bytes.
cudaError_t fill(cudaStream_t stream, void* p, std::size_t n, pattern_key key);

/// Effects: reads all n bytes; a difference is written into `*out`, which the GPU can write, as check `number` (not 0).
cudaError_t check(cudaStream_t stream, const void* p, std::size_t n, pattern_key key, std::uint64_t number,
                  findings* out);

} // namespace tenure::cli::gpu
