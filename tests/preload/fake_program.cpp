// The program over the fake runtime: what only that can tell, too.

#include "program.hpp"

#include <cstdlib>
#include <string_view>

extern "C" {
unsigned long fake_mallocs();
unsigned long fake_synchronizes();
std::size_t fake_used(int device);
cudaError_t cudaMallocAsync_ptsz(void** p, std::size_t n, cudaStream_t s);
cudaError_t cudaFreeAsync_ptsz(void* p, cudaStream_t s);
}

namespace {

using namespace program; // NOLINT(google-build-using-namespace)

void* const early = malloc_or_null(MiB); // before main, and before whatever else is made then

void a_pool_serves() {
    void* const first = malloc_or_null(MiB);
    CHECK(good(cudaFree(first)));
    const unsigned long before = fake_mallocs();
    for (int i = 0; i < 100; ++i) {
        void* const p = malloc_or_null(MiB);
        CHECK(p != nullptr && good(cudaFree(p)));
    }
    CHECK(fake_mallocs() == before);
}

void the_limit_is_the_devices() {
    std::size_t most = 0;
    std::vector<void*> held;
    for (int i = 0; i < 200; ++i) {
        void* p = nullptr;
        if (good(cudaMalloc(&p, MiB + MiB / 2))) held.push_back(p);
        most = fake_used(0) > most ? fake_used(0) : most;
    }
    CHECK(most <= limit);
    for (void* p : held) CHECK(good(cudaFree(p)));
}

void a_free_waits_for_the_device() {
    void* const p = malloc_or_null(MiB);
    const unsigned long before = fake_synchronizes();
    CHECK(good(cudaFree(p)));
    CHECK(fake_synchronizes() == before + 1);
    void* q = nullptr;
    CHECK(good(cudaMallocAsync_ptsz(&q, MiB, nullptr)));
    CHECK(good(cudaFreeAsync_ptsz(q, nullptr)));
    CHECK(fake_synchronizes() == before + 1);
}

void captures() {
    cudaStream_t s = nullptr;
    CHECK(good(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)));
    void* const outside = malloc_or_null(MiB);
    CHECK(good(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)));
    void* p = nullptr;
    CHECK(good(cudaMallocAsync(&p, 8 * MiB, s)));                  // the graph's own
    CHECK(cudaFree(outside) == cudaErrorStreamCaptureUnsupported); // as without a limit
    CHECK(cudaMalloc(&p, 80 * MiB) == cudaErrorMemoryAllocation);  // and that harms no capture
    (void)cudaGetLastError();
    cudaGraph_t graph = nullptr;
    CHECK(good(cudaStreamEndCapture(s, &graph)));
    CHECK(good(cudaFree(outside)));
    void* q = nullptr;
    CHECK(cudaMalloc(&q, 60 * MiB) == cudaErrorMemoryAllocation); // what the graph holds counts
    (void)cudaGetLastError();
    CHECK(good(cudaMalloc(&q, 48 * MiB)));
    CHECK(good(cudaFree(q)));
    CHECK(good(cudaStreamDestroy(s)));
}

} // namespace

int main() {
    check("before main", [] {
        CHECK(early != nullptr);
        CHECK(good(cudaFree(early)));
    });
    const char* const policy = std::getenv("TENURE_RUN_POLICY");
    const bool pooled = policy == nullptr || std::string_view(policy) != "none";
    everything([&] {
        if (pooled) check("a pool serves", a_pool_serves);
        if (pooled) check("the limit is the device's", the_limit_is_the_devices);
        if (pooled) check("free waits", a_free_waits_for_the_device);
        check("captures", captures);
    });
    std::printf("%d failed\n", failed);
    return failed == 0 ? 0 : 1;
}
