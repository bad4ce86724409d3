#pragma once

/// \file
/// `PYTORCH_ALLOC_CONF` (and `PYTORCH_CUDA_ALLOC_CONF`): which of torch's keys are honoured, by whom, and which are not.
///
/// | key | meaning here |
/// |---|---|
/// | `per_process_memory_fraction` | the limit of all arenas together |
/// | `large_segment_size_mb` | segments of private pools; policy `caching`: large segments |
/// | `max_split_size_mb`, `max_non_split_rounding_mb`, `roundup_power2_divisions`, `garbage_collection_threshold` | policy `caching`: as in torch; other policies do not need them: ignored |
/// | `expandable_segments` | ignored: policy `remap` does what it is for |
/// | `release_lock_on_cudamalloc`, `graph_capture_record_stream_reuse`, `backend` | ignored |
/// | `pinned_...` | not this allocator's: torch's pinned memory reads them itself |
///
/// Torch has parsed and checked the text before this is asked.

#include "heap.hpp"
#include "options.hpp"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace tenure::torch {

/// Returns: what torch's keys say, for all heaps.
inline heap_settings settings_from_torch(const settings& s) {
    using accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig;
    heap_settings h;
    h.limit = s.limit;
    h.fraction = native::CUDAAllocatorConfig::per_process_memory_fraction();
    h.large_segment = accelerator::large_segment_size();
    h.caching.large_segment = accelerator::large_segment_size();
    if (accelerator::max_split_size() != std::numeric_limits<std::size_t>::max())
        h.caching.max_split = accelerator::max_split_size();
    h.caching.max_non_split_rounding = accelerator::max_non_split_rounding_size();
    h.caching.garbage_collection_threshold = accelerator::garbage_collection_threshold();
    const std::vector<std::size_t>& divisions = accelerator::roundup_power2_divisions();
    auto& ours = h.caching.roundup_power2_divisions.values;
    std::copy_n(divisions.begin(), std::min(divisions.size(), ours.size()), ours.begin());
    return h;
}

/// Returns: the keys in torch's text that this policy ignores, with a space between them; empty if there are none.
inline std::string ignored_keys(const std::string& text, const std::string& policy) {
    static constexpr const char* never[] = {"backend", "expandable_segments", "release_lock_on_cudamalloc",
                                            "release_lock_on_hipmalloc", "graph_capture_record_stream_reuse"};
    static constexpr const char* only_caching[] = {"max_split_size_mb", "max_non_split_rounding_mb",
                                                   "roundup_power2_divisions",
                                                   "garbage_collection_threshold"};
    std::string ignored;
    const auto look = [&](const char* key) {
        if (text.find(key) != std::string::npos) ignored += (ignored.empty() ? "" : " ") + std::string(key);
    };
    for (const char* key : never) look(key);
    if (policy != "caching")
        for (const char* key : only_caching) look(key);
    return ignored;
}

} // namespace tenure::torch
