#pragma once

/// \file
/// `pointer_map`: from the address of a block to a 32-bit number. How a free finds the block it was given.
///
/// A dense table of 12-byte slots, open addressing, linear probing:
///
///     slots   [ a:7 | . | b:2 | c:9 | . | . | d:4 | . ]       home(x) = top bits of mix(x)
///                         ^home(b), home(c)                   a lookup reads from home(x) to the first gap
///
///   1. Between an entry's home and its slot there is no gap. An erase moves later entries back instead of
///      leaving a mark, so lookups never slow down with age.
///   2. At most half of the slots are taken; the table doubles when it would be more. It never shrinks.
///   3. The address 0 marks a gap; it is no key.
///
/// Cost: a hit reads one cache line in most cases. 24 to 48 bytes an entry. Growth is linear, amortised over
/// the inserts that led to it; `reserve` moves it out of the way. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/prefetch.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace tenure {

class pointer_map {
  public:
    using address = std::uint64_t;

    /// Effects: no insert needs memory before there are more than `n` entries. Throws: `std::bad_alloc`,
    /// changing nothing.
    void reserve(std::size_t n) {
        if (2 * n > slots_.size()) rehash(std::bit_ceil(std::max(2 * n, smallest)));
    }

    /// Requires: `key != 0`. Effects: adds the entry, unless there is one for `key`, which then stays as it
    /// is. Returns: whether it was added. Throws: `std::bad_alloc`, changing nothing.
    bool insert(address key, std::uint32_t value) {
        if (2 * (size_ + 1) > slots_.size()) reserve(size_ + 1);
        std::size_t i = home(key);
        for (; slots_[i].key() != 0; i = after(i))
            if (slots_[i].key() == key) return false;
        slots_[i] = slot(key, value);
        ++size_;
        return true;
    }

    /// Returns: the value for `key`, if there is one. Any number may be asked for.
    [[nodiscard]] std::optional<std::uint32_t> find(address key) const noexcept {
        const std::size_t i = slot_of(key);
        return i == nowhere ? std::nullopt : std::optional(slots_[i].value);
    }

    /// Effects: none but that a `find` or `erase` of `key` soon after is faster.
    void prefetch(address key) const noexcept {
        if (!slots_.empty()) tenure::prefetch(&slots_[home(key)]);
    }

    /// Effects: removes the entry for `key`. Returns: its value, if there was one.
    std::optional<std::uint32_t> erase(address key) noexcept {
        const std::size_t found = slot_of(key);
        if (found == nowhere) return std::nullopt;
        const std::uint32_t value = slots_[found].value;
        // Close the gap: each later entry of the run whose home is not behind the gap moves into it.
        std::size_t gap = found;
        for (std::size_t i = after(gap); slots_[i].key() != 0; i = after(i)) {
            if (distance(home(slots_[i].key()), i) < distance(gap, i)) continue;
            slots_[gap] = slots_[i];
            gap = i;
        }
        slots_[gap] = slot();
        --size_;
        return value;
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }

    /// Effects: removes all entries; keeps the memory.
    void clear() noexcept {
        std::fill(slots_.begin(), slots_.end(), slot());
        size_ = 0;
    }

    /// Effects: f(address, value) for each entry, in no particular order; f must not change the map.
    template <class F>
    void for_each(F&& f) const {
        for (const slot& s : slots_)
            if (s.key() != 0) f(s.key(), s.value);
    }

    /// Returns: the number of slots read to find the entry that takes longest. Linear.
    [[nodiscard]] std::size_t longest_probe() const noexcept {
        std::size_t longest = 0;
        for (std::size_t i = 0; i < slots_.size(); ++i)
            if (slots_[i].key() != 0) longest = std::max(longest, distance(home(slots_[i].key()), i) + 1);
        return longest;
    }

    /// Returns: whether every entry is found where it lies, and the counts are right. Linear.
    [[nodiscard]] bool validate() const noexcept {
        std::size_t n = 0;
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            if (slots_[i].key() == 0) continue;
            if (slot_of(slots_[i].key()) != i) return false; // a gap before it, or the same key twice
            ++n;
        }
        return n == size_ && 2 * size_ <= slots_.size() && (slots_.empty() || is_power_of_two(slots_.size()));
    }

  private:
    /// The key in two halves keeps the slot at 12 bytes, so that more of them share a cache line.
    struct slot {
        std::uint32_t low = 0, high = 0, value = 0;

        slot() noexcept = default;
        slot(address key, std::uint32_t v) noexcept
            : low(static_cast<std::uint32_t>(key)), high(static_cast<std::uint32_t>(key >> 32)), value(v) {}
        [[nodiscard]] address key() const noexcept { return address{high} << 32 | low; }
    };
    static_assert(sizeof(slot) == 12);

    static constexpr std::size_t smallest = 64; ///< slots
    static constexpr std::size_t nowhere = ~std::size_t{0};

    /// Fibonacci hashing (Knuth, TAOCP 3, 6.4). Block addresses are multiples of large powers of two; folding
    /// the high part in first keeps such strides from meeting in few slots.
    [[nodiscard]] std::size_t home(address key) const noexcept {
        const std::uint64_t granules = key >> 9;
        return static_cast<std::size_t>(((granules ^ (granules >> 23)) * 0x9e3779b97f4a7c15u) >> shift_);
    }

    [[nodiscard]] std::size_t after(std::size_t i) const noexcept { return (i + 1) & (slots_.size() - 1); }
    [[nodiscard]] std::size_t distance(std::size_t from, std::size_t to) const noexcept {
        return (to - from) & (slots_.size() - 1);
    }

    [[nodiscard]] std::size_t slot_of(address key) const noexcept {
        if (size_ == 0 || key == 0) return nowhere;
        for (std::size_t i = home(key); slots_[i].key() != 0; i = after(i))
            if (slots_[i].key() == key) return i;
        return nowhere;
    }

    void rehash(std::size_t slots) {
        own_lines_vector<slot> larger(slots);
        larger.swap(slots_);
        shift_ = 64 - log2_floor(slots);
        for (const slot& s : larger) {
            if (s.key() == 0) continue;
            std::size_t i = home(s.key());
            while (slots_[i].key() != 0) i = after(i);
            slots_[i] = s;
        }
    }

    own_lines_vector<slot> slots_; ///< their number is 0 or a power of two
    std::size_t size_ = 0;
    unsigned shift_ = 0;
};

} // namespace tenure
