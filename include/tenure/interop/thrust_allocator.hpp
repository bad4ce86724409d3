#pragma once

/// \file
/// `thrust_allocator<T>`: what `thrust::device_vector` takes, so that its memory is a resource's and its work runs on one
/// stream.
///
///     using vector = thrust::device_vector<int, tenure::thrust_allocator<int>>;
///     vector v(1'000'000, 7, tenure::thrust_allocator<int>(arena, stream));
///
/// A device_vector has no parameter for a stream: it allocates, fills, copies and frees on the default stream. This
/// allocator carries the stream in its *system*, which Thrust asks for all of that, so construction, growth and
/// destruction run on the stream in order. Elements that are assigned one by one from the host (`v[i] = x`) still go
/// through the default stream, and so do `thrust::copy` and the algorithms, unless they are called with a policy of the
/// stream.
///
/// Invariant: as `stream_allocator`, which it wraps. Only where CUDA code is compiled; empty for other compilers, to whom
/// Thrust does not show its systems. Not part of `tenure/interop.hpp`: Thrust is large.
/// Cost: the one indirect call of the handle inside. Thread-safety: as `resource_ref`.

#if defined(__CUDACC__)

#include <tenure/core/handles.hpp>
#include <tenure/interop/stream_allocator.hpp>
#include <tenure/resource/resource_ref.hpp>

#include <thrust/device_ptr.h>
#include <thrust/device_reference.h>
#include <thrust/system/cuda/execution_policy.h>

#include <cstddef>
#include <type_traits>

namespace tenure {

template <class T>
class thrust_allocator {
  public:
    using value_type = T;
    using pointer = thrust::device_ptr<T>;
    using const_pointer = thrust::device_ptr<const T>;
    using reference = thrust::device_reference<T>;
    using const_reference = thrust::device_reference<const T>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    /// What Thrust runs a container's own work with.
    using system_type = decltype(thrust::cuda::par.on(stream_handle{}));

    template <class U>
    struct rebind {
        using other = thrust_allocator<U>;
    };

    /// Effects: borrows. Requires: the resource outlives all copies, and the stream all memory.
    thrust_allocator(resource_ref resource, stream_handle stream) noexcept : memory_(resource, stream) {}

    template <class U>
    thrust_allocator(const thrust_allocator<U>& other) noexcept // NOLINT: allocators convert
        : memory_(other.resource(), other.stream()) {}

    thrust_allocator(const thrust_allocator& other) noexcept : memory_(other.memory_) {}
    thrust_allocator& operator=(const thrust_allocator& other) noexcept {
        memory_ = other.memory_;
        system_ = thrust::cuda::par.on(memory_.stream());
        return *this;
    }

    /// Throws: as `stream_allocator`.
    [[nodiscard]] pointer allocate(std::size_t n) { return pointer(memory_.allocate(n)); }
    void deallocate(pointer p, std::size_t n) noexcept { memory_.deallocate(p.get(), n); }

    [[nodiscard]] system_type& system() noexcept { return system_; }

    [[nodiscard]] const resource_ref& resource() const noexcept { return memory_.resource(); }
    [[nodiscard]] stream_handle stream() const noexcept { return memory_.stream(); }

    friend bool operator==(const thrust_allocator& a, const thrust_allocator& b) noexcept {
        return a.memory_ == b.memory_;
    }
    friend bool operator!=(const thrust_allocator& a, const thrust_allocator& b) noexcept {
        return !(a == b);
    }

  private:
    stream_allocator<T> memory_;
    system_type system_ = thrust::cuda::par.on(memory_.stream());
};

} // namespace tenure

#endif
