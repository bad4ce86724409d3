#pragma once

/// \file
/// `cuda::device`: the GPU, as a thin model of `tenure::device`, `tenure::pool_device` and `tenure::vmm_device`.
///
/// One call of the CUDA runtime or driver behind each member, and around it only what makes that safe in an allocator:
///
///     current device -> relaxed capture -> the call -> translate the error, clear it if handled
///
/// Invariants, which `cuda/host_device.hpp` and `cuda/managed_device.hpp` share:
///   1. No member invalidates a stream capture, of this thread or another, except as rule 5 says.
///   2. The caller's current device and capture mode are the same after a member as before.
///   3. A failure leaves no last error behind unless its status is `failed` or `device_lost` (see `cuda/error.hpp`).
///   4. Nothing links the driver library; without one the constructor says so and nothing else can be called.
///   5. A stream that is being captured is never synchronised, allocated from or freed to, and the legacy
///      default stream is not used at all while a blocking stream is captured (it would join in): that is
///      seen before the call and answers `capture_violation`. Not seen: a capture that another thread begins
///      between the question and the call; and an event that was recorded *inside* a capture: querying or
///      waiting for it answers `capture_violation` too, but the driver invalidates that capture.
///   6. In the child of a fork, and once the process's exit has come so far, no member calls CUDA any more
///      (see `cuda/process.hpp`).
///
/// Cost, medians on an H200 with driver 580 and CUDA 13.0; where two days differed, both. To be added:
/// `relaxed_capture` (114 ns, a mean) where marked R, a capture query (25 ns) where marked C, and `current_device`
/// (48 ns, or 262 ns if another is current) where marked D and the process sees several devices.
///
/// | member | call | cost |
/// |---|---|---|
/// | `allocate` R D | `cudaMalloc` | 36-62 us up to 32 MiB, 97-248 us for 1 GiB; does not wait for the device |
/// | `deallocate` R D | `cudaFree` | 32-51 us up to 32 MiB, 441-683 us for 1 GiB; **waits for the device** |
/// | `memory`, `explain` D | `cudaMemGetInfo` | 7.3 us |
/// | `describe` C, D on default streams | `cuStreamGetId` | 25 ns; the legacy default stream: none |
/// | `describe` in a capture C D | `cudaStreamGetCaptureInfo` | 92 ns |
/// | `create_event` D + `destroy_event` | `cudaEventCreateWithFlags`, `cudaEventDestroy` | 480 ns |
/// | `record`, C on the legacy default stream, D on default streams | `cuEventRecord` | 261 ns |
/// | `query` R | `cudaEventQuery` | 220 ns of one that has not passed; of one that has 250, or 1.4 us (2 in a program) while other streams have work |
/// | `wait` D, C on the legacy default stream | `cudaStreamWaitEvent` | 440 ns |
/// | `synchronize(stream)` R C D | `cudaStreamSynchronize` | 1.7-2.0 us when idle |
/// | `allocate_from` R C D, growing | `cudaMallocFromPoolAsync` | 107-130 us up to 20 MiB, 1.6 ms for 1 GiB; 44 us for 32 MiB while programs run |
/// | `allocate_from` R C D + `deallocate_to` R C D, warm | the same, `cudaFreeAsync` | 0.7-1.0 us; 2.5 us while kernels run |
/// | `fill_zero` R C D | `cudaMemsetAsync` | the fill itself runs on the stream: 5 us for 1 MiB, 4.5 TB/s from 1 GiB |
/// | virtual memory | `cuMem...` | see `cuda/virtual_memory.hpp` |
///
/// Compiles with a plain C++ compiler (link `cudart`, static or shared) and with nvcc. CUDA 12.4 or newer.
///
/// Thread-safety: thread-safe.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/cuda/basic_device.hpp>
#include <tenure/device/cuda/pooled.hpp>
#include <tenure/device/cuda/virtual_memory.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/vmm_device.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

namespace tenure::cuda {

struct device_options {
    /// Whether other processes may be given memory of driver pools and of `create_memory` (see `cuda/ipc.hpp`). Off:
    /// the driver then keeps no door open to memory that nobody shares. Memory of `allocate` can always be shared.
    bool shareable = false;
};

/// Memory by `cudaMalloc`.
struct plain_memory {
    static cudaError_t take(void** pointer, std::size_t bytes) noexcept { return cudaMalloc(pointer, bytes); }
    static cudaError_t give_back(void* pointer) noexcept { return cudaFree(pointer); }
    static constexpr std::size_t granularity() noexcept { return virtual_memory::granularity; }
    static cudaError_t read(device_memory& m) noexcept { return cudaMemGetInfo(&m.free, &m.total); }
};

inline namespace TENURE_CUDA_DEFAULT_STREAM {

/// On cache lines of its own: each call reads it, whatever is written beside it.
class alignas(own_lines) device : public pooled<basic_device<plain_memory>>, public virtual_memory {
  public:
    /// Effects: initialises the device's primary context if nobody has yet (some 140 ms and 530 MiB).
    /// Throws: `driver_error`; with `status::no_device` if there is no driver, no GPU, or not this ordinal, or this is
    /// the child of a fork; with `status::not_supported` if memory is to be shareable and cannot be.
    explicit device(int ordinal = 0, device_options options = {})
        : pooled<basic_device<plain_memory>>(ordinal, {cudaMemLocationTypeDevice, ordinal},
                                             options.shareable ? cudaMemHandleTypePosixFileDescriptor
                                                               : cudaMemHandleTypeNone)
        , virtual_memory(driver(), ordinal, options.shareable)
        , shareable_(options.shareable) {
        int pools = 0; // some virtual GPUs have none
        must(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, ordinal),
             "CUDA: cannot query the device");
        if (pools == 0) have_no_pools();
        if (!shareable_) return;
        if (driver().attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal) == 0)
            throw driver_error(status::not_supported, "CUDA: device " + std::to_string(ordinal) +
                                                          " cannot share memory through file descriptors");
    }

    /// Returns: `device_options::shareable`.
    [[nodiscard]] bool shareable() const noexcept { return shareable_; }

    /// See `vmm_device`. From the first on, `synchronize` can do on a full device what gives memory back.
    result<memory_handle, status> create_memory(std::size_t bytes) noexcept {
        keep_a_byte();
        return virtual_memory::create_memory(bytes);
    }

    // --- wiping ---

    ~device() {
        if (own_stream_ == nullptr || process_state() != status::ok) return;
        const relaxed_capture relaxed;
        (void)settle(cudaStreamDestroy(own_stream_));
    }
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    /// See `filling_device`.
    result<stream_handle, status> own_stream() noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const std::lock_guard lock(own_stream_mutex_);
        if (own_stream_ != nullptr) return own_stream_;
        const current_device here(ordinal(), only_one_device());
        const relaxed_capture relaxed;
        if (const status s = settle(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking));
            s != status::ok) {
            own_stream_ = nullptr;
            return s;
        }
        return own_stream_;
    }

    status fill_zero(void* p, std::size_t bytes, stream_handle stream) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(ordinal(), only_one_device());
        if (const status s = not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaMemsetAsync(p, 0, bytes, stream));
    }

  private:
    bool shareable_;
    std::mutex own_stream_mutex_; ///< guards what follows
    stream_handle own_stream_ = nullptr;
};

static_assert(tenure::device<device>);
static_assert(tenure::filling_device<device>);
static_assert(tenure::pool_device<device>);
static_assert(tenure::vmm_device<device>);

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
