/// \file
/// CUB takes its temporary storage from a `cuda_mr`. What CUB's environment machinery selects is checked when
/// this is compiled; that the bytes really come from there needs a GPU.

#include <tenure/interop/cuda_mr.hpp>

#include "cuda/check.hpp"

#if defined(TENURE_EXPECTED_CCCL)
static_assert(CCCL_VERSION == TENURE_EXPECTED_CCCL, "compiled with another CCCL than the one under test");
#endif

#if CCCL_VERSION < 3001000

int main() {
    tenure::test::skip("the algorithms of CUB take no environment before CCCL 3.1");
}

#else

#include <tenure/device/cuda_device.hpp>

#include "cuda/device_resource.hpp"

#include <cub/device/device_reduce.cuh>

#include <memory>
#include <vector>

namespace {

using tenure::cuda_mr;
using tenure::test::device_resource;

// What cub::DeviceReduce keeps as its memory resource for an environment, spelt as in its own code.
#if CCCL_VERSION >= 3003000
template <class Env>
using selected = decltype(cuda::__call_or(cuda::mr::__get_memory_resource,
                                          cub::detail::device_memory_resource{}, std::declval<const Env&>()));
#else
template <class Env>
using selected = decltype(cuda::std::execution::__query_or(
    std::declval<const Env&>(), cuda::mr::__get_memory_resource, cub::detail::device_memory_resource{}));
#endif
using stream_and_mr = decltype(cuda::std::execution::env{std::declval<cuda::stream_ref>(),
                                                         std::declval<cuda_mr>()});

static_assert(std::is_same_v<cuda::std::decay_t<selected<cuda_mr>>, cuda_mr>);
static_assert(std::is_same_v<cuda::std::decay_t<selected<stream_and_mr>>, cuda_mr>);
// The same question has the other answer where nothing suitable is given: the checks above can fail.
static_assert(std::is_same_v<cuda::std::decay_t<selected<cuda::std::execution::env<>>>,
                             cub::detail::device_memory_resource>);

/// Bytes that cudaMallocAsync has ever had in use on this device at once.
std::uint64_t used_by_malloc_async(int ordinal) {
    cudaMemPool_t pool = nullptr;
    TENURE_REQUIRE(cudaDeviceGetDefaultMemPool(&pool, ordinal) == cudaSuccess);
    std::uint64_t high = 0;
    TENURE_REQUIRE(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high) == cudaSuccess);
    return high;
}

} // namespace

int main() {
    std::unique_ptr<tenure::cuda::device> gpu;
    try {
        gpu = std::make_unique<tenure::cuda::device>();
    } catch (const tenure::driver_error& e) {
        if (e.code() != tenure::status::no_device) throw;
        tenure::test::skip(e.what());
    }
    device_resource memory(*gpu);
    const cuda_mr mr(memory);

    cudaStream_t stream = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);

    constexpr int count = 10'000'000;
    const std::vector<int> ones(count, 1);
    const std::size_t bytes = ones.size() * sizeof(int);
    auto* in = static_cast<int*>(memory.allocate(stream, bytes, 256));
    auto* out = static_cast<int*>(memory.allocate(stream, sizeof(int), 256));
    TENURE_REQUIRE(cudaMemcpyAsync(in, ones.data(), bytes, cudaMemcpyHostToDevice, stream) == cudaSuccess);

    const auto before = memory.allocations();
    const auto sum = [&](const auto& env) {
        TENURE_REQUIRE(cub::DeviceReduce::Sum(in, out, count, env) == cudaSuccess);
        TENURE_REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        int total = 0;
        TENURE_REQUIRE(cudaMemcpy(&total, out, sizeof total, cudaMemcpyDeviceToHost) == cudaSuccess);
        return total;
    };

    TENURE_CHECK(sum(cuda::std::execution::env{cuda::stream_ref{stream}, mr}) == count);
    TENURE_CHECK(memory.allocations() == before + 1);
    TENURE_CHECK(memory.last_stream() == stream);
    // 16 or 256, as the version of CUB has it: whatever it is, it arrives.
    TENURE_CHECK(memory.last_alignment() >= alignof(std::max_align_t));
    TENURE_CHECK(memory.live() == 2);

    TENURE_CHECK(sum(mr) == count); // the handle alone is an environment, on the default stream
    TENURE_CHECK(memory.allocations() == before + 2);
    TENURE_CHECK(memory.last_stream() == nullptr);
    TENURE_CHECK(memory.live() == 2);

    TENURE_CHECK(used_by_malloc_async(gpu->ordinal()) == 0);

    memory.deallocate(stream, in, bytes, 256);
    memory.deallocate(stream, out, sizeof(int), 256);
    TENURE_CHECK(memory.live() == 0);
    TENURE_CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    TENURE_CHECK(cudaGetLastError() == cudaSuccess);
    return tenure::test::finish("cub");
}

#endif
