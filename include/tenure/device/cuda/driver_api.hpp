#pragma once

/// \file
/// `cuda::driver_api`: the driver's entry points that the library calls directly, looked up at run time.
///
///     libcuda.so  <--dlopen-- cudart --cudaGetDriverEntryPointByVersion--> table of function pointers
///
/// Why not through the runtime: it has no virtual memory, and where both have a call the driver's is two to three times
/// cheaper, because the runtime first sees to its own state. Why not by linking: a program linked with the driver
/// library does not even start where there is none.
///
/// Invariants:
///   1. A pointer is null exactly when this driver does not have the entry point (or there is no driver); whoever
///      calls it looks first.
///   2. Nothing here loads, initialises or links anything that cudart would not have.
///   3. The entry points take a null stream for the same stream as the runtime calls of this translation unit do.
///
/// A thread that never made a runtime call has no current context, and some entry points then fail where the runtime
/// would have made one current. So callers that have a runtime call to fall back on, do; those that need no context
/// (all of virtual memory) need nothing.
///
/// Cost: some 20 lookups at construction, nothing afterwards. Thread-safety: plain values; thread-compatible.

#include <tenure/device/cuda/error.hpp>

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <type_traits>

namespace tenure::cuda {

struct driver_api {
    // Streams and events.
    PFN_cuStreamGetId_v12000 stream_get_id = nullptr;
    PFN_cuStreamIsCapturing_v10000 stream_is_capturing = nullptr;
    PFN_cuEventRecord_v2000 event_record = nullptr;

    // What a device can do.
    PFN_cuDeviceGet_v2000 device_get = nullptr;
    PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;

    // Virtual memory.
    PFN_cuMemGetAllocationGranularity_v10020 mem_get_allocation_granularity = nullptr;
    PFN_cuMemAddressReserve_v10020 mem_address_reserve = nullptr;
    PFN_cuMemAddressFree_v10020 mem_address_free = nullptr;
    PFN_cuMemCreate_v10020 mem_create = nullptr;
    PFN_cuMemRelease_v10020 mem_release = nullptr;
    PFN_cuMemMap_v10020 mem_map = nullptr;
    PFN_cuMemUnmap_v10020 mem_unmap = nullptr;
    PFN_cuMemSetAccess_v10020 mem_set_access = nullptr;

    // Sharing between processes.
    PFN_cuMemExportToShareableHandle_v10020 mem_export = nullptr;
    PFN_cuMemImportFromShareableHandle_v10020 mem_import = nullptr;
    PFN_cuMemGetAddressRange_v3020 mem_get_address_range = nullptr;

    /// All null: for a process without a driver.
    driver_api() = default;

    /// Effects: looks everything up. `legacy_null`: whether a null stream is the legacy default stream to them, or the
    /// calling thread's own.
    explicit driver_api(bool legacy_null) noexcept {
        const unsigned long long flags =
            legacy_null ? cudaEnableLegacyStream : cudaEnablePerThreadDefaultStream;
        const auto find = [flags](auto& entry, const char* name) {
            entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(lookup(name, flags));
        };
        find(stream_get_id, "cuStreamGetId");
        find(stream_is_capturing, "cuStreamIsCapturing");
        find(event_record, "cuEventRecord");
        find(device_get, "cuDeviceGet");
        find(device_get_attribute, "cuDeviceGetAttribute");
        find(mem_get_allocation_granularity, "cuMemGetAllocationGranularity");
        find(mem_address_reserve, "cuMemAddressReserve");
        find(mem_address_free, "cuMemAddressFree");
        find(mem_create, "cuMemCreate");
        find(mem_release, "cuMemRelease");
        find(mem_map, "cuMemMap");
        find(mem_unmap, "cuMemUnmap");
        find(mem_set_access, "cuMemSetAccess");
        find(mem_export, "cuMemExportToShareableHandle");
        find(mem_import, "cuMemImportFromShareableHandle");
        find(mem_get_address_range, "cuMemGetAddressRange");
    }

    /// Returns: an attribute of the device, or 0 where it cannot be asked.
    [[nodiscard]] int attribute(CUdevice_attribute which, int ordinal) const noexcept {
        CUdevice device = 0;
        int value = 0;
        if (device_get == nullptr || device_get_attribute == nullptr) return 0;
        if (device_get(&device, ordinal) != CUDA_SUCCESS) return 0;
        return device_get_attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
    }

    /// Returns: whether all of virtual memory is there. Says nothing about a device.
    [[nodiscard]] bool has_virtual_memory() const noexcept {
        return mem_get_allocation_granularity != nullptr && mem_address_reserve != nullptr &&
               mem_address_free != nullptr && mem_create != nullptr && mem_release != nullptr &&
               mem_map != nullptr && mem_unmap != nullptr && mem_set_access != nullptr;
    }

  private:
    /// All signatures above are those of CUDA 12.0, and any driver that this toolkit's runtime accepts has them.
    static constexpr unsigned version = 12000;

    static void* lookup(const char* name, unsigned long long flags) noexcept {
        void* found = nullptr;
        // Untouched when the call fails, so it must not begin as "success".
        cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        const cudaError_t asked = cudaGetDriverEntryPointByVersion(name, &found, version, flags, &answer);
#else
        // Finds the version of the toolkit, 12.4, in which these signatures are still the same.
        const cudaError_t asked = cudaGetDriverEntryPoint(name, &found, flags, &answer);
#endif
        if (settle(asked) != status::ok || answer != cudaDriverEntryPointSuccess) return nullptr;
        return found;
    }
};

} // namespace tenure::cuda
