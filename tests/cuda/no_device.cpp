/// \file
/// `cuda::device` compiles with a plain C++ compiler and says clearly that there is no GPU. Also the
/// translation of errors, which needs none.

#include <tenure/device/cuda_device.hpp>

#include "cuda/check.hpp"

#include <cstring>

namespace {

using tenure::status;
using tenure::cuda::to_status;

static_assert(to_status(cudaSuccess) == status::ok);
static_assert(to_status(cudaErrorNotReady) == status::not_ready);
static_assert(to_status(cudaErrorMemoryAllocation) == status::out_of_memory);
static_assert(to_status(cudaErrorInvalidValue) == status::invalid_value);
static_assert(to_status(cudaErrorInvalidResourceHandle) == status::invalid_value);
static_assert(to_status(cudaErrorStreamCaptureUnsupported) == status::capture_violation);
static_assert(to_status(cudaErrorCapturedEvent) == status::capture_violation);
static_assert(to_status(cudaErrorNotSupported) == status::not_supported);
static_assert(to_status(cudaErrorStubLibrary) == status::no_device);
static_assert(to_status(cudaErrorInsufficientDriver) == status::no_device);
static_assert(to_status(cudaErrorInitializationError) == status::no_device);
static_assert(to_status(cudaErrorCudartUnloading) == status::shutting_down);
static_assert(to_status(cudaErrorContextIsDestroyed) == status::shutting_down);
static_assert(to_status(cudaErrorIllegalAddress) == status::device_lost);
static_assert(to_status(cudaErrorLaunchFailure) == status::device_lost);
static_assert(to_status(CUDA_SUCCESS) == status::ok);
static_assert(to_status(CUDA_ERROR_OUT_OF_MEMORY) == status::out_of_memory);
static_assert(to_status(CUDA_ERROR_ILLEGAL_ADDRESS) == status::device_lost);
static_assert(to_status(CUDA_ERROR_NOT_INITIALIZED) == status::no_device);
static_assert(to_status(CUDA_ERROR_DEINITIALIZED) == status::shutting_down);
static_assert(to_status(cudaErrorUnknown) == status::failed);

} // namespace

int main() {
    int driver = 0;
    int count = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver != 0 &&
        cudaGetDeviceCount(&count) == cudaSuccess) {
        tenure::test::skip("this machine has a GPU");
    }
    (void)cudaGetLastError();
    bool thrown = false;
    try {
        tenure::cuda::device d;
    } catch (const tenure::driver_error& e) {
        thrown = true;
        TENURE_CHECK(e.code() == status::no_device);
        TENURE_CHECK(std::strstr(e.what(), "CUDA: ") == e.what());
        std::printf("%s\n", e.what());
    }
    TENURE_CHECK(thrown);
    return tenure::test::finish("no_device");
}
