#include "gpu.hpp"

#include "../errors.hpp"
#include "kernels.hpp"

#include <cstdlib>

namespace tenure::cli {

namespace {

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// Returns: the ordinal, after the environment has been set.
int prepared(int ordinal) {
    // Streams beyond these share a queue, and one that is held would hold up another.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    return ordinal;
}

} // namespace

void must(cudaError_t error, const char* what) {
    if (error != cudaSuccess) throw device_failure(std::string(what) + ": " + cudaGetErrorString(error));
}

gpu_device::gpu_device(int ordinal) : device_(prepared(ordinal)) {
    must(cudaSetDevice(ordinal), "making the device current");
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, ordinal), "asking what device this is");
    int driver = 0;
    int runtime = 0;
    must(cudaDriverGetVersion(&driver), "asking for the driver's version");
    must(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
    text_ = std::string(properties.name) + ", driver " + version_text(driver) + ", runtime " +
            version_text(runtime);
    must(gpu::prepare(), "loading the kernels");
}

} // namespace tenure::cli
