// The program on a GPU: all of program.hpp, and what needs kernels and the real runtime. Built with the shared runtime it runs
// under `tenure run --limit 64MiB`; run_on_gpu.sh does that. Exits with 77 where there is no GPU.

#include "program.hpp"

#include <cuda_runtime.h>

#include <ctime>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <vector>

namespace {

using namespace program; // NOLINT(google-build-using-namespace)

__global__ void fill(unsigned* p, std::size_t n, unsigned value) {
    for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x)
        p[i] = value;
}
__global__ void count_others(const unsigned* p, std::size_t n, unsigned value, unsigned* wrong) {
    for (std::size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x)
        if (p[i] != value) atomicAdd(wrong, 1U);
}
__global__ void spin(long long cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

unsigned wrong_words(const unsigned* p, std::size_t n, unsigned value, cudaStream_t s) {
    static unsigned* wrong = nullptr;
    if (wrong == nullptr) (void)cudaMallocHost(&wrong, sizeof *wrong);
    *wrong = 0;
    count_others<<<64, 256, 0, s>>>(p, n, value, wrong);
    (void)cudaStreamSynchronize(s);
    return *wrong;
}

/// A refused request leaves the runtime's own error, and the next kernel runs.
void a_refusal_harms_nothing() {
    unsigned* p = nullptr;
    CHECK(good(cudaMalloc(&p, MiB)));
    void* q = nullptr;
    CHECK(cudaMalloc(&q, 80 * MiB) == cudaErrorMemoryAllocation);
    CHECK(std::string_view(cudaGetErrorString(cudaGetLastError())) == "out of memory");
    fill<<<8, 256>>>(p, MiB / 4, 9);
    CHECK(good(cudaGetLastError()));
    CHECK(wrong_words(p, MiB / 4, 9, nullptr) == 0);
    CHECK(good(cudaFree(p)));
}

/// Programs count on cudaFree: what still runs on any stream is over when it returns.
void a_free_waits() {
    cudaStream_t s = nullptr;
    CHECK(good(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)));
    for (int round = 0; round < 10; ++round) {
        unsigned* p = nullptr;
        unsigned* q = nullptr;
        CHECK(good(cudaMalloc(&p, 4 * MiB)));
        spin<<<1, 1, 0, s>>>(20'000'000);
        fill<<<8, 256, 0, s>>>(p, MiB, 1);
        CHECK(good(cudaFree(p)));
        CHECK(good(cudaStreamQuery(s)));
        CHECK(good(cudaMalloc(&q, 4 * MiB)));
        fill<<<8, 256>>>(q, MiB, 2);
        CHECK(wrong_words(q, MiB, 2, nullptr) == 0);
        CHECK(good(cudaFree(q)));
    }
    CHECK(good(cudaStreamDestroy(s)));
}

/// Memory that a busy stream has freed is not another's before it is done.
void streams_keep_apart() {
    constexpr int streams = 4;
    constexpr std::size_t words = MiB;
    cudaStream_t s[streams];
    for (cudaStream_t& one : s) CHECK(good(cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking)));
    std::vector<unsigned*> wrong(streams);
    for (unsigned*& w : wrong) {
        CHECK(good(cudaMallocHost(&w, sizeof(unsigned))));
        *w = 0;
    }
    for (unsigned round = 0; round < 50; ++round)
        for (int i = 0; i < streams; ++i) {
            unsigned* p = nullptr;
            const cudaError_t e = cudaMallocAsync(&p, words * 4, s[i]);
            CHECK(good(e));
            if (!good(e)) continue;
            const unsigned value = round * 16 + static_cast<unsigned>(i);
            fill<<<16, 256, 0, s[i]>>>(p, words, value);
            spin<<<1, 1, 0, s[i]>>>(200'000);
            count_others<<<16, 256, 0, s[i]>>>(p, words, value, wrong[static_cast<std::size_t>(i)]);
            CHECK(good(cudaFreeAsync(p, s[i])));
        }
    CHECK(good(cudaDeviceSynchronize()));
    for (int i = 0; i < streams; ++i) {
        CHECK(*wrong[static_cast<std::size_t>(i)] == 0);
        CHECK(good(cudaFreeHost(wrong[static_cast<std::size_t>(i)])));
        CHECK(good(cudaStreamDestroy(s[i])));
    }
}

void threads() {
    std::vector<std::thread> all;
    std::vector<int> bad(8, 0);
    for (int t = 0; t < 8; ++t)
        all.emplace_back([t, &bad] {
            for (int i = 0; i < 100; ++i) {
                unsigned* p = nullptr;
                const cudaError_t e =
                    cudaMallocAsync(&p, (1 + static_cast<std::size_t>(i % 8)) * MiB, cudaStreamPerThread);
                if (e == cudaErrorMemoryAllocation) {
                    (void)cudaGetLastError();
                    continue;
                }
                fill<<<8, 256, 0, cudaStreamPerThread>>>(p, MiB / 4, static_cast<unsigned>(t));
                bad[static_cast<std::size_t>(t)] += !good(e) || !good(cudaFreeAsync(p, cudaStreamPerThread));
            }
            bad[static_cast<std::size_t>(t)] += !good(cudaStreamSynchronize(cudaStreamPerThread));
        });
    for (std::thread& t : all) t.join();
    for (const int b : bad) CHECK(b == 0);
}

/// Capture goes on as it does without a limit: allocation nodes stay the graph's, and a request of another kind harms none.
void graphs() {
    cudaStream_t s = nullptr;
    CHECK(good(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)));
    unsigned* out = nullptr;
    CHECK(good(cudaMalloc(&out, MiB)));
    CHECK(good(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)));
    unsigned* p = nullptr;
    CHECK(good(cudaMallocAsync(&p, 4 * MiB, s)));
    fill<<<8, 256, 0, s>>>(p, MiB, 5);
    CHECK(good(cudaMemcpyAsync(out, p, MiB, cudaMemcpyDeviceToDevice, s)));
    CHECK(good(cudaFreeAsync(p, s)));
    void* q = nullptr;
    CHECK(cudaMalloc(&q, 80 * MiB) == cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK(good(cudaMemGetInfo(&free, &total)));
    cudaGraph_t graph = nullptr;
    CHECK(good(cudaStreamEndCapture(s, &graph)) && graph != nullptr);
    cudaGraphExec_t exec = nullptr;
    CHECK(good(cudaGraphInstantiate(&exec, graph, 0)));
    for (int i = 0; i < 10; ++i) CHECK(good(cudaGraphLaunch(exec, s)));
    CHECK(good(cudaStreamSynchronize(s)));
    CHECK(wrong_words(out, MiB / 4, 5, nullptr) == 0);
    CHECK(good(cudaMalloc(&q, 8 * MiB)));
    CHECK(good(cudaFree(q)));
    CHECK(good(cudaGraphExecDestroy(exec)));
    CHECK(good(cudaGraphDestroy(graph)));
    CHECK(good(cudaFree(out)));
    CHECK(good(cudaDeviceGraphMemTrim(0)));
    CHECK(good(cudaStreamDestroy(s)));
}

/// What the library takes a pool for.
void speed() {
    const auto pairs = [] {
        timespec from{};
        timespec to{};
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int i = 0; i < 1000; ++i) {
            void* p = nullptr;
            (void)cudaMalloc(&p, MiB);
            (void)cudaFree(p);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
        return (static_cast<double>(to.tv_sec - from.tv_sec) * 1e9 +
                static_cast<double>(to.tv_nsec - from.tv_nsec)) /
               1000;
    };
    (void)pairs();
    std::printf("  cudaMalloc + cudaFree of 1 MiB: %.0f ns a pair\n", pairs());
}

} // namespace

int main() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::printf("SKIP everything: no GPU\n");
        return 77;
    }
    if (std::getenv("TENURE_RUN_LIMIT") == nullptr) { // without tenure: only the figure to compare with
        speed();
        return 0;
    }
    everything([] {
        check("a refusal harms nothing", a_refusal_harms_nothing);
        check("free waits", a_free_waits);
        check("streams keep apart", streams_keep_apart);
        check("threads", threads);
        check("graphs", graphs);
        check("speed", speed);
    });
    std::printf("%d failed\n", failed);
    return failed == 0 ? 0 : 1;
}
