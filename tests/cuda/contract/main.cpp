/// \file
/// The suites of the contract and of faults on a GPU: the sources of tests/contract, or of tests/fault, compiled against
/// `gpu_under_test`. Exits with 77 where there is no GPU.

#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

#include "cuda/contract/gpu_under_test.hpp"

#include <tenure/core/error.hpp>

#include <cstdio>

int main(int argc, char** argv) {
    try {
        // Not destroyed: CUDA may be gone before the last static is.
        tenure::test::shared_gpu() = new tenure::cli::gpu_device(0);
    } catch (const tenure::driver_error& e) {
        std::printf("skipped: %s\n", e.what());
        return 77;
    }
    std::printf("%s\n", tenure::test::shared_gpu()->text().c_str());
    return Catch::Session().run(argc, argv);
}
