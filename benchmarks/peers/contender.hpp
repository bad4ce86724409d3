#pragma once

/// \file
/// The small interface behind which all allocators stand in one comparison, ours too.
///
/// One file a peer, compiled only where the peer is found: each `add_` function appends what its file has. All
/// pay the same virtual call, 1 to 2 ns a pair; the contender `nothing` shows what is left when an allocator costs
/// nothing.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// Memory of device 0. Thread-safe.
class allocator {
  public:
    virtual ~allocator() = default;
    /// Throws: what the allocator behind it throws, always derived from `std::exception`.
    virtual void* allocate(cudaStream_t stream, std::size_t bytes) = 0;
    virtual void deallocate(cudaStream_t stream, void* p, std::size_t bytes) noexcept = 0;
};

struct contender {
    enum class side { peer, ours, nobody };
    std::string name;
    std::string version;
    side whose = side::peer;
    /// Returns: a new one that holds no memory which it did not ask for. Destroyed, it gives all back.
    std::function<std::unique_ptr<allocator>()> make;
};

/// Effects: throws if a call of the runtime failed.
inline void must(cudaError_t error, const char* doing) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    throw std::runtime_error(std::string(doing) + ": " + cudaGetErrorString(error));
}

using contender_list = std::vector<contender>;

void add_cuda_malloc_async(contender_list& all);
void add_cub(contender_list& all);
void add_torch(contender_list& all); ///< with TENURE_HAVE_TORCH
void add_rmm(contender_list& all);   ///< with TENURE_HAVE_RMM
void add_tenure(contender_list& all);

} // namespace bench
