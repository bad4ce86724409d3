// A pool, an arena and a stream. Runs without a GPU: tenure::sim::device stands for one. On a GPU it is
// tenure::cuda::device, from <tenure/device/cuda_device.hpp>, everywhere below.

#include <tenure/tenure.hpp>

#include <cstdio>

using namespace tenure::literals;

int main() {
    tenure::sim::device gpu;
    tenure::stream_handle stream = gpu.create_stream(); // on a GPU: your cudaStream_t

    // A pool: PyTorch's caching scheme over the whole device.
    tenure::caching_pool<tenure::sim::device> pool{gpu};
    void* weights = pool.allocate(stream, 300_MiB);
    std::printf("pool: requested %s, reserved %s\n",
                tenure::format_bytes(pool.usage().requested.current).c_str(),
                tenure::format_bytes(pool.usage().reserved.current).c_str());
    pool.deallocate(stream, weights, 300_MiB);

    // An arena: the same policy for one tenant, which never holds more than 8 GiB of the device.
    tenure::arena<tenure::caching_pool, tenure::sim::device> alice{gpu, {.name = "alice", .max = 8_GiB}};
    void* batch = alice.allocate(stream, 6_GiB);
    if (auto refused = alice.try_allocate(stream, 3_GiB); !refused)
        std::printf("arena: %s\n", refused.error().text().c_str());
    alice.deallocate(stream, batch, 6_GiB);

    gpu.destroy_stream(stream);
}
