#pragma once

/// \file
/// `miss_path<Pool>`: an allocation for which the magazine has no block, and a free for which it has no room or no use.
///
///     allocate_slow     far hit > depot > what the pool holds > take back what is parked > the pool, which may buy
///     deallocate_slow   far hit > room is made, far hit > the pool, once the block's word says that it is gone
///
/// A base of `magazines`, which says what makes it correct.
/// Thread-safety: thread-safe.

#include <tenure/core/error.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/parking.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace tenure {

template <resource Pool>
class miss_path : protected parking<Pool> {
  protected:
    using base = parking<Pool>;
    using typename base::hits;
    using typename base::word;
    using reach = typename hits::reach;
    using base::accounts_;
    using base::depot_;
    using base::gone_word;
    using base::granules_of;
    using base::number_;
    using base::pool_;
    using base::racks_;
    using base::table;
    using base::transits_;
    using base::word_of;
    using hits::most_;

    using base::base;
    ~miss_path() = default;

    static constexpr std::optional<std::size_t> any_size = std::nullopt;

    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }
    static std::size_t rounded(std::size_t bytes) noexcept { return front_accounts::rounded(bytes); }

    // ---- allocation ----

    TENURE_NOINLINE void* allocate_or_throw(stream_handle stream, std::size_t bytes, std::size_t alignment) {
        const allocate_result r = allocate_slow(stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }

    TENURE_NOINLINE allocate_result allocate_slow(stream_handle stream, std::size_t bytes,
                                                  std::size_t alignment) noexcept {
        if constexpr (!holding_resource<Pool>) {
            return pool_->try_allocate(stream, bytes, alignment);
        } else {
            if (void* const p = this->template pop<reach::far>(stream, bytes, alignment)) return p;
            this->report_stale();
            if (most_ == 0 || bytes == 0 || !is_power_of_two(alignment) || alignment > max_alignment)
                return pool_->try_allocate(stream, bytes, alignment);
            if (!this->is_tracked(bytes, alignment))
                this->announce(stream);
            else if (rack* const r = this->rack_for(stream))
                return refill(*r, bytes);
            return allocate_untracked(stream, bytes, alignment);
        }
    }

    /// A block of which the pool keeps the books alone.
    allocate_result allocate_untracked(stream_handle stream, std::size_t bytes,
                                       std::size_t alignment) noexcept {
        held_block b;
        const auto held = [&] { return pool_->try_allocate_held(stream, bytes, alignment, {&b, 1}) != 0; };
        allocate_result r = static_cast<void*>(nullptr);
        if constexpr (requires { Pool::sees_exact_fits; }) {
            // What is parked are holes around which the pool would cut this block out of another. That costs memory only
            // where the rest of the other is worth as much as the block; where it is less, emptying all magazines would
            // cost time for nothing.
            if (Pool::sees_exact_fits && this->totals().parked >= bytes) {
                b.pointer = pool_->try_allocate_held_within(stream, bytes, alignment,
                                                            2 * std::max(bytes, layout::granule) - 1);
                if (b.pointer == nullptr) this->take_all_back();
            }
        }
        if (b.pointer != nullptr || held() || (this->is_much_parked() && this->take_all_back() && held()))
            r = b.pointer;
        else
            r = allocate_from_pool(stream, bytes, alignment);
        if (r) table().forget(*r);
        return r;
    }

    /// Steps 2 to 5 of the walk, for a rack of the calling thread.
    allocate_result refill(rack& r, std::size_t bytes) noexcept {
        const std::uint32_t granules = granules_of(bytes);
        const std::size_t size = rounded(bytes);
        const bool visited = r.section.accept_visit();
        magazine* const m = this->magazine_for(r, granules);
        if (m != nullptr && !visited)
            if (void* const p = take_bundle(r, *m)) return hand_out(r, table().at(p), p, bytes, true);
        held_block b = take_held(r, m, size);
        if (b.pointer == nullptr) {
            const auto held = [&] {
                return pool_->try_allocate_held(r.stream, size, layout::granule, {&b, 1}) != 0;
            };
            // Others are only disturbed if the stream's own does not do.
            if (this->is_much_parked() && !(this->take_own_back(r.stream_id) && held()) &&
                this->take_all_back())
                held();
            r.section.accept_visit();
            if (b.pointer == nullptr) {
                const allocate_result p = allocate_from_pool(r.stream, size, layout::granule);
                if (!p) {
                    allocation_failure f = p.error();
                    f.requested = bytes;
                    return f;
                }
                b = {*p, pool_->block_bytes(*p)};
            }
        }
        if (m != nullptr) m->raise_batch();
        word* const w = table().make(b.pointer);
        if (w == nullptr) { // no host memory, or a pool with addresses of its own kind
            pool_->release(b.pointer);
            return allocate_untracked(r.stream, bytes, default_alignment);
        }
        accounts_.out(size, 1);
        return hand_out(r, *w, b.pointer, bytes, b.bytes == size);
    }

    /// A block that is not `exact`, but larger than what goes into its magazine, would not be accounted for there: its
    /// free goes to the pool.
    static void* hand_out(rack& r, word& w, void* p, std::size_t bytes, bool exact) noexcept {
        w.store(block_word::of(r.number, exact ? block_word::state::live : block_word::state::shared, bytes)
                    .bits(),
                std::memory_order_relaxed);
        r.traffic.bytes_out.add(bytes);
        r.traffic.blocks_out.add(1);
        return p;
    }

    /// Returns: a block that another thread had too much of, or null; more of them are in the magazine then.
    void* take_bundle(rack& r, magazine& m) noexcept {
        if (depot_.parked_granules() == 0) return nullptr;
        const transits::passage under_way(transits_);
        depot::bundle b;
        if (!depot_.take(r.stream_id, m.granules, b)) return nullptr;
        this->park(r, m, b.view().first(b.count - 1));
        return b.blocks[b.count - 1];
    }

    /// Returns: a block from what the pool holds, or none; if the magazine asks for more of them, these are in it then.
    held_block take_held(rack& r, magazine* m, std::size_t size) noexcept {
        std::array<held_block, magazine::largest_batch> got;
        std::array<void*, magazine::largest_batch> fit, back;
        std::size_t fitting = 0, returned = 0;
        const transits::passage under_way(transits_);
        const std::size_t n = pool_->try_allocate_held(r.stream, size, layout::granule,
                                                       std::span(got).first(m == nullptr ? 1 : m->batch));
        for (std::size_t i = 1; i < n; ++i) {
            void* const p = got[i].pointer;
            if (got[i].bytes == size && table().make(p) != nullptr)
                fit[fitting++] = p;
            else
                back[returned++] = p;
        }
        if (n > 1) {
            accounts_.out(size * (n - 1), n - 1);
            this->park(r, *m, std::span(fit).first(fitting));
            for (void* const p : std::span(back).first(returned)) table().forget(p);
            this->give_to_pool(std::span(back).first(returned), m->granules);
        }
        return n == 0 ? held_block() : got[0];
    }

    /// Effects: asks the pool, which may buy. Tries again when what others were moving might have served, unless the request
    /// is larger than whatever the limit may leave.
    allocate_result allocate_from_pool(stream_handle stream, std::size_t bytes,
                                       std::size_t alignment) noexcept {
        for (int tries = 1;; ++tries) {
            const std::uint64_t before = transits_.now();
            allocate_result r = pool_->try_allocate(stream, bytes, alignment);
            if (r || tries == most_tries || r.error().cause == failure_cause::driver) return r;
            if (r.error().rounded > r.error().max) return r;
            transits_.wait();
            if (!this->take_all_back() && !transits_.any_since(before)) return r;
            accounts_.tried_again();
        }
    }

    // ---- free ----

    TENURE_NOINLINE void deallocate_or_report(stream_handle stream, void* p, std::size_t bytes,
                                              std::size_t alignment) noexcept {
        report(deallocate_slow(stream, p, bytes, alignment));
    }

    /// Whether the front end knows nothing of this address.
    [[nodiscard]] bool is_pools_own(const void* p) const noexcept {
        return most_ == 0 || word_of(p).what() == block_word::state::unknown;
    }

    TENURE_NOINLINE deallocate_result deallocate_slow(stream_handle stream, void* p, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
        if (this->template push<reach::far>(stream, p, bytes)) return freed{};
        this->report_stale();
        const bool pools_own = is_pools_own(p);
        if (!pools_own && park_live(stream, p, bytes)) return freed{};
        this->announce(stream);
        if (pools_own) return pool_->try_deallocate(stream, p, bytes, alignment);
        return take(stream, p, bytes,
                    [&](std::size_t size) { return pool_->try_deallocate(stream, p, size, alignment); });
    }

    /// Effects: the live block at `p` leaves the front end, then free_in_pool(bytes as the pool knows them).
    template <class F>
    deallocate_result take(stream_handle stream, void* p, std::optional<std::size_t> bytes,
                           F&& free_in_pool) noexcept {
        word& w = *table().find(p);
        std::uint64_t bits = w.load(std::memory_order_acquire);
        for (;;) {
            const block_word v(bits);
            if (!v.is_live() || !origin_of(v, p, stream).ours) return classify(stream, p, bytes.value_or(0));
            if (bytes && *bytes != v.bytes())
                return misuse{
                    .kind = misuse_kind::size_mismatch, .pointer = p, .bytes = *bytes, .expected = v.bytes()};
            if (w.compare_exchange_weak(bits, gone_word)) break;
        }
        const std::size_t requested = block_word(bits).bytes();
        accounts_.freed(requested);
        return free_in_pool(rounded(requested));
    }

    /// Effects: the live block at `p` must go through the pool when it is freed. Returns: false if there is none.
    bool share(stream_handle stream, const void* p) noexcept {
        word& w = *table().find(p);
        std::uint64_t bits = w.load(std::memory_order_acquire);
        const block_word v(bits);
        if (!v.is_live() || !origin_of(v, p, stream).ours) return false;
        return v.what() == block_word::state::shared ||
               w.compare_exchange_strong(
                   bits, block_word::of(v.rack(), block_word::state::shared, v.bytes()).bits()) ||
               block_word(bits).what() == block_word::state::shared;
    }

    /// Returns: what is wrong with a pointer that is not a live block. The pool knows; but what is live to it and not to
    /// us has been freed.
    deallocate_result classify(stream_handle stream, void* p, std::size_t bytes) noexcept {
        const deallocate_result r = pool_->try_deallocate(stream, p, impossible_size, default_alignment);
        misuse m = r ? misuse{.pointer = p} : r.error();
        m.bytes = bytes;
        if (m.kind == misuse_kind::size_mismatch) {
            m.kind = misuse_kind::double_free;
            m.expected = 0;
        }
        return m;
    }

  private:
    struct origin {
        bool ours = false;
        std::uint64_t stream_id = 0; ///< of the last allocation; 0: not known any more
    };

    /// Returns: whose live block this is. `stream` only says where to look first.
    origin origin_of(block_word v, const void* p, stream_handle stream) const noexcept {
        rack* const r = thread_racks::find(number_, stream);
        if (r != nullptr && (r->number == v.rack() || r->is_peer(v.rack()))) return {true, r->stream_id};
        if (const std::optional<std::uint64_t> id = racks_.stream_of(v.rack())) {
            if (r != nullptr && r->stream_id == *id) r->note_peer(v.rack());
            return {true, *id};
        }
        return {pool_->owns(p), 0}; // its rack is gone, or is another front end's
    }

    /// Effects: makes what a far hit has not found: a rack for the stream, a magazine for the size, room, and knowledge of
    /// the rack that the block is from. Then tries again. Returns: whether the block is parked now.
    bool park_live(stream_handle stream, void* p, std::size_t bytes) noexcept {
        const block_word v = word_of(p);
        if (v.what() != block_word::state::live || v.bytes() != bytes) return false;
        rack* const r = this->rack_for(stream);
        if (r == nullptr || r->section.accept_visit()) return false;
        const origin from = origin_of(v, p, stream);
        if (!from.ours || from.stream_id != r->stream_id) return false;
        const std::uint32_t granules = granules_of(bytes);
        // A size that this thread only frees has a magazine from its second free on.
        magazine* const m =
            v.rack() == r->number ? r->magazines.find(granules) : this->magazine_for(*r, granules);
        if (m == nullptr) return false;
        this->make_room(*r, *m);
        return this->template push<reach::far>(stream, p, bytes);
    }

    /// No block has this size, so that the pool says what is wrong with a pointer and frees nothing.
    static constexpr std::size_t impossible_size = no_limit;

  protected:
    static constexpr int most_tries = 4; ///< of a request that is about to fail
};

} // namespace tenure
