/// \file
/// RMM's pool, arena and binning resources, each with seven tenths of what is free on the device from the start.
/// The binning resource has a bin for each power of two from 512 B to 4 MiB, over a pool.

#include "contender.hpp"

#include <rmm/aligned.hpp>
#include <rmm/cuda_device.hpp>
#include <rmm/cuda_stream_view.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/binning_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/version_config.hpp>

#include <utility>

namespace bench {

namespace {

template <class Resource>
class rmm_resource final : public allocator {
  public:
    explicit rmm_resource(Resource resource) : resource_(std::move(resource)) {}
    void* allocate(cudaStream_t stream, std::size_t bytes) override {
        return resource_.allocate(rmm::cuda_stream_view{stream}, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
    }
    void deallocate(cudaStream_t stream, void* p, std::size_t bytes) noexcept override {
        if (p != nullptr)
            resource_.deallocate(rmm::cuda_stream_view{stream}, p, bytes, rmm::CUDA_ALLOCATION_ALIGNMENT);
    }

  private:
    Resource resource_;
};

template <class Resource>
std::unique_ptr<allocator> behind(Resource resource) {
    return std::make_unique<rmm_resource<Resource>>(std::move(resource));
}

std::size_t share() {
    return rmm::percent_of_free_device_memory(70);
}

rmm::mr::pool_memory_resource pool() {
    return rmm::mr::pool_memory_resource{rmm::mr::cuda_memory_resource{}, share()};
}

} // namespace

void add_rmm(contender_list& all) {
    const std::string version = std::to_string(RMM_VERSION_MAJOR) + "." + std::to_string(RMM_VERSION_MINOR) +
                                "." + std::to_string(RMM_VERSION_PATCH);
    const auto add = [&](const char* name, std::unique_ptr<allocator> (*make)()) {
        all.push_back({name, version, contender::side::peer, make});
    };
    add("rmm_pool", [] { return behind(pool()); });
    add("rmm_arena", [] {
        return behind(rmm::mr::arena_memory_resource{rmm::mr::cuda_memory_resource{}, share()});
    });
    add("rmm_binning", [] { return behind(rmm::mr::binning_memory_resource{pool(), 9, 22}); });
}

} // namespace bench
