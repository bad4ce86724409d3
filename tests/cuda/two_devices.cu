/// \file
/// Pools on two GPUs of one process: each works on its own device, whichever is current, and leaves the current one as it
/// was. Skips (77) where there are fewer than two.

// nvcc 13.0 takes the assignment of a [[nodiscard]] result, deep in a template, for one that is ignored.
#pragma nv_diag_suppress 2810

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include "cuda/check.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace tenure::literals;
using tenure::status;
using gpu = tenure::cuda::device;

constexpr long long about_100_ms = 180'000'000;

__global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
__global__ void fill(unsigned* p, std::size_t words, unsigned seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * blockDim.x)
        p[i] = seed + static_cast<unsigned>(i);
}
__global__ void check(const unsigned* p, std::size_t words, unsigned seed, unsigned* wrong) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * blockDim.x)
        if (p[i] != seed + static_cast<unsigned>(i)) atomicAdd(wrong, 1u);
}

int current() {
    int now = -1;
    TENURE_REQUIRE(cudaGetDevice(&now) == cudaSuccess);
    return now;
}
void make_current(int ordinal) {
    TENURE_REQUIRE(cudaSetDevice(ordinal) == cudaSuccess);
}

/// A device and a stream of it.
struct place {
    gpu device;
    tenure::stream_handle stream = nullptr;
    explicit place(int ordinal) : device(ordinal) {
        make_current(ordinal);
        TENURE_REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    }
};

/// Returns: number of wrong words of p, counted on the stream of `where`.
unsigned wrong_words(place& where, const void* p, std::size_t words, unsigned seed) {
    const int before = current();
    make_current(where.device.ordinal());
    unsigned* counter = nullptr;
    unsigned wrong = 1;
    TENURE_REQUIRE(cudaHostAlloc(&counter, sizeof *counter, cudaHostAllocMapped) == cudaSuccess);
    *counter = 0;
    check<<<64, 256, 0, where.stream>>>(static_cast<const unsigned*>(p), words, seed, counter);
    TENURE_CHECK(cudaStreamSynchronize(where.stream) == cudaSuccess);
    wrong = *counter;
    TENURE_CHECK(cudaFreeHost(counter) == cudaSuccess);
    make_current(before);
    return wrong;
}

/// Every call that an application makes, with device `on` current.
template <class Pool>
void use(Pool& pool, place& mine, place& other, int on, const char* name) {
    constexpr std::array<std::size_t, 5> sizes{1000, 1_MiB, 20_MiB, 100_MiB, 3_MiB};
    const auto unchanged = [&](const char* call) {
        if (current() == on) return;
        ++tenure::test::failed_checks;
        std::fprintf(stderr, "%s: %s made device %d current\n", name, call, current());
        make_current(on);
    };
    std::vector<void*> blocks;
    unsigned seed = 7;
    for (const std::size_t n : sizes) {
        void* const p = pool.allocate(mine.stream, n);
        unchanged("allocate");
        cudaPointerAttributes attributes{};
        TENURE_CHECK(cudaPointerGetAttributes(&attributes, p) == cudaSuccess);
        TENURE_CHECK(attributes.device == mine.device.ordinal());
        blocks.push_back(p);
        make_current(mine.device.ordinal()); // a kernel is launched where its stream is
        fill<<<64, 256, 0, mine.stream>>>(static_cast<unsigned*>(p), n / 4, ++seed);
        TENURE_CHECK(cudaGetLastError() == cudaSuccess);
        make_current(on);
    }
    seed = 7;
    for (std::size_t i = 0; i < sizes.size(); ++i)
        TENURE_CHECK(wrong_words(mine, blocks[i], sizes[i] / 4, ++seed) == 0);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        pool.deallocate(mine.stream, blocks[i], sizes[i]);
        unchanged("deallocate");
    }
    void* const again = pool.allocate(mine.stream, sizes[2]);
    cudaStream_t second = nullptr;
    make_current(mine.device.ordinal());
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
    make_current(on);
    pool.record_use(again, second);
    unchanged("record_use");
    pool.deallocate(mine.stream, again, sizes[2]);
    unchanged("deallocate of a block of two streams");
    void* const everywhere = pool.allocate_sync(sizes[1], 256);
    unchanged("allocate_sync");
    pool.deallocate_sync(everywhere, sizes[1], 256);
    unchanged("deallocate_sync");
    TENURE_CHECK(mine.device.synchronize(mine.stream) == status::ok);
    TENURE_CHECK(mine.device.synchronize(second) == status::ok);
    unchanged("synchronize");
    TENURE_CHECK(pool.validate());
    unchanged("validate");
    (void)pool.trim(0);
    unchanged("trim");
    // What would have been taken on the other device is still free there.
    TENURE_CHECK(mine.device.memory().has_value() && other.device.memory().has_value());
    unchanged("memory");
    TENURE_CHECK(cudaStreamDestroy(second) == cudaSuccess);
}

/// Gives memory back on its own device, whichever is current, and not under work that is not over there.
template <class Pool>
void trim_spares_what_is_in_use(Pool& pool, place& mine, int on) {
    constexpr std::size_t n = 64_MiB;
    void* const p = pool.allocate(mine.stream, n);
    make_current(mine.device.ordinal());
    spin<<<1, 1, 0, mine.stream>>>(about_100_ms);
    fill<<<64, 256, 0, mine.stream>>>(static_cast<unsigned*>(p), n / 4, 5);
    make_current(on);
    pool.deallocate(mine.stream, p, n);
    (void)pool.trim(0);
    // A pool may wait for the work and give its memory back, or keep it: the driver's own pools keep it.
    TENURE_CHECK(pool.usage().reserved.current >= n || cudaStreamQuery(mine.stream) == cudaSuccess);
    TENURE_CHECK(mine.device.synchronize(mine.stream) == status::ok); // an early unmap would have killed it
    TENURE_CHECK(cudaGetLastError() == cudaSuccess);
    (void)pool.trim(0);
    TENURE_CHECK(pool.usage().reserved.current == 0);
    TENURE_CHECK(current() == on);
}

template <class Make>
void test(const char* name, place& first, place& second, Make make) {
    const int failed_before = tenure::test::failed_checks;
    for (const int on : {0, 1}) {
        make_current(on);
        const auto a = make(first.device);
        const auto b = make(second.device);
        TENURE_CHECK(current() == on);
        use(*a, first, second, on, name);
        use(*b, second, first, on, name);
        trim_spares_what_is_in_use(*a, first, on);
        trim_spares_what_is_in_use(*b, second, on);

        // Both at once, each from a thread on which the other's device is current.
        std::thread t([&] {
            make_current(1);
            use(*a, first, second, 1, name);
        });
        std::thread u([&] {
            make_current(0);
            use(*b, second, first, 0, name);
        });
        t.join();
        u.join();
        TENURE_CHECK(current() == on);
    }
    make_current(0);
    std::printf("%s  %s\n", tenure::test::failed_checks == failed_before ? "PASS" : "FAIL", name);
}

template <template <class> class Pool>
void test_pool(const char* name, place& first, place& second) {
    test(name, first, second, [](gpu& d) { return std::make_unique<Pool<gpu>>(d); });
    test((std::string("arena of ") + name).c_str(), first, second, [](gpu& d) {
        return std::make_unique<tenure::arena<Pool, gpu>>(
            d, tenure::arena_options{.name = "tenant", .max = 1_GiB});
    });
}

} // namespace

int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) tenure::test::skip("no GPU");
    if (devices < 2) tenure::test::skip("one GPU; this test needs two");
    place first(0);
    place second(1);
    if (!first.device.supports_vmm() || !first.device.supports_pools())
        tenure::test::skip("these GPUs lack virtual memory or driver pools");
    make_current(0);
    test_pool<tenure::remap_pool>("remap_pool", first, second);
    test_pool<tenure::caching_pool>("caching_pool", first, second);
    test_pool<tenure::best_fit_pool>("best_fit_pool", first, second);
    test_pool<tenure::async_pool>("async_pool", first, second);
    return tenure::test::finish("two_devices");
}
