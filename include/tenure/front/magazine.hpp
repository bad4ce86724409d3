#pragma once

/// \file
/// `magazine`: free blocks of one size, last in first out. `magazine_set`: the magazines of one rack, by size.
///
///     set     [ 12 |  - | 1 | 40960 |  - | ... ]     sizes in granules, at the place their hash names or next to it
///                   magazine: { size, count, [block, block, block, ...] }     256 bytes
///
/// A magazine holds up to 30 blocks; their bytes are bounded by the rack. The number fetched from the pool at once
/// begins at one block and doubles with each miss of the size, up to 15 blocks or 256 KiB: a size that comes once
/// takes nothing more than itself.
///
/// The set grows from 16 to 256 magazines as sizes come; a size that finds no place then takes that of another. Growing
/// is the only thing here that takes host memory, and sizes can go without.
///
/// Complexity: O(1). Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

namespace tenure {

struct alignas(own_lines) magazine {
    static constexpr std::uint32_t most_blocks = 30;
    static constexpr std::uint32_t half = most_blocks / 2;

    std::uint32_t granules = 0; ///< size of each block; 0: not in use
    std::uint32_t count = 0;
    std::uint32_t batch = 0; ///< blocks to fetch at the next miss
    std::array<void*, most_blocks> blocks;

    static constexpr std::uint32_t largest_batch = half;

    /// Effects: an empty magazine for this size.
    void assign(std::uint32_t size) noexcept {
        granules = size;
        count = 0;
        batch = 1;
    }

    /// Effects: the next miss fetches more.
    void raise_batch() noexcept {
        const std::uint32_t most = std::clamp(
            static_cast<std::uint32_t>((256u << 10) / layout::granule) / granules, 1u, largest_batch);
        batch = std::min(2 * batch, most);
    }
};
static_assert(sizeof(magazine) == 256);

class magazine_set {
  public:
    /// Throws: `std::bad_alloc`.
    magazine_set() : magazines_(new magazine[least]), shift_(32 - log2_floor(least)) {}

    /// Where most sizes are that are there at all.
    [[nodiscard]] TENURE_ALWAYS_INLINE magazine& home(std::uint32_t granules) noexcept {
        return magazines_[place(granules)];
    }

    /// Returns: the magazine of this size, or null.
    [[nodiscard]] magazine* find(std::uint32_t granules) noexcept {
        for (std::size_t i = 0; i < window; ++i)
            if (magazine& m = at(place(granules) + i); m.granules == granules) return &m;
        return nullptr;
    }

    /// Effects: finds or makes the magazine of this size. Calls evict(magazine&) for one that has no place any more;
    /// it must be empty afterwards. Returns: the magazine.
    template <class Evict>
    magazine& obtain(std::uint32_t granules, Evict&& evict) noexcept {
        if (magazine* const m = find(granules)) return *m;
        for (;;) {
            for (std::size_t i = 0; i < window; ++i) {
                magazine& m = at(place(granules) + i);
                if (m.granules != 0) continue;
                m.assign(granules);
                return m;
            }
            if (!grow(evict)) break;
        }
        magazine& m = home(granules);
        if (m.count != 0) evict(m);
        m.assign(granules);
        return m;
    }

    template <class F>
    void for_each(F&& f) {
        for (std::size_t i = 0; i < size(); ++i)
            if (magazines_[i].granules != 0) f(magazines_[i]);
    }

  private:
    static constexpr std::size_t least = 16;
    static constexpr std::size_t most = 256;
    static constexpr std::size_t window = 4; ///< places looked at

    [[nodiscard]] std::size_t size() const noexcept { return std::size_t{1} << (32 - shift_); }
    [[nodiscard]] std::size_t place(std::uint32_t granules) const noexcept {
        return static_cast<std::uint32_t>(granules * 0x9e3779b1u) >> shift_; // Fibonacci hashing
    }
    [[nodiscard]] magazine& at(std::size_t i) noexcept { return magazines_[i & (size() - 1)]; }

    /// Returns: whether the set is larger now.
    template <class Evict>
    bool grow(Evict&& evict) noexcept {
        if (size() == most) return false;
        magazine_set larger(new (std::nothrow) magazine[2 * size()], shift_ - 1);
        if (larger.magazines_ == nullptr) return false;
        for_each([&](magazine& m) {
            for (std::size_t i = 0; i < window; ++i) {
                magazine& to = larger.at(larger.place(m.granules) + i);
                if (to.granules != 0) continue;
                to = m;
                return;
            }
            if (m.count != 0) evict(m);
        });
        std::swap(magazines_, larger.magazines_);
        shift_ = larger.shift_;
        return true;
    }

    magazine_set(magazine* magazines, unsigned shift) noexcept : magazines_(magazines), shift_(shift) {}

    std::unique_ptr<magazine[]> magazines_; ///< their number is a power of two
    unsigned shift_;
};

} // namespace tenure
