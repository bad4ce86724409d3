#pragma once

/// \file
/// `magazines<Pool>`: a pool with, in front of it, free blocks that each thread keeps for each stream. A resource.
///
///     thread, stream --> rack --> magazine of the size --> block         a hit
///                                     | empty, or full
///                                     v
///                                   Pool --> device                      a miss
///
/// The walk of an allocation:
///   1. the thread's magazine of this size and stream (`hit_path`): no lock, no driver call, no event, no meter, no
///      instruction with a lock prefix
///   2. a bundle of this size that another thread of the stream had too much of (`depot`)
///   3. what the pool holds free, several blocks at once
///   4. what is parked on this stream, by any thread, goes back to the pool, and 3 again; then all that is parked, and 3
///      again, unless that is next to nothing
///   5. the pool, which may buy now; before it fails, 4 whatever is parked
/// So parked memory makes the pool buy by a 4096th at most, and never makes a request fail.
///
/// Ordering: a magazine belongs to one stream *identity*. A block enters it when it is freed on the stream that it was
/// last allocated on and was used on no other, by whichever thread; the stream itself keeps the order then. All else goes to
/// the pool: frees on another stream, blocks with recorded uses, everything on a capturing stream. A parked block goes back to the pool as
/// freed on its own stream, for which no driver call is needed, so that stream may be gone. After parked blocks were
/// taken back, the next call on each stream goes to the pool, so that it can mark what it has for other streams. Before that call
/// another stream's request may be refused at a limit with `stream_pending` although the work has passed: no event is recorded
/// on a stream that no call names (see `stream_order`).
///
/// With `stream_check::every_call` the device is asked on each call on a handle that is not permanent: which stream is
/// this (a destroyed stream's handle is handed out again while its work still runs), and is it being captured (a
/// replay may write to what was freed in a capture). The answer at a free must be fresh too: a capture may begin and
/// end between two allocations, and nothing would tell afterwards.
///
/// Misuse: each block has a word in the `block_table`, which every free reads; see `block_word`. A hit accepts a free
/// only if the word says live, this rack, exactly this size; the rest is sorted out on the way to the pool and
/// reported as the pool does. Of several threads that free one block at once, exactly one succeeds, if none of them is
/// the thread that allocated it: they use compare-exchange. That thread uses plain stores, which is what makes a hit
/// cheap. If it races one of the others, which no correct program does, both may succeed. The block then is in two
/// magazines, but its word names one, and the other entry is reported as `double_free` and dropped when it comes up; only
/// if the other thread has freed the block and handed it out again while the first was between two adjacent
/// instructions can two holders share it, and then the second one's free is reported.
///
/// Accounting: `requested` and `blocks` count what the application holds, `allocated` does not count parked blocks,
/// `reserved` does. Exact while no other thread is inside a call; otherwise off by what is under way, and never so that
/// `requested <= allocated <= reserved` fails. Peaks are those of the pool, which counts parked blocks as live: upper
/// bounds. A racing double free as above is counted twice.
///
/// `Pool` must be a `holding_resource`; with another one every call goes to it.
///
/// Locks, in this order: `front_registry` (at construction, destruction and the end of a thread) > `rack_list` (what is
/// parked where; at a miss that finds nothing free, and when a thread meets a new size or stream) > a shard of the
/// `depot` > the pool's own. A miss takes the last two, one after the other.
///
/// Thread-safety: thread-safe, except construction and destruction. Threads may end before or after the front end
/// does. A child of `fork` must not use it.

#include <tenure/core/error.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/device/device.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/magazine_options.hpp>
#include <tenure/front/miss_path.hpp>
#include <tenure/resource/resource.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tenure {

template <resource Pool>
class magazines : miss_path<Pool> {
    using base = miss_path<Pool>;
    using base::accounts_;
    using base::any_size;
    using base::pool_;
    using base::report;
    using base::table;
    using typename base::reach;

  public:
    using pool_type = Pool;
    using device_type = typename Pool::device_type;
    using pool_options_type = typename Pool::options_type;
    using options_type = magazines_options<pool_options_type>;

    /// Throws: `std::bad_alloc`, and what the pool's construction throws.
    explicit magazines(device_type& device, options_type options = {})
        : base(device, std::move(options.pool), options.magazines) {}

    /// Made as the pool is.
    template <std::same_as<pool_options_type> Options>
    explicit magazines(device_type& device, Options pool_options, magazine_options options = {})
        : base(device, std::move(pool_options), options) {}

    magazines(const magazines&) = delete;
    magazines& operator=(const magazines&) = delete;

    /// As the pool's. Requires: no other thread is inside a call. Threads may still have racks here.
    ~magazines() {
        front_registry::instance().leave(this->number_);
        this->take_all_back();
        std::size_t requested = usage().requested.current;
        const misuse_scope scope(
            [](misuse& m, void* bytes) noexcept {
                if (m.kind == misuse_kind::live_at_destruction) m.bytes = *static_cast<std::size_t*>(bytes);
                return true;
            },
            &requested);
        pool_.reset();
    }

    // ---- the hit alone, for who stands in front and adds nothing to one ----

    /// Returns: a parked block, now live; null: `allocate` has more to do, and nothing has changed.
    TENURE_ALWAYS_INLINE void* try_hit(stream_handle stream, std::size_t bytes,
                                       std::size_t alignment) noexcept {
        return this->template pop<reach::near>(stream, bytes, alignment);
    }
    /// Returns: whether the block is free now; if not, `deallocate` has more to do, and nothing has changed.
    TENURE_ALWAYS_INLINE bool try_park(stream_handle stream, void* p, std::size_t bytes) noexcept {
        return this->template push<reach::near>(stream, p, bytes);
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        if (void* const p = this->template pop<reach::near>(stream, bytes, alignment)) [[likely]]
            return p;
        return this->allocate_or_throw(stream, bytes, alignment);
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        if (void* const p = this->template pop<reach::near>(stream, bytes, alignment)) [[likely]]
            return p;
        return this->allocate_slow(stream, bytes, alignment);
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        held_block b;
        if constexpr (holding_resource<Pool>) {
            const auto held = [&] { return pool_->try_allocate_sync_held(bytes, alignment, {&b, 1}) != 0; };
            if (!held() && this->take_all_back()) held();
        }
        for (int tries = 1; b.pointer == nullptr; ++tries) {
            const std::uint64_t before = this->transits_.now();
            try {
                b.pointer = pool_->allocate_sync(bytes, alignment);
                break; // null for no bytes
            } catch (const out_of_memory&) {
                this->transits_.wait();
                const bool again = this->take_all_back() || this->transits_.any_since(before);
                if (!again || tries == base::most_tries) throw;
                this->accounts_.tried_again();
            }
        }
        table().forget(b.pointer);
        return b.pointer;
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (this->template push<reach::near>(stream, p, bytes)) [[likely]]
            return;
        this->deallocate_or_report(stream, p, bytes, alignment);
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        if (this->template push<reach::near>(stream, p, bytes)) [[likely]]
            return freed{};
        return this->deallocate_slow(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        if (this->is_pools_own(p)) return pool_->deallocate_sync(p, bytes, alignment);
        report(this->take(default_stream, p, bytes, [&](std::size_t rounded) -> deallocate_result {
            pool_->deallocate_sync(p, rounded, alignment);
            return freed{};
        }));
    }

    void release(void* p) noexcept {
        if (this->is_pools_own(p)) return pool_->release(p);
        report(this->take(default_stream, p, any_size, [&](std::size_t) -> deallocate_result {
            pool_->release(p);
            return freed{};
        }));
    }

    void record_use(void* p, stream_handle stream) noexcept {
        this->announce(stream);
        if (!this->is_pools_own(p) && !this->share(stream, p)) return report(this->classify(stream, p, 0));
        pool_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        if (this->is_pools_own(p)) return pool_->owns(p);
        const block_word v = this->word_of(p);
        return v.is_live() && (this->racks_.stream_of(v.rack()).has_value() || pool_->owns(p));
    }

    [[nodiscard]] usage_counters usage() const {
        const front_totals front = this->totals();
        return accounts_.usage(pool_->usage(), front);
    }

    /// Effects: all that is parked goes back to the pool first.
    std::size_t trim(std::size_t bytes_to_keep) {
        this->take_all_back();
        return pool_->trim(bytes_to_keep);
    }

    /// Parked blocks are shown as free.
    [[nodiscard]] memory_snapshot snapshot() const {
        memory_snapshot picture = pool_->snapshot();
        for (segment_snapshot& segment : picture.segments)
            for (block_snapshot& b : segment.blocks) {
                if (b.state != block_state::allocated) continue;
                void* const p = to_pointer(b.block != 0 ? b.block : b.address);
                if (this->is_pools_own(p)) continue;
                const block_word v = this->word_of(p);
                if (!v.is_live()) {
                    b.state = block_state::free;
                    b.requested = 0;
                } else if (!b.continued) { // the pool was asked for the rounded size
                    b.requested -= base::rounded(v.bytes()) - v.bytes();
                }
            }
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept { return pool_->validate() && this->are_racks_valid(); }

    /// Effects: the graphs made from this capture are gone and their work is over; what the pool kept for them is
    /// free.
    void release_captured(std::uint64_t capture) noexcept requires capture_resource<Pool> {
        pool_->release_captured(capture);
    }

    // ---- beyond resource ----

    /// Effects: no thread keeps blocks of the stream any more. What `stream_check::announced` asks for before the stream
    /// is destroyed or a capture begins on it.
    void forget(stream_handle stream) noexcept { this->forget_stream(stream); }

    /// The pool behind. What is parked, it counts as live.
    [[nodiscard]] Pool& pool() noexcept { return *pool_; }
};

} // namespace tenure
