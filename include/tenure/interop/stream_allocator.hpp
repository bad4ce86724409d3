#pragma once

/// \file
/// `stream_allocator<T>`: a typed allocator that hands out a resource's memory, bound to one stream.
///
///     tenure::stream_allocator<char> temporaries(arena, stream);
///     thrust::sort(thrust::cuda::par_nosync(temporaries).on(stream), first, last);
///
/// What Thrust's `par(alloc)` and `par_nosync(alloc)` take for their temporary storage, and what a standard container
/// takes over memory that the host may touch (`cuda::host_device`, `cuda::managed_device`).
///
/// Model: [ resource | stream ]. Every allocation is ordered on the stream, and so is every free: a block is used on this
/// stream alone, unless `record_use` said otherwise.
///
/// Invariants:
///   1. Never empty. Two are equal exactly when they mean the same resource and the same stream: what one handed out,
///      an equal one takes back.
///   2. Memory is aligned for T, and to 16 bytes at least: Thrust carves its temporaries out of an array of `char`.
///
/// Standard containers over pinned memory run their elements' destructors and give the memory back at once: whoever has
/// launched work on it waits for it first, or frees on the stream that does the work.
///
/// Cost: the one indirect call of the handle inside. Thread-safety: as `resource_ref`.

#include <tenure/core/handles.hpp>
#include <tenure/resource/resource_ref.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <new>
#include <type_traits>

namespace tenure {

template <class T>
class stream_allocator {
  public:
    using value_type = T;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;

    /// Effects: borrows. Requires: the resource outlives all copies, and the stream all memory.
    stream_allocator(resource_ref resource, stream_handle stream) noexcept
        : resource_(resource), stream_(stream) {}

    template <class U>
    stream_allocator(const stream_allocator<U>& other) noexcept // NOLINT: allocators convert
        : resource_(other.resource()), stream_(other.stream()) {}

    /// Returns: room for n objects; null for none. Throws: `std::bad_array_new_length`, and as the resource:
    /// `out_of_memory`, which is a `std::bad_alloc`.
    [[nodiscard]] T* allocate(std::size_t n) {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
        return static_cast<T*>(resource_.allocate(stream_, n * sizeof(T), alignment));
    }

    void deallocate(T* pointer, std::size_t n) noexcept {
        resource_.deallocate(stream_, pointer, n * sizeof(T), alignment);
    }

    [[nodiscard]] const resource_ref& resource() const noexcept { return resource_; }
    [[nodiscard]] stream_handle stream() const noexcept { return stream_; }

    template <class U>
    friend bool operator==(const stream_allocator& a, const stream_allocator<U>& b) noexcept {
        return a.resource() == b.resource() && a.stream() == b.stream();
    }

  private:
    static constexpr std::size_t alignment = std::max<std::size_t>(alignof(T), 16);

    resource_ref resource_;
    stream_handle stream_;
};

} // namespace tenure
