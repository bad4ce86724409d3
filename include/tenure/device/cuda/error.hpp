#pragma once

/// \file
/// `cudaError_t` and `CUresult` in the library's words, and who clears the runtime's last error.
///
/// The runtime keeps, per thread, the last error that any call returned, and a later *good* kernel launch
/// reports it. So whoever handles an error must also take it out. Invariants of `settle`:
///
///   1. A handled failure takes exactly one error out: its own, which has already replaced any older one.
///   2. Success and `not_ready` (which the runtime does not keep) touch nothing: an error that the
///   application has not
///      looked at yet stays where it is.
///   3. `failed` is left in place, as it is not ours to hide, and `device_lost`, which cannot be cleared.
///   4. `shutting_down` makes no further call into a runtime that is being unloaded.
///
/// Calls of the driver itself leave no last error, so their results are translated and that is all.
///
/// Thread-safety: thread-safe; the last error belongs to the calling thread.

#include <tenure/core/status.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace tenure::cuda {

/// Returns: what an allocator can do about `error`. Pure.
constexpr status to_status(cudaError_t error) noexcept {
    switch (error) {
    case cudaSuccess: return status::ok;
    case cudaErrorNotReady: return status::not_ready;
    case cudaErrorMemoryAllocation: return status::out_of_memory;

    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidResourceHandle: return status::invalid_value;

    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent: return status::capture_violation;

    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver: return status::not_supported;

    case cudaErrorStubLibrary:        // 34: linked against the stub, not a driver
    case cudaErrorInsufficientDriver: // 35: no driver at all, too
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorInitializationError: return status::no_device; // in the child of a fork

    case cudaErrorCudartUnloading:
    case cudaErrorContextIsDestroyed: return status::shutting_down;

    // The context is dead: every later call answers the same, whatever it is for.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated: return status::device_lost;

    default:
        // cudaErrorContained and cudaErrorTensorMemoryLeak, which older headers do not name.
        return int{error} == 226 || int{error} == 721 ? status::device_lost : status::failed;
    }
}

/// The two enumerations share their numbers.
constexpr status to_status(CUresult result) noexcept {
    return to_status(static_cast<cudaError_t>(result));
}
static_assert(int{CUDA_ERROR_INVALID_VALUE} == int{cudaErrorInvalidValue});
static_assert(int{CUDA_ERROR_OUT_OF_MEMORY} == int{cudaErrorMemoryAllocation});
static_assert(int{CUDA_ERROR_NOT_INITIALIZED} == int{cudaErrorInitializationError});
static_assert(int{CUDA_ERROR_DEINITIALIZED} == int{cudaErrorCudartUnloading});
static_assert(int{CUDA_ERROR_INVALID_HANDLE} == int{cudaErrorInvalidResourceHandle});
static_assert(int{CUDA_ERROR_NOT_READY} == int{cudaErrorNotReady});
static_assert(int{CUDA_ERROR_ILLEGAL_ADDRESS} == int{cudaErrorIllegalAddress});
static_assert(int{CUDA_ERROR_CONTEXT_IS_DESTROYED} == int{cudaErrorContextIsDestroyed});
static_assert(int{CUDA_ERROR_NOT_SUPPORTED} == int{cudaErrorNotSupported});
static_assert(int{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED} == int{cudaErrorStreamCaptureUnsupported});
static_assert(int{CUDA_ERROR_CAPTURED_EVENT} == int{cudaErrorCapturedEvent});

/// Effects: takes a handled failure out of the runtime's last error, see above. Returns: `to_status(error)`.
/// Call it once per error, on the thread that got it.
inline status settle(cudaError_t error) noexcept {
    const status s = to_status(error);
    switch (s) {
    case status::ok:
    case status::not_ready:
    case status::failed:
    case status::device_lost:
    case status::shutting_down: break;
    default: (void)cudaGetLastError();
    }
    return s;
}

} // namespace tenure::cuda
