// The functions of the CUDA runtime that the program finds here instead of there. See program.hpp for what each does.

#include "program.hpp"
#include "real.hpp"

#include <tenure/core/bits.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>

using tenure::preload::program;
namespace real = tenure::preload::real;

namespace {

/// A null stream of a program that was compiled with per-thread default streams.
cudaStream_t of_thread(cudaStream_t s) noexcept {
    return s == nullptr ? cudaStreamPerThread : s;
}

/// What rows of so many bytes take at least: 512-byte rows on every GPU that this is for.
std::size_t pitched(std::size_t width, std::size_t rows) noexcept {
    constexpr std::size_t pitch = 512;
    const std::size_t limit = ~std::size_t{0};
    if (rows != 0 && width > limit / rows - pitch) return limit;
    return tenure::round_up(width, pitch) * rows;
}

std::size_t array_bytes(const cudaChannelFormatDesc* d, cudaExtent e, unsigned levels = 1) noexcept {
    if (d == nullptr) return 0;
    const std::size_t element = static_cast<std::size_t>(std::max(0, d->x + d->y + d->z + d->w)) / 8;
    std::size_t all = 0;
    for (unsigned level = 0; level < std::max(levels, 1U) && level < 32; ++level) {
        const auto at = [&](std::size_t n) { return std::max<std::size_t>(n >> level, 1); };
        all += at(e.width) * at(e.height) * at(e.depth) * element;
    }
    return all;
}

} // namespace

extern "C" {

cudaError_t CUDARTAPI cudaMalloc(void** p, std::size_t n) {
    return program::get().malloc(p, n, [&] { return real::cudaMalloc(p, n); });
}

cudaError_t CUDARTAPI cudaFree(void* p) {
    return program::get().free(p, [&] { return real::cudaFree(p); });
}

cudaError_t CUDARTAPI cudaMallocAsync(void** p, std::size_t n, cudaStream_t s) {
    return program::get().malloc_async(p, n, s, [&] { return real::cudaMallocAsync(p, n, s); });
}
cudaError_t CUDARTAPI cudaMallocAsync_ptsz(void** p, std::size_t n, cudaStream_t s) {
    return program::get().malloc_async(p, n, of_thread(s),
                                       [&] { return real::cudaMallocAsync_ptsz(p, n, s); });
}

cudaError_t CUDARTAPI cudaFreeAsync(void* p, cudaStream_t s) {
    return program::get().free_async(p, s, [&] { return real::cudaFreeAsync(p, s); });
}
cudaError_t CUDARTAPI cudaFreeAsync_ptsz(void* p, cudaStream_t s) {
    return program::get().free_async(p, of_thread(s), [&] { return real::cudaFreeAsync_ptsz(p, s); });
}

cudaError_t CUDARTAPI cudaMallocFromPoolAsync(void** p, std::size_t n, cudaMemPool_t pool, cudaStream_t s) {
    return program::get().malloc_from_pool(p, n, pool, s,
                                           [&] { return real::cudaMallocFromPoolAsync(p, n, pool, s); });
}
cudaError_t CUDARTAPI cudaMallocFromPoolAsync_ptsz(void** p, std::size_t n, cudaMemPool_t pool,
                                                   cudaStream_t s) {
    return program::get().malloc_from_pool(p, n, pool, of_thread(s),
                                           [&] { return real::cudaMallocFromPoolAsync_ptsz(p, n, pool, s); });
}

cudaError_t CUDARTAPI cudaMallocManaged(void** p, std::size_t n, unsigned flags) {
    return program::get().counted(
        p, n, [&] { return real::cudaMallocManaged(p, n, flags); }, [&] { return n; });
}

cudaError_t CUDARTAPI cudaMallocPitch(void** p, std::size_t* pitch, std::size_t width, std::size_t height) {
    return program::get().counted(
        p, pitch == nullptr ? 0 : pitched(width, height),
        [&] { return real::cudaMallocPitch(p, pitch, width, height); }, [&] { return *pitch * height; });
}

cudaError_t CUDARTAPI cudaMalloc3D(cudaPitchedPtr* p, cudaExtent e) {
    void** const at = p == nullptr ? nullptr : &p->ptr;
    return program::get().counted(
        at, pitched(e.width, e.height * e.depth), [&] { return real::cudaMalloc3D(p, e); },
        [&] { return p->pitch * e.height * e.depth; });
}

cudaError_t CUDARTAPI cudaMallocArray(cudaArray_t* a, const cudaChannelFormatDesc* d, std::size_t width,
                                      std::size_t height, unsigned flags) {
    const std::size_t n = array_bytes(d, {width, height, 1});
    return program::get().counted(
        a, n, [&] { return real::cudaMallocArray(a, d, width, height, flags); }, [&] { return n; });
}
cudaError_t CUDARTAPI cudaMalloc3DArray(cudaArray_t* a, const cudaChannelFormatDesc* d, cudaExtent e,
                                        unsigned flags) {
    const std::size_t n = array_bytes(d, e);
    return program::get().counted(
        a, n, [&] { return real::cudaMalloc3DArray(a, d, e, flags); }, [&] { return n; });
}
cudaError_t CUDARTAPI cudaMallocMipmappedArray(cudaMipmappedArray_t* a, const cudaChannelFormatDesc* d,
                                               cudaExtent e, unsigned levels, unsigned flags) {
    const std::size_t n = array_bytes(d, e, levels);
    return program::get().counted(
        a, n, [&] { return real::cudaMallocMipmappedArray(a, d, e, levels, flags); }, [&] { return n; });
}
cudaError_t CUDARTAPI cudaFreeArray(cudaArray_t a) {
    return program::get().free_counted(a, [&] { return real::cudaFreeArray(a); });
}
cudaError_t CUDARTAPI cudaFreeMipmappedArray(cudaMipmappedArray_t a) {
    return program::get().free_counted(a, [&] { return real::cudaFreeMipmappedArray(a); });
}

cudaError_t CUDARTAPI cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    return program::get().memory_info(free, total);
}

cudaError_t CUDARTAPI cudaDeviceReset(void) {
    return program::get().reset();
}

cudaError_t CUDARTAPI cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* p) {
    program::get().note_shared(p);
    return real::cudaIpcGetMemHandle(handle, p);
}

cudaError_t CUDARTAPI cudaGraphAddMemAllocNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                               const cudaGraphNode_t* dependencies, std::size_t count,
                                               cudaMemAllocNodeParams* parameters) {
    program::get().note_graph_node();
    return real::cudaGraphAddMemAllocNode(node, graph, dependencies, count, parameters);
}

} // extern "C"
