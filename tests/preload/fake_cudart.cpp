// A CUDA runtime of host memory, with the name and the symbol versions of the real one, so that the preload library can be
// tested where there is no GPU. It knows what tenure and the test program call, and is strict about it: memory is counted,
// foreign pointers are refused, and each thread has its last error, as on a GPU.
//
//   FAKE_CUDA_CAPACITY   bytes of the device (default 1 GiB)
//   FAKE_CUDA_DEVICES    number of devices (default 2); 0: as without a driver

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include <sys/mman.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

namespace {

thread_local cudaError_t last = cudaSuccess;
thread_local int current = 0;
thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

cudaError_t answer(cudaError_t e) {
    if (e != cudaSuccess) last = e;
    return e;
}

std::size_t setting(const char* name, std::size_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

struct block {
    std::size_t bytes = 0;
    int device = 0;
};

struct fake_stream {
    int device = 0;
    unsigned long long id = 0;
    bool capturing = false;
    bool invalidated = false;
};

struct fake {
    std::mutex mutex;
    std::map<void*, block> live;
    std::map<int, std::size_t> used;
    std::map<int, std::size_t> in_graphs;
    std::set<cudaStream_t> streams;
    unsigned long long last_id = 10;
    std::atomic<unsigned long> calls_of_malloc{0};
    std::atomic<unsigned long> synchronizes{0};
    const std::size_t capacity = setting("FAKE_CUDA_CAPACITY", std::size_t{1} << 30);
    const int devices = static_cast<int>(setting("FAKE_CUDA_DEVICES", 2));
    const pid_t pid = ::getpid();
};

fake& world() {
    static fake& only = *new fake;
    return only;
}

cudaError_t usable() {
    if (world().devices == 0) return cudaErrorInsufficientDriver;
    if (::getpid() != world().pid) return cudaErrorInitializationError;
    return cudaSuccess;
}

bool capturing(cudaStream_t s) {
    return reinterpret_cast<std::uintptr_t>(s) > 2 && reinterpret_cast<fake_stream*>(s)->capturing;
}
/// A capturing stream that is asked who it is loses its capture.
bool spoils_capture(cudaStream_t s) {
    if (!capturing(s)) return false;
    reinterpret_cast<fake_stream*>(s)->invalidated = true;
    return true;
}
bool any_capture() {
    for (cudaStream_t s : world().streams)
        if (capturing(s)) return true;
    return false;
}

cudaError_t take(void** p, std::size_t n) {
    if (const cudaError_t e = usable(); e != cudaSuccess) return answer(e);
    if (p == nullptr) return answer(cudaErrorInvalidValue);
    *p = nullptr;
    if (n == 0) return cudaSuccess;
    fake& w = world();
    const std::lock_guard lock(w.mutex);
    const std::size_t step = std::size_t{2} << 20;
    if (n > w.capacity || (n + step - 1) / step * step > w.capacity - w.used[current])
        return answer(cudaErrorMemoryAllocation);
    n = (n + step - 1) / step * step;
    void* const all = ::mmap(nullptr, n + step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return answer(cudaErrorMemoryAllocation);
    const auto at = reinterpret_cast<std::uintptr_t>(all);
    const std::uintptr_t base = (at + step - 1) / step * step;
    if (base != at) ::munmap(all, base - at);
    if (base + n != at + n + step) ::munmap(reinterpret_cast<void*>(base + n), at + step - base);
    *p = reinterpret_cast<void*>(base);
    w.live[*p] = {n, current};
    w.used[current] += n;
    return cudaSuccess;
}

cudaError_t give_back(void* p) {
    if (const cudaError_t e = usable(); e != cudaSuccess) return answer(e);
    if (p == nullptr) return cudaSuccess;
    fake& w = world();
    const std::lock_guard lock(w.mutex);
    const auto it = w.live.find(p);
    if (it == w.live.end()) return answer(cudaErrorInvalidValue);
    w.used[it->second.device] -= it->second.bytes;
    ::munmap(p, it->second.bytes);
    w.live.erase(it);
    return cudaSuccess;
}

/// Calls that a capture in global mode forbids.
cudaError_t allowed() {
    if (mode == cudaStreamCaptureModeGlobal && any_capture())
        return answer(cudaErrorStreamCaptureUnsupported);
    return cudaSuccess;
}

cudaError_t take_async(void** p, std::size_t n, cudaStream_t s) {
    if (capturing(s)) { // an allocation node: physical memory that belongs to the graph
        const cudaError_t e = take(p, n);
        if (e == cudaSuccess) world().in_graphs[current] += n;
        return e;
    }
    return take(p, n);
}

cudaMemPool_t pool_of(int device) {
    return reinterpret_cast<cudaMemPool_t>(static_cast<std::uintptr_t>(0x1000 + device));
}

} // namespace

extern "C" {

// What the tests ask beside CUDA's own functions.
unsigned long fake_mallocs() {
    return world().calls_of_malloc;
}
unsigned long fake_synchronizes() {
    return world().synchronizes;
}
std::size_t fake_used(int device) {
    const std::lock_guard lock(world().mutex);
    return world().used[device];
}

cudaError_t cudaMalloc(void** p, std::size_t n) {
    if (const cudaError_t e = allowed(); e != cudaSuccess) return e;
    ++world().calls_of_malloc;
    return take(p, n);
}
cudaError_t cudaFree(void* p) {
    if (p == nullptr) return answer(usable());
    if (const cudaError_t e = allowed(); e != cudaSuccess) return e;
    return give_back(p);
}
cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t s) {
    return take_async(p, n, s);
}
cudaError_t cudaMallocAsync_ptsz(void** p, std::size_t n, cudaStream_t s) {
    return take_async(p, n, s);
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t) {
    return give_back(p);
}
cudaError_t cudaFreeAsync_ptsz(void* p, cudaStream_t) {
    return give_back(p);
}
cudaError_t cudaMallocFromPoolAsync(void** p, std::size_t n, cudaMemPool_t, cudaStream_t s) {
    return take_async(p, n, s);
}
cudaError_t cudaMallocFromPoolAsync_ptsz(void** p, std::size_t n, cudaMemPool_t, cudaStream_t s) {
    return take_async(p, n, s);
}
cudaError_t cudaMallocManaged(void** p, std::size_t n, unsigned) {
    return take(p, n);
}
cudaError_t cudaMallocPitch(void** p, std::size_t* pitch, std::size_t width, std::size_t height) {
    *pitch = (width + 511) / 512 * 512;
    return take(p, *pitch * height);
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* p, cudaExtent e) {
    p->pitch = (e.width + 511) / 512 * 512;
    p->xsize = e.width;
    p->ysize = e.height;
    return take(&p->ptr, p->pitch * e.height * e.depth);
}
cudaError_t cudaMallocArray(cudaArray_t* a, const cudaChannelFormatDesc* d, std::size_t w, std::size_t h,
                            unsigned) {
    return take(reinterpret_cast<void**>(a),
                w * (h == 0 ? 1 : h) * static_cast<std::size_t>(d->x + d->y + d->z + d->w) / 8);
}
cudaError_t cudaMalloc3DArray(cudaArray_t* a, const cudaChannelFormatDesc* d, cudaExtent e, unsigned) {
    return take(reinterpret_cast<void**>(a),
                e.width * e.height * e.depth * static_cast<std::size_t>(d->x + d->y + d->z + d->w) / 8);
}
cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* a, const cudaChannelFormatDesc* d, cudaExtent e,
                                     unsigned, unsigned) {
    return take(reinterpret_cast<void**>(a),
                2 * e.width * e.height * static_cast<std::size_t>(d->x + d->y + d->z + d->w) / 8);
}
cudaError_t cudaFreeArray(cudaArray_t a) {
    return give_back(a);
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t a) {
    return give_back(a);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    if (const cudaError_t e = usable(); e != cudaSuccess) return answer(e);
    const std::lock_guard lock(world().mutex);
    *total = world().capacity;
    *free = world().capacity - world().used[current];
    return cudaSuccess;
}
cudaError_t cudaDeviceReset() {
    fake& w = world();
    const std::lock_guard lock(w.mutex);
    for (auto it = w.live.begin(); it != w.live.end();) {
        if (it->second.device != current) {
            ++it;
            continue;
        }
        ::munmap(it->first, it->second.bytes);
        it = w.live.erase(it);
    }
    w.used[current] = 0;
    return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* h, void* p) {
    std::memset(h, 0, sizeof *h);
    const std::lock_guard lock(world().mutex);
    auto it = world().live.upper_bound(p);
    if (it == world().live.begin()) return answer(cudaErrorInvalidValue);
    return cudaSuccess;
}
cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, std::size_t,
                                     cudaMemAllocNodeParams* p) {
    world().in_graphs[current] += p->bytesize;
    return take(&p->dptr, p->bytesize);
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType, void* value) {
    *static_cast<std::uint64_t*>(value) = world().in_graphs[device];
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    const cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError() {
    return last;
}
const char* cudaGetErrorString(cudaError_t e) {
    return e == cudaSuccess ? "no error" : "an error";
}
cudaError_t cudaRuntimeGetVersion(int* v) {
    *v = static_cast<int>(setting("FAKE_CUDA_VERSION", CUDART_VERSION));
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
    *v = world().devices == 0 ? 0 : CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) {
    *n = world().devices;
    return answer(usable());
}
cudaError_t cudaGetDevice(int* d) {
    *d = current;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
    if (d < 0 || d >= world().devices) return answer(cudaErrorInvalidDevice);
    current = d;
    return cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) {
    return answer(usable());
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr, int) {
    *v = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** f, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* r) {
    *f = nullptr;
    *r = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    if (any_capture()) return answer(cudaErrorStreamCaptureUnsupported);
    ++world().synchronizes;
    return answer(usable());
}

// --- streams and events: all work is over at once ---

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
    const std::lock_guard lock(world().mutex);
    *s = reinterpret_cast<cudaStream_t>(new fake_stream{current, ++world().last_id});
    world().streams.insert(*s);
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
    const std::lock_guard lock(world().mutex);
    if (world().streams.erase(s) == 0) return answer(cudaErrorInvalidResourceHandle);
    delete reinterpret_cast<fake_stream*>(s);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    return capturing(s) ? answer(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t s, int* d) {
    if (spoils_capture(s)) return answer(cudaErrorStreamCaptureUnsupported);
    *d = reinterpret_cast<std::uintptr_t>(s) > 2 ? reinterpret_cast<fake_stream*>(s)->device : current;
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long* id) {
    if (spoils_capture(s)) return answer(cudaErrorStreamCaptureUnsupported);
    *id = reinterpret_cast<std::uintptr_t>(s) > 2 ? reinterpret_cast<fake_stream*>(s)->id : 1;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* c) {
    *c = capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, cudaStreamCaptureStatus* c, unsigned long long* id,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     std::size_t*) {
    *c = capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id != nullptr) *id = 77;
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    reinterpret_cast<fake_stream*>(s)->capturing = true;
    reinterpret_cast<fake_stream*>(s)->invalidated = false;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
    reinterpret_cast<fake_stream*>(s)->capturing = false;
    *g = nullptr;
    if (reinterpret_cast<fake_stream*>(s)->invalidated) return answer(cudaErrorStreamCaptureInvalidated);
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* m) {
    std::swap(mode, *m);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = reinterpret_cast<cudaEvent_t>(new int{0});
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
    delete reinterpret_cast<int*>(e);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) {
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
    return cudaSuccess;
}

// --- pools ---

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    *pool = pool_of(device);
    return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
    *pool = reinterpret_cast<cudaMemPool_t>(std::uintptr_t{0x5000});
    return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* v) {
    *static_cast<std::uint64_t*>(v) = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, std::size_t) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, std::size_t) {
    return cudaSuccess;
}

// --- data ---

cudaError_t cudaMemset(void* p, int v, std::size_t n) {
    std::memset(p, v, n);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* p, int v, std::size_t n, cudaStream_t) {
    return cudaMemset(p, v, n);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind) {
    std::memcpy(to, from, n);
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    *a = {};
    a->type = cudaMemoryTypeDevice;
    a->device = current;
    a->devicePointer = const_cast<void*>(p);
    return cudaSuccess;
}

} // extern "C"
