/// \file
/// NCCL sends and receives in an arena's memory: registered with the communicator (ncclCommRegister), on one GPU.
///
/// A buffer is registered once and stays: it is taken back from NCCL before it is freed. Memory of `cudaMalloc` can always
/// be registered, so the pool is one of segments.

#include "checked.hpp"

#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <nccl.h>

#include <vector>

using namespace tenure::literals;

namespace {

void must(ncclResult_t r, const char* what) {
    neighbours::must(r, what, ncclGetErrorString);
}

template <template <class> class Policy>
void reduce_in(tenure::cuda::device& gpu, ncclComm_t group, cudaStream_t stream, const char* policy,
               bool must_register) {
    std::printf("      %s\n", policy);
    tenure::arena<Policy, tenure::cuda::device> arena(gpu, {.name = "nccl", .max = 1_GiB});
    constexpr std::size_t count = 8'000'000;
    constexpr std::size_t bytes = count * sizeof(float);
    auto* const send = static_cast<float*>(arena.allocate(stream, bytes));
    auto* const receive = static_cast<float*>(arena.allocate(stream, bytes));
    void* of_send = nullptr;
    void* of_receive = nullptr;
    const ncclResult_t registered = ncclCommRegister(group, send, bytes, &of_send);
    if (registered == ncclSuccess) must(ncclCommRegister(group, receive, bytes, &of_receive), "registering");
    if (must_register)
        neighbours::check(registered == ncclSuccess, "the buffers can be registered");
    else
        std::printf("      registering: %s\n", ncclGetErrorString(registered));

    const std::vector<float> values(count, 3.0F);
    neighbours::must(cudaMemcpyAsync(send, values.data(), bytes, cudaMemcpyHostToDevice, stream), "a copy");
    neighbours::must(cudaMemsetAsync(receive, 0, bytes, stream), "a memset");
    must(ncclAllReduce(send, receive, count, ncclFloat, ncclSum, group, stream), "ncclAllReduce");
    must(ncclBroadcast(receive, receive, count, ncclFloat, 0, group, stream), "ncclBroadcast");
    std::vector<float> result(count);
    neighbours::must(cudaMemcpyAsync(result.data(), receive, bytes, cudaMemcpyDeviceToHost, stream),
                     "a copy");
    neighbours::must(cudaStreamSynchronize(stream), "waiting");
    neighbours::check(result.front() == 3 && result.back() == 3,
                      "all-reduce and broadcast of one rank give the values back");
    neighbours::check(arena.owns(send) && arena.owns(receive), "in blocks of the arena");

    if (of_send != nullptr) must(ncclCommDeregister(group, of_send), "taking the registration back");
    if (of_receive != nullptr) must(ncclCommDeregister(group, of_receive), "taking the registration back");
    arena.deallocate(stream, send, bytes);
    arena.deallocate(stream, receive, bytes);
    neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
}

} // namespace

int main() {
    const auto gpu = neighbours::open_gpu();
    int version = 0;
    must(ncclGetVersion(&version), "ncclGetVersion");
    std::printf("NCCL %d\n", version);
    cudaStream_t stream = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    ncclComm_t group = nullptr;
    int device = gpu->ordinal();
    must(ncclCommInitAll(&group, 1, &device), "ncclCommInitAll");

    reduce_in<tenure::caching_pool>(*gpu, group, stream, "caching_pool: memory of cudaMalloc", true);
    reduce_in<tenure::remap_pool>(*gpu, group, stream, "remap_pool: mapped memory", false);

    must(ncclCommDestroy(group), "ncclCommDestroy");
    neighbours::must(cudaStreamDestroy(stream), "destroying the stream");
    return neighbours::finish();
}
