#pragma once

/// \file
/// `range_stock<Device, Layout>`: a layout and the segments under it; how a `range_pool` gets and gives back
/// memory.
///
///     buy(size)        device --segment--> layout, as one settled free block
///     give back        wholly free ranges: layout --segment--> device
///
/// Invariants:
///   1. Every range of the layout is a segment. The only segments that are no range are those that the
///      device refused to take back after a failure; it is asked again at the next purchase or `give_back_until`.
///   2. A failed call changes nothing else.
///
/// Complexity: that of the driver call. `fit_together` is linear in the blocks, giving back in the ranges.
/// Thread-safety: thread-compatible.

#include <tenure/backing.hpp>
#include <tenure/core.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tenure {

template <device Device, layout::layout Layout>
class range_stock {
  public:
    explicit range_stock(Device& device) noexcept : device_(&device), segments_(device) {}

    range_stock(const range_stock&) = delete;
    range_stock& operator=(const range_stock&) = delete;

    [[nodiscard]] Layout& blocks() noexcept { return blocks_; }
    [[nodiscard]] const segments<Device>& backing() const noexcept { return segments_; }

    /// Effects: adds a segment, free with domain `color`. Returns: `ok`, or the device's answer. Throws:
    /// `std::bad_alloc`.
    status buy(const layout::range_request& wanted, layout::domain color) {
        if (wanted.size > max_block_bytes) return status::out_of_memory;
        const result<segment_range, status> got =
            segments_.acquire(wanted.size, std::max<std::size_t>(wanted.alignment, layout::granule));
        if (!got) return got.error();
        try {
            blocks_.add({got->base, got->size}, color);
        } catch (...) {
            segments_.discard(got->base);
            throw;
        }
        return status::ok;
    }

    /// Returns: whether the limit that was met with the answer `s` leaves room for such a segment once all
    /// wholly free ones are gone.
    [[nodiscard]] bool could_buy(const layout::range_request& wanted, status s) const {
        allocation_failure limit;
        limit.driver_status = s;
        device_->explain(limit);
        std::size_t free = 0;
        blocks_.for_each_free_range([&](const layout::range& r) { free += segments_.bytes_of(r.base); });
        const std::size_t remaining = limit.used - std::min(limit.used, free);
        return remaining <= limit.max && wanted.size <= limit.max - remaining;
    }

    /// Returns: whether neighbouring free blocks, all of domains for which is_usable(domain), are together as
    /// large as `rounded` bytes at this alignment.
    template <class IsUsable>
    [[nodiscard]] bool fit_together(std::size_t rounded, std::size_t alignment, IsUsable is_usable) const {
        if (blocks_.free_bytes() < rounded) return false;
        bool found = false;
        std::uint64_t begin = 0; // of the free neighbours that end before this block
        std::uint64_t end_of_segment = 0;
        blocks_.for_each_block([&](const layout::block_view& b) {
            if (b.offset >= end_of_segment) {
                begin = b.offset;
                const segment_range segment = segments_.find(b.offset);
                end_of_segment = segment.base + segment.size;
            }
            const std::uint64_t end = b.offset + b.size;
            if (!b.free || !is_usable(b.color))
                begin = end;
            else
                found = found || round_up(begin, alignment) + rounded <= end;
        });
        return found;
    }

    /// Effects: gives the largest wholly free segment back that the device takes. Returns: whether one went.
    bool give_back_largest() {
        for (const layout::range& r : free_ranges())
            if (give_back(r)) return true;
        return false;
    }

    /// Effects: gives wholly free segments back, the largest first, until at most `bytes_to_keep` bytes are
    /// held. Returns: the bytes given back.
    std::size_t give_back_until(std::size_t bytes_to_keep) {
        const std::size_t before = segments_.bytes();
        segments_.offer_refused();
        for (const layout::range& r : free_ranges()) {
            if (segments_.bytes() <= bytes_to_keep) break;
            if (!give_back(r)) break;
        }
        return before - segments_.bytes();
    }

  private:
    /// Largest first.
    [[nodiscard]] std::vector<layout::range> free_ranges() const {
        std::vector<layout::range> free;
        blocks_.for_each_free_range([&](const layout::range& r) { free.push_back(r); });
        std::sort(free.begin(), free.end(), [](const auto& a, const auto& b) { return a.size > b.size; });
        return free;
    }

    bool give_back(const layout::range& r) noexcept {
        if (segments_.give_back(r.base) != status::ok) return false;
        blocks_.remove(r.base);
        return true;
    }

    Device* device_;
    segments<Device> segments_;
    Layout blocks_;
};

} // namespace tenure
