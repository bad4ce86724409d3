#pragma once

/// \file
/// `cuda_mr`: the door to `cuda::mr`. Any tenure resource as CCCL wants it, for CUB, `cuda::buffer` and the
/// erased resources of `cuda::mr`.
///
///     tenure::cuda_mr mr(arena); // borrows: the arena outlives it
///     cub::DeviceReduce::Sum(in, out, n, cuda::std::execution::env{stream, mr}); // temporaries: the arena's
///
/// Why a handle and not the pools themselves: `cuda::mr` copies and compares its resources, pools are neither
/// copied nor compared. The handle is 24 bytes and nothrow to move, which CCCL's erased types store inline.
///
/// CCCL renamed the interface in 3.1. The one class has both spellings:
///
/// | | CCCL 3.0 (CUDA 13.0) | CCCL 3.1 and newer |
/// |---|---|---|
/// | concepts | `resource`, `async_resource` | `synchronous_resource`, `resource` |
/// | synchronous | `allocate(bytes, alignment)` | `allocate_sync(bytes, alignment)` |
/// | stream-ordered | `allocate_async(bytes, alignment, stream)` | `allocate(stream, bytes, alignment)` |
/// | CUB takes its temporary storage from it | no, its algorithms take no environment | yes |
///
/// Invariants:
///   1. CUB finds it in every version that looks for one: calls are const, and `query` answers with the
///      handle itself. CUB silently falls back to `cudaMallocAsync` for a resource that it does not
///      recognise, so what it selects is asserted, below and in the tests.
///   2. Sizes, alignments and streams are passed on unchanged. CUB asks for 16-byte alignment, `cuda::buffer`
///      for that of its element.
///   3. Never empty; equal exactly when the same resource is meant, so that memory may be given back through
///      an equal handle.
///
/// Cost: the one indirect call of the handle inside.
///
/// Thread-safety: as `any_resource`.

#include <tenure/core/handles.hpp>
#include <tenure/resource/any_resource.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/resource/resource_ref.hpp>

#include <cuda/std/version>

#if CCCL_VERSION < 3000000
#error "tenure::cuda_mr needs CCCL 3.0 or newer (CUDA 13.0 has it; or the PyPI package nvidia-cuda-cccl)"
#elif CCCL_VERSION < 3001000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error "CCCL 3.0 hides cuda::mr: define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE for the whole program"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#if CCCL_VERSION >= 3001000
#include <cuda/std/execution>
#endif

#include <cstddef>
#include <type_traits>

namespace tenure {

/// A `cuda::stream_ref` and a `stream_handle` name a stream by the same pointer.
[[nodiscard]] inline stream_handle to_stream_handle(::cuda::stream_ref stream) noexcept {
    return stream.get();
}
[[nodiscard]] inline ::cuda::stream_ref to_stream_ref(stream_handle stream) noexcept {
    return ::cuda::stream_ref(stream);
}

class cuda_mr {
  public:
    /// Effects: shares the resource. Cost of a copy: one atomic increment.
    explicit cuda_mr(any_resource resource) noexcept : resource_(resource) {}

    /// Effects: borrows a pool, an arena, an adaptor. Requires: it outlives all copies.
    explicit cuda_mr(resource_ref resource) noexcept : resource_(any_resource::borrow(resource)) {}
    template <class R>
        requires(!detail::erased_handle<R> && resource<R>)
    explicit cuda_mr(R& r) noexcept : cuda_mr(resource_ref(r)) {}

    /// Returns: the resource behind the door, with all its members.
    [[nodiscard]] const any_resource& resource() const noexcept { return resource_; }

    // --- stream-ordered: CCCL 3.1 and newer ---

    /// Returns: a block whose first use is ordered on `stream`; null for no bytes.
    /// Throws: `out_of_memory`, `invalid_alignment`, `driver_error`.
    void* allocate(::cuda::stream_ref stream, std::size_t bytes,
                   std::size_t alignment = default_alignment) const {
        return resource_.allocate(to_stream_handle(stream), bytes, alignment);
    }
    void deallocate(::cuda::stream_ref stream, void* pointer, std::size_t bytes,
                    std::size_t alignment = default_alignment) const noexcept {
        resource_.deallocate(to_stream_handle(stream), pointer, bytes, alignment);
    }

    // --- synchronous: CCCL 3.1 and newer ---

    /// Returns: a block that every stream may use at once. Throws: as `allocate`.
    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) const {
        return resource_.allocate_sync(bytes, alignment);
    }
    void deallocate_sync(void* pointer, std::size_t bytes,
                         std::size_t alignment = default_alignment) const noexcept {
        resource_.deallocate_sync(pointer, bytes, alignment);
    }

    // --- CCCL 3.0's names ---
    // The first two have no default alignment: `(bytes, alignment)` must not be taken for `(stream, bytes)`.

    void* allocate(std::size_t bytes, std::size_t alignment) const { return allocate_sync(bytes, alignment); }
    void deallocate(void* pointer, std::size_t bytes, std::size_t alignment) const noexcept {
        deallocate_sync(pointer, bytes, alignment);
    }
    void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) const {
        return allocate(stream, bytes, alignment);
    }
    void deallocate_async(void* pointer, std::size_t bytes, std::size_t alignment,
                          ::cuda::stream_ref stream) const noexcept {
        deallocate(stream, pointer, bytes, alignment);
    }

    // --- what it is ---

    friend bool operator==(const cuda_mr& a, const cuda_mr& b) noexcept { return a.resource_ == b.resource_; }
    friend bool operator!=(const cuda_mr& a, const cuda_mr& b) noexcept { return !(a == b); }

    /// Kernels may use its memory.
    friend constexpr void get_property(const cuda_mr&, ::cuda::mr::device_accessible) noexcept {}

#if CCCL_VERSION >= 3001000
    /// As an environment, or a part of one, it answers with itself when asked for a memory resource.
    [[nodiscard]] const cuda_mr& query(const ::cuda::mr::get_memory_resource_t&) const noexcept {
        return *this;
    }
#endif
#if CCCL_VERSION >= 3002000
    using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;
#endif

  private:
    any_resource resource_;
};

static_assert(sizeof(cuda_mr) <= 3 * sizeof(void*) && std::is_nothrow_move_constructible_v<cuda_mr>);
static_assert(!::cuda::has_property<cuda_mr, ::cuda::mr::host_accessible>);
#if CCCL_VERSION >= 3001000
static_assert(::cuda::mr::synchronous_resource_with<cuda_mr, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource_with<cuda_mr, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::resource<const cuda_mr>);
static_assert(std::is_same_v<decltype(::cuda::mr::get_memory_resource(std::declval<const cuda_mr&>())),
                             const cuda_mr&>);
#else
static_assert(::cuda::mr::resource_with<cuda_mr, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::async_resource_with<cuda_mr, ::cuda::mr::device_accessible>);
static_assert(::cuda::mr::async_resource<const cuda_mr>);
#endif

} // namespace tenure
