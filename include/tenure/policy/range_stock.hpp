#pragma once

/// \file
/// `range_stock<Device, Layout>`: a layout and the segments under it; how a `range_pool` gets and gives back
/// memory.
///
///     grow             device --segment--> layout, as one free block
///     give back        wholly free ranges: layout --segment--> device
///
/// A stock is what `range_pool` is told to stand on. Any other one has these members, too; `remap_stock` has.
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
#include <tenure/policy/pool_options.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tenure {

/// What a stock is asked for. Bytes.
struct stock_request {
    std::size_t bytes;
    std::size_t alignment;
    std::span<const layout::domain> usable; ///< what the request may take
    layout::domain color;                   ///< of memory that is new
};

/// How much a stock gets: as much as is good for later, or as little as will do; or nothing that makes it hold more than it
/// needs in any case, where it can tell.
enum class stock_amount : std::uint8_t { preferred, least, within_slack };

/// What giving back came to.
struct given_back {
    std::size_t bytes;
    bool waited; ///< the host has waited for all work of the device
};

template <device Device, layout::layout Layout>
class range_stock {
  public:
    using layout_type = Layout;
    using options_type = pool_options;
    static constexpr bool moves_segments = true; ///< see `moves_blocks`

    range_stock(Device& device, const options_type& options) noexcept
        : device_(&device), segments_(device), segment_bytes_(options.segment_bytes) {}

    range_stock(const range_stock&) = delete;
    range_stock& operator=(const range_stock&) = delete;

    [[nodiscard]] Layout& blocks() noexcept { return blocks_; }
    [[nodiscard]] const segments<Device>& backing() const noexcept { return segments_; }

    /// Effects: adds a segment in which the request fits, free with domain `q.color`.
    /// Returns: `ok`, or the device's answer. Throws: `std::bad_alloc`.
    /// Requires: not `within_slack`, which no segment is.
    status grow(const stock_request& q, stock_amount how_much) {
        const layout::range_request least = Layout::range_for(q.bytes, q.alignment, 0);
        layout::range_request wanted =
            how_much == stock_amount::least ? least : Layout::range_for(q.bytes, q.alignment, segment_bytes_);
        status s = buy(wanted, q.color);
        while (lacks_memory(s) && wanted.size > least.size) {
            // near a limit: as large as there is room for
            const layout::range_request half = Layout::range_for(q.bytes, q.alignment, wanted.size / 2);
            wanted = half.size < wanted.size ? half : least;
            s = buy(wanted, q.color);
        }
        return s;
    }

    /// Effects: a segment of another stock of this device is held here, free with domain `d`. Throws: `std::bad_alloc`.
    void adopt(const segment_range& r, const typename segments<Device>::extent& e, layout::domain d) {
        segments_.adopt(r, e);
        try {
            blocks_.add({r.base, r.size}, d);
        } catch (...) {
            segments_.forget(r.base);
            throw;
        }
    }
    /// Requires: the segment at `base` is wholly free. Effects: it is not held here any more; it stays with the device.
    void forget(std::uint64_t base) noexcept {
        blocks_.remove(base);
        segments_.forget(base);
    }

    /// Returns: whether the limit that was met with the answer `s` leaves room for a segment for such a request
    /// once all wholly free ones are gone.
    [[nodiscard]] bool could_grow(std::size_t bytes, std::size_t alignment, status s) const {
        const layout::range_request wanted = Layout::range_for(bytes, alignment, 0);
        allocation_failure limit;
        limit.driver_status = s;
        device_->explain(limit);
        std::size_t free = 0;
        blocks_.for_each_free_range([&](const layout::range& r) { free += segments_.bytes_of(r.base); });
        const std::size_t remaining = limit.used - std::min(limit.used, free);
        return remaining <= limit.max && wanted.size <= limit.max - remaining;
    }

    /// Returns: whether neighbouring free blocks of any domains are together as large as `rounded` bytes at this alignment.
    [[nodiscard]] bool fit_together(std::size_t rounded, std::size_t alignment) const {
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
            if (!b.free)
                begin = end;
            else
                found = found || round_up(begin, alignment) + rounded <= end;
        });
        return found;
    }

    /// Effects: gives the largest wholly free segment back that the device takes; the device waits for all its work.
    /// Returns: whether one went.
    bool make_room() {
        for (const layout::range& r : free_ranges())
            if (give_back(r)) return true;
        return false;
    }

    /// Effects: gives wholly free segments back, the largest first, until at most `bytes_to_keep` bytes are
    /// held. The device waits for all its work then.
    given_back give_back_until(std::size_t bytes_to_keep) {
        const std::size_t before = segments_.bytes();
        segments_.offer_refused();
        for (const layout::range& r : free_ranges()) {
            if (segments_.bytes() <= bytes_to_keep) break;
            if (!give_back(r)) break;
        }
        return {before - segments_.bytes(), before != segments_.bytes()};
    }

  private:
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
    std::size_t segment_bytes_;
};

} // namespace tenure
