#pragma once

/// \file
/// `size_classes`: the two-level classification of block sizes, and `class_index`: what is found under each
/// class.
///
/// Sizes are counted in granules here. A power of two makes a row of 32 classes of equal width; below 64
/// granules (32 KiB) every size has a class of its own:
///
///     row 0   [1] [2] [3] ...                       [31]      exact
///     row 1   [32] [33] ...                         [63]      exact
///     row 2   [64 65] [66 67] ...              [126 127]      width 2
///     row r   32 classes from 2^(r+4), each 2^(r-1) wide      a class spans at most 1/32 of its sizes
///
/// Two levels of bits say which classes are not empty, so that the next one is found by two bit scans (the
/// scheme of TLSF: Masmano, Ripoll, Crespo, Real, 2004).
///
/// Cost: all O(1). A `class_index` takes 9.4 KB. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tenure::layout {

/// Sizes of 1 to 2^39 granules in classes numbered from 0, ascending.
struct size_classes {
    static constexpr unsigned columns = 32;
    static constexpr unsigned column_bits = 5;
    static constexpr unsigned rows = log2_floor(space_end / granule) - column_bits + 2;
    static constexpr unsigned count = rows * columns;

    /// Requires: `1 <= granules <= space_end / granule`. Returns: the class that holds blocks of this size.
    [[nodiscard]] static constexpr unsigned of(std::uint64_t granules) noexcept {
        const unsigned power = log2_floor(granules | 1);
        if (power < column_bits) return static_cast<unsigned>(granules);
        const unsigned row = power - column_bits + 1;
        return row * columns + static_cast<unsigned>(granules >> (row - 1)) - columns;
    }

    /// Returns: the smallest size in class c, in granules.
    [[nodiscard]] static constexpr std::uint64_t floor(unsigned c) noexcept {
        const unsigned row = c / columns;
        return row == 0 ? c : std::uint64_t{columns + c % columns} << (row - 1);
    }

    /// Returns: the first class all of whose blocks are at least that large; it may be `count`, which has
    /// none.
    [[nodiscard]] static constexpr unsigned not_below(std::uint64_t granules) noexcept {
        if (granules > floor(count - 1)) return count;
        const unsigned c = of(granules);
        return floor(c) == granules ? c : c + 1;
    }
};

/// One domain's lists of free blocks, by class. Knows the lists' heads only; the links are in the blocks.
class alignas(own_lines) class_index {
  public:
    struct bin {
        node_index head = no_node;
        std::uint32_t excess = 0; ///< how far sizes here may exceed the class's floor; see `ceiling`
    };

    [[nodiscard]] const bin& operator[](unsigned c) const noexcept { return bins_[c]; }
    [[nodiscard]] node_index head(unsigned c) const noexcept { return bins_[c].head; }

    /// Effects: the list of class c now begins with n; `no_node`: it is empty.
    void set_head(unsigned c, node_index n) noexcept {
        const unsigned row = c / size_classes::columns;
        const std::uint32_t column = std::uint32_t{1} << c % size_classes::columns;
        bins_[c].head = n;
        if (n != no_node) {
            columns_[row] |= column;
            rows_ |= std::uint64_t{1} << row;
        } else if ((columns_[row] &= ~column) == 0) {
            rows_ &= ~(std::uint64_t{1} << row);
        }
    }

    /// Returns: the first class from c on that is not empty, or `size_classes::count`.
    [[nodiscard]] unsigned first_from(unsigned c) const noexcept {
        if (c >= size_classes::count) return size_classes::count;
        unsigned row = c / size_classes::columns;
        std::uint32_t bits = columns_[row] >> c % size_classes::columns;
        if (bits != 0) return c + static_cast<unsigned>(std::countr_zero(bits));
        const std::uint64_t above = rows_ >> (row + 1);
        if (above == 0) return size_classes::count;
        row += 1 + static_cast<unsigned>(std::countr_zero(above));
        return row * size_classes::columns + static_cast<unsigned>(std::countr_zero(columns_[row]));
    }

    /// Returns: the highest class that is not empty, or `size_classes::count`.
    [[nodiscard]] unsigned last() const noexcept {
        if (rows_ == 0) return size_classes::count;
        const unsigned row = log2_floor(rows_);
        return row * size_classes::columns + log2_floor(columns_[row]);
    }

    /// Returns: a size in granules that no block of class c exceeds. Rises with each block that comes, stays
    /// when one goes; whoever has looked at all of them lowers it.
    [[nodiscard]] std::uint64_t ceiling(unsigned c) const noexcept {
        const std::uint32_t excess = bins_[c].excess;
        return excess == unknown ? std::numeric_limits<std::uint64_t>::max()
                                 : size_classes::floor(c) + excess;
    }
    void raise_ceiling(unsigned c, std::uint64_t granules) noexcept {
        bins_[c].excess = std::max(bins_[c].excess, excess_of(c, granules));
    }
    void set_ceiling(unsigned c, std::uint64_t granules) noexcept {
        bins_[c].excess = excess_of(c, granules);
    }

    [[nodiscard]] bool empty() const noexcept { return rows_ == 0; }

    /// Returns: whether the bits say what the heads say.
    [[nodiscard]] bool validate() const noexcept {
        for (unsigned c = 0; c < size_classes::count; ++c) {
            const unsigned row = c / size_classes::columns;
            const bool bit = columns_[row] >> c % size_classes::columns & 1;
            if (bit != (bins_[c].head != no_node)) return false;
            if ((rows_ >> row & 1) != (columns_[row] != 0)) return false;
        }
        return true;
    }

  private:
    static constexpr std::uint32_t unknown = std::numeric_limits<std::uint32_t>::max();

    static std::uint32_t excess_of(unsigned c, std::uint64_t granules) noexcept {
        return static_cast<std::uint32_t>(
            std::min<std::uint64_t>(granules - size_classes::floor(c), unknown));
    }

    std::uint64_t rows_ = 0;
    std::array<std::uint32_t, size_classes::rows> columns_{};
    std::array<bin, size_classes::count> bins_{};
};

} // namespace tenure::layout
