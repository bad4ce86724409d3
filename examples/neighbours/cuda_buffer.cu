/// \file
/// cuda::buffer and the erased resources of cuda::mr over an arena: CCCL 3.2 and newer.

#include "checked.hpp"

#include <cuda/std/version>

#if CCCL_VERSION < 3002000

int main() {
    std::printf("CCCL %d.%d.%d\n", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    neighbours::skip("cuda::buffer came with CCCL 3.2");
}

#else

#include <tenure/interop/cuda_mr.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cuda/buffer>
#include <cuda/memory_resource>

#include <vector>

using namespace tenure::literals;

__global__ void add_one(int* p, std::size_t n) {
    const std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
    if (i < n) ++p[i];
}

int main() {
    const auto gpu = neighbours::open_gpu();
    std::printf("CCCL %d.%d.%d\n", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    cudaStream_t raw = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), "a stream");
    const cuda::stream_ref stream{raw};
    {
        tenure::arena<tenure::remap_pool, tenure::cuda::device> arena(*gpu, {.name = "buffer", .max = 1_GiB});
        const tenure::cuda_mr mr(arena);
        constexpr std::size_t count = 1'000'000;

        const auto works = [&](auto& buffer) {
            neighbours::must(cudaMemsetAsync(buffer.data(), 0, count * sizeof(int), raw), "a memset");
            add_one<<<(count + 255) / 256, 256, 0, raw>>>(buffer.data(), count);
            std::vector<int> seen(count);
            neighbours::must(
                cudaMemcpyAsync(seen.data(), buffer.data(), count * sizeof(int), cudaMemcpyDeviceToHost, raw),
                "a copy");
            neighbours::must(cudaStreamSynchronize(raw), "waiting");
            return seen.front() == 1 && seen.back() == 1;
        };
        {
            cuda::device_buffer<int> buffer(stream, mr, count, cuda::no_init);
            neighbours::check(arena.owns(buffer.data()) && arena.usage().blocks.current == 1,
                              "a cuda::device_buffer is one block of the arena");
            neighbours::check(works(buffer), "a kernel writes it");
        }
        neighbours::check(arena.usage().blocks.current == 0, "and its block went back");
        {
            cuda::mr::any_resource<cuda::mr::device_accessible> any(mr);
            cuda::device_buffer<int> buffer(stream, any, count, cuda::no_init);
            neighbours::check(arena.owns(buffer.data()) && works(buffer),
                              "the same through cuda::mr::any_resource");
            cuda::mr::resource_ref<cuda::mr::device_accessible> ref(any);
            void* const p = ref.allocate(stream, 1000, 16);
            neighbours::check(arena.owns(p), "and through cuda::mr::resource_ref");
            ref.deallocate(stream, p, 1000, 16);
        }
        bool thrown = false;
        try {
            cuda::device_buffer<int> buffer(stream, mr, 400'000'000, cuda::no_init);
        } catch (const tenure::out_of_memory& e) {
            thrown = e.failure().max == 1_GiB;
        }
        neighbours::check(thrown, "a buffer beyond the arena's limit throws tenure::out_of_memory");
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
        neighbours::check(neighbours::used_by_malloc_async(gpu->ordinal()) == 0,
                          "no cudaMallocAsync memory was used");
    }
    neighbours::must(cudaStreamDestroy(raw), "destroying the stream");
    return neighbours::finish();
}

#endif
