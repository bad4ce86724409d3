/// \file
/// Thrust's temporaries and a device_vector from an arena, all on one stream.

#include "checked.hpp"

#include <tenure/interop/stream_allocator.hpp>
#include <tenure/interop/thrust_allocator.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <thrust/device_vector.h>
#include <thrust/equal.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/version.h>

using namespace tenure::literals;
using tenant = tenure::arena<tenure::remap_pool, tenure::cuda::device>;
using vector = thrust::device_vector<int, tenure::thrust_allocator<int>>;

int main() {
    const auto gpu = neighbours::open_gpu();
    std::printf("Thrust %d.%d.%d\n", THRUST_MAJOR_VERSION, THRUST_MINOR_VERSION, THRUST_SUBMINOR_VERSION);
    cudaStream_t stream = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    {
        tenant arena(*gpu, {.name = "thrust", .max = 2_GiB});
        const tenure::thrust_allocator<int> memory(arena, stream);
        tenure::stream_allocator<char> temporaries(arena, stream);
        constexpr std::size_t count = 8'000'000;

        vector v(count, 7, memory);
        neighbours::check(arena.usage().blocks.current == 1 &&
                              arena.usage().requested.current == count * sizeof(int),
                          "a device_vector is one block of the arena");
        neighbours::check(arena.owns(thrust::raw_pointer_cast(v.data())), "its data lies there");

        const auto here = thrust::cuda::par(temporaries).on(stream);
        neighbours::check(thrust::reduce(here, v.begin(), v.end(), 0LL) == 7LL * count,
                          "it was filled with 7 on the stream");

        thrust::sequence(here, v.rbegin(), v.rend());
        std::size_t before = arena.usage().blocks.total_in;
        thrust::sort(here, v.begin(), v.end());
        neighbours::check(arena.usage().blocks.total_in > before,
                          "sort with par took its temporaries from the arena");
        neighbours::check(thrust::is_sorted(here, v.begin(), v.end()), "and sorted");

        thrust::sequence(here, v.rbegin(), v.rend());
        before = arena.usage().blocks.total_in;
        thrust::sort(thrust::cuda::par_nosync(temporaries).on(stream), v.begin(), v.end());
        neighbours::check(arena.usage().blocks.total_in > before,
                          "sort with par_nosync took its temporaries from the arena");
        neighbours::check(thrust::is_sorted(here, v.begin(), v.end()), "and sorted");
        neighbours::check(arena.usage().blocks.current == 1, "all temporaries went back");

        vector grown(memory);
        grown.resize(1000, 1);
        grown.resize(2'000'000, 2);
        neighbours::check(thrust::reduce(here, grown.begin(), grown.end(), 0LL) == 1000 + 2LL * 1'999'000,
                          "a vector that grows keeps its elements");
        vector copy(grown, memory);
        vector taken(std::move(grown));
        neighbours::check(thrust::equal(here, copy.begin(), copy.end(), taken.begin()), "copies are equal");
        const std::size_t refused = arena.usage().failures;
        bool thrown = false;
        try {
            vector too_much(std::size_t{1} << 30, 0, memory); // 4 GiB in an arena of 2
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        neighbours::check(thrown && arena.usage().failures > refused,
                          "a vector beyond the arena's limit is refused");
        neighbours::check(neighbours::used_by_malloc_async(gpu->ordinal()) == 0,
                          "Thrust has used no cudaMallocAsync memory");
        copy = vector(memory);
        taken = vector(memory);
        v = vector(memory);
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
        neighbours::must(cudaStreamSynchronize(stream), "waiting");
    }
    neighbours::must(cudaStreamDestroy(stream), "destroying the stream");
    return neighbours::finish();
}
