#pragma once

/// \file
/// The program that runs unchanged under `tenure run --limit 64MiB`: what it may expect of CUDA, and what the limit does
/// to it. It uses nothing but the runtime's interface. With a fake runtime it runs anywhere, with nvcc on a GPU.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

namespace program {

inline constexpr std::size_t MiB = std::size_t{1} << 20;
inline constexpr std::size_t limit = 64 * MiB;

inline int failed = 0;

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            ++program::failed;                                                                               \
            std::printf("  %s:%d: %s\n", __FILE__, __LINE__, #condition);                                    \
        }                                                                                                    \
    } while (false)

/// Runs one check and prints its line.
template <class F>
void check(const char* name, F&& f) {
    const int before = failed;
    f();
    std::printf("%s %s\n", failed == before ? "PASS" : "FAIL", name);
    std::fflush(stdout);
    (void)cudaGetLastError();
}

inline bool good(cudaError_t e) {
    return e == cudaSuccess;
}

inline void* malloc_or_null(std::size_t n) {
    void* p = nullptr;
    return good(cudaMalloc(&p, n)) ? p : nullptr;
}

/// Whether n bytes at p can be written and read back.
inline bool holds(void* p, std::size_t n) {
    std::vector<unsigned char> back(4096, 0);
    const std::size_t tail = n < back.size() ? n : back.size();
    if (!good(cudaMemset(p, 0x5a, n))) return false;
    if (!good(cudaMemcpy(back.data(), static_cast<char*>(p) + (n - tail), tail, cudaMemcpyDeviceToHost)))
        return false;
    for (std::size_t i = 0; i < tail; ++i)
        if (back[i] != 0x5a) return false;
    return true;
}

inline void allocation() {
    for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, 3 * MiB, 40 * MiB}) {
        void* p = nullptr;
        CHECK(good(cudaMalloc(&p, n)));
        CHECK(p != nullptr && reinterpret_cast<std::size_t>(p) % 256 == 0);
        CHECK(holds(p, n));
        cudaPointerAttributes a{};
        CHECK(good(cudaPointerGetAttributes(&a, p)) && a.type == cudaMemoryTypeDevice && a.device == 0);
        CHECK(good(cudaFree(p)));
    }
    void* p = &p;
    CHECK(good(cudaMalloc(&p, 0)) && p == nullptr);
    CHECK(good(cudaFree(nullptr)));
}

inline void the_limit() {
    std::vector<void*> held;
    while (void* const p = malloc_or_null(8 * MiB)) held.push_back(p);
    CHECK(held.size() == 8);
    CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation); // the runtime's own, in its own place
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaGetLastError() == cudaSuccess);
    void* p = nullptr;
    CHECK(cudaMalloc(&p, 1) == cudaErrorMemoryAllocation);
    CHECK(cudaMallocAsync(&p, 8 * MiB, nullptr) == cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    CHECK(good(cudaFree(held.back())));
    held.pop_back();
    CHECK((p = malloc_or_null(8 * MiB)) != nullptr);
    CHECK(cudaGetLastError() == cudaSuccess);
    held.push_back(p);
    for (void* q : held) CHECK(good(cudaFree(q)));
    CHECK((p = malloc_or_null(60 * MiB)) != nullptr); // in one piece, after eight
    CHECK(good(cudaFree(p)));
}

inline void memory_information() {
    std::size_t free = 0;
    std::size_t total = 0;
    CHECK(good(cudaMemGetInfo(&free, &total)));
    CHECK(total == limit && free <= total && free >= 60 * MiB);
    void* const p = malloc_or_null(16 * MiB);
    std::size_t now = 0;
    CHECK(good(cudaMemGetInfo(&now, &total)));
    CHECK(free - now == 16 * MiB);
    CHECK(good(cudaFree(p)));
    CHECK(good(cudaMemGetInfo(&now, &total)) && now == free);
}

inline void misuse_is_the_runtimes_to_judge() {
    int here = 0;
    CHECK(cudaFree(&here) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    char* const p = static_cast<char*>(malloc_or_null(MiB));
    CHECK(cudaFree(p + 512) == cudaErrorInvalidValue);
    CHECK(good(cudaFree(p)));
    CHECK(cudaFree(p) == cudaErrorInvalidValue);
    CHECK(cudaMalloc(nullptr, 1) == cudaErrorInvalidValue);
    (void)cudaGetLastError();
}

inline void streams() {
    cudaStream_t a = nullptr;
    cudaStream_t b = nullptr;
    CHECK(good(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking)));
    CHECK(good(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking)));
    for (int round = 0; round < 100; ++round) {
        void* p = nullptr;
        void* q = nullptr;
        CHECK(good(cudaMallocAsync(&p, 20 * MiB, a)));
        CHECK(good(cudaMallocAsync(&q, 20 * MiB, b)));
        CHECK(good(cudaMemsetAsync(p, 1, 20 * MiB, a)));
        CHECK(good(cudaMemsetAsync(q, 2, 20 * MiB, b)));
        CHECK(good(cudaFreeAsync(p, a)));
        CHECK(good(cudaFreeAsync(q, b)));
    }
    void* p = nullptr;
    CHECK(good(cudaMallocAsync(&p, MiB, a)));
    CHECK(good(cudaStreamSynchronize(a)));
    CHECK(good(cudaFree(p))); // what CUDA allows
    CHECK(good(cudaStreamDestroy(a)));
    CHECK(good(cudaStreamDestroy(b)));
}

inline void pools() {
    cudaMemPool_t usual = nullptr;
    CHECK(good(cudaDeviceGetDefaultMemPool(&usual, 0)));
    void* p = nullptr;
    CHECK(good(cudaMallocFromPoolAsync(&p, 8 * MiB, usual, nullptr)));
    CHECK(good(cudaFreeAsync(p, nullptr)));
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaMemPool_t own = nullptr;
    CHECK(good(cudaMemPoolCreate(&own, &properties)));
    CHECK(good(cudaMallocFromPoolAsync(&p, 32 * MiB, own, nullptr)));
    void* q = nullptr;
    CHECK(cudaMalloc(&q, 40 * MiB) == cudaErrorMemoryAllocation); // it counts
    (void)cudaGetLastError();
    CHECK(good(cudaFreeAsync(p, nullptr)));
    CHECK(good(cudaStreamSynchronize(nullptr)));
    CHECK(good(cudaMalloc(&q, 40 * MiB)));
    CHECK(good(cudaFree(q)));
    CHECK(good(cudaMemPoolDestroy(own)));
}

inline void what_is_not_pooled_counts() {
    const cudaChannelFormatDesc floats{32, 0, 0, 0, cudaChannelFormatKindFloat};
    const auto forty_do_not_fit = [] {
        void* q = nullptr;
        const bool refused = cudaMalloc(&q, 40 * MiB) == cudaErrorMemoryAllocation;
        (void)cudaGetLastError();
        if (!refused) (void)cudaFree(q);
        return refused;
    };
    void* p = nullptr;
    CHECK(good(cudaMallocManaged(&p, 32 * MiB, cudaMemAttachGlobal)));
    CHECK(forty_do_not_fit());
    CHECK(good(cudaFree(p)));

    std::size_t pitch = 0;
    CHECK(good(cudaMallocPitch(&p, &pitch, 4000, 8192)));
    CHECK(pitch >= 4000);
    CHECK(forty_do_not_fit());
    CHECK(good(cudaFree(p)));

    cudaPitchedPtr q{};
    CHECK(good(cudaMalloc3D(&q, {4000, 1024, 8})));
    CHECK(forty_do_not_fit());
    CHECK(good(cudaFree(q.ptr)));

    cudaArray_t array = nullptr;
    CHECK(good(cudaMallocArray(&array, &floats, 4096, 2048, 0)));
    CHECK(forty_do_not_fit());
    CHECK(good(cudaFreeArray(array)));

    CHECK(cudaMallocManaged(&p, 80 * MiB, cudaMemAttachGlobal) == cudaErrorMemoryAllocation);
    CHECK(cudaMallocArray(&array, &floats, 16384, 2048, 0) == cudaErrorMemoryAllocation);
    (void)cudaGetLastError();
    CHECK(!forty_do_not_fit());
}

inline void other_devices_have_their_own_limit() {
    int count = 0;
    CHECK(good(cudaGetDeviceCount(&count)));
    if (count < 2) return;
    void* const p = malloc_or_null(60 * MiB);
    CHECK(good(cudaSetDevice(1)));
    void* const q = malloc_or_null(60 * MiB);
    CHECK(p != nullptr && q != nullptr && malloc_or_null(60 * MiB) == nullptr);
    CHECK(good(cudaFree(p))); // whatever device is current
    CHECK(good(cudaSetDevice(0)));
    CHECK(good(cudaFree(q)));
    int now = -1;
    CHECK(good(cudaGetDevice(&now)) && now == 0);
}

/// In the child every call answers as it does without a limit, and the parent goes on.
inline void fork_and_go_on() {
    void* const p = malloc_or_null(MiB);
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) {
        void* q = nullptr;
        const cudaError_t e = cudaMalloc(&q, MiB);
        (void)cudaFree(p);
        ::_exit(e == cudaErrorInitializationError ? 0 : 1);
    }
    int status = -1;
    CHECK(::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(holds(p, MiB));
    CHECK(good(cudaFree(p)));
}

inline void reset() {
    CHECK(malloc_or_null(40 * MiB) != nullptr); // left behind, as programs do
    CHECK(good(cudaDeviceReset()));
    void* const p = malloc_or_null(60 * MiB);
    CHECK(p != nullptr && holds(p, 60 * MiB));
    CHECK(good(cudaFree(p)));
}

/// Frees in its destructor, which runs when the process is nearly over.
struct late {
    void* p = nullptr;
    ~late() {
        const cudaError_t e = cudaFree(p);
        if (e != cudaSuccess && e != cudaErrorCudartUnloading) {
            std::printf("FAIL late free: %d\n", static_cast<int>(e));
            std::fflush(stdout);
            ::_exit(1);
        }
    }
};

/// `at_the_end()` runs last, but for the frees at the exit.
template <class F>
void everything(F&& at_the_end) {
    static late before; // made before CUDA has started
    check("allocation", allocation);
    static late after;
    check("the limit", the_limit);
    check("memory information", memory_information);
    check("misuse", misuse_is_the_runtimes_to_judge);
    check("streams", streams);
    check("pools", pools);
    check("what is not pooled", what_is_not_pooled_counts);
    check("other devices", other_devices_have_their_own_limit);
    check("fork", fork_and_go_on);
    check("reset", reset);
    at_the_end();
    before.p = malloc_or_null(MiB);
    after.p = malloc_or_null(MiB);
}

} // namespace program
