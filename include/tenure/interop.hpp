#pragma once

/// \file
/// Layer `interop`: doors to other libraries' memory interfaces. Includes only `core` and `resource`. Doors
/// that need CUDA's headers open only where those are found.

#include <tenure/interop/pmr_resource.hpp>
#include <tenure/interop/stream_allocator.hpp>

#if __has_include(<cuda_runtime_api.h>) && __has_include(<cuda/memory_resource>)
#include <tenure/interop/cuda_mr.hpp>
#endif
