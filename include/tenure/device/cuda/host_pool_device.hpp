#pragma once

/// \file
/// `cuda::host_pool_device`: pinned host memory with driver pools of its own (CUDA 13), as a model of `tenure::pool_device`.
///
///     async_pool over it     host memory in stream order: a copy on a stream gets its staging buffer there, and gives it
///                            back there, without the host waiting and without pinning anew
///     other pools over it    as over `host_device`: `allocate` is `cudaHostAlloc`
///
/// Pools lie on one NUMA node of the host, or on whichever the driver likes. The GPU reads and writes their memory, and so
/// does the host, once it knows that the work which it follows is over.
///
/// Invariant: a pool's memory is accessible from this GPU; from others if `pool_properties::peers` says so.
///
/// Cost: not measured here. Thread-safety: thread-safe.

#include <tenure/core/error.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/cuda/basic_device.hpp>
#include <tenure/device/cuda/host_device.hpp>
#include <tenure/device/cuda/pooled.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace tenure::cuda {

struct host_pool_options {
    static constexpr int any_node = -1;
    /// The node of the host whose memory pools have.
    int numa_node = any_node;
};

inline namespace TENURE_CUDA_DEFAULT_STREAM {

class host_pool_device : public pooled<basic_device<pinned_memory>> {
  public:
    /// Throws: `driver_error`; with `status::no_device` as `cuda::device` does; with `status::not_supported` if this
    /// driver, or this program's CUDA runtime, has no pools of host memory, or none on one node.
    explicit host_pool_device(int ordinal = 0, host_pool_options options = {})
        : pooled<basic_device<pinned_memory>>(ordinal, location_of(options), cudaMemHandleTypeNone) {
        const bool on_node = options.numa_node != host_pool_options::any_node;
        if (!supported(ordinal, on_node))
            throw driver_error(status::not_supported,
                               "CUDA: device " + std::to_string(ordinal) + " has no pools of host memory" +
                                   (on_node ? " on one NUMA node" : "") + "; host_device needs none");
        const result<pool_handle, status> probe = create_pool({}); // a node that is not there is refused here
        if (!probe)
            throw driver_error(
                probe.error() == status::invalid_value ? status::not_supported : probe.error(),
                "CUDA: the driver makes no pool of host memory" +
                    (on_node ? " on NUMA node " + std::to_string(options.numa_node) : std::string{}));
        (void)destroy_pool(*probe);
    }

  private:
    static cudaMemLocation location_of(const host_pool_options& o) noexcept {
        cudaMemLocation where{};
        where.type = o.numa_node == host_pool_options::any_node ? cudaMemLocationTypeHost
                                                                : cudaMemLocationTypeHostNuma;
        where.id = o.numa_node == host_pool_options::any_node ? 0 : o.numa_node;
        return where;
    }

    static bool supported([[maybe_unused]] int ordinal, [[maybe_unused]] bool on_node) noexcept {
#if CUDART_VERSION >= 13000
        int yes = 0;
        const cudaDeviceAttr asked =
            on_node ? cudaDevAttrHostNumaMemoryPoolsSupported : cudaDevAttrHostMemoryPoolsSupported;
        return settle(cudaDeviceGetAttribute(&yes, asked, ordinal)) == status::ok && yes != 0;
#else
        return false;
#endif
    }
};

static_assert(tenure::pool_device<host_pool_device>);

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
