#pragma once

/// \file
/// `pmr_resource`: a resource over memory that the host may touch, as a `std::pmr::memory_resource`.
///
///     tenure::cuda::host_device host;                            // pinned
///     tenure::best_fit_pool<tenure::cuda::host_device> pool{host};
///     tenure::pmr_resource pinned(pool);
///     std::pmr::vector<float> batch(&pinned);                    // cudaMemcpyAsync from it does not stage
///
/// Requires: the resource stands on a device whose memory the host can read and write: `cuda::host_device`,
/// `cuda::host_pool_device`, `cuda::managed_device`. Nobody can check that here.
///
/// Invariants:
///   1. Allocations are synchronous: the host may write at once, and no stream still uses the block.
///   2. So are frees: all work on a block is over before its container lets go of it. Nobody waits for it here.
///   3. Equal to another `pmr_resource` exactly when both mean the same resource.
///   4. A request of no bytes gets a block of its own, as `operator new` does.
///
/// Cost: two indirect calls. Thread-safety: as the resource, *thread-safe* for every pool and arena.

#include <tenure/resource/resource_ref.hpp>

#include <algorithm>
#include <cstddef>
#include <memory_resource>

namespace tenure {

class pmr_resource final : public std::pmr::memory_resource {
  public:
    /// Effects: borrows. Requires: it outlives this object and all its memory.
    explicit pmr_resource(resource_ref resource) noexcept : resource_(resource) {}
    pmr_resource(const pmr_resource&) = delete;
    pmr_resource& operator=(const pmr_resource&) = delete;

    [[nodiscard]] const resource_ref& resource() const noexcept { return resource_; }

  private:
    static std::size_t at_least_one(std::size_t bytes) noexcept { return std::max<std::size_t>(bytes, 1); }

    /// Throws: `out_of_memory` (a `std::bad_alloc`), `invalid_alignment`, `driver_error`.
    void* do_allocate(std::size_t bytes, std::size_t alignment) override {
        return resource_.allocate_sync(at_least_one(bytes), alignment);
    }
    void do_deallocate(void* pointer, std::size_t bytes, std::size_t alignment) override {
        resource_.deallocate_sync(pointer, at_least_one(bytes), alignment);
    }
    [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
        const auto* const same = dynamic_cast<const pmr_resource*>(&other);
        return same != nullptr && same->resource_ == resource_;
    }

    resource_ref resource_;
};

} // namespace tenure
