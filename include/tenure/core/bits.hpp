#pragma once

/// \file
/// Bit arithmetic on sizes and addresses: rounding, logarithms, checked sums.
///
/// Everything here is `constexpr`, `noexcept` and free of state. Sizes are bytes in `std::uint64_t` or
/// `std::size_t`; a *power* argument must be a power of two. Rounding up near the top of the range saturates at the
/// largest multiple instead of wrapping to zero, so that an absurd request stays absurdly large and is refused by
/// whoever checks it next; it never becomes a small one.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tenure {

static_assert(sizeof(std::size_t) == 8, "tenure supports 64-bit platforms only");

/// Returns: whether `n` is a power of two (zero is not).
constexpr bool is_power_of_two(std::uint64_t n) noexcept {
    return n != 0 && (n & (n - 1)) == 0; // without a popcount instruction, has_single_bit is a call
}

/// Requires: `power` is a power of two. Returns: the largest multiple of `power` that is <= n.
constexpr std::uint64_t round_down(std::uint64_t n, std::uint64_t power) noexcept {
    return n & ~(power - 1);
}

/// Requires: `power` is a power of two. Returns: the smallest multiple of `power` that is >= n, or, when that does
/// not fit in 64 bits, the largest multiple that does.
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t power) noexcept {
    const std::uint64_t top = round_down(std::numeric_limits<std::uint64_t>::max(), power);
    return n > top ? top : round_down(n + (power - 1), power);
}

/// Requires: `power` is a power of two. Returns: whether `n` is a multiple of it.
constexpr bool is_aligned(std::uint64_t n, std::uint64_t power) noexcept {
    return (n & (power - 1)) == 0;
}

/// Requires: `n > 0`. Returns: floor(log2(n)).
constexpr unsigned log2_floor(std::uint64_t n) noexcept {
    return 63u - static_cast<unsigned>(std::countl_zero(n));
}

/// Requires: `n > 0`. Returns: ceil(log2(n)).
constexpr unsigned log2_ceil(std::uint64_t n) noexcept {
    return n == 1 ? 0u : log2_floor(n - 1) + 1u;
}

/// Returns: a + b, or the largest value when the sum does not fit.
constexpr std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) noexcept {
    const std::uint64_t sum = a + b;
    return sum < a ? std::numeric_limits<std::uint64_t>::max() : sum;
}

/// Address of a pointer as a number, and back. The only two places where the library converts between them.
inline std::uint64_t to_address(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
}
inline void* to_pointer(std::uint64_t address) noexcept {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

} // namespace tenure
