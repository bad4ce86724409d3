#pragma once

/// \file
/// Sharing device memory between processes: three kinds of memory, three ways, nothing by default.
///
///     owner                                          what travels            user
///     device.allocate    export_block(d, p, n)  ---> plain bytes        ---> imported_block(d, bytes)
///     create_memory      export_memory(d, h)    ---> file descriptor    ---> import_memory(d, fd, n), map it
///     driver pool        export_pool(d, pool)   ---> file descriptor    ---> import_pool(d, fd), and for each block
///                        export_pool_block(p)   ---> plain bytes        ---> import_pool_block(pool, bytes)
///
/// Plain bytes go over any channel. File descriptors go over a Unix-domain socket (`cuda/descriptor.hpp`). A range of
/// virtual memory is shared by exporting *every* handle behind it, in order; the user maps them side by side.
///
/// Opt-in: handles and pools can be exported only if their device was made with `device_options{.shareable = true}`.
/// Memory of `device.allocate` always can: so can any block of a policy over it, wherever in its segment it lies.
///
/// Rules:
///   1. Exporting changes no ownership. The owner frees the memory only after every user has let go of it; nobody
///      checks that. Memory by `export_memory` is the exception: it lives while any process holds a handle or mapping. But
///      not so over a `hub`, where what an owner gives back is the next tenant's: nothing that came through one is exported.
///   2. What is shared with a block of `device.allocate` is its whole segment: a user can read the neighbours.
///   3. Order between processes is the application's: streams and events here know nothing of the other side.
///   4. A user of a pool cannot allocate from it, and closes each block with `deallocate_to` before the owner does.
///   5. Both processes see the same GPU; ordinals may differ.
///
/// `not_supported` is the answer where memory is not of the kind, or not shareable.
///
/// Cost: not measured; driver calls, for setting up, never on a hot path. Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/cuda/descriptor.hpp>
#include <tenure/device/cuda_device.hpp>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tenure::cuda {

/// A block in memory of `device.allocate`, as another process is told of it. Plain bytes.
struct exported_block {
    cudaIpcMemHandle_t segment{}; ///< the whole allocation around it
    std::size_t offset = 0;       ///< bytes from the allocation's start
    std::size_t bytes = 0;
};

inline namespace TENURE_CUDA_DEFAULT_STREAM {

// --- memory of device.allocate ---

/// Requires: [p, p + bytes) is live memory of `device.allocate`, or a block in it.
inline result<exported_block, status> export_block(device& d, void* p, std::size_t bytes) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    if (d.driver().mem_get_address_range == nullptr) return status::not_supported;
    const current_device here(d.ordinal(), d.only_one_device());
    CUdeviceptr base = 0;
    std::size_t size = 0;
    const std::uint64_t at = to_address(p);
    if (const status s = to_status(d.driver().mem_get_address_range(&base, &size, at)); s != status::ok)
        return s;
    if (at < base || bytes > size || at - base > size - bytes) return status::invalid_value;
    exported_block out{{}, static_cast<std::size_t>(at - base), bytes};
    // Memory of another kind is refused as an invalid value.
    const status s = settle(cudaIpcGetMemHandle(&out.segment, to_pointer(base)));
    if (s == status::invalid_value) return status::not_supported;
    if (s != status::ok) return s;
    return out;
}

/// Another process's block, open in this one while the object lives.
class imported_block {
  public:
    /// Returns: the block, open. `invalid_value`: not from another process, or its memory is gone.
    static result<imported_block, status> open(device& d, const exported_block& from) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(d.ordinal(), d.only_one_device());
        void* base = nullptr;
        const status s = settle(cudaIpcOpenMemHandle(&base, from.segment, cudaIpcMemLazyEnablePeerAccess));
        if (s != status::ok) return s;
        return imported_block(base, from);
    }
    imported_block(imported_block&& other) noexcept
        : base_(std::exchange(other.base_, nullptr)), offset_(other.offset_), bytes_(other.bytes_) {}
    imported_block& operator=(imported_block&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(offset_, other.offset_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    /// Requires: all work on the block in this process is over.
    ~imported_block() {
        if (base_ != nullptr && process_state() == status::ok) (void)settle(cudaIpcCloseMemHandle(base_));
    }
    [[nodiscard]] void* get() const noexcept { return static_cast<char*>(base_) + offset_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  private:
    imported_block(void* base, const exported_block& from) noexcept
        : base_(base), offset_(from.offset), bytes_(from.bytes) {}
    void* base_;
    std::size_t offset_;
    std::size_t bytes_;
};

// --- memory of create_memory ---

inline result<descriptor, status> export_memory(device& d, memory_handle handle) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    if (!d.supports_vmm() || !d.shareable() || d.driver().mem_export == nullptr) return status::not_supported;
    int number = -1;
    const status s =
        to_status(d.driver().mem_export(&number, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    if (s != status::ok) return s;
    return descriptor(number);
}

/// Requires: `from` is another process's memory of `bytes` bytes. Effects: `from` may be closed afterwards.
/// Returns: a handle of this process: map it, give it access, and release it like any other.
inline result<memory_handle, status> import_memory(device& d, const descriptor& from,
                                                   std::size_t bytes) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    if (!d.supports_vmm() || d.driver().mem_import == nullptr) return status::not_supported;
    CUmemGenericAllocationHandle handle = 0;
    const status s =
        to_status(d.driver().mem_import(&handle, to_pointer(static_cast<std::uint64_t>(from.get())),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    if (s != status::ok) return s;
    return d.adopt_memory(handle, bytes);
}

// --- driver pools ---

inline result<descriptor, status> export_pool(device& d, pool_handle pool) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    if (!d.supports_pools() || !d.shareable()) return status::not_supported;
    const relaxed_capture relaxed;
    int number = -1;
    const status s =
        settle(cudaMemPoolExportToShareableHandle(&number, pool, cudaMemHandleTypePosixFileDescriptor, 0));
    if (s != status::ok) return s;
    return descriptor(number);
}

/// Returns: the pool, to be destroyed with `device.destroy_pool`. Nothing can be allocated from it here.
inline result<pool_handle, status> import_pool(device& d, const descriptor& from) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    if (!d.supports_pools()) return status::not_supported;
    const current_device here(d.ordinal(), d.only_one_device());
    const relaxed_capture relaxed;
    pool_handle pool = nullptr;
    status s = settle(cudaMemPoolImportFromShareableHandle(
        &pool, to_pointer(static_cast<std::uint64_t>(from.get())), cudaMemHandleTypePosixFileDescriptor, 0));
    if (s != status::ok) return s;
    cudaMemAccessDesc access{}; // an imported pool is accessible from nowhere at first
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = d.ordinal();
    access.flags = cudaMemAccessFlagsProtReadWrite;
    s = settle(cudaMemPoolSetAccess(pool, &access, 1));
    if (s != status::ok) {
        (void)settle(cudaMemPoolDestroy(pool));
        return s;
    }
    return pool;
}

/// Requires: p is a live block of a shareable pool.
inline result<cudaMemPoolPtrExportData, status> export_pool_block(void* p) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    cudaMemPoolPtrExportData data{};
    if (const status s = settle(cudaMemPoolExportPointer(&data, p)); s != status::ok) return s;
    return data;
}

/// Requires: `pool` is the import of the pool that the block is from. Returns: the block, at an address of this process.
inline result<void*, status> import_pool_block(pool_handle pool, cudaMemPoolPtrExportData from) noexcept {
    if (const status s = process_state(); s != status::ok) return s;
    void* p = nullptr;
    if (const status s = settle(cudaMemPoolImportPointer(&p, pool, &from)); s != status::ok) return s;
    return p;
}

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
