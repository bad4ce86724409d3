#pragma once

/// \file
/// `resource_ref`: any resource, borrowed. What a function takes when it does not want to be a template.
///
///     resource_ref = [ object | operations ]          two pointers, passed in registers
///                        |          `-> one static table of function pointers per resource type
///                        `-> a pool, an arena, an adaptor; owned by somebody else
///
/// Invariants:
///   1. Never empty: it is made from a resource; assignment makes it refer to another one.
///   2. Two are equal exactly when they refer to the same object through the same type. Memory from one may
///      be given back through an equal one.
///   3. There is no reference to a reference: one made from a `resource_ref` is a copy, one made from an
///      `any_resource` refers to the object inside.
///
/// Cost: one indirect call on top of the resource's own; copies are two words and trivial.
///
/// Thread-safety: the handle is thread-compatible; calls through it are as thread-safe as the resource, so
/// *thread-safe* for every pool, arena and adaptor of this library. The resource must outlive the reference.

#include <tenure/core/handles.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/resource/usage.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>

namespace tenure {

namespace detail {

/// The members of `tenure::resource`, as functions of an erased object.
struct resource_operations {
    void* (*allocate)(void*, stream_handle, std::size_t, std::size_t);
    allocate_result (*try_allocate)(void*, stream_handle, std::size_t, std::size_t) noexcept;
    void* (*allocate_sync)(void*, std::size_t, std::size_t);
    void (*deallocate)(void*, stream_handle, void*, std::size_t, std::size_t) noexcept;
    deallocate_result (*try_deallocate)(void*, stream_handle, void*, std::size_t, std::size_t) noexcept;
    void (*deallocate_sync)(void*, void*, std::size_t, std::size_t) noexcept;
    void (*release)(void*, void*) noexcept;
    void (*record_use)(void*, void*, stream_handle) noexcept;
    bool (*owns)(const void*, void*) noexcept;
    usage_counters (*usage)(const void*);
    std::size_t (*trim)(void*, std::size_t);
    memory_snapshot (*snapshot)(const void*);
    bool (*validate)(const void*) noexcept;
};

/// The table of one resource type. Its address is part of a handle's identity.
template <resource R>
inline constexpr resource_operations operations_of{
    [](void* r, stream_handle s, std::size_t n, std::size_t a) {
        return static_cast<R*>(r)->allocate(s, n, a);
    },
    [](void* r, stream_handle s, std::size_t n, std::size_t a) noexcept {
        return static_cast<R*>(r)->try_allocate(s, n, a);
    },
    [](void* r, std::size_t n, std::size_t a) { return static_cast<R*>(r)->allocate_sync(n, a); },
    [](void* r, stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        static_cast<R*>(r)->deallocate(s, p, n, a);
    },
    [](void* r, stream_handle s, void* p, std::size_t n, std::size_t a) noexcept {
        return static_cast<R*>(r)->try_deallocate(s, p, n, a);
    },
    [](void* r, void* p, std::size_t n, std::size_t a) noexcept {
        static_cast<R*>(r)->deallocate_sync(p, n, a);
    },
    [](void* r, void* p) noexcept { static_cast<R*>(r)->release(p); },
    [](void* r, void* p, stream_handle s) noexcept { static_cast<R*>(r)->record_use(p, s); },
    [](const void* r, void* p) noexcept { return static_cast<const R*>(r)->owns(p); },
    [](const void* r) { return static_cast<const R*>(r)->usage(); },
    [](void* r, std::size_t keep) { return static_cast<R*>(r)->trim(keep); },
    [](const void* r) { return static_cast<const R*>(r)->snapshot(); },
    [](const void* r) noexcept { return static_cast<const R*>(r)->validate(); },
};

/// The resource interface over an erased object, once for all handles. `Handle` provides `object()` and
/// `operations()`. Every member is const: a handle points to a resource, it is not one.
template <class Handle>
class erased_resource {
  public:
    /// See `tenure::resource` for what each of these does.
    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) const {
        return table().allocate(object(), stream, bytes, alignment);
    }
    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) const noexcept {
        return table().try_allocate(object(), stream, bytes, alignment);
    }
    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) const {
        return table().allocate_sync(object(), bytes, alignment);
    }
    void deallocate(stream_handle stream, void* pointer, std::size_t bytes,
                    std::size_t alignment = default_alignment) const noexcept {
        table().deallocate(object(), stream, pointer, bytes, alignment);
    }
    deallocate_result try_deallocate(stream_handle stream, void* pointer, std::size_t bytes,
                                     std::size_t alignment = default_alignment) const noexcept {
        return table().try_deallocate(object(), stream, pointer, bytes, alignment);
    }
    void deallocate_sync(void* pointer, std::size_t bytes,
                         std::size_t alignment = default_alignment) const noexcept {
        table().deallocate_sync(object(), pointer, bytes, alignment);
    }
    void release(void* pointer) const noexcept { table().release(object(), pointer); }
    void record_use(void* pointer, stream_handle stream) const noexcept {
        table().record_use(object(), pointer, stream);
    }
    [[nodiscard]] bool owns(void* pointer) const noexcept { return table().owns(object(), pointer); }
    [[nodiscard]] usage_counters usage() const { return table().usage(object()); }
    std::size_t trim(std::size_t bytes_to_keep) const { return table().trim(object(), bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return table().snapshot(object()); }
    [[nodiscard]] bool validate() const noexcept { return table().validate(object()); }

  private:
    friend Handle;
    erased_resource() noexcept = default;

    [[nodiscard]] void* object() const noexcept { return static_cast<const Handle*>(this)->object(); }
    [[nodiscard]] const resource_operations& table() const noexcept {
        return static_cast<const Handle*>(this)->operations();
    }
};

/// Whether `T` is itself a type-erased handle, which must be unwrapped rather than referred to.
template <class T>
concept erased_handle = std::is_base_of_v<erased_resource<std::remove_cv_t<T>>, std::remove_cv_t<T>>;

} // namespace detail

class any_resource;

class resource_ref : public detail::erased_resource<resource_ref> {
  public:
    /// Requires: `r` outlives the reference.
    template <class R>
        requires(!detail::erased_handle<R> && resource<R>)
    resource_ref(R& r)
    noexcept : object_(std::addressof(r)), operations_(&detail::operations_of<R>) {}

    friend bool operator==(const resource_ref& a, const resource_ref& b) noexcept {
        return a.object_ == b.object_ && a.operations_ == b.operations_;
    }

  private:
    friend detail::erased_resource<resource_ref>;
    friend class any_resource;

    resource_ref(void* object, const detail::resource_operations& operations) noexcept
        : object_(object), operations_(&operations) {}
    [[nodiscard]] void* object() const noexcept { return object_; }
    [[nodiscard]] const detail::resource_operations& operations() const noexcept { return *operations_; }

    void* object_;
    const detail::resource_operations* operations_;
};

static_assert(resource<resource_ref>);
static_assert(sizeof(resource_ref) == 2 * sizeof(void*));
static_assert(std::is_trivially_copyable_v<resource_ref>);

} // namespace tenure
