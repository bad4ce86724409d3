#pragma once

/// \file
/// `statistics`: a resource that counts what a program asks of another one, by size.
///
///     program  -->  statistics  -->  upstream
///                       |
///                       +-->  report(): blocks, bytes, failures, and blocks and bytes by size class
///
/// Class k counts the requests of more than 2^(k-1) and at most 2^k bytes. What upstream makes of them
/// (rounding, reserved memory) is in its own `usage()`, which passes through.
///
///   1. Sums over the classes equal the totals in every report. Peaks do not add up: classes peak at
///      different times.
///   2. Only what happened is counted: a free of an unknown pointer, or with another size than the block was
///      allocated with, goes to upstream, which reports the misuse, and changes no figure.
///   3. Blocks that were live when the adaptor came are not counted, nor is their free.
///
/// Sizes at free come from an own map of the live blocks: `release` names no size, and a size that a caller
/// gets wrong would spoil the figures for good.
///
/// Cost of a call: a lock and a hash lookup.
///
/// Thread-safety: as thread-safe as upstream; upstream is called without a lock held.

#include <tenure/adapt/live_blocks.hpp>
#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <optional>

namespace tenure {

/// What `statistics` counted. `total_in` of a gauge counts allocations, `total_out` frees.
struct statistics_report {
    struct size_class {
        std::size_t largest = 0; ///< bytes of the largest request that it counts; half of it is too small
        gauge blocks;            ///< number
        gauge bytes;             ///< as requested
    };
    /// One for each power of two up to `max_block_bytes`.
    static constexpr std::size_t classes = log2_floor(max_block_bytes) + 1;

    gauge blocks;              ///< number of live blocks
    gauge requested;           ///< bytes as requested
    std::size_t failures = 0;  ///< number of allocations that upstream refused
    std::size_t uncounted = 0; ///< number of blocks left out because the adaptor lacked host memory
    std::array<size_class, classes> by_size{};
};

template <resource Upstream>
class statistics {
  public:
    using upstream_type = Upstream;

    /// Requires: upstream outlives the adaptor.
    explicit statistics(Upstream& upstream) : upstream_(&upstream) {
        for (std::size_t k = 0; k < statistics_report::classes; ++k)
            counts_.by_size[k].largest = std::size_t{1} << k;
    }

    statistics(const statistics&) = delete;
    statistics& operator=(const statistics&) = delete;

    [[nodiscard]] Upstream& upstream() const noexcept { return *upstream_; }

    /// Returns: all figures, of one moment.
    [[nodiscard]] statistics_report report() const {
        const std::lock_guard lock(mutex_);
        return counts_;
    }

    /// Effects: every peak becomes the current value. Upstream's own peaks stay.
    void reset_peaks() noexcept {
        const std::lock_guard lock(mutex_);
        counts_.blocks.reset_peak();
        counts_.requested.reset_peak();
        for (statistics_report::size_class& c : counts_.by_size) {
            c.blocks.reset_peak();
            c.bytes.reset_peak();
        }
    }

    // ---- the resource concept ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        return counted(bytes, [&] { return upstream_->allocate(stream, bytes, alignment); });
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        const allocate_result r = upstream_->try_allocate(stream, bytes, alignment);
        if (r)
            add(*r, bytes);
        else
            add_failure();
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return counted(bytes, [&] { return upstream_->allocate_sync(bytes, alignment); });
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        subtract(p, bytes);
        upstream_->deallocate(stream, p, bytes, alignment);
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        subtract(p, bytes);
        return upstream_->try_deallocate(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        subtract(p, bytes);
        upstream_->deallocate_sync(p, bytes, alignment);
    }

    void release(void* p) noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (const std::optional<block> b = blocks_.take(p)) count_free(b->bytes);
        }
        upstream_->release(p);
    }

    void record_use(void* p, stream_handle stream) noexcept { upstream_->record_use(p, stream); }
    [[nodiscard]] bool owns(void* p) const noexcept { return upstream_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return upstream_->usage(); }
    std::size_t trim(std::size_t bytes_to_keep) { return upstream_->trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return upstream_->snapshot(); }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        std::size_t live = 0, bytes = 0;
        blocks_.for_each([&](const block& b) {
            ++live;
            bytes += b.bytes;
        });
        if (!blocks_.validate() || live != counts_.blocks.current || bytes != counts_.requested.current)
            return false;
        for (const statistics_report::size_class& c : counts_.by_size) {
            live -= c.blocks.current;
            bytes -= c.bytes.current;
        }
        return live == 0 && bytes == 0 && upstream_->validate();
    }

  private:
    struct block {
        std::size_t bytes = 0;
    };

    template <class Allocate>
    void* counted(std::size_t bytes, Allocate allocate) {
        void* p = nullptr;
        try {
            p = allocate();
        } catch (...) {
            add_failure();
            throw;
        }
        add(p, bytes);
        return p;
    }

    void add_failure() noexcept {
        const std::lock_guard lock(mutex_);
        ++counts_.failures;
    }

    void add(const void* p, std::size_t bytes) noexcept {
        if (p == nullptr) return;
        const std::lock_guard lock(mutex_);
        try {
            if (const std::optional<block> stale = blocks_.insert(p, {bytes})) count_free(stale->bytes);
        } catch (...) {
            ++counts_.uncounted;
            return;
        }
        counts_.blocks.add(1);
        counts_.requested.add(bytes);
        class_of(bytes).blocks.add(1);
        class_of(bytes).bytes.add(bytes);
    }

    void subtract(const void* p, std::size_t bytes) noexcept {
        const std::lock_guard lock(mutex_);
        if (const std::optional<block> b = blocks_.take(p, bytes)) count_free(b->bytes);
    }

    void count_free(std::size_t bytes) noexcept {
        counts_.blocks.subtract(1);
        counts_.requested.subtract(bytes);
        class_of(bytes).blocks.subtract(1);
        class_of(bytes).bytes.subtract(bytes);
    }

    /// Requires: 1 <= bytes.
    statistics_report::size_class& class_of(std::size_t bytes) noexcept {
        return counts_.by_size[std::min<std::size_t>(log2_ceil(bytes), statistics_report::classes - 1)];
    }

    Upstream* upstream_;
    mutable std::mutex mutex_; ///< guards all below
    live_blocks<block> blocks_;
    statistics_report counts_;
};

} // namespace tenure
