/// \file
/// RMM's containers over an arena: device_uvector, device_buffer, the current device resource. RMM 26.

#include "checked.hpp"

#include <tenure/interop/cuda_mr.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <rmm/device_buffer.hpp>
#include <rmm/device_scalar.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/exec_policy.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/version_config.hpp>

#include <cuda/stream_ref>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <vector>

using namespace tenure::literals;

int main() {
    const auto gpu = neighbours::open_gpu();
    std::printf("RMM %d.%d, CCCL %d.%d.%d\n", RMM_VERSION_MAJOR, RMM_VERSION_MINOR, CCCL_MAJOR_VERSION,
                CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    cudaStream_t raw = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), "a stream");
    const cuda::stream_ref stream(raw);
    {
        tenure::arena<tenure::remap_pool, tenure::cuda::device> arena(*gpu, {.name = "rmm", .max = 1_GiB});
        const tenure::cuda_mr mr(arena);
        {
            rmm::device_uvector<int> v(1'000'000, stream, mr);
            neighbours::check(arena.owns(v.data()), "a device_uvector lies in the arena");
            v.resize(3'000'000, stream);
            neighbours::check(arena.owns(v.data()) && arena.usage().blocks.current == 1, "and grows there");
            const double two_and_a_half = 2.5; // copied in stream order: RMM takes no temporary
            rmm::device_scalar<double> one(two_and_a_half, stream, mr);
            neighbours::check(one.value(stream) == 2.5 && arena.usage().blocks.current == 2,
                              "so does a device_scalar");
            rmm::device_buffer bytes(5000, stream, mr);
            rmm::device_buffer copy(bytes, stream, mr);
            neighbours::check(arena.owns(copy.data()) && arena.usage().blocks.current == 4,
                              "and device_buffers");
            const rmm::device_async_resource_ref used = v.memory_resource();
            (void)used;

            const std::size_t before = arena.usage().blocks.total_in;
            thrust::sequence(rmm::exec_policy_nosync(stream, mr), v.rbegin(), v.rend());
            thrust::sort(rmm::exec_policy_nosync(stream, mr), v.begin(), v.end());
            neighbours::check(arena.usage().blocks.total_in > before,
                              "RMM's execution policy gives Thrust the arena's memory");
            neighbours::check(v.element(0, stream) == 0 && v.back_element(stream) == 2'999'999,
                              "and Thrust sorted");
        }
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");

        // As the current resource: everything that names none.
        {
            auto old =
                rmm::mr::set_current_device_resource(cuda::mr::any_resource<cuda::mr::device_accessible>(mr));
            rmm::device_uvector<float> v(1000, stream);
            neighbours::check(arena.owns(v.data()),
                              "as the current device resource it serves who names none");
            v = rmm::device_uvector<float>(0, stream);
            rmm::mr::set_current_device_resource(std::move(old));
        }
        bool refused = false;
        try {
            rmm::device_buffer too_much(std::size_t{2} << 30, stream, mr);
        } catch (const std::bad_alloc&) {
            refused = true;
        }
        neighbours::check(refused && arena.usage().blocks.current == 0,
                          "a buffer beyond the arena's limit is refused with bad_alloc");
        neighbours::must(cudaStreamSynchronize(raw), "waiting");
    }
    neighbours::must(cudaStreamDestroy(raw), "destroying the stream");
    return neighbours::finish();
}
