#pragma once

/// \file
/// `statistics`: torch's counters of one device, kept so that they equal the sums over a snapshot at every instant.
///
/// Rules, where tenure's memory is not cut the way torch's own is:
///   1. Memory of arenas counts in the large pool, whatever the size of the block: arenas have one pool for all sizes.
///      Memory of private pools counts in the pool of its segment, small or large.
///   2. Ranges of arenas are expandable segments, as snapshots say: like torch's own, they count in `reserved_bytes`,
///      and not in `segment` and `inactive_split`. Segments of private pools count in all three.
///   3. `allocated_bytes` and `active_bytes` count a block as its request rounded up to 512 bytes. What the arena's
///      policy adds to that is reserved and inactive.
///   4. `oversize_*` stay 0: no policy treats blocks by an oversize rule that the statistics could see.
///
/// Complexity: O(1). Thread-safety: externally synchronised, by the heap's mutex.

#include "block.hpp"

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <cstdint>

namespace tenure::torch {

class statistics {
  public:
    using values = c10::CachingDeviceAllocator::DeviceStats;
    using array = c10::CachingAllocator::StatArray;

    /// Which of the two pools something counts in.
    enum class pool : std::size_t { small = 1, large = 2 };

    /// What is reserved, bytes, and how it is cut.
    struct reserve {
        std::size_t small = 0;
        std::size_t large = 0;
    };

    void allocated(pool in, const block& b) noexcept {
        add(all_.allocation, in, 1);
        add(all_.allocated_bytes, in, b.size);
        add(all_.active, in, 1);
        add(all_.active_bytes, in, b.size);
        add(all_.requested_bytes, in, b.requested);
    }
    /// The application has freed it.
    void free_requested(pool in, const block& b) noexcept {
        subtract(all_.allocation, in, 1);
        subtract(all_.allocated_bytes, in, b.size);
    }
    /// Nobody uses it any more.
    void free_completed(pool in, const block& b) noexcept {
        subtract(all_.active, in, 1);
        subtract(all_.active_bytes, in, b.size);
        subtract(all_.requested_bytes, in, b.requested);
    }

    void segment_added(pool in) noexcept { add(all_.segment, in, 1); }
    void segment_removed(pool in) noexcept { subtract(all_.segment, in, 1); }

    void inactive_split_added(pool in, std::size_t bytes) noexcept {
        add(all_.inactive_split, in, 1);
        add(all_.inactive_split_bytes, in, bytes);
    }
    void inactive_split_removed(pool in, std::size_t bytes) noexcept {
        subtract(all_.inactive_split, in, 1);
        subtract(all_.inactive_split_bytes, in, bytes);
    }

    /// What moves from one pool to the other leaves the total as it is; less is counted before more, so that no peak is
    /// of bytes that were in neither or both.
    void set_reserved(const reserve& now) noexcept {
        const auto change = [&](pool p, std::size_t to, bool down) {
            const auto from = static_cast<std::size_t>(all_.reserved_bytes[index(p)].current);
            if (down && to < from) subtract(all_.reserved_bytes, p, from - to);
            if (!down && to > from) add(all_.reserved_bytes, p, to - from);
        };
        for (const bool down : {true, false}) {
            change(pool::small, now.small, down);
            change(pool::large, now.large, down);
        }
    }

    void device_calls(std::uint64_t taken, std::uint64_t given_back) noexcept {
        all_.num_device_alloc = static_cast<std::int64_t>(taken) - forgotten_taken_;
        all_.num_device_free = static_cast<std::int64_t>(given_back) - forgotten_given_back_;
    }
    void retried() noexcept { ++all_.num_alloc_retries; }
    void failed() noexcept { ++all_.num_ooms; }
    void waited() noexcept { ++all_.num_sync_all_streams; }

    [[nodiscard]] std::size_t allocated_bytes() const noexcept { return current(all_.allocated_bytes); }
    [[nodiscard]] std::size_t reserved_bytes() const noexcept { return current(all_.reserved_bytes); }

    [[nodiscard]] const values& read() const noexcept { return all_; }

    void reset_accumulated() noexcept {
        for (array* const a : arrays())
            for (auto& s : *a) s.reset_accumulated();
        forgotten_taken_ += all_.num_device_alloc;
        forgotten_given_back_ += all_.num_device_free;
        all_.num_alloc_retries = all_.num_ooms = all_.num_sync_all_streams = 0;
        all_.num_device_alloc = all_.num_device_free = 0;
        all_.oversize_allocations.reset_accumulated();
        all_.oversize_segments.reset_accumulated();
    }

    void reset_peak() noexcept {
        for (array* const a : arrays())
            for (auto& s : *a) s.reset_peak();
        all_.oversize_allocations.reset_peak();
        all_.oversize_segments.reset_peak();
    }

  private:
    static constexpr std::size_t index(pool p) noexcept { return static_cast<std::size_t>(p); }

    static void add(array& a, pool in, std::size_t n) noexcept {
        a[0].increase(n);
        a[index(in)].increase(n);
    }
    static void subtract(array& a, pool in, std::size_t n) noexcept {
        a[0].decrease(n);
        a[index(in)].decrease(n);
    }
    static std::size_t current(const array& a) noexcept { return static_cast<std::size_t>(a[0].current); }

    std::array<array*, 9> arrays() noexcept {
        return {&all_.allocation,      &all_.segment,        &all_.active,       &all_.inactive_split,
                &all_.allocated_bytes, &all_.reserved_bytes, &all_.active_bytes, &all_.inactive_split_bytes,
                &all_.requested_bytes};
    }

    values all_{};
    std::int64_t forgotten_taken_ = 0; ///< calls before the last reset
    std::int64_t forgotten_given_back_ = 0;
};

} // namespace tenure::torch
