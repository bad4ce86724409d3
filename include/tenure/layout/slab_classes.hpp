#pragma once

/// \file
/// `slab_classes`: the slot sizes of `slab`, and which of them a request takes.
///
/// In granules: 1, 2, 3, 4, and from there four sizes for each doubling: 5, 6, 7, 8, 10, 12, 14, 16, 20, ...
/// up to 8 MiB. Requests without a class take a whole range.
///
///   1. A slot is less than 25 % larger than a request of its class rounded up to alignment and granule.
///   2. A slot is a multiple of the alignment: the slot for k * a bytes is as many times a as the slot for
///      k granules has granules.
///
/// All O(1) and constexpr. Sizes in bytes.

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <cstddef>

namespace tenure::layout {

struct slab_classes {
    /// What a device gives is a multiple of it and aligned to it.
    static constexpr std::size_t range_step = 2_MiB;

    /// Above it, rounding up to `range_step` wastes no more than a slot would.
    static constexpr std::size_t largest_slot = 8_MiB;

    static constexpr unsigned count = 4 + 4 * log2_floor(largest_slot / (4 * granule));

    /// In place of a class, for a block that takes a whole range.
    static constexpr unsigned none = count;

    /// Requires: `a` is a power of two.
    [[nodiscard]] static constexpr unsigned class_for(std::size_t n, std::size_t a) noexcept {
        if (n > largest_slot || a > range_step) return none;
        const std::size_t bytes = round_up(std::max<std::size_t>(n, 1), std::max(a, granule));
        const std::size_t granules = bytes / granule;
        if (granules <= 4) return static_cast<unsigned>(granules) - 1;
        const unsigned doubling = log2_floor(granules - 1) - 2;
        return 4 * doubling + static_cast<unsigned>((granules - 1) >> doubling);
    }

    /// Requires: `c < count`.
    [[nodiscard]] static constexpr std::size_t slot_bytes(unsigned c) noexcept {
        if (c < 4) return (c + 1) * granule;
        const unsigned doubling = c / 4 - 1;
        return ((c - 4 * doubling + 1) * granule) << doubling;
    }

    /// Returns: what a range for slots of this size should have: room for 8 of them, or, so that a range does
    /// not strand too much, for as many as 16 MiB hold; in multiples of `range_step`.
    [[nodiscard]] static constexpr std::size_t range_bytes(std::size_t slot) noexcept {
        return round_up(std::min<std::size_t>(8, 16_MiB / slot) * slot, range_step);
    }
};

static_assert(slab_classes::slot_bytes(slab_classes::count - 1) == slab_classes::largest_slot);

} // namespace tenure::layout
