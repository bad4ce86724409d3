#pragma once

/// \file
/// `any_resource`: any resource, shared. The resource lives until the last handle to it is gone.
///
///     any_resource = [ object | owner | operations ]      three words
///                        |        `-> count shared by all copies, as in `std::shared_ptr`; null if borrowed
///                        `-> the resource, made in place or shared with a `std::shared_ptr` of the caller
///
/// Invariants:
///   1. Never empty, a moved-from handle included: moving copies. So no call can meet a null.
///   2. Copies refer to the same resource; they are equal, memory from one may be given back through any.
///   3. At most 24 bytes and nothrow to move: it fits the inline storage of other libraries' erased types.
///
/// Cost: one indirect call on top of the resource's own; a copy is one atomic increment, none if borrowed.
///
/// Thread-safety: the handle is thread-compatible, like `std::shared_ptr`: each thread has its own copy.
/// Calls are as thread-safe as the resource. The thread that drops the last handle destroys the resource.

#include <tenure/resource/resource_ref.hpp>

#include <memory>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace tenure {

class any_resource : public detail::erased_resource<any_resource> {
  public:
    /// Effects: makes an `R` from `arguments` in place, next to its reference count; `R` need not be movable.
    /// Throws: what the constructor throws, `std::bad_alloc`.
    template <resource R, class... Arguments>
    explicit any_resource(std::in_place_type_t<R>, Arguments&&... arguments)
        : any_resource(std::make_shared<R>(std::forward<Arguments>(arguments)...)) {}

    /// Effects: shares `owner`'s resource. Throws: `std::invalid_argument` if there is none.
    template <class R>
        requires(!detail::erased_handle<R> && resource<R>)
    explicit any_resource(std::shared_ptr<R> owner)
        : object_(not_null(std::move(owner))), operations_(&detail::operations_of<R>) {}

    /// Returns: a handle that owns nothing, for interfaces that ask for an `any_resource`.
    /// Requires: the resource outlives all its copies.
    [[nodiscard]] static any_resource borrow(resource_ref r) noexcept {
        return any_resource(std::shared_ptr<void>(std::shared_ptr<void>{}, r.object()), r.operations());
    }

    any_resource(const any_resource&) noexcept = default; // and no move: see invariant 1
    any_resource& operator=(const any_resource&) noexcept = default;
    ~any_resource() = default;

    /// Returns: a reference to the resource itself, which does not keep it alive.
    operator resource_ref() const noexcept { return {object_.get(), *operations_}; }

    /// Returns: whether the other refers to the same resource, however it is held.
    friend bool operator==(const any_resource& a, const any_resource& b) noexcept {
        return resource_ref(a) == resource_ref(b);
    }

  private:
    friend detail::erased_resource<any_resource>;

    any_resource(std::shared_ptr<void> object, const detail::resource_operations& operations) noexcept
        : object_(std::move(object)), operations_(&operations) {}

    template <class R>
    static std::shared_ptr<R> not_null(std::shared_ptr<R> owner) {
        if (owner == nullptr) throw std::invalid_argument("any_resource: made from a null std::shared_ptr");
        return owner;
    }
    [[nodiscard]] void* object() const noexcept { return object_.get(); }
    [[nodiscard]] const detail::resource_operations& operations() const noexcept { return *operations_; }

    std::shared_ptr<void> object_;
    const detail::resource_operations* operations_;
};

/// Returns: a handle to a new `R` made from `arguments`.
template <resource R, class... Arguments>
[[nodiscard]] any_resource make_any_resource(Arguments&&... arguments) {
    return any_resource(std::in_place_type<R>, std::forward<Arguments>(arguments)...);
}

static_assert(resource<any_resource>);
static_assert(sizeof(any_resource) <= 3 * sizeof(void*));
static_assert(std::is_nothrow_move_constructible_v<any_resource> &&
              std::is_nothrow_copy_constructible_v<any_resource>);

} // namespace tenure
