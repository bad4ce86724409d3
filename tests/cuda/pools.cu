/// \file
/// Driver pools on a real GPU: the ways in which they may reuse memory, access from other GPUs, and pools of host memory.

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda/host_pool_device.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "cuda/check.hpp"

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

namespace {

using namespace tenure::literals;
using tenure::pool_properties;
using tenure::status;
using gpu = tenure::cuda::device;
using tenure::cuda::host_pool_device;

constexpr long long about_100_ms = 180'000'000;

__global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
__global__ void add_one(int* p, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) p[i] += 1;
}

bool clean() {
    return cudaPeekAtLastError() == cudaSuccess;
}

tenure::stream_handle make_stream() {
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    return s;
}

/// A pool at its limit whose memory was freed on one stream behind 100 ms of work.
/// Returns: what the driver answers another stream, which stands behind the free if `ordered`; after that work if `passed`.
status another_stream_asks(gpu& d, pool_properties p, bool ordered, bool passed) {
    p.max_bytes = d.pool_step();
    const auto pool = d.create_pool(p);
    TENURE_REQUIRE(pool.has_value());
    const auto a = make_stream();
    const auto b = make_stream();
    const auto e = d.create_event();
    const auto block = d.allocate_from(*pool, d.pool_step(), a);
    TENURE_REQUIRE(block.has_value() && e.has_value());
    spin<<<1, 1, 0, a>>>(about_100_ms);
    TENURE_CHECK(d.deallocate_to(*pool, *block, a) == status::ok);
    TENURE_CHECK(d.record(*e, a) == status::ok);
    if (ordered) TENURE_CHECK(d.wait(b, *e) == status::ok);
    if (passed) TENURE_CHECK(d.synchronize(*e) == status::ok);
    const auto again = d.allocate_from(*pool, d.pool_step(), b);
    TENURE_CHECK(clean());
    if (again) TENURE_CHECK(d.deallocate_to(*pool, *again, b) == status::ok);
    TENURE_CHECK(d.synchronize(a) == status::ok && d.synchronize(b) == status::ok);
    TENURE_CHECK(d.destroy_event(*e) == status::ok && d.destroy_pool(*pool) == status::ok);
    TENURE_CHECK(cudaStreamDestroy(a) == cudaSuccess && cudaStreamDestroy(b) == cudaSuccess);
    return again ? status::ok : again.error();
}

void the_driver_is_told_how_to_reuse(gpu& d) {
    for (int bits = 0; bits < 8; ++bits) {
        const std::array wanted{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
        const auto pool = d.create_pool({.reuse_follows_events = wanted[0],
                                         .reuse_when_passed = wanted[1],
                                         .reuse_makes_streams_wait = wanted[2]});
        TENURE_REQUIRE(pool.has_value());
        const std::array attributes{cudaMemPoolReuseFollowEventDependencies,
                                    cudaMemPoolReuseAllowOpportunistic,
                                    cudaMemPoolReuseAllowInternalDependencies};
        for (std::size_t i = 0; i < attributes.size(); ++i) {
            int value = -1;
            TENURE_CHECK(cudaMemPoolGetAttribute(*pool, attributes[i], &value) == cudaSuccess);
            TENURE_CHECK(value == (wanted[i] ? 1 : 0));
        }
        TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
    }
    const pool_properties none{
        .reuse_follows_events = false, .reuse_when_passed = false, .reuse_makes_streams_wait = false};
    pool_properties follows = none, looks = none, waits = none;
    follows.reuse_follows_events = looks.reuse_when_passed = waits.reuse_makes_streams_wait = true;
    TENURE_CHECK(another_stream_asks(d, none, false, false) == status::out_of_memory);
    TENURE_CHECK(another_stream_asks(d, follows, false, false) == status::out_of_memory);
    TENURE_CHECK(another_stream_asks(d, follows, true, false) == status::ok);
    TENURE_CHECK(another_stream_asks(d, looks, false, false) == status::out_of_memory);
    TENURE_CHECK(another_stream_asks(d, looks, false, true) == status::ok);
    TENURE_CHECK(another_stream_asks(d, waits, false, false) == status::ok);
    std::printf("none of the three ways, work over, answers: %s\n",
                to_string(another_stream_asks(d, none, false, true)));
    TENURE_CHECK(clean());
}

void peers_reach_the_pool(gpu& d) {
    TENURE_CHECK(d.create_pool({.peers = std::uint64_t{1} << 63}).error() == status::not_supported);
    bool refused = false;
    try {
        tenure::async_pool<gpu> pool(d, {.peers = std::uint64_t{1} << 63});
    } catch (const tenure::driver_error& e) {
        refused = e.code() == status::not_supported;
    }
    TENURE_CHECK(refused);
    TENURE_CHECK(clean());
    int count = 0, reaches = 0;
    TENURE_REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
    if (count > 1) TENURE_REQUIRE(cudaDeviceCanAccessPeer(&reaches, 1, 0) == cudaSuccess);
    if (reaches == 0) return (void)std::printf("peer access to pools: not looked at, no peer here\n");
    tenure::async_pool<gpu> pool(d, {.peers = 0b10});
    const auto s = make_stream();
    constexpr int n = 1 << 20;
    int* const p = static_cast<int*>(pool.allocate(s, n * sizeof(int)));
    TENURE_CHECK(cudaMemsetAsync(p, 0, n * sizeof(int), s) == cudaSuccess);
    TENURE_CHECK(d.synchronize(s) == status::ok);
    TENURE_REQUIRE(cudaSetDevice(1) == cudaSuccess);
    add_one<<<n / 256, 256>>>(p, n);
    TENURE_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    TENURE_REQUIRE(cudaSetDevice(0) == cudaSuccess);
    int last = 0;
    TENURE_CHECK(cudaMemcpy(&last, p + n - 1, sizeof last, cudaMemcpyDeviceToHost) == cudaSuccess);
    TENURE_CHECK(last == 1);
    pool.deallocate(s, p, n * sizeof(int));
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
}

/// Host and kernel write the same blocks, which change hands in stream order.
template <class Pool>
void host_and_kernel_share_blocks(host_pool_device& d, Pool& pool) {
    const auto s = make_stream();
    constexpr int n = 100'000;
    for (int round = 0; round < 20; ++round) {
        int* const p = static_cast<int*>(pool.allocate(s, n * sizeof(int)));
        TENURE_CHECK(d.synchronize(s) == status::ok); // the host comes after the stream, too
        for (int i = 0; i < n; ++i) p[i] = round + i;
        add_one<<<(n + 255) / 256, 256, 0, s>>>(p, n);
        TENURE_CHECK(d.synchronize(s) == status::ok);
        int wrong = 0;
        for (int i = 0; i < n; ++i) wrong += p[i] != round + i + 1;
        TENURE_CHECK(wrong == 0);
        pool.deallocate(s, p, n * sizeof(int));
    }
    TENURE_CHECK(d.synchronize(s) == status::ok);
    pool.trim(0);
    TENURE_CHECK(pool.usage().reserved.current == 0);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

void pools_of_host_memory() {
    std::unique_ptr<host_pool_device> d;
    try {
        d = std::make_unique<host_pool_device>();
    } catch (const tenure::driver_error& e) {
        TENURE_CHECK(e.code() == status::not_supported);
        TENURE_CHECK(clean());
        return (void)std::printf("pools of host memory: %s\n", e.what());
    }
    for (const std::size_t n : {1_MiB, 40_MiB}) { // the promise of pool_step()
        const auto pool = d->create_pool({});
        const auto s = make_stream();
        TENURE_REQUIRE(pool.has_value());
        const auto p = d->allocate_from(*pool, n, s);
        TENURE_REQUIRE(p.has_value());
        const auto m = d->memory_of(*pool);
        TENURE_REQUIRE(m.has_value());
        std::printf("pool of host memory: %zu MiB asked, %zu KiB reserved\n", n >> 20, m->reserved >> 10);
        TENURE_CHECK(m->reserved >= n && m->reserved <= tenure::round_up(n, d->pool_step()));
        TENURE_CHECK(d->deallocate_to(*pool, *p, s) == status::ok);
        TENURE_CHECK(d->synchronize(s) == status::ok);
        TENURE_CHECK(d->destroy_pool(*pool) == status::ok);
        TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    }
    {
        tenure::async_pool<host_pool_device> pool(*d);
        host_and_kernel_share_blocks(*d, pool);
    }
    {
        tenure::best_fit_pool<host_pool_device> pool(*d, {.segment_bytes = 4_MiB});
        host_and_kernel_share_blocks(*d, pool);
    }
    for (const int node : {0, 1000}) {
        try {
            host_pool_device on_node(0, {.numa_node = node});
            TENURE_CHECK(node == 0);
            tenure::async_pool<host_pool_device> pool(on_node);
            host_and_kernel_share_blocks(on_node, pool);
            std::printf("pools on NUMA node %d: work\n", node);
        } catch (const tenure::driver_error& e) {
            TENURE_CHECK(e.code() == status::not_supported);
            std::printf("pools on NUMA node %d: %s\n", node, e.what());
        }
        TENURE_CHECK(clean());
    }
}

} // namespace

int main() {
    std::unique_ptr<gpu> d;
    try {
        d = std::make_unique<gpu>();
    } catch (const tenure::driver_error& e) {
        tenure::test::skip(e.what());
    }
    if (!d->supports_pools()) tenure::test::skip("this GPU has no driver pools");
    the_driver_is_told_how_to_reuse(*d);
    peers_reach_the_pool(*d);
    pools_of_host_memory();
    return tenure::test::finish("pools");
}
