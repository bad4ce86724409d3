#pragma once

/// \file
/// `binned<Small, Large>`: small sizes to one policy, large sizes to another.
///
///     n <= threshold --> Small      each with segments of its own, so that a small block which lives long never
///     n >  threshold --> Large      pins a large segment, and each layout does what it is good at
///
/// Invariants:
///   1. A block of n bytes is always in the part that `n` names: a free is routed by its size without a search.
///   2. A free whose size lies, or that has none (`release`), finds the part that owns the pointer. A wrong free is
///      reported once, with what the part knows that has seen the pointer.
///   3. What one part holds free is no reason for the other to fail: before a request fails for memory, the other part
///      gives back what it can and the request is made once more.
///
/// `usage` sums the parts. So peaks are sums of peaks, which the two may have had at different times: an upper bound
/// of the joint peak; all other figures are exact.
///
/// Complexity: one comparison on top of the part's own. Thread-safety: thread-safe when the parts are.

#include <tenure/core.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace tenure {

template <class SmallOptions, class LargeOptions>
struct binned_options {
    /// Bytes: the largest request that goes to the small part. 1 MiB is where PyTorch draws the same line: below it
    /// blocks are many and short-lived, above it each is worth a segment's attention.
    std::size_t threshold = std::size_t{1} << 20;
    SmallOptions small{};
    LargeOptions large{};
};

template <resource Small, resource Large>
    requires std::same_as<typename Small::device_type, typename Large::device_type>
class binned {
  public:
    using device_type = typename Small::device_type;
    using options_type = binned_options<typename Small::options_type, typename Large::options_type>;

    /// Requires: the device outlives the pool. Throws: what the parts' construction throws.
    explicit binned(device_type& device, const options_type& options = {})
        : threshold_(options.threshold), small_(device, options.small), large_(device, options.large) {}

    binned(const binned&) = delete;
    binned& operator=(const binned&) = delete;

    /// Effects, Returns, Throws: see `tenure::resource`.
    [[nodiscard]] void* allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) {
        const allocate_result got = try_allocate(s, n, a);
        if (!got) throw_failure(got.error());
        return *got;
    }

    [[nodiscard]] allocate_result try_allocate(stream_handle s, std::size_t n,
                                               std::size_t a = default_alignment) noexcept {
        return is_small(n) ? try_allocate_in(small_, large_, s, n, a)
                           : try_allocate_in(large_, small_, s, n, a);
    }

    [[nodiscard]] void* allocate_sync(std::size_t n, std::size_t a) {
        return is_small(n) ? allocate_sync_in(small_, large_, n, a) : allocate_sync_in(large_, small_, n, a);
    }

    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n,
                                     std::size_t a = default_alignment) noexcept {
        return is_small(n) ? try_deallocate_in(small_, large_, s, p, n, a)
                           : try_deallocate_in(large_, small_, s, p, n, a);
    }

    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(s, p, n, a); !r) report_misuse(r.error());
    }

    void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept {
        const auto in = [&](auto& part) {
            if (!part.owns(p)) return false;
            part.deallocate_sync(p, n, a);
            return true;
        };
        if (is_small(n) ? in(small_) : in(large_)) return;
        deallocate(default_stream, p, n, a); // null or misuse: says what is wrong with the pointer
    }

    void release(void* p) noexcept {
        if (small_.owns(p)) return small_.release(p);
        if (large_.owns(p)) return large_.release(p);
        deallocate(default_stream, p, 0); // the same
    }

    void record_use(void* p, stream_handle s) noexcept {
        if (small_.owns(p)) return small_.record_use(p, s);
        large_.record_use(p, s);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept { return small_.owns(p) || large_.owns(p); }

    /// Returns: the sums of the parts. Peaks are upper bounds, see above.
    [[nodiscard]] usage_counters usage() const {
        usage_counters u = small_.usage();
        const usage_counters v = large_.usage();
        const auto add = [](gauge& to, const gauge& g) {
            to.current += g.current;
            to.peak += g.peak;
            to.total_in += g.total_in;
            to.total_out += g.total_out;
        };
        add(u.requested, v.requested);
        add(u.allocated, v.allocated);
        add(u.reserved, v.reserved);
        add(u.blocks, v.blocks);
        add(u.segments, v.segments);
        u.pending += v.pending;
        u.captured += v.captured;
        u.failures += v.failures;
        u.failures -= averted_.load(std::memory_order_relaxed);
        return u;
    }

    /// Effects: see `tenure::resource`. The large part goes first: it gives back more with fewer calls.
    std::size_t trim(std::size_t keep) {
        const std::size_t given = large_.trim(rest(keep, small_.usage().reserved.current));
        return given + small_.trim(rest(keep, large_.usage().reserved.current));
    }

    /// Effects: the graphs made from this capture are gone and their work is over; their memory is free for
    /// all.
    void release_captured(std::uint64_t capture) noexcept {
        if constexpr (capture_resource<Small>) small_.release_captured(capture);
        if constexpr (capture_resource<Large>) large_.release_captured(capture);
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        memory_snapshot a = small_.snapshot();
        memory_snapshot b = large_.snapshot();
        memory_snapshot both;
        both.segments.reserve(a.segments.size() + b.segments.size());
        std::merge(
            std::make_move_iterator(a.segments.begin()), std::make_move_iterator(a.segments.end()),
            std::make_move_iterator(b.segments.begin()), std::make_move_iterator(b.segments.end()),
            std::back_inserter(both.segments),
            [](const segment_snapshot& x, const segment_snapshot& y) { return x.address < y.address; });
        return both;
    }

    [[nodiscard]] bool validate() const noexcept { return small_.validate() && large_.validate(); }

    /// The parts, for what only they can do. Bytes above `threshold()` go to `large()`.
    [[nodiscard]] std::size_t threshold() const noexcept { return threshold_; }
    [[nodiscard]] Small& small() noexcept { return small_; }
    [[nodiscard]] Large& large() noexcept { return large_; }

  private:
    [[nodiscard]] bool is_small(std::size_t n) const noexcept { return n <= threshold_; }

    static std::size_t rest(std::size_t keep, std::size_t taken) noexcept {
        return keep > taken ? keep - taken : 0;
    }

    static bool for_memory(const allocation_failure& f) noexcept {
        return f.cause != failure_cause::invalid_alignment && f.cause != failure_cause::driver &&
               f.cause != failure_cause::capture;
    }

    template <class Part, class Other>
    allocate_result try_allocate_in(Part& part, Other& other, stream_handle s, std::size_t n,
                                    std::size_t a) noexcept {
        const allocate_result got = part.try_allocate(s, n, a);
        if (got || !for_memory(got.error()) || !make_room(other)) return got;
        averted_.fetch_add(1, std::memory_order_relaxed);
        return part.try_allocate(s, n, a);
    }

    template <class Part, class Other>
    void* allocate_sync_in(Part& part, Other& other, std::size_t n, std::size_t a) {
        try {
            return part.allocate_sync(n, a);
        } catch (const out_of_memory& e) {
            if (!for_memory(e.failure()) || !make_room(other)) throw;
        }
        averted_.fetch_add(1, std::memory_order_relaxed);
        return part.allocate_sync(n, a);
    }

    /// Returns: whether the part gave something back to the device.
    template <class Part>
    static bool make_room(Part& part) noexcept {
        try {
            return part.trim(0) != 0;
        } catch (...) { // no host memory to find out what is free
            return false;
        }
    }

    /// A block of n bytes is in `part` if it is anywhere, so `other` can only explain what is wrong.
    template <class Part, class Other>
    static deallocate_result try_deallocate_in(Part& part, Other& other, stream_handle s, void* p,
                                               std::size_t n, std::size_t a) noexcept {
        const deallocate_result r = part.try_deallocate(s, p, n, a);
        if (r || (r.error().kind != misuse_kind::foreign_pointer && !other.owns(p))) return r;
        return other.try_deallocate(s, p, n, a);
    }

    const std::size_t threshold_;
    Small small_;
    Large large_;
    std::atomic<std::size_t> averted_{0}; ///< failures of a part that were none in the end
};

} // namespace tenure
