/// \file
/// The GPU's virtual memory as `vmm_device` promises it, each rule on the real driver.

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "cuda/check.hpp"
#include "support/vmm_backed.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace {

using namespace tenure::literals;
using tenure::memory_handle;
using tenure::status;
using gpu = tenure::cuda::device;
using clock_type = std::chrono::steady_clock;

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
/// `piece` words of the pattern lie at each place, in the order that `order` tells.
__global__ void check(const unsigned* p, std::size_t words, unsigned seed, const unsigned* order,
                      std::size_t piece, unsigned long long* wrong) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words;
         i += std::size_t{gridDim.x} * blockDim.x) {
        const std::size_t there = order[i / piece] * piece + i % piece;
        if (p[i] != seed + static_cast<unsigned>(there)) atomicAdd(wrong, 1ull);
    }
}

constexpr long long about_100_ms = 180'000'000;

bool clean() {
    return cudaPeekAtLastError() == cudaSuccess;
}

std::unique_ptr<gpu> open_or_skip() {
    try {
        auto d = std::make_unique<gpu>();
        if (!d->supports_vmm()) tenure::test::skip("this GPU or driver has no virtual memory");
        return d;
    } catch (const tenure::driver_error& e) {
        if (e.code() != status::no_device) throw;
        tenure::test::skip(e.what());
    }
}

std::size_t free_bytes(gpu& d) {
    return d.memory()->free;
}

void sizes_are_what_the_driver_says(gpu& d) {
    CUmemAllocationProp p{};
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    p.location.id = d.ordinal();
    std::size_t step = 0;
    TENURE_REQUIRE(d.driver().mem_get_allocation_granularity(&step, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
                   CUDA_SUCCESS);
    std::printf("driver's granularity: %zu B\n", step);
    TENURE_CHECK(step == d.allocation_granularity());
    const std::size_t before = free_bytes(d);
    const auto h = d.create_memory(2_MiB);
    TENURE_REQUIRE(h.has_value());
    TENURE_CHECK(free_bytes(d) == before - 2_MiB);
    TENURE_CHECK(d.release_memory(*h) == status::ok);
    TENURE_CHECK(free_bytes(d) == before);
}

void what_is_not_whole_is_refused(gpu& d) {
    const auto window = d.reserve_address(64_MiB, 0);
    TENURE_REQUIRE(window.has_value());
    char* const w = static_cast<char*>(*window);
    TENURE_CHECK(tenure::to_address(w) % 2_MiB == 0);
    TENURE_CHECK(d.reserve_address(0, 0).error() == status::invalid_value);
    TENURE_CHECK(d.reserve_address(1_MiB, 0).error() == status::invalid_value);
    TENURE_CHECK(d.reserve_address(2_MiB, 3_MiB).error() == status::invalid_value);
    TENURE_CHECK(d.create_memory(0).error() == status::invalid_value);
    TENURE_CHECK(d.create_memory(3_MiB).error() == status::invalid_value);
    const std::uint64_t wish = tenure::to_address(w) + 64_MiB;
    const auto wished = d.reserve_address(2_MiB, 0, wish);
    TENURE_REQUIRE(wished.has_value());
    if (tenure::to_address(*wished) != wish) // somebody else may be there, so it is only told
        std::printf("a wished address was not granted: %p for %p\n", *wished, tenure::to_pointer(wish));
    const auto taken = d.reserve_address(2_MiB, 0, wish);
    TENURE_REQUIRE(taken.has_value() && *taken != *wished);
    const auto beyond = d.reserve_address(2_MiB, 0, std::uint64_t{1} << 62);
    TENURE_REQUIRE(beyond.has_value());
    for (void* const p : {*wished, *taken, *beyond}) TENURE_CHECK(d.free_address(p, 2_MiB) == status::ok);
    const auto far = d.reserve_address(2_MiB, 1_GiB);
    TENURE_REQUIRE(far.has_value());
    TENURE_CHECK(tenure::to_address(*far) % 1_GiB == 0);
    TENURE_CHECK(d.free_address(*far, 2_MiB) == status::ok);

    const memory_handle a = *d.create_memory(4_MiB);
    const memory_handle b = *d.create_memory(2_MiB);
    TENURE_CHECK(d.map(w + 1_MiB, a) == status::invalid_value);
    TENURE_CHECK(d.map(w, a + 1) == status::invalid_value);
    TENURE_CHECK(d.map(w, a) == status::ok);
    TENURE_CHECK(d.map(w + 2_MiB, b) == status::invalid_value); // something is there
    TENURE_CHECK(d.map(w + 6_MiB, b) == status::ok);            // a gap of 2 MiB
    TENURE_CHECK(d.set_access(w, 2_MiB) == status::invalid_value);
    TENURE_CHECK(d.set_access(w, 4_MiB) == status::ok);
    TENURE_CHECK(d.unmap(w, 2_MiB) == status::invalid_value);
    TENURE_CHECK(d.unmap(w + 2_MiB, 2_MiB) == status::invalid_value);
    TENURE_CHECK(d.free_address(w, 64_MiB) == status::invalid_value); // something is mapped
    TENURE_CHECK(cudaMemset(w, 1, 4_MiB) == cudaSuccess);             // nothing of that has changed anything
    TENURE_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    TENURE_CHECK(d.unmap(w, 4_MiB) == status::ok);
    TENURE_CHECK(d.unmap(w + 6_MiB, 2_MiB) == status::ok);
    TENURE_CHECK(d.release_memory(a) == status::ok);
    TENURE_CHECK(d.release_memory(a) == status::invalid_value);
    TENURE_CHECK(d.release_memory(b) == status::ok);
    TENURE_CHECK(d.free_address(w, 32_MiB) == status::invalid_value); // only a part
    TENURE_CHECK(d.free_address(w, 64_MiB) == status::ok);
    TENURE_CHECK(clean());
}

void memory_lives_while_it_is_held_or_shown(gpu& d) {
    const std::size_t before = free_bytes(d);
    char* const w = static_cast<char*>(*d.reserve_address(256_MiB, 0));
    const memory_handle h = *d.create_memory(64_MiB);
    TENURE_CHECK(d.map(w, h) == status::ok);
    TENURE_CHECK(d.map(w + 128_MiB, h) == status::ok);
    TENURE_CHECK(free_bytes(d) == before - 64_MiB); // the second mapping takes nothing
    TENURE_CHECK(d.release_memory(h) == status::ok);
    TENURE_CHECK(d.map(w + 64_MiB, h) == status::invalid_value);
    TENURE_CHECK(free_bytes(d) == before - 64_MiB);
    TENURE_CHECK(d.unmap(w, 64_MiB) == status::ok);
    TENURE_CHECK(free_bytes(d) == before - 64_MiB);
    TENURE_CHECK(d.unmap(w + 128_MiB, 64_MiB) == status::ok);
    TENURE_CHECK(free_bytes(d) == before);
    TENURE_CHECK(d.free_address(w, 256_MiB) == status::ok);
}

/// What is written through one address is read through another in stream order, without a host that waits.
void views_of_the_same_memory_agree(gpu& d) {
    constexpr std::size_t piece = 8_MiB;
    constexpr std::size_t pieces = 16;
    constexpr std::size_t words = pieces * piece / sizeof(unsigned);
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    char* const first = static_cast<char*>(*d.reserve_address(pieces * piece, 0));
    std::vector<memory_handle> handles;
    for (std::size_t i = 0; i < pieces; ++i) {
        handles.push_back(*d.create_memory(piece));
        TENURE_REQUIRE(d.map(first + i * piece, handles[i]) == status::ok);
    }
    TENURE_REQUIRE(d.set_access(first, pieces * piece) == status::ok);
    unsigned* orders = nullptr;
    unsigned long long* wrong = nullptr;
    constexpr unsigned rounds = 8;
    TENURE_REQUIRE(cudaMallocManaged(&orders, rounds * pieces * sizeof(unsigned)) == cudaSuccess);
    TENURE_REQUIRE(cudaMallocManaged(&wrong, sizeof *wrong) == cudaSuccess);
    *wrong = 0;
    std::mt19937 rng(1);
    std::vector<char*> views;
    for (unsigned r = 0; r < rounds; ++r) {
        std::iota(orders + r * pieces, orders + (r + 1) * pieces, 0u);
        std::shuffle(orders + r * pieces, orders + (r + 1) * pieces, rng);
    }
    for (unsigned r = 0; r < rounds; ++r) {
        fill<<<256, 256, 0, s>>>(reinterpret_cast<unsigned*>(first), words, r);
        char* const view = static_cast<char*>(*d.reserve_address(pieces * piece, 0));
        views.push_back(view);
        for (std::size_t i = 0; i < pieces; ++i)
            TENURE_REQUIRE(d.map(view + i * piece, handles[orders[r * pieces + i]]) == status::ok);
        TENURE_REQUIRE(d.set_access(view, pieces * piece) == status::ok);
        check<<<256, 256, 0, s>>>(reinterpret_cast<const unsigned*>(view), words, r, orders + r * pieces,
                                  piece / sizeof(unsigned), wrong);
    }
    TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    TENURE_CHECK(*wrong == 0);
    for (char* view : views) {
        TENURE_CHECK(d.unmap(view, pieces * piece) == status::ok); // one call, many mappings
        TENURE_CHECK(d.free_address(view, pieces * piece) == status::ok);
    }
    TENURE_CHECK(d.unmap(first, pieces * piece) == status::ok);
    TENURE_CHECK(d.free_address(first, pieces * piece) == status::ok);
    for (const memory_handle h : handles) TENURE_CHECK(d.release_memory(h) == status::ok);
    TENURE_CHECK(cudaFree(orders) == cudaSuccess);
    TENURE_CHECK(cudaFree(wrong) == cudaSuccess);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

/// All calls once, on memory of their own.
void use_everything(gpu& d) {
    const auto w = d.reserve_address(20_MiB, 0);
    TENURE_REQUIRE(w.has_value());
    const auto h = d.create_memory(20_MiB);
    TENURE_REQUIRE(h.has_value());
    TENURE_CHECK(d.map(*w, *h) == status::ok);
    TENURE_CHECK(d.set_access(*w, 20_MiB) == status::ok);
    TENURE_CHECK(d.unmap(*w, 20_MiB) == status::ok);
    TENURE_CHECK(d.release_memory(*h) == status::ok);
    TENURE_CHECK(d.free_address(*w, 20_MiB) == status::ok);
}

void nothing_waits_for_work(gpu& d) {
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    use_everything(d);
    spin<<<1, 1, 0, s>>>(about_100_ms);
    const auto start = clock_type::now();
    use_everything(d);
    const auto taken = clock_type::now() - start;
    TENURE_CHECK(cudaStreamQuery(s) == cudaErrorNotReady); // the kernel has outlasted it
    TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    const auto kernel = clock_type::now() - start;
    const auto ms = [](auto t) { return std::chrono::duration<double, std::milli>(t).count(); };
    std::printf("all VMM calls beside a kernel of %.1f ms: %.3f ms\n", ms(kernel), ms(taken));
    TENURE_CHECK(taken * 4 < kernel);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
}

void captures_do_not_mind(gpu& d) {
    for (const bool other_thread : {false, true}) {
        cudaStream_t s = nullptr;
        TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
        TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
        spin<<<1, 1, 0, s>>>(1);
        if (other_thread)
            std::thread([&] { use_everything(d); }).join(); // a thread without a context, too
        else
            use_everything(d);
        cudaGraph_t graph = nullptr;
        TENURE_CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
        std::size_t nodes = 0;
        TENURE_CHECK(graph != nullptr && cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
        TENURE_CHECK(nodes == 1);
        if (graph) TENURE_CHECK(cudaGraphDestroy(graph) == cudaSuccess);
        TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
        TENURE_CHECK(clean());
    }
}

void a_full_gpu_is_no_error_of_the_runtime(gpu& d) {
    const std::size_t before = free_bytes(d);
    std::vector<memory_handle> handles;
    status last = status::ok;
    for (std::size_t n = 16_GiB; n >= 2_MiB; n = n == 2_MiB ? 0 : n / 2) {
        while (true) {
            const auto h = d.create_memory(n);
            if (!h) {
                last = h.error();
                break;
            }
            handles.push_back(*h);
        }
        if (last != status::out_of_memory) break;
    }
    TENURE_CHECK(last == status::out_of_memory);
    TENURE_CHECK(clean());
    spin<<<1, 1>>>(1);
    TENURE_CHECK(cudaGetLastError() == cudaSuccess); // a good launch reports nothing of it
    TENURE_CHECK(d.allocate(1_GiB).error() == status::out_of_memory);
    TENURE_CHECK(clean());
    for (const memory_handle h : handles) TENURE_CHECK(d.release_memory(h) == status::ok);
    TENURE_CHECK(cudaDeviceSynchronize() == cudaSuccess);
    TENURE_CHECK(free_bytes(d) + 64_MiB >= before); // the driver keeps a little for itself
    TENURE_CHECK(!d.reserve_address(std::size_t{1} << 60, 0).has_value());
    TENURE_CHECK(clean());
}

void policies_run_over_it(gpu& d) {
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    {
        tenure::test::vmm_backed<gpu> backing(d, [] { (void)cudaDeviceSynchronize(); });
        tenure::best_fit_pool<tenure::test::vmm_backed<gpu>> pool(backing);
        std::vector<void*> blocks;
        for (int i = 0; i < 50; ++i) {
            blocks.push_back(pool.allocate(s, 300'000));
            TENURE_CHECK(cudaMemsetAsync(blocks.back(), i, 300'000, s) == cudaSuccess);
        }
        TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
        for (int i = 0; i < 50; ++i) {
            unsigned char byte = 0;
            TENURE_CHECK(cudaMemcpy(&byte, static_cast<char*>(blocks[i]) + 299'999, 1,
                                    cudaMemcpyDeviceToHost) == cudaSuccess);
            TENURE_CHECK(byte == i);
            pool.deallocate(s, blocks[i], 300'000);
        }
        TENURE_CHECK(pool.validate());
    }
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

} // namespace

int main() {
    const auto device = open_or_skip();
    gpu& d = *device;
    d.keep_a_byte(); // so that it does not show in what is counted below
    sizes_are_what_the_driver_says(d);
    what_is_not_whole_is_refused(d);
    memory_lives_while_it_is_held_or_shown(d);
    views_of_the_same_memory_agree(d);
    nothing_waits_for_work(d);
    captures_do_not_mind(d);
    a_full_gpu_is_no_error_of_the_runtime(d);
    policies_run_over_it(d);
    return tenure::test::finish("vmm");
}
