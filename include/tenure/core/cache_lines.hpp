#pragma once

/// \file
/// `own_lines`: the alignment, in bytes, of what one thread writes while another uses what lies next to it.
///
///     class alignas(own_lines) meter { ... };         no two meters share a line, wherever they are
///     own_lines_vector<node> nodes_;                  nor do two arrays, whoever owns what lies beside them on the heap
///
/// Two lines, because x86 fetches them in pairs: a neighbour in the other line of a pair is felt, too. Not
/// `std::hardware_destructive_interference_size`, which is 64 there, and may change with the compiler's options, as a class's
/// layout must not.
///
/// Pools use these for most of what an allocation reads and writes, so that a tenant that is busy does not slow down the calls
/// of a quiet one by where its arrays happen to lie. Cost: up to 127 bytes an array, 128 an entry of a map. Thread-safety: the
/// allocator has no state; the containers are the standard's.

#include <tenure/core/bits.hpp>

#include <cstddef>
#include <functional>
#include <limits>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define TENURE_ADDRESS_IS_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TENURE_ADDRESS_IS_SANITIZED
#endif
#endif

namespace tenure {

inline constexpr std::size_t own_lines = 128;

/// Memory by the global aligned `operator new`, from the beginning of a pair of lines to the end of one. Under
/// AddressSanitizer to the end of what was asked for, so that it sees who goes beyond.
template <class T>
struct own_lines_allocator {
    using value_type = T;

    own_lines_allocator() noexcept = default;
    template <class U>
    own_lines_allocator(const own_lines_allocator<U>&) noexcept {}

    /// Throws: `std::bad_alloc`.
    [[nodiscard]] T* allocate(std::size_t n) {
        static_assert(alignof(T) <= own_lines);
        if (n > (std::numeric_limits<std::size_t>::max() - own_lines) / sizeof(T))
            throw std::bad_array_new_length();
#ifdef TENURE_ADDRESS_IS_SANITIZED
        const std::size_t bytes = n * sizeof(T);
#else
        const std::size_t bytes = round_up(n * sizeof(T), own_lines);
#endif
        return static_cast<T*>(::operator new (bytes, std::align_val_t{own_lines}));
    }
    void deallocate(T* p, std::size_t) noexcept {
        ::operator delete (p, std::align_val_t{own_lines});
    }

    template <class U>
    bool operator==(const own_lines_allocator<U>&) const noexcept {
        return true;
    }
};

template <class T>
using own_lines_vector = std::vector<T, own_lines_allocator<T>>;

/// For tables of few entries: each has lines of its own.
template <class Key, class Value, class Hash = std::hash<Key>>
using own_lines_map = std::unordered_map<Key, Value, Hash, std::equal_to<Key>,
                                         own_lines_allocator<std::pair<const Key, Value>>>;

} // namespace tenure
