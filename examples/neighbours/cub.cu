/// \file
/// CUB takes its temporary storage from an arena: through the environment, and explicitly.

#include "checked.hpp"

#include <tenure/interop/cuda_mr.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_reduce.cuh>

#include <numeric>
#include <vector>

using namespace tenure::literals;

int main() {
    const auto gpu = neighbours::open_gpu();
    std::printf("CUB of CCCL %d.%d.%d\n", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    cudaStream_t stream = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    {
        tenure::arena<tenure::remap_pool, tenure::cuda::device> arena(*gpu, {.name = "cub", .max = 2_GiB});

        constexpr int count = 10'000'000;
        constexpr std::size_t bytes = count * sizeof(int);
        std::vector<int> numbers(count);
        std::iota(numbers.rbegin(), numbers.rend(), 0); // falling
        auto* const in = static_cast<int*>(arena.allocate(stream, bytes));
        auto* const out = static_cast<int*>(arena.allocate(stream, bytes));
        neighbours::must(cudaMemcpyAsync(in, numbers.data(), bytes, cudaMemcpyHostToDevice, stream),
                         "a copy");

        // --- explicit temporary storage: every version of CUB ---
        std::size_t temporary = 0;
        neighbours::must(cub::DeviceRadixSort::SortKeys(nullptr, temporary, in, out, count, 0, 32, stream),
                         "asking CUB");
        const std::size_t before = arena.usage().blocks.total_in;
        void* const storage = arena.allocate(stream, temporary);
        neighbours::must(cub::DeviceRadixSort::SortKeys(storage, temporary, in, out, count, 0, 32, stream),
                         "sorting");
        arena.deallocate(stream, storage,
                         temporary); // at once: the stream orders the next use behind the sort
        neighbours::must(cudaMemcpyAsync(numbers.data(), out, bytes, cudaMemcpyDeviceToHost, stream),
                         "a copy");
        neighbours::must(cudaStreamSynchronize(stream), "waiting");
        bool sorted = true;
        for (int i = 0; i < count; ++i) sorted = sorted && numbers[static_cast<std::size_t>(i)] == i;
        neighbours::check(sorted, "DeviceRadixSort with explicit storage sorts 10 000 000 keys");
        neighbours::check(temporary > 1_MiB && arena.usage().blocks.total_in == before + 1 &&
                              arena.usage().blocks.current == 2,
                          "its storage came from the arena and went back");

        // --- the environment: CCCL 3.1 and newer ---
#if CCCL_VERSION >= 3001000
        const tenure::cuda_mr mr(arena);
        const auto reduced = [&](const auto& environment) {
            neighbours::must(cub::DeviceReduce::Sum(in, out, count, environment), "reducing");
            neighbours::must(cudaDeviceSynchronize(), "waiting");
            int sum = 0;
            neighbours::must(cudaMemcpy(&sum, out, sizeof sum, cudaMemcpyDeviceToHost), "a copy");
            return sum;
        };
        const int wanted = static_cast<int>(static_cast<unsigned>((std::int64_t{count} - 1) * count / 2));
        const std::size_t calls = arena.usage().blocks.total_in;
        neighbours::check(reduced(cuda::std::execution::env{cuda::stream_ref{stream}, mr}) == wanted,
                          "DeviceReduce with the environment {stream, arena} sums");
        neighbours::check(arena.usage().blocks.total_in == calls + 1,
                          "one allocation of the arena served it");
        neighbours::check(reduced(mr) == wanted, "DeviceReduce with the arena alone as environment sums");
        neighbours::check(arena.usage().blocks.total_in == calls + 2, "one more allocation served it");
#else
        std::printf("SKIP  the environment: the algorithms take none before CCCL 3.1\n");
#endif
        neighbours::check(neighbours::used_by_malloc_async(gpu->ordinal()) == 0,
                          "CUB has used no cudaMallocAsync memory");
        arena.deallocate(stream, in, bytes);
        arena.deallocate(stream, out, bytes);
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
    }
    neighbours::must(cudaStreamDestroy(stream), "destroying the stream");
    return neighbours::finish();
}
