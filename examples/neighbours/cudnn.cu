/// \file
/// A cuDNN convolution with its workspace from an arena.

#include "checked.hpp"

#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

using namespace tenure::literals;

namespace {

void must(cudnnStatus_t s, const char* what) {
    neighbours::must(s, what, cudnnGetErrorString);
}

} // namespace

int main() {
    const auto gpu = neighbours::open_gpu();
    std::printf("cuDNN %zu\n", cudnnGetVersion());
    cudaStream_t stream = nullptr;
    neighbours::must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    {
        tenure::arena<tenure::remap_pool, tenure::cuda::device> arena(*gpu, {.name = "cudnn", .max = 4_GiB});
        cudnnHandle_t handle = nullptr;
        must(cudnnCreate(&handle), "cudnnCreate");
        must(cudnnSetStream(handle, stream), "cudnnSetStream");

        constexpr int images = 8;
        constexpr int channels = 32;
        constexpr int side = 64;
        cudnnTensorDescriptor_t tensor = nullptr;
        cudnnFilterDescriptor_t filter = nullptr;
        cudnnConvolutionDescriptor_t convolution = nullptr;
        must(cudnnCreateTensorDescriptor(&tensor), "a descriptor");
        must(cudnnCreateFilterDescriptor(&filter), "a descriptor");
        must(cudnnCreateConvolutionDescriptor(&convolution), "a descriptor");
        must(cudnnSetTensor4dDescriptor(tensor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, images, channels, side,
                                        side),
             "a descriptor");
        must(
            cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, channels, channels, 3, 3),
            "a descriptor");
        must(cudnnSetConvolution2dDescriptor(convolution, 1, 1, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                             CUDNN_DATA_FLOAT),
             "a descriptor");

        constexpr std::size_t tensor_bytes = sizeof(float) * images * channels * side * side;
        constexpr std::size_t filter_bytes = sizeof(float) * channels * channels * 9;
        auto* const x = static_cast<float*>(arena.allocate(stream, tensor_bytes));
        auto* const y = static_cast<float*>(arena.allocate(stream, tensor_bytes));
        auto* const w = static_cast<float*>(arena.allocate(stream, filter_bytes));
        const std::vector<float> ones(tensor_bytes / sizeof(float), 1.0F);
        const std::vector<float> weights(filter_bytes / sizeof(float),
                                         1.0F / 288); // 32 channels x 9: an inner sum is 1
        neighbours::must(cudaMemcpyAsync(x, ones.data(), tensor_bytes, cudaMemcpyHostToDevice, stream),
                         "a copy");
        neighbours::must(cudaMemcpyAsync(w, weights.data(), filter_bytes, cudaMemcpyHostToDevice, stream),
                         "a copy");

        // The algorithm that wants the largest workspace of those that can do it.
        constexpr std::array algorithms{
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
            CUDNN_CONVOLUTION_FWD_ALGO_GEMM,          CUDNN_CONVOLUTION_FWD_ALGO_FFT,
            CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED};
        cudnnConvolutionFwdAlgo_t algorithm = algorithms[0];
        std::size_t bytes = 0;
        for (const auto candidate : algorithms) {
            std::size_t wanted = 0;
            if (cudnnGetConvolutionForwardWorkspaceSize(handle, tensor, filter, convolution, tensor,
                                                        candidate, &wanted) != CUDNN_STATUS_SUCCESS ||
                wanted <= bytes)
                continue;
            algorithm = candidate;
            bytes = wanted;
        }
        std::printf("      algorithm %d wants %zu bytes\n", static_cast<int>(algorithm), bytes);
        neighbours::check(bytes > 0, "cuDNN asks for a workspace");

        void* const workspace = arena.allocate(stream, bytes);
        neighbours::must(cudaMemsetAsync(workspace, 0xA5, bytes, stream), "filling the workspace");
        const float one = 1;
        const float zero = 0;
        must(cudnnConvolutionForward(handle, &one, tensor, x, filter, w, convolution, algorithm, workspace,
                                     bytes, &zero, tensor, y),
             "cudnnConvolutionForward");
        std::vector<unsigned char> after(bytes);
        std::vector<float> result(tensor_bytes / sizeof(float));
        neighbours::must(cudaMemcpyAsync(after.data(), workspace, bytes, cudaMemcpyDeviceToHost, stream),
                         "a copy");
        arena.deallocate(stream, workspace,
                         bytes); // at once: the next user of the memory stands behind the convolution
        neighbours::must(cudaMemcpyAsync(result.data(), y, tensor_bytes, cudaMemcpyDeviceToHost, stream),
                         "a copy");
        neighbours::must(cudaStreamSynchronize(stream), "waiting");
        const float middle = result[static_cast<std::size_t>(side) * (side / 2) + side / 2];
        neighbours::check(std::abs(middle - 1) < 1e-2F && std::abs(result[0] - 4.0F / 9) < 1e-2F,
                          "the convolution is right");
        const auto written =
            std::count_if(after.begin(), after.end(), [](unsigned char b) { return b != 0xA5; });
        std::printf("      cuDNN wrote %lld bytes of the workspace\n", static_cast<long long>(written));
        neighbours::check(written > 0, "cuDNN worked in the arena's block");

        must(cudnnDestroyConvolutionDescriptor(convolution), "a descriptor");
        must(cudnnDestroyFilterDescriptor(filter), "a descriptor");
        must(cudnnDestroyTensorDescriptor(tensor), "a descriptor");
        must(cudnnDestroy(handle), "cudnnDestroy");
        arena.deallocate(stream, x, tensor_bytes);
        arena.deallocate(stream, y, tensor_bytes);
        arena.deallocate(stream, w, filter_bytes);
        neighbours::check(arena.usage().blocks.current == 0, "the arena has all its blocks back");
    }
    neighbours::must(cudaStreamDestroy(stream), "destroying the stream");
    return neighbours::finish();
}
