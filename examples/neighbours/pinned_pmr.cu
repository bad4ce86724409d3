/// \file
/// std::pmr containers over pinned host memory: the host writes them, a kernel reads and writes them in place.

#include "checked.hpp"

#include <tenure/device/cuda/host_device.hpp>
#include <tenure/interop/pmr_resource.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include <map>
#include <memory_resource>
#include <string>
#include <vector>

using namespace tenure::literals;

__global__ void square(float* p, std::size_t n) {
    const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    if (i < n) p[i] *= p[i];
}

bool is_pinned(const void* p) {
    cudaPointerAttributes a{};
    return cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeHost;
}

int main() {
    const auto gpu = neighbours::open_gpu();
    tenure::cuda::host_device host;
    tenure::best_fit_pool<tenure::cuda::host_device> pool(host, {.segment_bytes = 8_MiB});
    tenure::pmr_resource pinned{tenure::resource_ref(pool)};
    {
        std::pmr::vector<float> batch(&pinned);
        for (int i = 0; i < 100'000; ++i) batch.push_back(static_cast<float>(i % 100));
        neighbours::check(is_pinned(batch.data()), "a pmr::vector lies in pinned memory");
        neighbours::check(pool.owns(batch.data()), "the pool owns it");
        neighbours::check(pool.usage().blocks.current == 1 && pool.usage().blocks.total_in > 10,
                          "growing gave the smaller blocks back");

        square<<<(batch.size() + 255) / 256, 256>>>(batch.data(), batch.size());
        neighbours::must(cudaDeviceSynchronize(), "waiting");
        neighbours::check(batch[7] == 49 && batch[99] == 99 * 99, "a kernel squares it in place");

        std::pmr::map<int, std::pmr::string> names(&pinned);
        for (int i = 0; i < 1000; ++i)
            names[i] = "a name that is longer than a short string is " + std::to_string(i);
        neighbours::check(is_pinned(names[500].data()) && names[999].size() > 40,
                          "maps of strings live there, too");
        std::pmr::unsynchronized_pool_resource small(&pinned); // a standard pool over ours
        std::pmr::vector<int> other({1, 2, 3}, &small);
        neighbours::check(is_pinned(other.data()), "and standard pools over it");
    }
    neighbours::check(pool.usage().blocks.current == 0, "the pool has all its blocks back");
    return neighbours::finish();
}
