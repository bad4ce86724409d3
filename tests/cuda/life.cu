/// \file
/// Pools at the ends of a process: what happens after a sticky error, at exit, in the child of a fork, after a reset.
///
///     life             runs every scenario in a process of its own, and looks at how it ended and what it printed
///     life SCENARIO    runs one; its last line is "done"

#include <tenure/device/cuda_device.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "cuda/check.hpp"
#include "support/vmm_backed.hpp"

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace tenure::literals;
using tenure::status;
using gpu = tenure::cuda::device;
using pool_type = tenure::best_fit_pool<gpu>;

__global__ void write_to(int* p) {
    *p = 1;
}
__global__ void touch(char* p) {
    *p = 1;
}

void work(tenure::best_fit_pool<gpu>& pool, bool free_it = true) {
    void* const p = pool.allocate(tenure::default_stream, 3_MiB);
    touch<<<1, 1>>>(static_cast<char*>(p));
    TENURE_REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    if (free_it) pool.deallocate(tenure::default_stream, p, 3_MiB);
}

int done() {
    std::printf("done\n");
    std::fflush(stdout);
    return tenure::test::failed_checks == 0 ? 0 : 1;
}

int after_a_sticky_error() {
    gpu d;
    {
        pool_type pool(d);
        tenure::test::vmm_backed<gpu> backing(d);
        tenure::best_fit_pool<tenure::test::vmm_backed<gpu>> mapped(backing);
        work(pool);
        void* const p = pool.allocate(tenure::default_stream, 3_MiB);
        void* const q = mapped.allocate(tenure::default_stream, 3_MiB);
        std::optional<tenure::async_pool<gpu>> driver_pool;
        if (d.supports_pools()) driver_pool.emplace(d);
        void* const r = driver_pool ? driver_pool->allocate(tenure::default_stream, 3_MiB) : nullptr;
        write_to<<<1, 1>>>(nullptr);
        TENURE_REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
        pool.deallocate(tenure::default_stream, p, 3_MiB);
        mapped.deallocate(tenure::default_stream, q, 3_MiB);
        if (driver_pool) driver_pool->deallocate(tenure::default_stream, r, 3_MiB);
        const auto refused = pool.try_allocate(tenure::default_stream, 1_GiB);
        TENURE_CHECK(!refused.has_value());
        if (!refused) TENURE_CHECK(refused.error().driver_status == status::device_lost);
    }
    return done();
}

/// Nobody destroys it.
int exit_with_live_blocks() {
    auto* const d = new gpu;
    auto* const pool = new pool_type(*d);
    work(*pool, false);
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    touch<<<1, 1, 0, s>>>(static_cast<char*>(pool->allocate(s, 1_MiB)));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    TENURE_REQUIRE(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    TENURE_REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    TENURE_REQUIRE(cudaGraphLaunch(exec, s) == cudaSuccess);
    return done();
}

int function_static_made_after_cuda() {
    TENURE_REQUIRE(cudaFree(nullptr) == cudaSuccess);
    static gpu d;
    static pool_type pool(d);
    work(pool);
    return done();
}

/// Made before CUDA has started, so destroyed after it has ended.
struct holder {
    std::unique_ptr<gpu> d;
    std::unique_ptr<pool_type> pool;
    ~holder() {
        pool.reset();
        d.reset();
    }
};
holder at_namespace_scope;

int namespace_static() {
    at_namespace_scope.d = std::make_unique<gpu>();
    at_namespace_scope.pool = std::make_unique<pool_type>(*at_namespace_scope.d);
    work(*at_namespace_scope.pool);
    return done();
}

int function_static_made_before_cuda() {
    static holder early;
    early.d = std::make_unique<gpu>();
    early.pool = std::make_unique<pool_type>(*early.d);
    work(*early.pool);
    return done();
}

int fork_a_child() {
    static gpu d;
    static pool_type pool(d);
    work(pool);
    const pid_t child = fork();
    if (child == 0) {
        const auto refused = pool.try_allocate(tenure::default_stream, 1_GiB);
        TENURE_CHECK(!refused.has_value());
        if (!refused) {
            TENURE_CHECK(refused.error().driver_status == status::no_device);
            TENURE_CHECK(refused.error().cause == tenure::failure_cause::driver);
        }
        TENURE_CHECK(d.create_memory(2_MiB).error() ==
                     (d.supports_vmm() ? status::no_device : status::not_supported));
        bool thrown = false;
        try {
            gpu another;
        } catch (const tenure::driver_error& e) {
            thrown = e.code() == status::no_device;
        }
        TENURE_CHECK(thrown);
        std::exit(tenure::test::failed_checks == 0 ? 0 : 1); // destroys the statics, too
    }
    int rc = 0;
    TENURE_CHECK(waitpid(child, &rc, 0) == child);
    TENURE_CHECK(WIFEXITED(rc) && WEXITSTATUS(rc) == 0);
    work(pool); // the parent is unharmed
    TENURE_CHECK(pool.trim(0) > 0);
    return done();
}

/// A reset takes the memory of cudaMalloc; the pools over it are destroyed afterwards.
int reset() {
    auto d = std::make_unique<gpu>();
    const auto p = d->allocate(256_MiB);
    TENURE_REQUIRE(p.has_value());
    const std::size_t before = d->memory()->free;
    TENURE_CHECK(cudaDeviceReset() == cudaSuccess);
    TENURE_CHECK(cudaFree(nullptr) == cudaSuccess);
    TENURE_CHECK(d->memory()->free >= before + 256_MiB);
    const status s = d->deallocate(*p, 256_MiB); // nobody's any more
    TENURE_CHECK(s == status::invalid_value);
    TENURE_CHECK(cudaPeekAtLastError() == cudaSuccess);
    const auto q = d->allocate(2_MiB); // and the device is usable again
    TENURE_CHECK(q.has_value() && d->deallocate(*q, 2_MiB) == status::ok);
    return done();
}

struct scenario {
    const char* name;
    int (*run)();
};
constexpr scenario scenarios[] = {
    {"sticky", after_a_sticky_error},
    {"exit_live", exit_with_live_blocks},
    {"static_after", function_static_made_after_cuda},
    {"static_before", function_static_made_before_cuda},
    {"namespace_static", namespace_static},
    {"fork", fork_a_child},
    {"reset", reset},
};

void run_alone(const char* program, const char* name) {
    const std::string command = "\"" + std::string(program) + "\" " + name + " 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    TENURE_REQUIRE(pipe != nullptr);
    std::string output;
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, pipe)) output += buffer;
    const int rc = pclose(pipe);
    const bool good = WIFEXITED(rc) && WEXITSTATUS(rc) == 0 && output == "done\n";
    std::printf("%s %s\n", good ? "PASS" : "FAIL", name);
    if (good) return;
    ++tenure::test::failed_checks;
    std::printf("  status %d, output:\n%s\n", rc, output.c_str());
}

} // namespace

int main(int argc, char** argv) {
    if (argc > 1) {
        for (const scenario& s : scenarios)
            if (std::strcmp(s.name, argv[1]) == 0) return s.run();
        return 2;
    }
    int version = 0;
    int count = 0;
    if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0 ||
        cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
        tenure::test::skip("no GPU");
    for (const scenario& s : scenarios) run_alone(argv[0], s.name);
    return tenure::test::finish("life");
}
