#pragma once

/// \file
/// `parking<Pool>`: the racks of all threads before a pool, and the ways on which parked blocks leave them.
///
///     owner         magazine full --> depot, or pool            `give_way`
///                   rack over its limit --> pool                `make_room`
///                   rack of a stream that is gone --> pool      `rack_for`, `thread_ends`
///     any thread    a stream's, everything --> pool             `take_own_back`, `take_all_back`
///
/// A base of `magazines`, which says what makes it correct. Locks, in this order: `front_registry` (at the end of a
/// thread) > `rack_list` > `depot` and the pool's own.
/// Thread-safety: thread-safe, except construction and destruction.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/error.hpp>
#include <tenure/front/depot.hpp>
#include <tenure/front/front_accounts.hpp>
#include <tenure/front/hit_path.hpp>
#include <tenure/front/magazine_options.hpp>
#include <tenure/front/rack_list.hpp>
#include <tenure/front/transits.hpp>
#include <tenure/policy/held_block.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

namespace tenure {

template <resource Pool>
class parking : protected hit_path<typename Pool::device_type> {
  protected:
    using hits = hit_path<typename Pool::device_type>;
    using hits::device_;
    using hits::granules_of;
    using hits::has_room;
    using hits::most_;
    using hits::number_;
    using hits::stale_;
    using hits::table;
    using hits::word_of;
    using typename hits::word;

    static constexpr std::uint64_t gone_word = block_word::of(0, block_word::state::gone, 0).bits();

    /// Throws: `std::bad_alloc`, and what the pool's construction throws.
    template <class PoolOptions>
    parking(typename Pool::device_type& device, PoolOptions&& pool_options, const magazine_options& options)
        : hits(device, holding_resource<Pool> && options.enabled
                           ? std::min(options.max_block_bytes, hits::largest_block)
                           : 0)
        , limit_(options.max_parked_bytes / layout::granule)
        , max_streams_(std::max<std::size_t>(options.max_streams, 1))
        , asks_(options.check == stream_check::every_call)
        , depot_(limit_ / depot_share) {
        pool_.emplace(device, std::forward<PoolOptions>(pool_options));
        front_registry::instance().enter({number_, this, [](void* self, std::uint64_t thread) noexcept {
                                              static_cast<parking*>(self)->thread_ends(thread);
                                          }});
    }

    ~parking() = default;

    // ---- racks ----

    /// Returns: the calling thread's rack for the stream that the handle names now; null if it can have none.
    rack* rack_for(stream_handle stream) noexcept {
        rack* r = thread_racks::find(number_, stream);
        const result<stream_state, status> now = device_->describe(stream);
        if (!now) return nullptr;
        if (now->capturing()) {
            take_back_before_capture(stream);
            return nullptr;
        }
        if (r != nullptr && r->stream_id == now->id && !r->section.is_retired()) return r;
        const std::uint64_t thread = thread_racks::thread();
        if (thread == 0) return nullptr;
        if (r != nullptr) remove(r);
        if (rack* const oldest = racks_.oldest_if_full(thread, max_streams_)) remove(oldest);
        try {
            r = racks_.add(thread, stream, now->id, asks_ && !device_->permanent(stream), limit_);
        } catch (...) { // host memory
            return nullptr;
        }
        depot_.rack_comes();
        if (thread_racks::set(number_, stream, r)) return r;
        racks_.remove(r, [this](rack&) { depot_.rack_goes(); });
        return nullptr;
    }

    /// Returns: the magazine of a size that has been asked for; a size has one from its second miss on.
    magazine* magazine_for(rack& r, std::uint32_t granules) noexcept {
        if (magazine* const m = r.magazines.find(granules)) return m;
        if (!r.has_missed(granules)) return nullptr;
        const std::lock_guard lock(racks_.mutex());
        return &r.magazines.obtain(granules, [&](magazine& old) { give_back(r, old, old.count); });
    }

    /// To be called before a call that names the stream reaches the pool past `rack_for`.
    void announce(stream_handle stream) noexcept {
        if constexpr (requires { Pool::keeps_what_comes_in_capture; }) {
            if (most_ == 0 || !asks_ || device_->permanent(stream)) return;
            const result<stream_state, status> now = device_->describe(stream);
            if (now && now->capturing()) take_back_before_capture(stream);
        }
    }

    // ---- the owner's ways out ----

    /// Effects: if there is no room for another block of this size in the rack or in its magazine, makes some.
    /// Requires: the rack is the calling thread's.
    void make_room(rack& r, magazine& m) noexcept {
        if (!has_room(r, m.granules)) shrink(r);
        give_way(r, m);
    }

    /// Effects: blocks that were got for the rack go into the magazine, or back. Their words exist.
    void park(rack& r, magazine& m, std::span<void* const> blocks) noexcept {
        std::array<void*, magazine::half> back;
        std::size_t returned = 0;
        const bool inside = r.section.try_enter();
        for (void* const p : blocks) {
            word& w = table().at(p);
            if (!inside || m.count == magazine::most_blocks || !has_room(r, m.granules)) {
                w.store(gone_word, std::memory_order_relaxed);
                back[returned++] = p;
                continue;
            }
            w.store(r.parked_word, std::memory_order_relaxed);
            m.blocks[m.count++] = p;
            r.parked_granules.add(m.granules);
        }
        if (inside) r.section.leave();
        give_to_pool({back.data(), returned}, m.granules);
    }

    void give_to_pool(std::span<void* const> blocks, std::uint32_t granules_each) noexcept {
        if (blocks.empty()) return;
        accounts_.in(granules_each * layout::granule * blocks.size(), blocks.size());
        if constexpr (holding_resource<Pool>) pool_->release_batch(blocks);
    }

    // ---- anybody's ----

    /// Effects: what any thread has parked goes back to the pool. Returns: whether there was anything.
    bool take_all_back() noexcept {
        const bool in_racks = empty_racks([](rack& r) {
            r.section.ask_for_visit();
            return true;
        });
        const bool in_depot = empty_depot([](const depot::bundle&) { return true; });
        report_stale();
        return in_racks || in_depot;
    }

    /// Effects: what any thread has parked on this stream goes back to the pool, which may give it to the stream again at
    /// once. Nobody else is disturbed. Returns: whether there was anything.
    bool take_own_back(std::uint64_t stream_id) noexcept {
        const bool in_racks = empty_racks([&](const rack& r) { return r.stream_id == stream_id; });
        return empty_depot_of(stream_id) || in_racks;
    }

    /// Returns: whether so much is parked that it can be what the pool is short of. Where it is less, the pool may buy a
    /// little sooner: by the share named here at most. While a program grows each purchase would else empty all magazines,
    /// nearly always in vain.
    [[nodiscard]] bool is_much_parked() const noexcept {
        const std::uint64_t parked = totals().parked;
        return parked != 0 && parked >= pool_->usage().reserved.current / negligible_share;
    }

    /// Effects: no thread keeps blocks of the stream any more, and each asks which stream the handle names.
    void forget_stream(stream_handle stream) noexcept {
        racks_.visit([&](const rack& r) { return r.stream == stream; },
                     [&](rack& r) {
                         give_back_all(r);
                         empty_depot_of(r.stream_id);
                         r.section.retire();
                     });
        // Of threads that have no rack for it any more: the handle still names it.
        if (const result<stream_state, status> now = device_->describe(stream)) empty_depot_of(now->id);
        report_stale();
    }

    [[nodiscard]] front_totals totals() const noexcept {
        front_totals sum = racks_.totals();
        sum.parked += depot_.parked_granules() * layout::granule;
        return sum;
    }

    /// Effects: reports an entry that came up in a magazine though its block is not parked there.
    void report_stale() noexcept {
        if (stale_.load(std::memory_order_relaxed) == nullptr) return;
        if (void* const p = stale_.exchange(nullptr))
            report_misuse({.kind = misuse_kind::double_free, .pointer = p});
    }

    [[nodiscard]] bool are_racks_valid() const noexcept {
        bool good = true;
        racks_.visit([](const rack&) { return true; }, [&](rack& r) { good = is_valid(r) && good; });
        return good;
    }

  private:
    /// Requires: the rack is the calling thread's.
    void remove(rack* r) noexcept {
        thread_racks::set(number_, r->stream, nullptr);
        racks_.remove(r, [this](rack& gone) { close(gone); });
    }

    void thread_ends(std::uint64_t thread) noexcept {
        racks_.remove_thread(thread, [this](rack& r) { close(r); });
    }

    /// Effects: the rack is empty, and the depot has no room on its account. What it has more then is given back as
    /// other bundles come.
    void close(rack& r) noexcept {
        give_back_all(r);
        depot_.rack_goes();
    }

    /// Effects: what is parked in the racks of which select(rack) is true goes back to the pool. Returns: whether there was any.
    template <class Select>
    bool empty_racks(Select&& select) noexcept {
        bool any = false;
        racks_.visit([&](rack& r) { return select(r) && r.parked_granules.value() != 0; },
                     [&](rack& r) {
                         give_back_all(r);
                         any = true;
                     });
        return any;
    }

    /// Effects: what anybody has parked on the stream, which is being captured, goes back to the pool. Once that has heard
    /// of the capture it keeps for the graph what comes to it on this stream.
    void take_back_before_capture(stream_handle stream) noexcept {
        empty_racks([&](const rack& r) { return r.stream == stream; });
        // The stream hides its identity now; racks, and the pool's free memory, know it from before.
        if (depot_.parked_granules() != 0) empty_depot([](const depot::bundle&) { return true; });
        report_stale();
    }

    bool empty_depot_of(std::uint64_t stream_id) noexcept {
        return empty_depot([stream_id](const depot::bundle& b) { return b.stream_id == stream_id; });
    }

    template <class Select>
    bool empty_depot(Select&& select) noexcept {
        if (depot_.parked_granules() == 0) return false;
        const transits::passage under_way(transits_);
        return depot_.empty(select, [&](const depot::bundle& b) { give_to_pool(b.view(), b.granules); });
    }

    /// Effects: a rack that is full gets the limit that its traffic calls for now. If it still is, those magazines that
    /// hold the most bytes give back, until a quarter of it is free.
    void shrink(rack& r) noexcept {
        const std::lock_guard lock(racks_.mutex());
        const auto live = static_cast<std::int64_t>(r.traffic.bytes_out.value() - r.traffic.bytes_in.value());
        const std::uint64_t share =
            live > 0 ? static_cast<std::uint64_t>(live) / layout::granule / live_share : 0;
        r.granule_limit = std::max<std::uint64_t>(limit_, share);
        while (r.parked_granules.value() > r.granule_limit / 4 * 3) {
            magazine* largest = nullptr;
            std::uint64_t most = 0;
            r.magazines.for_each([&](magazine& m) {
                const std::uint64_t granules = std::uint64_t{m.count} * m.granules;
                if (granules > most) {
                    most = granules;
                    largest = &m;
                }
            });
            if (largest == nullptr) return;
            give_back(r, *largest, (largest->count + 1) / 2);
        }
    }

    /// Effects: if the magazine is full, the half that was parked first leaves it, for the depot or the pool.
    void give_way(rack& r, magazine& m) noexcept {
        const transits::passage under_way(transits_);
        std::array<void*, magazine::most_blocks> blocks;
        if (!r.section.try_enter()) return;
        const bool full = m.count == magazine::most_blocks;
        const std::size_t n = full ? take_oldest(r, m, magazine::half, blocks) : 0;
        r.section.leave();
        if (n == 0) return;
        depot::bundle b{.stream_id = r.stream_id,
                        .granules = m.granules,
                        .count = static_cast<std::uint32_t>(n),
                        .blocks = {}};
        std::copy_n(blocks.begin(), n, b.blocks.begin());
        if (depot_.put(b)) return;
        if (depot::bundle old; depot_.evict(b, old)) give_to_pool(old.view(), old.granules);
        if (!depot_.put(b)) give_to_pool(b.view(), b.granules);
    }

    /// Requires, as the next: the caller has the rack to itself, and holds the list's mutex.
    void give_back_all(rack& r) noexcept {
        r.magazines.for_each([&](magazine& m) { give_back(r, m, m.count); });
    }

    void give_back(rack& r, magazine& m, std::uint32_t number) noexcept {
        if (number == 0) return;
        const transits::passage under_way(transits_);
        std::array<void*, magazine::most_blocks> blocks;
        const std::size_t n = take_oldest(r, m, number, blocks);
        give_to_pool({blocks.data(), n}, m.granules);
    }

    /// Requires: the caller has the rack to itself. Returns: the number of blocks written to `out`.
    std::size_t take_oldest(rack& r, magazine& m, std::uint32_t number,
                            std::array<void*, magazine::most_blocks>& out) noexcept {
        std::size_t n = 0;
        for (std::uint32_t i = 0; i < number; ++i) {
            void* const p = m.blocks[i];
            word& w = *table().find(p);
            if (w.load(std::memory_order_relaxed) == r.parked_word) {
                w.store(gone_word, std::memory_order_relaxed);
                out[n++] = p;
            } else {
                stale_.store(p, std::memory_order_relaxed);
            }
        }
        std::copy(m.blocks.begin() + number, m.blocks.begin() + m.count, m.blocks.begin());
        m.count -= number;
        r.parked_granules.subtract(std::uint64_t{number} * m.granules);
        return n;
    }

    static bool is_valid(rack& r) noexcept {
        std::uint64_t parked = 0;
        bool good = true;
        r.magazines.for_each([&](const magazine& m) {
            good = good && m.count <= magazine::most_blocks;
            for (std::uint32_t i = 0; i < m.count; ++i)
                good = good && word_of(m.blocks[i]).bits() == r.parked_word;
            parked += std::uint64_t{m.count} * m.granules;
        });
        return good && parked == r.parked_granules.value();
    }

    static constexpr std::uint64_t live_share = 8;  ///< see `magazine_options::max_parked_bytes`
    static constexpr std::uint64_t depot_share = 4; ///< of what the racks may hold
    static constexpr std::size_t negligible_share = 4096;

    const std::size_t limit_; ///< granules that a rack may hold
    const std::size_t max_streams_;
    const bool asks_;

  protected:
    std::optional<Pool> pool_; ///< always engaged between construction and destruction

    // Written to by misses of all threads: not on the line of what hits read.
    alignas(own_lines) mutable rack_list racks_;
    depot depot_;
    front_accounts accounts_;
    transits transits_;
};

} // namespace tenure
