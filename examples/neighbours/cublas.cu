/// \file
/// cuBLAS works in an arena's memory: cublasSetWorkspace.
///
/// Left alone, cuBLAS takes some dozen MiB a handle with cudaMalloc, which no limit counts. A block given to it must live
/// as long as the handle uses it, and is used on the handle's stream.

#include "checked.hpp"

#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace tenure::literals;

namespace {

void must(cublasStatus_t s, const char* what) {
    neighbours::must(s, what, cublasGetStatusString);
}

} // namespace

int main() {
    const auto gpu = neighbours::open_gpu();
    cudaStream_t stream = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    {
        tenure::arena<tenure::remap_pool, tenure::cuda::device> arena(*gpu, {.name = "cublas", .max = 1_GiB});
        cublasHandle_t handle = nullptr;
        must(cublasCreate(&handle), "cublasCreate");
        int version = 0;
        must(cublasGetVersion(handle, &version), "cublasGetVersion");
        std::printf("cuBLAS %d\n", version);
        must(cublasSetStream(handle, stream), "cublasSetStream");
        constexpr std::size_t workspace_bytes = 64_MiB;
        void* const workspace = arena.allocate(stream, workspace_bytes);
        must(cublasSetWorkspace(handle, workspace, workspace_bytes),
             "cublasSetWorkspace"); // after the stream, which resets it

        // Few outputs and a long sum: cuBLAS splits the sum, and keeps the parts in its workspace.
        constexpr int m = 64;
        constexpr int n = 64;
        constexpr int k = 262'144;
        auto* const a = static_cast<float*>(arena.allocate(stream, sizeof(float) * m * k));
        auto* const b = static_cast<float*>(arena.allocate(stream, sizeof(float) * k * n));
        auto* const c = static_cast<float*>(arena.allocate(stream, sizeof(float) * m * n));
        std::vector<float> ones(static_cast<std::size_t>(m) * k, 1.0F / 1024);
        neighbours::must(
            cudaMemcpyAsync(a, ones.data(), sizeof(float) * m * k, cudaMemcpyHostToDevice, stream), "a copy");
        neighbours::must(
            cudaMemcpyAsync(b, ones.data(), sizeof(float) * k * n, cudaMemcpyHostToDevice, stream), "a copy");
        neighbours::must(cudaMemsetAsync(workspace, 0xA5, workspace_bytes, stream), "filling the workspace");
        const float one = 1;
        const float zero = 0;
        must(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &one, a, m, b, k, &zero, c, m),
             "cublasSgemm");
        std::vector<float> product(static_cast<std::size_t>(m) * n);
        std::vector<unsigned char> after(workspace_bytes);
        neighbours::must(
            cudaMemcpyAsync(product.data(), c, sizeof(float) * m * n, cudaMemcpyDeviceToHost, stream),
            "a copy");
        neighbours::must(
            cudaMemcpyAsync(after.data(), workspace, workspace_bytes, cudaMemcpyDeviceToHost, stream),
            "a copy");
        neighbours::must(cudaStreamSynchronize(stream), "waiting");
        neighbours::check(
            std::all_of(product.begin(), product.end(), [](float x) { return std::abs(x - 0.25F) < 1e-3F; }),
            "the product is right");
        const auto written =
            std::count_if(after.begin(), after.end(), [](unsigned char x) { return x != 0xA5; });
        std::printf("      cuBLAS wrote %lld bytes of the workspace\n", static_cast<long long>(written));
        neighbours::check(written > 0, "cuBLAS worked in the arena's block");
        neighbours::check(neighbours::used_by_malloc_async(gpu->ordinal()) == 0,
                          "no cudaMallocAsync memory was used");

        must(cublasDestroy(handle), "cublasDestroy");
        arena.deallocate(stream, workspace, workspace_bytes);
        arena.deallocate(stream, a, sizeof(float) * m * k);
        arena.deallocate(stream, b, sizeof(float) * k * n);
        arena.deallocate(stream, c, sizeof(float) * m * n);
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
    }
    neighbours::must(cudaStreamDestroy(stream), "destroying the stream");
    return neighbours::finish();
}
