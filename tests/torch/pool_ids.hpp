#pragma once

/// \file
/// Pools as torch names them, and the filter that takes every stream.

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

namespace tenure::test {

using pool_id = c10::MempoolId_t;
inline constexpr pool_id graph_pool{7, 0};
inline constexpr pool_id user_pool{0, 3};

inline bool always(cudaStream_t) {
    return true;
}

} // namespace tenure::test
