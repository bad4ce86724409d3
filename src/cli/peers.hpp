#pragma once

/// \file
/// What other allocators reserved for the same programs on a real GPU, from the file `peers.csv` beside a
/// trace.
///
/// Thread-compatible.

#include <cstdint>
#include <optional>
#include <string>

namespace tenure::cli {

/// Peak bytes reserved. Empty where the file does not know.
struct peers {
    std::optional<std::uint64_t> native;       ///< PyTorch's caching allocator
    std::optional<std::uint64_t> expandable;   ///< the same with expandable segments
    std::optional<std::uint64_t> malloc_async; ///< cudaMallocAsync
    std::optional<std::uint64_t> recorded{};   ///< the allocator under which the trace was recorded
};

/// Returns: the line about `workload` in the `peers.csv` of the trace's folder; nothing if there is no such
/// file or line. Throws: `input_error` if the file is there and cannot be read or understood.
std::optional<peers> find_peers(const std::string& trace_path, const std::string& workload);

} // namespace tenure::cli
