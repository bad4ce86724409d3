/// \file
/// Guards, capacity and accounts on a GPU: kernels that write where they must not, and what the driver says of memory.

#include <tenure/adapt/guard_canary.hpp>
#include <tenure/core/bits.hpp>
#include <tenure/device/cuda/canary_memory.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/policy/unmapped_guard.hpp>
#include <tenure/tenancy/accounts.hpp>
#include <tenure/tenancy/capacity.hpp>

#include "cuda/check.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace tenure::literals;
using tenure::misuse;
using tenure::misuse_kind;
using tenure::status;
using gpu = tenure::cuda::device;
using pool_type = tenure::remap_pool<gpu>;

std::vector<misuse>& reported() {
    static std::vector<misuse> all;
    return all;
}

__global__ void write_byte(unsigned char* p, std::size_t at, long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
    p[at] = 0;
}

/// Runs a program in a child that touches the GPU itself. Returns: whether its kernel ended without an error.
bool kernel_survives(std::size_t at) {
    std::fflush(nullptr);
    const std::string self = std::to_string(at);
    const pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "guards", self.c_str(), static_cast<char*>(nullptr));
        _exit(3);
    }
    int ended = 0;
    TENURE_REQUIRE(waitpid(child, &ended, 0) == child && WIFEXITED(ended));
    TENURE_REQUIRE(WEXITSTATUS(ended) == 0 || WEXITSTATUS(ended) == 1);
    return WEXITSTATUS(ended) == 0;
}

/// The child: writes at an offset of a guarded block of 1000 bytes.
int write_guarded(std::size_t at) {
    gpu device;
    tenure::unmapped_guard<pool_type> pool(device, {.every = 1});
    cudaStream_t s = nullptr;
    if (cudaStreamCreate(&s) != cudaSuccess) return 2;
    auto* const p = static_cast<unsigned char*>(pool.allocate(s, 1000));
    if (!pool.guards(p)) return 2;
    write_byte<<<1, 1, 0, s>>>(p, at, 0);
    const bool good = cudaStreamSynchronize(s) == cudaSuccess;
    std::fflush(nullptr);
    _exit(good ? 0 : 1); // a device that has failed is not to be cleaned up
}

void canaries() {
    gpu device;
    tenure::cuda::canary_memory memory(device, 8);
    pool_type pool(device);
    tenure::guard_canary guard(pool, memory);
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreate(&s) == cudaSuccess);
    const tenure::misuse_handler before =
        tenure::set_misuse_handler([](const misuse& m) noexcept { reported().push_back(m); });

    auto* const p = static_cast<unsigned char*>(guard.allocate(s, 1000));
    write_byte<<<1, 1, 0, s>>>(p, 999, 0); // its own
    guard.deallocate(s, p, 1000);
    TENURE_CHECK(guard.flush() == 0);

    auto* const q = static_cast<unsigned char*>(guard.allocate(s, 1000));
    write_byte<<<1, 1, 0, s>>>(q, 1003, 200'000'000); // late: the free is enqueued long before
    guard.deallocate(s, q, 1000);
    TENURE_CHECK(reported().empty());
    TENURE_CHECK(guard.flush() == 1);
    TENURE_CHECK(reported().size() == 1 && reported()[0].kind == misuse_kind::overrun &&
                 reported()[0].pointer == q && reported()[0].expected == 1003);

    // More at once than there are slots, each overrun once.
    for (int i = 0; i < 100; ++i) {
        auto* const r = static_cast<unsigned char*>(guard.allocate(s, 700));
        write_byte<<<1, 1, 0, s>>>(r, 700 + i % 324, 0);
        guard.deallocate(s, r, 700);
    }
    TENURE_CHECK(guard.flush() == 101);

    // A capture is left alone.
    cudaGraph_t graph = nullptr;
    TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    const tenure::allocate_result c = guard.try_allocate(s, 500);
    if (c) guard.deallocate(s, *c, 500);
    TENURE_CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    if (graph != nullptr) cudaGraphDestroy(graph);
    TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    TENURE_CHECK(cudaGetLastError() == cudaSuccess);
    tenure::set_misuse_handler(before);
    cudaStreamDestroy(s);
}

void capacity() {
    gpu device;
    char bus_id[32] = {};
    TENURE_REQUIRE(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, 0) == cudaSuccess);
    const auto library = tenure::nvml::open(bus_id);
    std::printf("capacity: nvml %s\n", library ? "is there" : "is not there");
    if (library) {
        const auto r = library->read();
        TENURE_REQUIRE(r.has_value());
        TENURE_CHECK(r->total > 0 && r->free <= r->total);
        std::printf("capacity: nvml total %zu free %zu mig %d processes %zu by this process %s\n", r->total,
                    r->free, r->mig, r->processes,
                    r->by_process ? std::to_string(*r->by_process).c_str() : "not told");
    }
    const tenure::capacity_sources sources = tenure::sources_of(device, 0, bus_id);
    const auto before = tenure::read_capacity(sources);
    TENURE_REQUIRE(static_cast<bool>(before));
    std::printf("capacity: %zu of %zu by %s, external %zu\n", before->capacity, before->limit,
                to_string(before->limited_by), before->external);
    TENURE_CHECK(before->capacity <= before->limit && before->capacity > 0);
    const auto p = device.allocate(1_GiB);
    TENURE_REQUIRE(static_cast<bool>(p));
    const auto foreign = tenure::read_capacity(sources, 0);
    const auto ours = tenure::read_capacity(sources, 1_GiB);
    TENURE_CHECK(foreign->external >= before->external + 1_GiB - 64_MiB);
    TENURE_CHECK(ours->external + 1_GiB <= foreign->external + 64_MiB);
    TENURE_CHECK(device.deallocate(*p, 1_GiB) == status::ok);
}

void account_limits() {
    gpu device;
    pool_type pool(device);
    tenure::accounts<pool_type> book(pool);
    tenure::account<pool_type> org(book, {.name = "org", .max = 64_MiB});
    tenure::account<pool_type> alice(org, {.name = "alice", .max = 48_MiB});
    tenure::account<pool_type> bob(org, {.name = "bob", .max = 48_MiB});
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreate(&s) == cudaSuccess);
    void* const a = alice.allocate(s, 40_MiB);
    const auto r = bob.try_allocate(s, 30_MiB);
    TENURE_CHECK(!r && r.error().cause == tenure::failure_cause::ancestor_limit);
    TENURE_CHECK(cudaMemsetAsync(a, 1, 40_MiB, s) == cudaSuccess);
    alice.deallocate(s, a, 40_MiB);
    void* const b = bob.allocate(s, 48_MiB);
    TENURE_CHECK(cudaMemsetAsync(b, 2, 48_MiB, s) == cudaSuccess);
    bob.deallocate(s, b, 48_MiB);
    TENURE_CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    book.drain();
    TENURE_CHECK(book.reading().charged == 0);
    cudaStreamDestroy(s);
}

} // namespace

int main(int argc, char** argv) {
    int devices = 0;
    if (argc > 1) return write_guarded(std::stoul(argv[1]));
    // Children first: they start CUDA on their own, and this process has not yet.
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) tenure::test::skip("no driver");
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) tenure::test::skip("no GPU");
    TENURE_CHECK(kernel_survives(0));
    TENURE_CHECK(kernel_survives(999));
    TENURE_CHECK(kernel_survives(1023));                   // within the rounding to the alignment of 256
    TENURE_CHECK(!kernel_survives(1024));                  // the unmapped granule
    TENURE_CHECK(!kernel_survives(1024 + (2u << 20) - 1)); // its end
    canaries();
    capacity();
    account_limits();
    return tenure::test::finish("guards");
}
