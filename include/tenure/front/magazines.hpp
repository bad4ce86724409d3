#pragma once

/// \file
/// `magazines<Pool>`: a pool with, in front of it, free blocks that each thread keeps for each stream. A resource.
///
///     thread, stream --> rack --> magazine of the size --> block         a hit
///                                     | empty, or full
///                                     v
///                                   Pool --> device                      a miss
///
/// A hit takes no lock, makes no driver call (but see `stream_check`), records no event, asks no meter and executes no
/// instruction with a lock prefix. The walk of an allocation:
///   1. the thread's magazine of this size and stream
///   2. what the pool holds free, several blocks at once
///   3. all that is parked, of all threads, goes back to the pool, and 2 again
///   4. the pool, which may buy now, or fail
/// So parked memory never makes the pool buy, and never makes a request fail.
///
/// Ordering: a magazine belongs to one stream *identity*. A block enters it when it is freed on the stream that it was
/// last allocated on and was used on no other; the stream itself keeps the order then. All else goes to the pool: frees on
/// another stream, blocks with recorded uses, everything on a capturing stream. A parked block goes back to the pool as
/// freed on its own stream, for which no driver call is needed, so that stream may be gone. After parked blocks were
/// taken back, the next call on each stream goes to the pool, so that it can mark what it has for other streams.
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
/// parked where; at a miss that finds nothing free, and when a thread meets a new size or stream) > the pool's own.
///
/// Thread-safety: thread-safe, except construction and destruction. Threads may end before or after the front end
/// does. A child of `fork` must not use it.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/device/device.hpp>
#include <tenure/front/block_table.hpp>
#include <tenure/front/block_word.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/magazine_options.hpp>
#include <tenure/front/rack_list.hpp>
#include <tenure/front/thread_racks.hpp>
#include <tenure/policy/held_block.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace tenure {

template <resource Pool>
class magazines {
  public:
    using pool_type = Pool;
    using device_type = typename Pool::device_type;
    using pool_options_type = typename Pool::options_type;
    using options_type = magazines_options<pool_options_type>;

    /// Throws: `std::bad_alloc`, and what the pool's construction throws.
    explicit magazines(device_type& device, options_type options = {})
        : device_(&device)
        , most_(holding_resource<Pool> && options.magazines.enabled
                    ? std::min(options.magazines.max_block_bytes, largest_block)
                    : 0)
        , limit_(options.magazines.max_parked_bytes / layout::granule)
        , max_streams_(std::max<std::size_t>(options.magazines.max_streams, 1))
        , asks_(options.magazines.check == stream_check::every_call) {
        pool_.emplace(device, std::move(options.pool));
        front_registry::instance().enter({number_, this, [](void* self, std::uint64_t thread) noexcept {
                                              static_cast<magazines*>(self)->thread_ends(thread);
                                          }});
    }

    /// Made as the pool is.
    template <std::same_as<pool_options_type> Options>
    explicit magazines(device_type& device, Options pool_options, magazine_options options = {})
        : magazines(device, options_type{std::move(pool_options), options}) {}

    magazines(const magazines&) = delete;
    magazines& operator=(const magazines&) = delete;

    /// As the pool's. Requires: no other thread is inside a call. Threads may still have racks here.
    ~magazines() {
        front_registry::instance().leave(number_);
        take_all_back();
        std::size_t requested = usage().requested.current;
        const misuse_scope scope(
            [](misuse& m, void* bytes) noexcept {
                if (m.kind == misuse_kind::live_at_destruction) m.bytes = *static_cast<std::size_t*>(bytes);
                return true;
            },
            &requested);
        pool_.reset();
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        if (void* const p = pop<reach::near>(stream, bytes, alignment)) [[likely]]
            return p;
        return allocate_or_throw(stream, bytes, alignment);
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        if (void* const p = pop<reach::near>(stream, bytes, alignment)) [[likely]]
            return p;
        return allocate_slow(stream, bytes, alignment);
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        take_all_back();
        void* const p = pool_->allocate_sync(bytes, alignment);
        table().forget(p);
        return p;
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (push<reach::near>(stream, p, bytes)) [[likely]]
            return;
        deallocate_or_report(stream, p, bytes, alignment);
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        if (push<reach::near>(stream, p, bytes)) [[likely]]
            return freed{};
        return deallocate_slow(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        if (is_pools_own(p)) return pool_->deallocate_sync(p, bytes, alignment);
        report(take(default_stream, p, bytes, [&](std::size_t rounded) -> deallocate_result {
            pool_->deallocate_sync(p, rounded, alignment);
            return freed{};
        }));
    }

    void release(void* p) noexcept {
        if (is_pools_own(p)) return pool_->release(p);
        report(take(default_stream, p, any_size, [&](std::size_t) -> deallocate_result {
            pool_->release(p);
            return freed{};
        }));
    }

    void record_use(void* p, stream_handle stream) noexcept {
        if (!is_pools_own(p)) {
            block_table::word& w = *table().find(p);
            std::uint64_t bits = w.load(std::memory_order_acquire);
            const block_word v(bits);
            if (!v.is_live() || !origin_of(v, p, stream).ours) return report(classify(stream, p, 0));
            if (v.what() == block_word::state::live &&
                !w.compare_exchange_strong(
                    bits, block_word::of(v.rack(), block_word::state::shared, v.bytes()).bits()) &&
                block_word(bits).what() != block_word::state::shared)
                return report(classify(stream, p, 0));
        }
        pool_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        if (is_pools_own(p)) return pool_->owns(p);
        const block_word v = word_of(p);
        return v.is_live() && (racks_.stream_of(v.rack()).has_value() || pool_->owns(p));
    }

    [[nodiscard]] usage_counters usage() const {
        const front_totals front = racks_.totals();
        const traffic_with_pool t = with_pool_.read();
        usage_counters u = pool_->usage();
        u.allocated = corrected(u.allocated, 0, signed_of(front.parked));
        u.requested = corrected(
            u.requested, signed_of(front.bytes_out) - signed_of(t.bytes_out),
            signed_of(t.bytes_out) - signed_of(t.bytes_in) -
                (signed_of(front.bytes_out) - signed_of(front.bytes_in) - signed_of(t.freed_bytes)));
        u.blocks = corrected(
            u.blocks, signed_of(front.blocks_out) - signed_of(t.blocks_out),
            signed_of(t.blocks_out) - signed_of(t.blocks_in) -
                (signed_of(front.blocks_out) - signed_of(front.blocks_in) - signed_of(t.freed_blocks)));
        u.requested = at_most(u.requested, u.allocated.current);
        u.failures -= std::min<std::size_t>(u.failures, tried_again_.load(std::memory_order_relaxed));
        return u;
    }

    /// Effects: all that is parked goes back to the pool first.
    std::size_t trim(std::size_t bytes_to_keep) {
        take_all_back();
        return pool_->trim(bytes_to_keep);
    }

    /// Parked blocks are shown as free.
    [[nodiscard]] memory_snapshot snapshot() const {
        memory_snapshot picture = pool_->snapshot();
        for (segment_snapshot& segment : picture.segments)
            for (block_snapshot& b : segment.blocks) {
                if (b.state != block_state::allocated) continue;
                void* const p = to_pointer(b.block != 0 ? b.block : b.address);
                if (is_pools_own(p)) continue;
                const block_word v = word_of(p);
                if (!v.is_live()) {
                    b.state = block_state::free;
                    b.requested = 0;
                } else if (!b.continued) { // the pool was asked for the rounded size
                    b.requested -= rounded(v.bytes()) - v.bytes();
                }
            }
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        bool good = pool_->validate();
        racks_.visit([](const rack&) { return true; }, [&](rack& r) { good = is_valid(r) && good; });
        return good;
    }

    /// Effects: the graphs made from this capture are gone and their work is over; what the pool kept for them is
    /// free.
    void release_captured(std::uint64_t capture) noexcept requires capture_resource<Pool> {
        pool_->release_captured(capture);
    }

    // ---- beyond resource ----

    /// Effects: no thread keeps blocks of the stream any more. What `stream_check::announced` asks for before the stream
    /// is destroyed or a capture begins on it.
    void forget(stream_handle stream) noexcept {
        racks_.visit([&](const rack& r) { return r.stream == stream; },
                     [&](rack& r) {
                         give_back_all(r);
                         r.section.retire();
                     });
        report_stale();
    }

    /// The pool behind. What is parked, it counts as live.
    [[nodiscard]] Pool& pool() noexcept { return *pool_; }

  private:
    using word = block_table::word;

    static constexpr std::size_t largest_block = std::size_t{32} << 20;
    static_assert(largest_block <= block_word::max_bytes);

    /// No block has this size, so that the pool says what is wrong with a pointer and frees nothing.
    static constexpr std::size_t impossible_size = no_limit - 1;
    static constexpr std::optional<std::size_t> any_size = std::nullopt;

    /// Bytes as rounded, except `freed`: as requested.
    struct traffic_with_pool {
        std::uint64_t bytes_out = 0; ///< from the pool
        std::uint64_t bytes_in = 0;
        std::uint64_t blocks_out = 0;
        std::uint64_t blocks_in = 0;
        std::uint64_t freed_bytes = 0; ///< by the application, past the magazines
        std::uint64_t freed_blocks = 0;
    };

    /// The same, counted by all threads. Misses only.
    struct shared_traffic {
        std::atomic<std::uint64_t> bytes_out{0}, bytes_in{0}, blocks_out{0}, blocks_in{0}, freed_bytes{0},
            freed_blocks{0};

        void out(std::size_t bytes) noexcept {
            bytes_out.fetch_add(bytes, std::memory_order_relaxed);
            blocks_out.fetch_add(1, std::memory_order_relaxed);
        }
        void in(std::size_t bytes, std::size_t blocks) noexcept {
            bytes_in.fetch_add(bytes, std::memory_order_relaxed);
            blocks_in.fetch_add(blocks, std::memory_order_relaxed);
        }
        void freed(std::size_t bytes) noexcept {
            freed_bytes.fetch_add(bytes, std::memory_order_relaxed);
            freed_blocks.fetch_add(1, std::memory_order_relaxed);
        }
        [[nodiscard]] traffic_with_pool read() const noexcept {
            constexpr auto relaxed = std::memory_order_relaxed;
            return {bytes_out.load(relaxed), bytes_in.load(relaxed),    blocks_out.load(relaxed),
                    blocks_in.load(relaxed), freed_bytes.load(relaxed), freed_blocks.load(relaxed)};
        }
    };

    /// While it lives, blocks are on the way between magazines and the pool, where nobody else can find them.
    class transit {
      public:
        explicit transit(std::atomic<int>& under_way) noexcept : under_way_(&under_way) {
            under_way_->fetch_add(1, std::memory_order_seq_cst);
        }
        ~transit() { under_way_->fetch_sub(1, std::memory_order_seq_cst); }
        transit(const transit&) = delete;
        transit& operator=(const transit&) = delete;

      private:
        std::atomic<int>* under_way_;
    };

    static block_table& table() noexcept { return block_table::instance(); }

    static std::uint32_t granules_of(std::size_t bytes) noexcept {
        return static_cast<std::uint32_t>((bytes + layout::granule - 1) / layout::granule);
    }
    static std::size_t rounded(std::size_t bytes) noexcept { return round_up(bytes, layout::granule); }

    static block_word word_of(const void* p) noexcept {
        const word* const w = table().find(p);
        return w == nullptr ? block_word() : block_word(w->load(std::memory_order_acquire));
    }

    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }

    // ---- hits ----

    [[nodiscard]] TENURE_NOINLINE bool is_same_stream(const rack& r, stream_handle stream) noexcept {
        const result<stream_state, status> now = device_->describe(stream);
        return now && now->id == r.stream_id && !now->capturing();
    }

    /// How far a hit may reach. `near` is what nearly all of them need, in code that calls nothing and so saves no
    /// registers; `far` also asks the device, executes fences where light ones are not to be had, and looks next to the
    /// first place of a hash.
    enum class reach : bool { near, far };

    /// Returns: the thread's rack, entered, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE rack* enter(stream_handle stream) noexcept {
        rack* const r = Reach == reach::near ? thread_racks::find_at_once(number_, stream)
                                             : thread_racks::find(number_, stream);
        if (r == nullptr) return nullptr;
        if (r->ask_device && (Reach == reach::near || !is_same_stream(*r, stream))) return nullptr;
        if (Reach == reach::near ? !r->section.try_enter_lightly() : !r->section.try_enter()) return nullptr;
        return r;
    }

    /// Returns: the magazine of that size, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE static magazine* magazine_of(rack& r, std::uint32_t granules) noexcept {
        magazine& home = r.magazines.home(granules);
        if (home.granules == granules) [[likely]]
            return &home;
        return Reach == reach::near ? nullptr : r.magazines.find(granules);
    }

    /// Returns: a parked block, now live, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE void* pop(stream_handle stream, std::size_t bytes, std::size_t alignment) noexcept {
        if (!is_tracked(bytes, alignment)) return nullptr;
        rack* const r = enter<Reach>(stream);
        if (r == nullptr) return nullptr;
        const std::uint32_t granules = granules_of(bytes);
        magazine* const m = magazine_of<Reach>(*r, granules);
        void* p = nullptr;
        if (m != nullptr && m->count != 0) [[likely]] {
            p = m->blocks[--m->count];
            r->parked_granules.subtract(granules);
            word& w = table().at(p);
            if (w.load(std::memory_order_relaxed) == r->parked_word) [[likely]] {
                w.store(r->live_word | bytes, std::memory_order_relaxed);
                r->traffic.bytes_out.add(bytes);
                r->traffic.blocks_out.add(1);
            } else {
                stale_.store(p, std::memory_order_relaxed);
                p = nullptr;
            }
        }
        r->section.leave();
        return p;
    }

    /// Returns: whether the block is parked now.
    template <reach Reach>
    TENURE_ALWAYS_INLINE bool push(stream_handle stream, void* p, std::size_t bytes) noexcept {
        word* const w = table().find(p);
        if (w == nullptr || bytes > largest_block) return false;
        rack* const r = enter<Reach>(stream);
        if (r == nullptr) return false;
        const std::uint32_t granules = granules_of(bytes);
        magazine* const m = magazine_of<Reach>(*r, granules);
        const bool fits = w->load(std::memory_order_relaxed) == (r->live_word | bytes) && m != nullptr &&
                          m->count < magazine::most_blocks && has_room(*r, granules);
        if (fits) [[likely]] {
            w->store(r->parked_word, std::memory_order_relaxed);
            put(*r, *m, p, bytes);
        }
        r->section.leave();
        return fits;
    }

    TENURE_ALWAYS_INLINE static bool has_room(const rack& r, std::uint32_t granules) noexcept {
        const std::uint64_t parked = r.parked_granules.value();
        return parked + granules <= r.granule_limit || parked == 0;
    }

    TENURE_ALWAYS_INLINE static void put(rack& r, magazine& m, void* p, std::size_t bytes) noexcept {
        m.blocks[m.count++] = p;
        r.parked_granules.add(m.granules);
        r.traffic.bytes_in.add(bytes);
        r.traffic.blocks_in.add(1);
    }

    /// Whether blocks of this kind have words.
    [[nodiscard]] TENURE_ALWAYS_INLINE bool is_tracked(std::size_t bytes,
                                                       std::size_t alignment) const noexcept {
        return bytes - 1 < most_ && alignment - 1 < layout::granule && is_power_of_two(alignment);
    }

    // ---- misses: allocation ----

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
            if (void* const p = pop<reach::far>(stream, bytes, alignment)) return p;
            report_stale();
            if (most_ == 0 || bytes == 0 || !is_power_of_two(alignment) || alignment > max_alignment)
                return pool_->try_allocate(stream, bytes, alignment);
            if (is_tracked(bytes, alignment))
                if (rack* const r = rack_for(stream)) return refill(*r, bytes);
            return allocate_untracked(stream, bytes, alignment);
        }
    }

    /// A block of which the pool keeps the books alone.
    allocate_result allocate_untracked(stream_handle stream, std::size_t bytes,
                                       std::size_t alignment) noexcept {
        held_block b;
        allocate_result r = static_cast<void*>(nullptr);
        if (pool_->try_allocate_held(stream, bytes, alignment, {&b, 1}) != 0)
            r = b.pointer;
        else if (take_all_back() && pool_->try_allocate_held(stream, bytes, alignment, {&b, 1}) != 0)
            r = b.pointer;
        else
            r = allocate_from_pool(stream, bytes, alignment);
        if (r) table().forget(*r);
        return r;
    }

    /// Steps 2 to 4 of the walk, for a rack of the calling thread.
    allocate_result refill(rack& r, std::size_t bytes) noexcept {
        const std::uint32_t granules = granules_of(bytes);
        const std::size_t size = rounded(bytes);
        r.section.accept_visit();
        magazine* const m = magazine_for(r, granules);
        std::array<held_block, magazine::largest_batch> got;
        std::size_t n = 0;
        {
            const transit under_way(under_way_);
            n = pool_->try_allocate_held(r.stream, size, layout::granule,
                                         std::span(got).first(m == nullptr ? 1 : m->batch));
            for (std::size_t i = 1; i < n; ++i) with_pool_.out(size);
            if (n > 1) park_fresh(r, *m, std::span(got).subspan(1, n - 1));
        }
        if (n == 0) {
            if (take_all_back())
                n = pool_->try_allocate_held(r.stream, size, layout::granule, std::span(got).first(1));
            r.section.accept_visit();
            if (n == 0) {
                const allocate_result p = allocate_from_pool(r.stream, size, layout::granule);
                if (!p) {
                    allocation_failure f = p.error();
                    f.requested = bytes;
                    return f;
                }
                got[0] = {*p, pool_->block_bytes(*p)};
            }
        }
        if (m != nullptr) m->raise_batch();
        return hand_out(r, got[0], bytes);
    }

    allocate_result hand_out(rack& r, const held_block& b, std::size_t bytes) noexcept {
        word* const w = table().make(b.pointer);
        if (w == nullptr) { // no host memory, or a pool with addresses of its own kind
            pool_->release(b.pointer);
            return allocate_untracked(r.stream, bytes, default_alignment);
        }
        // A block that is larger than what goes into its magazine would not be accounted for there.
        const bool exact = b.bytes == rounded(bytes);
        w->store(block_word::of(r.number, exact ? block_word::state::live : block_word::state::shared, bytes)
                     .bits(),
                 std::memory_order_relaxed);
        with_pool_.out(rounded(bytes));
        r.traffic.bytes_out.add(bytes);
        r.traffic.blocks_out.add(1);
        return b.pointer;
    }

    /// Effects: blocks from the pool go into the magazine, or back.
    void park_fresh(rack& r, magazine& m, std::span<const held_block> blocks) noexcept {
        std::array<void*, magazine::largest_batch> back;
        std::size_t returned = 0;
        const bool inside = r.section.try_enter();
        for (const held_block& b : blocks) {
            word* const w = table().make(b.pointer);
            const bool fits = inside && w != nullptr && b.bytes == m.granules * layout::granule &&
                              m.count < magazine::most_blocks && has_room(r, m.granules);
            if (!fits) {
                if (w != nullptr) w->store(gone_word, std::memory_order_relaxed);
                back[returned++] = b.pointer;
                continue;
            }
            w->store(r.parked_word, std::memory_order_relaxed);
            m.blocks[m.count++] = b.pointer;
            r.parked_granules.add(m.granules);
        }
        if (inside) r.section.leave();
        give_to_pool({back.data(), returned}, m.granules * layout::granule);
    }

    /// Effects: asks the pool, which may buy. Tries again when what others were moving might have served.
    allocate_result allocate_from_pool(stream_handle stream, std::size_t bytes,
                                       std::size_t alignment) noexcept {
        for (int tries = 1;; ++tries) {
            allocate_result r = pool_->try_allocate(stream, bytes, alignment);
            if (r || tries == most_tries || r.error().cause == failure_cause::driver) return r;
            const bool moving = wait_for_transits();
            if (!take_all_back() && !moving) return r;
            tried_again_.fetch_add(1, std::memory_order_relaxed);
        }
    }

    /// Returns: whether there was anything to wait for. Gives up after a while, as there may be ever new ones.
    bool wait_for_transits() const noexcept {
        if (under_way_.load(std::memory_order_seq_cst) == 0) return false;
        for (int i = 0; i < 1000 && under_way_.load(std::memory_order_seq_cst) != 0; ++i)
            std::this_thread::yield();
        return true;
    }

    // ---- misses: free ----

    TENURE_NOINLINE void deallocate_or_report(stream_handle stream, void* p, std::size_t bytes,
                                              std::size_t alignment) noexcept {
        report(deallocate_slow(stream, p, bytes, alignment));
    }

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

    /// Whether the front end knows nothing of this address.
    [[nodiscard]] bool is_pools_own(const void* p) const noexcept {
        return most_ == 0 || word_of(p).what() == block_word::state::unknown;
    }

    TENURE_NOINLINE deallocate_result deallocate_slow(stream_handle stream, void* p, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
        if (push<reach::far>(stream, p, bytes)) return freed{};
        report_stale();
        if (is_pools_own(p)) return pool_->try_deallocate(stream, p, bytes, alignment);
        word& w = *table().find(p);
        const block_word v(w.load(std::memory_order_acquire));
        if (v.what() == block_word::state::live && v.bytes() == bytes) {
            rack* const r = rack_for(stream);
            if (r != nullptr && !r->section.accept_visit()) {
                const origin from = origin_of(v, p, stream);
                if (from.ours && from.stream_id == r->stream_id && park(*r, w, v, p)) return freed{};
            }
        }
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
        const block_word v(bits);
        with_pool_.freed(v.bytes());
        with_pool_.in(rounded(v.bytes()), 1);
        return free_in_pool(rounded(v.bytes()));
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

    /// Returns: the magazine of a size that has been asked for; a size has one from its second miss on.
    magazine* magazine_for(rack& r, std::uint32_t granules) noexcept {
        if (magazine* const m = r.magazines.find(granules)) return m;
        if (!r.has_missed(granules)) return nullptr;
        const std::lock_guard lock(racks_.mutex());
        return &r.magazines.obtain(granules, [&](magazine& old) { give_back(r, old, old.count); });
    }

    /// Effects: a rack that is full gets the limit that its traffic calls for now. If it still is, those magazines that
    /// hold the most bytes give back, until a quarter of it is free.
    void shrink(rack& r) noexcept {
        const std::lock_guard lock(racks_.mutex());
        const std::int64_t live = signed_of(r.traffic.bytes_out.value() - r.traffic.bytes_in.value());
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

    /// Effects: parks a live block of the rack's stream, whoever has allocated it. Returns: whether it did.
    bool park(rack& r, word& w, block_word v, void* p) noexcept {
        const std::size_t bytes = v.bytes();
        const std::uint32_t granules = granules_of(bytes);
        magazine* const m = r.magazines.find(granules);
        if (m == nullptr) return false;
        if (!has_room(r, granules)) shrink(r);
        for (int tries = 0; tries < 2; ++tries) {
            if (!r.section.try_enter()) return false;
            const bool full = m->count == magazine::most_blocks;
            std::uint64_t expected = v.bits();
            const bool parked =
                !full && has_room(r, granules) && w.compare_exchange_strong(expected, r.parked_word);
            if (parked) put(r, *m, p, bytes);
            r.section.leave();
            if (!full) return parked;
            give_back_half(r, *m);
        }
        return false;
    }

    // ---- racks ----

    /// Returns: the calling thread's rack for the stream that the handle names now; null if it can have none.
    rack* rack_for(stream_handle stream) noexcept {
        rack* r = thread_racks::find(number_, stream);
        const result<stream_state, status> now = device_->describe(stream);
        if (!now) return nullptr;
        if (now->capturing()) {
            // Before the pool hears of the capture, which would hold back what comes later.
            if (r != nullptr && r->parked_granules.value() != 0) {
                const std::lock_guard lock(racks_.mutex());
                give_back_all(*r);
            }
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
        if (thread_racks::set(number_, stream, r)) return r;
        racks_.remove(r, [](rack&) {});
        return nullptr;
    }

    /// Requires: the rack is the calling thread's.
    void remove(rack* r) noexcept {
        thread_racks::set(number_, r->stream, nullptr);
        racks_.remove(r, [this](rack& gone) { give_back_all(gone); });
    }

    void thread_ends(std::uint64_t thread) noexcept {
        racks_.remove_thread(thread, [this](rack& r) { give_back_all(r); });
    }

    /// Effects: what any thread has parked goes back to the pool. Returns: whether there was anything.
    bool take_all_back() noexcept {
        bool any = false;
        racks_.visit(
            [](rack& r) {
                r.section.ask_for_visit();
                return r.parked_granules.value() != 0;
            },
            [&](rack& r) {
                give_back_all(r);
                any = true;
            });
        report_stale();
        return any;
    }

    /// Requires, as the next: the caller has the rack to itself, and holds the list's mutex.
    void give_back_all(rack& r) noexcept {
        r.magazines.for_each([&](magazine& m) { give_back(r, m, m.count); });
    }

    void give_back(rack& r, magazine& m, std::uint32_t number) noexcept {
        std::array<void*, magazine::most_blocks> blocks;
        const std::size_t n = take_oldest(r, m, number, blocks);
        give_to_pool({blocks.data(), n}, m.granules * layout::granule);
    }

    /// Effects: the half that was parked first goes back. Requires: the rack is the calling thread's.
    void give_back_half(rack& r, magazine& m) noexcept {
        const transit under_way(under_way_);
        std::array<void*, magazine::most_blocks> blocks;
        if (!r.section.try_enter()) return;
        const std::size_t n = take_oldest(r, m, (m.count + 1) / 2, blocks);
        r.section.leave();
        give_to_pool({blocks.data(), n}, m.granules * layout::granule);
    }

    /// Returns: the number of blocks written to `out`.
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

    void give_to_pool(std::span<void* const> blocks, std::size_t bytes_each) noexcept {
        if (blocks.empty()) return;
        with_pool_.in(bytes_each * blocks.size(), blocks.size());
        if constexpr (holding_resource<Pool>) pool_->release_batch(blocks);
    }

    /// Effects: reports an entry that came up in a magazine though its block is not parked there.
    void report_stale() noexcept {
        if (stale_.load(std::memory_order_relaxed) == nullptr) return;
        if (void* const p = stale_.exchange(nullptr))
            report_misuse({.kind = misuse_kind::double_free, .pointer = p});
    }

    // ---- answers ----

    static std::int64_t signed_of(std::uint64_t n) noexcept { return static_cast<std::int64_t>(n); }

    /// Returns: the pool's gauge with `in` added to what flowed in, and `held` taken from what is there.
    static gauge corrected(gauge g, std::int64_t in, std::int64_t held) noexcept {
        g.total_in = static_cast<std::size_t>(std::max<std::int64_t>(signed_of(g.total_in) + in, 0));
        g.current = static_cast<std::size_t>(std::max<std::int64_t>(signed_of(g.current) - held, 0));
        return at_most(g, g.total_in);
    }
    static gauge at_most(gauge g, std::size_t limit) noexcept {
        g.current = std::min({g.current, g.total_in, limit});
        g.peak = std::max(g.peak, g.current);
        g.total_out = g.total_in - g.current;
        return g;
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

    static constexpr std::uint64_t gone_word = block_word::of(0, block_word::state::gone, 0).bits();
    static constexpr int most_tries = 3;
    static constexpr std::uint64_t live_share = 8; ///< see `magazine_options::max_parked_bytes`

    const std::uint64_t number_ = front_registry::instance().new_front_number();
    device_type* const device_;
    const std::size_t most_;  ///< bytes: larger blocks are not parked; 0: none is
    const std::size_t limit_; ///< granules that a rack may hold
    const std::size_t max_streams_;
    const bool asks_;
    std::optional<Pool> pool_; ///< always engaged between construction and destruction

    // Written to by misses of all threads: not on the line of what hits read.
    alignas(128) mutable rack_list racks_;
    shared_traffic with_pool_;
    std::atomic<int> under_way_{0}; ///< `transit`s
    std::atomic<std::size_t> tried_again_{0};
    std::atomic<void*> stale_{nullptr};
};

} // namespace tenure
