// The runtime functions that tenure itself calls, for this library alone: each goes to the program's own runtime. The
// linker's map keeps them inside, so nobody else ever finds them.

#include "runtime.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

#define TENURE_FORWARD(name, parameters, arguments)                                                          \
    extern "C" cudaError_t CUDARTAPI name parameters {                                                       \
        static tenure::preload::runtime_function<cudaError_t parameters> function(#name);                    \
        return function.call arguments;                                                                      \
    }
#define TENURE_NONE cudaErrorInitializationError

// clang-format off: one function a line
TENURE_FORWARD(cudaDeviceCanAccessPeer, (int* can, int device, int peer), (TENURE_NONE, can, device, peer))
TENURE_FORWARD(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr a, int device),
               (TENURE_NONE, value, a, device))
TENURE_FORWARD(cudaDriverGetVersion, (int* version), (TENURE_NONE, version))
TENURE_FORWARD(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned flags), (TENURE_NONE, e, flags))
TENURE_FORWARD(cudaEventDestroy, (cudaEvent_t e), (TENURE_NONE, e))
TENURE_FORWARD(cudaEventQuery, (cudaEvent_t e), (TENURE_NONE, e))
TENURE_FORWARD(cudaEventRecord, (cudaEvent_t e, cudaStream_t s), (TENURE_NONE, e, s))
TENURE_FORWARD(cudaEventSynchronize, (cudaEvent_t e), (TENURE_NONE, e))
TENURE_FORWARD(cudaGetDevice, (int* device), (TENURE_NONE, device))
TENURE_FORWARD(cudaGetDeviceCount, (int* count), (TENURE_NONE, count))
TENURE_FORWARD(cudaGetDriverEntryPointByVersion,
               (const char* name, void** f, unsigned version, unsigned long long flags,
                cudaDriverEntryPointQueryResult* r),
               (TENURE_NONE, name, f, version, flags, r))
TENURE_FORWARD(cudaGetLastError, (), (TENURE_NONE))
TENURE_FORWARD(cudaInitDevice, (int device, unsigned device_flags, unsigned flags),
               (TENURE_NONE, device, device_flags, flags))
TENURE_FORWARD(cudaMemPoolCreate, (cudaMemPool_t * pool, const cudaMemPoolProps* p), (TENURE_NONE, pool, p))
TENURE_FORWARD(cudaMemPoolDestroy, (cudaMemPool_t pool), (TENURE_NONE, pool))
TENURE_FORWARD(cudaMemPoolGetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr a, void* value),
               (TENURE_NONE, pool, a, value))
TENURE_FORWARD(cudaMemPoolSetAccess, (cudaMemPool_t pool, const cudaMemAccessDesc* d, std::size_t n),
               (TENURE_NONE, pool, d, n))
TENURE_FORWARD(cudaMemPoolSetAttribute, (cudaMemPool_t pool, cudaMemPoolAttr a, void* value),
               (TENURE_NONE, pool, a, value))
TENURE_FORWARD(cudaMemPoolTrimTo, (cudaMemPool_t pool, std::size_t keep), (TENURE_NONE, pool, keep))
TENURE_FORWARD(cudaMemsetAsync, (void* p, int value, std::size_t n, cudaStream_t s),
               (TENURE_NONE, p, value, n, s))
TENURE_FORWARD(cudaSetDevice, (int device), (TENURE_NONE, device))
TENURE_FORWARD(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned flags), (TENURE_NONE, s, flags))
TENURE_FORWARD(cudaStreamDestroy, (cudaStream_t s), (TENURE_NONE, s))
TENURE_FORWARD(cudaStreamGetCaptureInfo,
               (cudaStream_t s, cudaStreamCaptureStatus* c, unsigned long long* id, cudaGraph_t* g,
                const cudaGraphNode_t** d, const cudaGraphEdgeData** e, std::size_t* n),
               (TENURE_NONE, s, c, id, g, d, e, n))
TENURE_FORWARD(cudaStreamGetId, (cudaStream_t s, unsigned long long* id), (TENURE_NONE, s, id))
TENURE_FORWARD(cudaStreamIsCapturing, (cudaStream_t s, cudaStreamCaptureStatus* c), (TENURE_NONE, s, c))
TENURE_FORWARD(cudaStreamSynchronize, (cudaStream_t s), (TENURE_NONE, s))
TENURE_FORWARD(cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned flags),
               (TENURE_NONE, s, e, flags))
TENURE_FORWARD(cudaThreadExchangeStreamCaptureMode, (cudaStreamCaptureMode * m), (TENURE_NONE, m))
// clang-format on

extern "C" const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
    static tenure::preload::runtime_function<const char*(cudaError_t)> function("cudaGetErrorString");
    return function.call("there is no CUDA runtime", error);
}
