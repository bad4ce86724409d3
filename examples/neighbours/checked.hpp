#pragma once

/// \file
/// How the examples of this folder say what they saw: a line for each claim, and an exit code.

#include <tenure/core/error.hpp>
#include <tenure/device/cuda_device.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace neighbours {

inline int failed = 0;

/// Effects: prints the claim with PASS or FAIL.
inline void check(bool holds, const char* claim) {
    std::printf("%s  %s\n", holds ? "PASS" : "FAIL", claim);
    if (!holds) ++failed;
}

[[noreturn]] inline void skip(const char* reason) {
    std::printf("SKIP  %s\n", reason);
    std::exit(77);
}

/// Returns: the first GPU; without one the program ends here.
inline std::unique_ptr<tenure::cuda::device> open_gpu() {
    try {
        return std::make_unique<tenure::cuda::device>();
    } catch (const tenure::driver_error& e) {
        if (e.code() != tenure::status::no_device) throw;
        skip(e.what());
    }
}

/// Effects: ends the program if a call did not succeed, which is 0 with all of them. `text(s)`: what its library says.
template <class Status>
void must(Status s, const char* what, const char* (*text)(Status)) {
    if (s == Status{}) return;
    std::printf("FAIL  %s: %s\n", what, text(s));
    std::exit(1);
}
inline void must(cudaError_t e, const char* what) {
    must(e, what, cudaGetErrorString);
}

/// Returns: bytes that cudaMallocAsync has ever had in use at once: what a neighbour took behind our back.
inline std::uint64_t used_by_malloc_async(int ordinal) {
    cudaMemPool_t pool = nullptr;
    std::uint64_t high = 0;
    must(cudaDeviceGetDefaultMemPool(&pool, ordinal), "asking for the default pool");
    must(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high), "asking the default pool");
    return high;
}

inline int finish() {
    check(cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess,
          "no error is left behind");
    std::printf("%s\n", failed == 0 ? "PASS" : "FAIL");
    return failed == 0 ? 0 : 1;
}

} // namespace neighbours
