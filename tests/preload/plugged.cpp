// The plug-in: allocates until it is refused. Prints how many MiB it got.

#include <cuda_runtime_api.h>

#include <cstdio>

extern "C" int run() {
    int got = 0;
    void* p = nullptr;
    while (got < 200 && cudaMalloc(&p, 1 << 20) == cudaSuccess) ++got;
    std::printf("%d MiB\n", got);
    return 0;
}
