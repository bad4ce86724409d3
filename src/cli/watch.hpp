#pragma once

/// \file
/// Who looks over a replay's shoulder. `play` calls these hooks; `unwatched` makes them vanish.
///
/// | hook | when |
/// |---|---|
/// | `refused(index, failure)` | event `index` got no memory |
/// | `allocated(id, p, bytes, s)` | p was handed out on stream s for the block `id` of the trace |
/// | `used(id, p, s)` | stream s uses p, too |
/// | `freed(id, p, s)` | the policy is about to get p back; the last use of p is ordered before the end of s |
/// | `freed_sync(p)` | the same, from a host that has waited for all work |
/// | `half_way()` | half of the events are carried out |
/// | `carried_out(index, t_us)` | event `index` is carried out |
/// | `ended(p, bytes)` | p may be handed out again from now on; its free may have been long before |
///
/// `watches`: frees are to be checked. `looks`: it reads and writes the blocks, so a use on another stream is to be
/// ordered behind the block's own stream, and blocks that are left at the end are used once more.
///
/// Thread-compatible.

#include "replay_result.hpp"
#include "sim_world.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace tenure::cli {

/// For timing.
struct unwatched {
    static constexpr bool watches = false;
    static constexpr bool looks = false;
    void refused(std::size_t, const allocation_failure&) noexcept {}
    void allocated(std::uint32_t, void*, std::uint64_t, stream_handle) noexcept {}
    void used(std::uint32_t, const void*, stream_handle) noexcept {}
    void freed(std::uint32_t, const void*, stream_handle) noexcept {}
    void freed_sync(const void*) noexcept {}
    void ended(const void*, std::uint64_t) noexcept {}
    void half_way() noexcept {}
    void carried_out(std::uint64_t, std::uint64_t) noexcept {}
};

/// Pictures what lay where at the peak of a footprint, in a pass of its own: only the one before knows when that was.
class onlooker : public unwatched {
  public:
    static constexpr bool watches = true; ///< so that the clock runs

    explicit onlooker(footprint& course) : course_(&course) {}

    /// Requires: both live until the pass has ended.
    template <class Device, class Pools>
    void look_at(Device& device, const Pools& pools) {
        look_ = [this, &device, &pools] {
            for (const auto& pool : pools) course_->at_peak.add(pool->snapshot());
            course_->peak_reserved = device.reserved();
            course_->at_peak.finish(course_->peak_reserved);
            course_->pictured = true;
        };
    }

    void carried_out(std::uint64_t index, std::uint64_t) {
        if (index == course_->peak_event) look_();
    }

  private:
    footprint* course_;
    std::function<void()> look_;
};

/// Counts what a replay asks for and is refused.
class tally {
  public:
    static constexpr bool watches = true;
    static constexpr bool looks = false;

    void refused(std::size_t index, const allocation_failure& failure) {
        if (refusals_++ == 0) first_ = refusal::of(index, failure);
    }
    void allocated(std::uint32_t, void* p, std::uint64_t bytes, stream_handle) noexcept {
        if (p == nullptr) return;
        requested_ += bytes;
        live_ += round_up(bytes, granule);
        requested_peak_ = std::max(requested_peak_, requested_);
        live_peak_ = std::max(live_peak_, live_);
    }
    void used(std::uint32_t, const void*, stream_handle) noexcept {}
    void freed(std::uint32_t, const void*, stream_handle) noexcept {}
    void freed_sync(const void*) noexcept {}
    void half_way() noexcept {}
    void ended(const void*, std::uint64_t bytes) noexcept {
        requested_ -= bytes;
        live_ -= round_up(bytes, granule);
    }
    void carried_out(std::uint64_t index, std::uint64_t t_us) {
        if (recorder_) recorder_->add(index, t_us, live_, reserved_());
    }

    /// Effects: from now on keeps a footprint. `reserved`: bytes the policy holds now.
    void keep_footprint(std::size_t events, std::function<std::uint64_t()> reserved) {
        recorder_.emplace(events);
        reserved_ = std::move(reserved);
    }

    /// Bytes, so far.
    [[nodiscard]] std::uint64_t live_peak() const noexcept { return live_peak_; }

    /// Effects: writes down what was seen.
    void report(replay_result& r) const {
        r.requested_peak = requested_peak_;
        r.live_peak = live_peak_;
        r.oom_count = refusals_;
        r.first_oom = first_;
        if (recorder_) r.course = recorder_->result();
    }

  private:
    static constexpr std::uint64_t granule = 512;

    std::uint64_t requested_ = 0;
    std::uint64_t live_ = 0;
    std::uint64_t requested_peak_ = 0;
    std::uint64_t live_peak_ = 0;
    std::uint64_t refusals_ = 0;
    std::optional<refusal> first_;
    std::optional<footprint_recorder> recorder_;
    std::function<std::uint64_t()> reserved_;
};

/// Measures a replay and proves that it was sound.
///
/// Two proofs that know nothing of each other: the device's happens-before check on physical bytes, and here
/// a map of the addresses of all blocks that have not ended, in which no two may overlap. A block found
/// handed out between its free and its completion is a `replay_error`.
class watcher : public tally {
  public:
    /// `driver_time`: the allocator's, up to now.
    watcher(sim::device& device, std::function<std::chrono::nanoseconds()> driver_time)
        : device_(&device), driver_time_(std::move(driver_time)) {}

    void half_way() { first_half_ = driver_time_(); }

    void allocated(std::uint32_t id, void* p, std::uint64_t bytes, stream_handle s) {
        if (p == nullptr) return;
        const std::uint64_t begin = to_address(p);
        const auto next = blocks_.lower_bound(begin);
        if (next != blocks_.end() && next->first < begin + bytes)
            clash(begin, bytes, next->first, next->second);
        if (next != blocks_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second > begin) clash(begin, bytes, before->first, before->second);
        }
        blocks_.emplace_hint(next, begin, bytes);
        tally::allocated(id, p, bytes, s);
        if (climb_.empty() || live_peak() > climb_.back().first)
            climb_.emplace_back(live_peak(), driver_time_());
        device_->block_allocated(p, bytes, s);
    }

    void used(std::uint32_t, const void* p, stream_handle s) { device_->block_used(p, s); }
    void freed(std::uint32_t, const void* p, stream_handle s) { device_->block_freed(p, s); }
    void freed_sync(const void* p) { device_->block_freed_sync(p); }

    void ended(const void* p, std::uint64_t bytes) {
        blocks_.erase(to_address(p));
        tally::ended(p, bytes);
    }

    /// Returns: driver time in the first half of the events. Requires: that is over.
    [[nodiscard]] std::chrono::nanoseconds first_half() const noexcept { return first_half_; }

    /// Returns: driver time until 99 % of the peak lived for the first time.
    [[nodiscard]] std::chrono::nanoseconds growth() const noexcept {
        for (const auto& [live, spent] : climb_)
            if (live >= live_peak() - live_peak() / 100) return spent;
        return {};
    }

  private:
    [[noreturn]] static void clash(std::uint64_t a, std::uint64_t a_bytes, std::uint64_t b,
                                   std::uint64_t b_bytes) {
        char text[160];
        std::snprintf(
            text, sizeof text,
            "a block of %llu bytes at 0x%llx overlaps a block of %llu bytes at 0x%llx that has not ended",
            static_cast<unsigned long long>(a_bytes), static_cast<unsigned long long>(a),
            static_cast<unsigned long long>(b_bytes), static_cast<unsigned long long>(b));
        throw replay_error(text);
    }

    sim::device* device_;
    std::function<std::chrono::nanoseconds()> driver_time_;
    std::chrono::nanoseconds first_half_{0};
    std::vector<std::pair<std::uint64_t, std::chrono::nanoseconds>>
        climb_;                                     ///< each new peak, bytes, and driver time until then
    std::map<std::uint64_t, std::uint64_t> blocks_; ///< address -> bytes, from allocation to end
};

} // namespace tenure::cli
