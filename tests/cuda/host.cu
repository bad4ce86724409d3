/// \file
/// Policies over pinned host memory and managed memory: the same block is written by the host and by a kernel.

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda/host_device.hpp>
#include <tenure/device/cuda/managed_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "cuda/check.hpp"

#include <cstring>
#include <memory>
#include <vector>

#include <unistd.h>

namespace {

using namespace tenure::literals;
using tenure::status;

__global__ void add_one(int* p, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] += 1;
}

bool clean() {
    return cudaPeekAtLastError() == cudaSuccess;
}

template <class Device>
std::unique_ptr<Device> open_or_skip() {
    try {
        return std::make_unique<Device>();
    } catch (const tenure::driver_error& e) {
        if (e.code() != status::no_device) throw;
        tenure::test::skip(e.what());
    }
}

template <class Device>
void host_and_kernel_share_blocks(Device& d) {
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    {
        tenure::best_fit_pool<Device> pool(d, {.segment_bytes = 4_MiB});
        constexpr int n = 10'000;
        std::vector<int*> blocks;
        for (int b = 0; b < 20; ++b) {
            int* const p = static_cast<int*>(pool.allocate(s, n * sizeof(int)));
            TENURE_CHECK(tenure::to_address(p) % tenure::default_alignment == 0);
            for (int i = 0; i < n; ++i) p[i] = b + i;
            add_one<<<(n + 255) / 256, 256, 0, s>>>(p, n);
            blocks.push_back(p);
        }
        TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
        int wrong = 0;
        for (int b = 0; b < 20; ++b)
            for (int i = 0; i < n; ++i) wrong += blocks[b][i] != b + i + 1;
        TENURE_CHECK(wrong == 0);
        for (int* p : blocks) pool.deallocate(s, p, n * sizeof(int));
        int* const again = static_cast<int*>(pool.allocate(s, n * sizeof(int)));
        TENURE_CHECK(again == blocks[0]); // the same stream has it at once
        pool.deallocate(s, again, n * sizeof(int));
        void* const aligned = pool.allocate(s, 100, 1_MiB); // more than the device aligns to
        TENURE_CHECK(tenure::to_address(aligned) % 1_MiB == 0);
        std::memset(aligned, 1, 100);
        pool.deallocate(s, aligned, 100, 1_MiB);
        TENURE_CHECK(pool.validate());
        TENURE_CHECK(pool.trim(0) > 0);
        TENURE_CHECK(pool.usage().reserved.current == 0);
    }
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

template <class Device>
void it_keeps_the_rules_of_a_device(Device& d) {
    const std::size_t step = d.allocation_granularity();
    TENURE_CHECK(step != 0 && (step & (step - 1)) == 0);
    const auto p = d.allocate(step);
    TENURE_REQUIRE(p.has_value());
    TENURE_CHECK(tenure::to_address(*p) % tenure::default_alignment == 0);
    TENURE_CHECK(d.deallocate(*p, step) == status::ok);
    const auto m = d.memory();
    TENURE_CHECK(m.has_value() && m->free > 0 && m->free <= m->total);
    TENURE_CHECK(!d.allocate(std::size_t{1} << 50).has_value());
    TENURE_CHECK(clean());

    // A capture of this thread survives: memory comes and goes in relaxed mode.
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    const auto q = d.allocate(step);
    TENURE_CHECK(q.has_value());
    if (q) TENURE_CHECK(d.deallocate(*q, step) == status::ok);
    cudaGraph_t graph = nullptr;
    TENURE_CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    if (graph) TENURE_CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

} // namespace

int main() {
    const auto host = open_or_skip<tenure::cuda::host_device>();
    TENURE_CHECK(host->allocation_granularity() == static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
    it_keeps_the_rules_of_a_device(*host);
    host_and_kernel_share_blocks(*host);

    int managed = 0;
    TENURE_REQUIRE(cudaDeviceGetAttribute(&managed, cudaDevAttrConcurrentManagedAccess, 0) == cudaSuccess);
    if (managed != 0) { // else the host may not touch a block while anything runs
        tenure::cuda::managed_device d;
        it_keeps_the_rules_of_a_device(d);
        host_and_kernel_share_blocks(d);
    } else {
        std::printf("managed memory left out: no concurrent access here\n");
    }
    return tenure::test::finish("host");
}
