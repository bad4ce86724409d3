/// \file
/// The driver's stream-ordered allocator on the device's default pool, told to keep what it has. By default
/// it gives everything back whenever the host synchronises.

#include "contender.hpp"

#include <cstdint>

namespace bench {

namespace {

class cuda_malloc_async final : public allocator {
  public:
    cuda_malloc_async() {
        must(cudaDeviceGetDefaultMemPool(&pool_, 0), "cudaDeviceGetDefaultMemPool");
        must(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &before_), "release threshold");
        std::uint64_t all = UINT64_MAX;
        must(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all), "release threshold");
    }
    ~cuda_malloc_async() override {
        (void)cudaDeviceSynchronize();
        (void)cudaMemPoolTrimTo(pool_, 0);
        (void)cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &before_);
    }
    void* allocate(cudaStream_t stream, std::size_t bytes) override {
        void* p = nullptr;
        must(cudaMallocAsync(&p, bytes, stream), "cudaMallocAsync");
        return p;
    }
    void deallocate(cudaStream_t stream, void* p, std::size_t) noexcept override {
        if (p != nullptr) (void)cudaFreeAsync(p, stream);
    }

  private:
    cudaMemPool_t pool_ = nullptr;
    std::uint64_t before_ = 0;
};

} // namespace

void add_cuda_malloc_async(contender_list& all) {
    all.push_back({"cudaMallocAsync", "the driver's", contender::side::peer,
                   [] { return std::make_unique<cuda_malloc_async>(); }});
}

} // namespace bench
