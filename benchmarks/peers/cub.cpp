/// \file
/// cub::CachingDeviceAllocator, with bins for all powers of two from 512 B to 32 MiB. By default it caches nothing
/// above 2 MiB, and would show the cost of cudaMalloc.

#include "contender.hpp"

#include <cub/util_allocator.cuh>
#include <cub/version.cuh>

namespace bench {

namespace {

class cub_caching final : public allocator {
  public:
    void* allocate(cudaStream_t stream, std::size_t bytes) override {
        void* p = nullptr;
        must(allocator_.DeviceAllocate(0, &p, bytes, stream), "cub::CachingDeviceAllocator");
        return p;
    }
    void deallocate(cudaStream_t, void* p, std::size_t) noexcept override {
        if (p != nullptr) (void)allocator_.DeviceFree(0, p);
    }

  private:
    cub::CachingDeviceAllocator allocator_{2, 9, 25};
};

} // namespace

void add_cub(contender_list& all) {
    const std::string version = std::to_string(CUB_MAJOR_VERSION) + "." + std::to_string(CUB_MINOR_VERSION) +
                                "." + std::to_string(CUB_SUBMINOR_VERSION);
    all.push_back(
        {"cub_caching", version, contender::side::peer, [] { return std::make_unique<cub_caching>(); }});
}

} // namespace bench
