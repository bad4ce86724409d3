#pragma once

/// \file
/// `cuda::virtual_memory`: the driver's virtual memory of one GPU, as `tenure::vmm_device` asks for it.
///
///     reserve_address --> map <-- create_memory          one driver call each; rules 1 to 6 are in vmm_device.hpp
///     free_address        unmap   release_memory
///
/// Two things stand between the concept and the driver. The driver wants to be told how large a handle's memory is
/// when it is mapped, and nobody but whoever made it knows: so sizes are kept here. And rule 1 is checked here, where
/// drivers differ in what they round up silently.
///
/// Invariants:
///   1. A handle is in the table exactly from `create_memory` (or `adopt_memory`) to `release_memory`.
///   2. Nothing here depends on the thread's current device or context, or changes it: which GPU is meant is said in
///      every call. (The same holds while a stream is captured, and after a sticky error.)
///   3. Nothing here touches the runtime's last error.
///
/// Cost, medians on an H200 with driver 580, microseconds a handle:
///
/// | size of the handle | create | map | set_access | unmap | release |
/// |---|---|---|---|---|---|
/// | 2 MiB | 13.1 | 1.8 | 33.3 | 19.7 | 15.1 |
/// | 20 MiB | 8.5 | 0.7 | 23.1 | 15.2 | 19.4 |
/// | 256 MiB | 19.9 | 1.4 | 52.9 | 27.7 | 90.9 |
/// | 1 GiB | 24.3 | 1.0 | 61.7 | 26.5 | 328.8 |
/// | 2 GiB | 36.7 | 1.7 | 111.1 | 39.5 | 810.6 |
///
/// `reserve_address` 2.7 (7 to 11 while kernels run), `free_address` 1.9 (20 MiB). One call over many handles costs as
/// much as one call a handle. More mappings of the same memory take no device memory.
///
/// Thread-safety: thread-safe; one mutex for the table of sizes.

#include <tenure/core/bits.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/cuda/driver_api.hpp>
#include <tenure/device/cuda/process.hpp>
#include <tenure/device/vmm_device.hpp>

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace tenure::cuda {

class virtual_memory {
  public:
    static constexpr std::size_t granularity = 2_MiB;

    virtual_memory(const virtual_memory&) = delete;
    virtual_memory& operator=(const virtual_memory&) = delete;

    /// Returns: whether this GPU and driver have virtual memory in pieces of `granularity`. Where not, every call
    /// below answers `not_supported`.
    [[nodiscard]] bool supports_vmm() const noexcept { return supported_; }

    result<void*, status> reserve_address(std::size_t bytes, std::size_t alignment,
                                          std::uint64_t near = 0) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        if (alignment == 0) alignment = granularity;
        if (!whole(bytes) || !is_power_of_two(alignment)) return status::invalid_value;
        CUdeviceptr address = 0;
        const std::size_t aligned = alignment < granularity ? granularity : alignment;
        status s = to_status(driver_->mem_address_reserve(&address, bytes, aligned, near, 0));
        if (s != status::ok && near != 0) // beyond what there is, say
            s = to_status(driver_->mem_address_reserve(&address, bytes, aligned, 0, 0));
        if (s != status::ok) return s;
        return to_pointer(address);
    }

    status free_address(void* p, std::size_t bytes) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        if (!whole(bytes)) return status::invalid_value;
        return to_status(driver_->mem_address_free(to_address(p), bytes));
    }

    result<memory_handle, status> create_memory(std::size_t bytes) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        if (!whole(bytes)) return status::invalid_value;
        CUmemGenericAllocationHandle handle = 0;
        const status s = to_status(driver_->mem_create(&handle, bytes, &properties_, 0));
        if (s != status::ok) return s;
        return adopt_memory(handle, bytes);
    }

    /// Effects: takes over memory that was made or imported elsewhere, `bytes` bytes; it is released here.
    /// Returns: its handle; or `failed` when host memory is missing, and then it has been released.
    result<memory_handle, status> adopt_memory(memory_handle handle, std::size_t bytes) noexcept {
        try {
            const std::lock_guard lock(mutex_);
            sizes_.emplace(handle, bytes);
            return handle;
        } catch (...) {
            (void)driver_->mem_release(handle);
            return status::failed;
        }
    }

    status release_memory(memory_handle handle) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        // Held over the call: once the driver has the handle back, it may give it to another thread.
        const std::lock_guard lock(mutex_);
        const auto it = sizes_.find(handle);
        if (it == sizes_.end()) return status::invalid_value;
        const status s = to_status(driver_->mem_release(handle));
        if (s == status::ok) sizes_.erase(it);
        return s;
    }

    status map(void* p, memory_handle handle) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        std::size_t bytes = 0;
        {
            const std::lock_guard lock(mutex_);
            const auto it = sizes_.find(handle);
            if (it == sizes_.end()) return status::invalid_value;
            bytes = it->second;
        }
        if (!is_aligned(to_address(p), granularity)) return status::invalid_value;
        return to_status(driver_->mem_map(to_address(p), bytes, 0, handle, 0));
    }

    status set_access(void* p, std::size_t bytes) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        if (!whole(bytes)) return status::invalid_value;
        CUmemAccessDesc access{};
        access.location = properties_.location;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return to_status(driver_->mem_set_access(to_address(p), bytes, &access, 1));
    }

    status unmap(void* p, std::size_t bytes) noexcept {
        if (const status s = usable(); s != status::ok) return s;
        if (!whole(bytes)) return status::invalid_value;
        return to_status(driver_->mem_unmap(to_address(p), bytes));
    }

  protected:
    /// Requires: `driver` outlives it. `shareable`: memory can be exported to other processes.
    virtual_memory(const driver_api& driver, int ordinal, bool shareable) noexcept : driver_(&driver) {
        properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        properties_.location.id = ordinal;
        if (shareable) properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        if (!driver.has_virtual_memory() ||
            driver.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) == 0)
            return;
        std::size_t step = 0; // pieces that the driver would not take are none
        supported_ = driver.mem_get_allocation_granularity(
                         &step, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
                     step != 0 && granularity % step == 0;
    }
    ~virtual_memory() = default;

  private:
    [[nodiscard]] status usable() const noexcept {
        return supported_ ? process_state() : status::not_supported;
    }

    static bool whole(std::size_t bytes) noexcept { return bytes != 0 && is_aligned(bytes, granularity); }

    const driver_api* driver_;
    CUmemAllocationProp properties_{};
    bool supported_ = false;
    std::mutex mutex_; ///< guards what follows
    std::map<memory_handle, std::size_t> sizes_;
};

} // namespace tenure::cuda
