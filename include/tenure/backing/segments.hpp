#pragma once

/// \file
/// `segments`: ranges of device memory bought with `device.allocate` (on a GPU: `cudaMalloc`), and given back whole.
///
/// Model: a sorted list of segments. Each stands for one live allocation of the device; the usable part of it (the
/// *range*) begins at the alignment asked for, which nearly always is where the allocation begins.
///
///     allocation   |--pad--|------------- range -------------|
///                          ^ base, aligned                   ^ base + size
///
/// Invariants:
///   1. Every range lies inside exactly one live allocation of the device, and no two overlap. A device that hands
///      out memory which is live already is caught here: the memory is not used and the call fails.
///   2. Sizes are multiples of the device's granularity: what is counted is what the device really takes.
///   3. A segment leaves the list only after the device took it back. A refused free changes nothing;
///      where nobody has a use for the segment, the device is asked again at the next occasion.
///
/// Complexity: `acquire` and `give_back` cost a driver call (tens of microseconds) and a move of at most n small
/// entries; `find` is O(log n). Thread-safety: thread-compatible.

#include <tenure/core.hpp>
#include <tenure/device/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tenure {

/// A range held from the device, bytes.
struct segment_range {
    std::uint64_t base = 0;
    std::size_t size = 0;
};

template <device Device>
class segments {
  public:
    explicit segments(Device& device) noexcept : device_(&device) {}

    segments(const segments&) = delete;
    segments& operator=(const segments&) = delete;

    /// Gives everything back. A device that refuses twice keeps the memory; this is reported as misuse of kind
    /// `driver`, unless the device is beyond reach, when the memory is going anyway.
    ~segments() {
        for (const entry& e : entries_) {
            status s = device_->deallocate(to_pointer(e.allocation), e.allocated);
            if (s != status::ok && !beyond_reach(s))
                s = device_->deallocate(to_pointer(e.allocation), e.allocated);
            if (s != status::ok && !beyond_reach(s))
                report_misuse({.kind = misuse_kind::driver,
                               .pointer = to_pointer(e.allocation),
                               .bytes = e.allocated,
                               .driver_status = s});
        }
    }

    /// Effects: buys a range of at least `bytes` bytes whose base is a multiple of `alignment` (a power of two).
    /// Returns: the range, or the device's answer; then nothing has changed.
    /// Throws: `std::bad_alloc` when host memory is missing; then nothing has changed.
    result<segment_range, status> acquire(std::size_t bytes, std::size_t alignment) {
        entries_.reserve(entries_.size() + 1);
        offer_refused();
        const std::size_t granularity = device_->allocation_granularity();
        const std::size_t size = round_up(bytes, granularity);
        result<void*, status> got = device_->allocate(size);
        if (!got) return got.error();
        std::size_t allocated = size;
        if (!is_aligned(to_address(*got), alignment)) {
            // The device aligns less than asked. Buy enough to choose an aligned base inside.
            if (const status s = device_->deallocate(*got, size); s != status::ok) {
                insert({to_address(*got), size, to_address(*got), size, true}); // still ours: account for it
                ++refused_;
                return s;
            }
            allocated = round_up(saturating_add(size, alignment), granularity);
            got = device_->allocate(allocated);
            if (!got) return got.error();
        }
        const std::uint64_t allocation = to_address(*got);
        const entry bought{round_up(allocation, alignment), size, allocation, allocated, false};
        if (overlaps(bought)) return status::failed; // not ours to give back: somebody's live memory
        insert(bought);
        return segment_range{bought.base, bought.size};
    }

    /// Requires: a segment starts at `base`, and nobody uses it. Effects: gives it back to the device.
    /// Returns: `ok`, or the device's answer; then the segment is kept.
    status give_back(std::uint64_t base) noexcept {
        const auto it = at_or_before(base);
        const status s = device_->deallocate(to_pointer(it->allocation), it->allocated);
        if (s != status::ok) return s;
        bytes_ -= it->allocated;
        entries_.erase(it);
        return status::ok;
    }

    /// Effects: the same for a range that nobody will ever use: when the device refuses, it is offered again
    /// by `acquire` and `offer_refused`.
    void discard(std::uint64_t base) noexcept {
        if (give_back(base) == status::ok) return;
        at(base)->refused = true;
        ++refused_;
    }

    /// Effects: offers the device what nobody uses and it has refused to take back.
    void offer_refused() noexcept {
        if (refused_ == 0) return;
        const auto gone = [this](const entry& e) {
            if (!e.refused || device_->deallocate(to_pointer(e.allocation), e.allocated) != status::ok)
                return false;
            bytes_ -= e.allocated;
            --refused_;
            return true;
        };
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), gone), entries_.end());
    }

    /// What a segment takes from the device, which need not begin where its range does.
    struct extent {
        std::uint64_t allocation = 0;
        std::size_t allocated = 0; ///< bytes
    };
    /// Requires: a segment starts at `base`.
    [[nodiscard]] extent extent_of(std::uint64_t base) const noexcept {
        const auto it = at_or_before(base);
        return {it->allocation, it->allocated};
    }
    /// Effects: a segment that other `segments` of this device have bought is held here. Throws: `std::bad_alloc`, changing
    /// nothing.
    void adopt(const segment_range& r, const extent& e) {
        entries_.reserve(entries_.size() + 1);
        insert({r.base, r.size, e.allocation, e.allocated, false});
    }
    /// Requires: a segment starts at `base`. Effects: it is not held here any more; it stays with the device.
    void forget(std::uint64_t base) noexcept {
        const auto it = at(base);
        bytes_ -= it->allocated;
        entries_.erase(it);
    }

    /// Returns: the range that contains `address`, or one of size 0.
    [[nodiscard]] segment_range find(std::uint64_t address) const noexcept {
        const auto it = at_or_before(address);
        if (it == entries_.end() || address < it->base || address - it->base >= it->size) return {};
        return {it->base, it->size};
    }

    /// Returns: bytes held from the device.
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// Returns: bytes that the segment which starts at `base` takes from the device.
    [[nodiscard]] std::size_t bytes_of(std::uint64_t base) const noexcept {
        return at_or_before(base)->allocated;
    }
    /// Returns: number of segments.
    [[nodiscard]] std::size_t count() const noexcept { return entries_.size(); }

    /// Calls f(segment_range) in address order.
    template <class F>
    void for_each(F&& f) const {
        for (const entry& e : entries_) f(segment_range{e.base, e.size});
    }

  private:
    struct entry {
        std::uint64_t base;
        std::size_t size;
        std::uint64_t allocation; ///< what the device returned
        std::size_t allocated;    ///< what the device was asked for
        bool refused;             ///< nobody's range, but the device did not take it back
    };

    auto at(std::uint64_t base) noexcept {
        return std::find_if(entries_.begin(), entries_.end(),
                            [base](const entry& e) { return e.base == base; });
    }

    auto at_or_before(std::uint64_t address) const noexcept {
        auto it = std::upper_bound(entries_.begin(), entries_.end(), address,
                                   [](std::uint64_t a, const entry& e) { return a < e.base; });
        return it == entries_.begin() ? entries_.end() : it - 1;
    }

    bool overlaps(const entry& e) const noexcept {
        const auto next = std::upper_bound(entries_.begin(), entries_.end(), e.allocation,
                                           [](std::uint64_t a, const entry& x) { return a < x.allocation; });
        if (next != entries_.end() && next->allocation < e.allocation + e.allocated) return true;
        return next != entries_.begin() && (next - 1)->allocation + (next - 1)->allocated > e.allocation;
    }

    void insert(const entry& e) noexcept { // capacity was reserved
        entries_.insert(std::upper_bound(entries_.begin(), entries_.end(), e.base,
                                         [](std::uint64_t a, const entry& x) { return a < x.base; }),
                        e);
        bytes_ += e.allocated;
    }

    Device* device_;
    own_lines_vector<entry> entries_; ///< by address
    std::size_t bytes_ = 0;
    std::size_t refused_ = 0; ///< number of entries that are
};

} // namespace tenure
