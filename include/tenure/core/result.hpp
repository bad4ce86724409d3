#pragma once

/// \file
/// `result<T, E>`: a value or an error, for paths that must not throw. (What C++23 calls `std::expected`.)
///
/// Either holds a `T` (success) or an `E` (failure), never both or none. Thread-compatible.

#include <type_traits>
#include <utility>
#include <variant>

namespace tenure {

template <class T, class E>
class [[nodiscard]] result {
    static_assert(!std::is_same_v<T, E>, "value and error need different types to be told apart");

  public:
    constexpr result(T value) noexcept(std::is_nothrow_move_constructible_v<T>)
        : state_(std::in_place_index<0>, std::move(value)) {}
    constexpr result(E error) noexcept(std::is_nothrow_move_constructible_v<E>)
        : state_(std::in_place_index<1>, std::move(error)) {}

    [[nodiscard]] constexpr bool has_value() const noexcept { return state_.index() == 0; }
    constexpr explicit operator bool() const noexcept { return has_value(); }

    /// Requires: `has_value()`.
    [[nodiscard]] constexpr T& value() noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] constexpr const T& value() const noexcept { return *std::get_if<0>(&state_); }
    [[nodiscard]] constexpr T& operator*() noexcept { return value(); }
    [[nodiscard]] constexpr const T& operator*() const noexcept { return value(); }
    [[nodiscard]] constexpr T* operator->() noexcept { return &value(); }
    [[nodiscard]] constexpr const T* operator->() const noexcept { return &value(); }

    /// Requires: `!has_value()`.
    [[nodiscard]] constexpr const E& error() const noexcept { return *std::get_if<1>(&state_); }

  private:
    std::variant<T, E> state_;
};

} // namespace tenure
