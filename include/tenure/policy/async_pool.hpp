#pragma once

/// \file
/// `async_pool`: the driver's stream-ordered allocator (`cudaMallocAsync`) behind tenure's interface.
///
/// Model: one driver pool of our own, made at construction, and a map of what it gave us.
///
///     allocate(s) ----> allocate_from(pool, s) ----> live block, remembered by address
///     deallocate(s) --> s waits for the streams of record_use ----> deallocate_to(pool, s)
///                   \-> one of these streams is being captured ---> waiting: each of them is marked by an event as
///                       soon as it can be; when all marks have passed, deallocate_to(pool, default stream)
///
/// Where blocks lie, when they are reused and by whom is the driver's decision. This class adds what the driver leaves
/// out: misuse is found (a stale free of an address that was handed out again *succeeds* in the driver), uses on other
/// streams are waited for, nothing reaches a graph capture, large alignments work, and the bytes are counted.
///
/// Invariants:
///   1. The pool is our own, never the device's default pool, and gives nothing back by itself: its reserved bytes
///      grow only in an allocation and shrink only in our trims. So reading them in `usage` and around trims is exact,
///      the peak included, and costs the hot path nothing.
///   2. An allocation on a capturing stream is refused: as a graph node it would bypass every limit.
///   3. A block freed while its stream, or a stream that used it, is being captured goes back to the driver only after
///      that capture. Nothing of a free is ever recorded into a capture.
///   4. A free is never lost: what the driver refuses to take is kept, counted as pending, and offered again.
///   5. A free needs no host memory.
///   6. The extents of all blocks are disjoint; a driver that hands out live memory is caught at once.
///   7. A stream is touched only in a call that names it, or if its handle is permanent. So a free that waits for a
///      capture goes on with the first call on that stream after the capture. If there is none because the stream was
///      destroyed, the block stays pending as long as the pool lives. A stream that this pool meets first in a capture
///      hides its identity there, and is known by its handle until that call: it has to live so long, or its work from
///      before the capture has to be over.
///
/// Complexity: O(log n) in the live blocks. Besides the driver's allocator, each path asks once for identity and
/// capture of the stream (0.1 us), and a free marks and waits for every other stream that used the block (0.9 us
/// each); about 1 us a pair. The driver has one lock, so more threads are slower, not faster.
/// Thread-safety: thread-safe; one mutex, not held while the host waits.

#include <tenure/core.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/device/device.hpp>
#include <tenure/ordering/event_cache.hpp>
#include <tenure/policy/async_options.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure {

template <pool_device Device>
class async_pool {
  public:
    using device_type = Device;
    using options_type = async_options;

    /// What the driver aligns every block to, and rounds its size to, in bytes.
    static constexpr std::size_t granule = 512;

    /// Requires: the device outlives the pool.
    /// Throws: `driver_error` when the device has no pools, or refuses to make one; with `status::not_supported` also
    /// if a peer cannot reach its memory.
    explicit async_pool(Device& device, options_type options = {}) : device_(&device), events_(device) {
        const result<pool_handle, status> pool =
            device.create_pool({.max_bytes = options.max_bytes,
                                .release_threshold = no_limit,
                                .reuse_follows_events = options.reuse_follows_events,
                                .reuse_when_passed = options.reuse_when_passed,
                                .reuse_makes_streams_wait = options.reuse_makes_streams_wait,
                                .peers = options.peers});
        if (!pool && pool.error() == status::not_supported && options.peers != 0)
            throw driver_error(
                pool.error(),
                "async_pool: this device has no driver pools, or not all peers reach its memory");
        if (!pool) throw driver_error(pool.error(), "cannot create a driver pool");
        pool_ = *pool;
    }

    async_pool(const async_pool&) = delete;
    async_pool& operator=(const async_pool&) = delete;

    /// Effects: reports live blocks as `live_at_destruction`, then gives them and everything else back.
    /// Requires: the work on blocks that are live, or wait for a capture, is over.
    ~async_pool() {
        if (!live_.empty())
            report_misuse({.kind = misuse_kind::live_at_destruction,
                           .pointer = to_pointer(live_.begin()->first),
                           .bytes = usage_.requested.current,
                           .expected = live_.size()});
        for (auto& [address, b] : live_) surrender(b);
        for (node& n : waiting_) surrender(n.mapped());
        status s = device_->destroy_pool(pool_);
        if (s != status::ok && !beyond_reach(s)) s = device_->destroy_pool(pool_);
        if (s != status::ok && !beyond_reach(s))
            report_misuse(
                {.kind = misuse_kind::driver, .bytes = usage_.reserved.current, .driver_status = s});
    }

    /// Effects, Returns, Throws: see `tenure::resource`.
    [[nodiscard]] void* allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) {
        const allocate_result got = try_allocate(s, n, a);
        if (!got) throw_failure(got.error());
        return *got;
    }

    /// Effects, Returns: see `tenure::resource`. When the driver has no memory, what the pool does not use is
    /// given back and the driver is asked once more. `largest_free` of a failure stays 0: the driver does not
    /// tell.
    [[nodiscard]] allocate_result try_allocate(stream_handle s, std::size_t n,
                                               std::size_t a = default_alignment) noexcept {
        return serve(s, n, a, false);
    }

    /// Effects: see `tenure::resource`. The block is made on the default stream, and the host waits until that
    /// stream has come to it.
    [[nodiscard]] void* allocate_sync(std::size_t n, std::size_t a = default_alignment) {
        const allocate_result got = serve(default_stream, n, a, true);
        if (!got) throw_failure(got.error());
        return *got;
    }

    /// Effects, Returns: see `tenure::resource`. A free that has to wait, for a capture or because the driver
    /// refused it, is a success: it will be made by a later call.
    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n,
                                     std::size_t a = default_alignment) noexcept {
        static_cast<void>(a);
        return checked_free(s, p, n, false);
    }

    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(s, p, n, a); !r) report_misuse(r.error());
    }

    /// Effects: see `tenure::resource`. Makes no stream wait: no work is left to be in order with.
    void deallocate_sync(void* p, std::size_t n, std::size_t a = default_alignment) noexcept {
        static_cast<void>(a);
        if (const deallocate_result r = checked_free(default_stream, p, n, true); !r)
            report_misuse(r.error());
    }

    /// Effects: see `tenure::resource`. Requires: the stream of the allocation still exists; or its handle names another
    /// stream by now, and the block is no longer in use.
    void release(void* p) noexcept {
        if (p == nullptr) return;
        misuse_kind kind{};
        {
            const std::lock_guard lock(mutex_);
            const auto it = live_.find(to_address(p));
            if (it != live_.end()) return begin_free(it);
            kind = kind_of(to_address(p));
        }
        report_misuse({.kind = kind, .pointer = p});
    }

    /// Effects: see `tenure::resource`. Makes no driver call.
    void record_use(void* p, stream_handle s) noexcept {
        if (p == nullptr) return;
        misuse_kind kind{};
        {
            const std::lock_guard lock(mutex_);
            if (const auto it = live_.find(to_address(p)); it != live_.end()) {
                std::vector<use>& uses = it->second.others;
                const auto same = [s](const use& u) { return u.stream == s; };
                if (std::none_of(uses.begin(), uses.end(), same)) uses.push_back({s});
                return;
            }
            kind = kind_of(to_address(p));
        }
        report_misuse({.kind = kind, .pointer = p});
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return live_.contains(to_address(p));
    }

    /// Returns: see `usage_counters`. `reserved` is the driver's word at the time of the call; `segments`
    /// counts the driver's steps of growth.
    [[nodiscard]] usage_counters usage() const {
        const std::lock_guard lock(mutex_);
        observe_reserved();
        return usage_;
    }

    /// Effects: see `tenure::resource`. The driver gives back only what the host has seen finish.
    std::size_t trim(std::size_t keep) {
        const std::lock_guard lock(mutex_);
        tend_all();
        return shrink(keep);
    }

    /// Returns: one segment a block, in address order. The driver does not show what it holds free.
    [[nodiscard]] memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot picture;
        picture.segments.reserve(live_.size() + waiting_.size());
        const auto add = [&picture](const block& b, std::size_t requested, block_state state) {
            const std::uint64_t base = to_address(b.base);
            picture.segments.push_back({base, b.taken, {{base, b.taken, requested, state, b.home.id}}});
        };
        for (const auto& [address, b] : live_) add(b, b.requested, block_state::allocated);
        for (const node& n : waiting_) add(n.mapped(), 0, block_state::pending);
        std::sort(picture.segments.begin(), picture.segments.end(),
                  [](const segment_snapshot& x, const segment_snapshot& y) { return x.address < y.address; });
        return picture;
    }

    /// Returns: whether extents are disjoint and hold what was asked for, and counters equal sums. Linear.
    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        std::size_t requested = 0;
        std::size_t allocated = 0;
        std::size_t pending = 0;
        std::uint64_t end = 0;
        for (const auto& [address, b] : live_) {
            const std::uint64_t base = to_address(b.base);
            if (base < end || address < base || address + b.requested > base + b.taken) return false;
            end = base + b.taken;
            requested += b.requested;
            allocated += b.taken;
        }
        for (const node& n : waiting_) pending += n.mapped().taken;
        return usage_.requested.current == requested && usage_.allocated.current == allocated + pending &&
               usage_.pending == pending && usage_.blocks.current == live_.size() &&
               waiting_.capacity() >= nodes_ && spare_.capacity() >= nodes_ &&
               live_.size() + waiting_.size() + spare_.size() <= nodes_;
    }

  private:
    /// A stream that a block was used on.
    struct use {
        stream_handle stream = default_stream;
        std::uint64_t id = 0;        ///< identity; 0: not looked at yet, the caller vouches for the handle
        bool marked = false;         ///< its work on the block is over, or before `mark`
        event_handle mark = nullptr; ///< null when the work is over
    };

    struct block {
        void* base = nullptr;      ///< what the driver gave; the address handed out is the key in the map
        std::size_t requested = 0; ///< bytes
        std::size_t taken = 0;     ///< bytes asked of the driver
        use home;                  ///< allocated on; from the free on: freed on
        std::vector<use> others;   ///< `record_use`

        [[nodiscard]] bool marked() const noexcept {
            return home.marked &&
                   std::all_of(others.begin(), others.end(), [](const use& u) { return u.marked; });
        }
    };

    using block_map = std::map<std::uint64_t, block>;
    using node = typename block_map::node_type;

    enum class presence : std::uint8_t { here, capturing, gone, unknown };

    static failure_cause cause_of(status s) noexcept {
        switch (s) {
        case status::out_of_memory: return failure_cause::device;
        case status::over_limit: return failure_cause::arena_limit;
        case status::capture_violation: return failure_cause::capture;
        default: return failure_cause::driver;
        }
    }

    /// `for_all_streams`: the host waits, without the lock, until the block is there.
    allocate_result serve(stream_handle s, std::size_t n, std::size_t a, bool for_all_streams) noexcept {
        allocation_failure failure{.requested = n, .rounded = n};
        {
            std::unique_lock lock(mutex_);
            if (n == 0) return static_cast<void*>(nullptr);
            if (!is_power_of_two(a) || a > max_alignment) {
                failure.cause = failure_cause::invalid_alignment;
                return failure;
            }
            result<node, status> got = obtain(s, n, a, failure.rounded);
            failure.driver_status = got ? status::ok : got.error();
            if (got && for_all_streams) failure.driver_status = settle_default_stream(lock);
            if (failure.driver_status == status::ok) return enter(std::move(*got));
            if (got) undo(std::move(*got));
            failure.cause = cause_of(failure.driver_status);
            failure.pending = usage_.pending;
            failure.free_bytes =
                usage_.reserved.current - std::min(usage_.allocated.current, usage_.reserved.current);
            ++usage_.failures;
        }
        if (failure.cause == failure_cause::device || failure.cause == failure_cause::arena_limit) {
            device_->explain(failure);
            if (failure.free_bytes >= failure.rounded) failure.cause = failure_cause::fragmentation;
        }
        return failure;
    }

    /// Effects: sets `rounded` to the bytes to be asked of the driver, and asks for them.
    /// Returns: the block, which is not live yet, or the driver's answer; then nothing has changed.
    result<node, status> obtain(stream_handle s, std::size_t n, std::size_t a,
                                std::size_t& rounded) noexcept {
        rounded = saturating_add(round_up(n, granule), a > granule ? a - granule : 0);
        if (rounded > max_block_bytes) return status::out_of_memory;
        try {
            make_room();
        } catch (...) {
            return status::failed;
        }
        use home{s};
        switch (look(home)) {
        case presence::here: break;
        case presence::capturing: return status::capture_violation;
        case presence::gone: return status::invalid_value;
        case presence::unknown: return status::failed;
        }
        tend(home);
        result<void*, status> got = device_->allocate_from(pool_, rounded, s);
        if (!got && lacks_memory(got.error())) {
            tend_all();
            shrink(0);
            got = device_->allocate_from(pool_, rounded, s);
        }
        if (!got) return got.error();
        if (overlaps(to_address(*got), rounded))
            return status::failed; // somebody's live memory: not ours to give back
        node fresh = std::move(spare_.back());
        spare_.pop_back();
        fresh.key() = round_up(to_address(*got), a);
        block& b = fresh.mapped(); // `others` is empty, but may have capacity
        b.base = *got;
        b.requested = n;
        b.taken = rounded;
        b.home = home;
        return result<node, status>(std::move(fresh)); // said in full for nvcc
    }

    /// Effects: the block is live. Returns: its address.
    void* enter(node fresh) noexcept {
        const std::uint64_t address = fresh.key();
        const block& b = fresh.mapped();
        usage_.requested.add(b.requested);
        usage_.allocated.add(b.taken);
        usage_.blocks.add(1);
        remember(to_address(b.base), b.taken);
        live_.insert(std::move(fresh));
        return to_pointer(address);
    }

    /// Effects: gives a block back that never was live.
    void undo(node fresh) noexcept {
        block& b = fresh.mapped();
        if (hand_over(b, b.home.stream)) return spare_.push_back(std::move(fresh));
        usage_.allocated.add(b.taken);
        wait_with(std::move(fresh));
    }

    /// Effects: makes sure that one more block can live, and later wait, without asking for host memory.
    void make_room() {
        if (!spare_.empty()) return;
        block_map one;
        one.try_emplace(0);
        if (waiting_.capacity() <= nodes_) waiting_.reserve(2 * nodes_ + 1);
        if (spare_.capacity() <= nodes_) spare_.reserve(2 * nodes_ + 1);
        spare_.push_back(one.extract(one.begin()));
        ++nodes_;
    }

    deallocate_result checked_free(stream_handle s, void* p, std::size_t n, bool work_is_over) noexcept {
        if (p == nullptr) return freed{};
        const std::lock_guard lock(mutex_);
        const auto it = live_.find(to_address(p));
        if (it == live_.end()) return misuse{.kind = kind_of(to_address(p)), .pointer = p, .bytes = n};
        block& b = it->second;
        if (b.requested != n)
            return misuse{
                .kind = misuse_kind::size_mismatch, .pointer = p, .bytes = n, .expected = b.requested};
        b.home = {s};
        if (work_is_over) b.others.clear();
        begin_free(it);
        return freed{};
    }

    /// Requires: the streams of `home` and `others` exist. Effects: the block is no longer live; it is the
    /// driver's, now or later.
    void begin_free(typename block_map::iterator it) noexcept {
        node n = live_.extract(it);
        block& b = n.mapped();
        usage_.requested.subtract(b.requested);
        usage_.blocks.subtract(1);
        if (give_back(b)) return retire(std::move(n));
        for_each_use(b, [this](use& u) { mark(u); });
        wait_with(std::move(n));
    }

    void wait_with(node n) noexcept {
        usage_.pending += n.mapped().taken;
        note_waiting(n.mapped());
        waiting_.push_back(std::move(n));
    }

    void retire(node n) noexcept {
        usage_.allocated.subtract(n.mapped().taken);
        n.mapped().others.clear();
        spare_.push_back(std::move(n));
    }

    /// Effects: frees on the block's home stream, after the work of all others that use it.
    /// Returns: whether it could be done, and the driver has taken the block.
    bool give_back(block& b) noexcept {
        if (look(b.home) != presence::here) return false;
        for (use& u : b.others)
            if (look(u) != presence::here) return false;
        for (const use& u : b.others) {
            if (u.stream == b.home.stream) continue;
            const result<event_handle, status> event = events_.mark(u.stream);
            if (!event) return false;
            const status ordered = device_->wait(b.home.stream, *event);
            events_.release(*event); // the stream has taken note of what the event marks
            if (ordered != status::ok) return false;
        }
        tend(b.home);
        return hand_over(b, b.home.stream);
    }

    bool hand_over(const block& b, stream_handle s) noexcept {
        const status answer = device_->deallocate_to(pool_, b.base, s);
        return answer == status::ok || beyond_reach(answer);
    }

    /// Effects: tries to mark the work that the stream holds now. Requires: the stream exists.
    void mark(use& u) noexcept {
        switch (look(u)) {
        case presence::here: break;
        case presence::gone: u.marked = true; return; // a `release` after its stream: the caller vouches
        case presence::capturing:
        case presence::unknown: return;
        }
        if (const result<event_handle, status> event = events_.mark(u.stream)) {
            u.mark = *event;
            u.marked = true;
        }
    }

    /// Returns: whether all the block's marks have passed. Requires: `b.marked()`.
    bool passed(block& b) noexcept {
        bool all = true;
        for_each_use(b, [this, &all](use& u) {
            if (u.mark == nullptr) return;
            if (!all || device_->query(u.mark) != status::ok) {
                all = false;
                return;
            }
            events_.release(std::exchange(u.mark, nullptr));
        });
        return all;
    }

    /// Effects: goes on with the frees that wait for `named`, a stream of the current call that is not
    /// capturing, and with those that wait for marks, oldest first until one has not passed.
    void tend(const use& named) noexcept {
        if (marked_waiting_ == 0 && (awaited_ & bit(named)) == 0) return;
        walk_waiting(&named, false);
    }

    /// Effects: goes on with all frees that can.
    void tend_all() noexcept { walk_waiting(nullptr, true); }

    void walk_waiting(const use* named, bool all) noexcept {
        bool stop = false;
        std::size_t kept = 0;
        marked_waiting_ = 0;
        awaited_ = 0;
        for (std::size_t i = 0; i < waiting_.size(); ++i) {
            block& b = waiting_[i].mapped();
            for_each_use(b, [this, named](use& u) {
                const bool here = device_->permanent(u.stream) || (named != nullptr && names(*named, u));
                if (!u.marked && here) mark(u);
            });
            if (!stop && b.marked()) {
                if (passed(b) && hand_over(b, default_stream)) {
                    usage_.pending -= b.taken;
                    retire(std::move(waiting_[i]));
                    continue;
                }
                stop = !all;
            }
            note_waiting(b);
            if (kept != i) waiting_[kept] = std::move(waiting_[i]);
            ++kept;
        }
        waiting_.resize(kept);
    }

    void note_waiting(const block& b) noexcept {
        if (b.marked()) {
            ++marked_waiting_;
            return;
        }
        if (!b.home.marked) awaited_ |= bit(b.home);
        for (const use& u : b.others)
            if (!u.marked) awaited_ |= bit(u);
    }

    /// Returns: whether `u` is a use of the stream `named`, whose identity is known. A use that was first looked at in
    /// a capture has none; its stream is known by its handle.
    static bool names(const use& named, const use& u) noexcept {
        if (u.id != 0) return named.id == u.id;
        return named.stream == u.stream && !is_shared_handle(u.stream);
    }

    /// Streams as a set of 64 bits: a hint that saves walks in vain.
    [[nodiscard]] std::uint64_t bit(const use& u) const noexcept {
        return device_->permanent(u.stream)
                   ? ~std::uint64_t{0}
                   : std::uint64_t{1} << (to_address(u.stream) * 0x9e3779b97f4a7c15u >> 58);
    }

    /// Effects: gives a block back whatever it waits for, at the end of the pool's life.
    void surrender(block& b) noexcept {
        for_each_use(b, [this](use& u) {
            if (u.mark != nullptr) events_.release(std::exchange(u.mark, nullptr));
        });
        if (!hand_over(b, default_stream)) (void)hand_over(b, default_stream);
    }

    template <class F>
    static void for_each_use(block& b, F f) noexcept {
        f(b.home);
        for (use& u : b.others) f(u);
    }

    /// Returns: what the stream can be used for now. Requires: it exists.
    presence look(use& u) noexcept {
        if (device_->permanent(u.stream)) return presence::here;
        result<stream_state, status> state = device_->describe(u.stream);
        if (!state) state = device_->describe(u.stream);
        if (!state) return presence::unknown;
        if (state->capturing()) return presence::capturing; // and hides its identity
        if (u.id == 0) u.id = state->id;
        return u.id == state->id ? presence::here : presence::gone;
    }

    /// Requires: `lock` holds the mutex. Effects: the host waits, with the mutex released, until the default stream
    /// has come to where it is now.
    status settle_default_stream(std::unique_lock<std::mutex>& lock) noexcept {
        const result<event_handle, status> mark = events_.mark(default_stream);
        if (!mark) return mark.error();
        lock.unlock();
        const status s = device_->synchronize(*mark);
        lock.lock();
        events_.release(*mark);
        return s;
    }

    std::size_t shrink(std::size_t keep) noexcept {
        observe_reserved();
        const std::size_t before = usage_.reserved.current;
        if (device_->trim_pool(pool_, keep) != status::ok) return 0;
        observe_reserved();
        if (usage_.reserved.current == 0) known_.clear();
        return before - std::min(before, usage_.reserved.current);
    }

    void observe_reserved() const noexcept {
        const result<pool_memory, status> memory = device_->memory_of(pool_);
        if (!memory) return;
        const auto set = [](gauge& g, std::size_t value) {
            if (value > g.current) g.add(value - g.current);
            if (value < g.current) g.subtract(g.current - value);
        };
        set(usage_.reserved, memory->reserved);
        set(usage_.segments, memory->reserved / device_->pool_step());
    }

    bool overlaps(std::uint64_t base, std::size_t size) const noexcept {
        const auto next = live_.lower_bound(base);
        if (next != live_.end() && to_address(next->second.base) < base + size) return true;
        if (next == live_.begin()) return false;
        const block& before = std::prev(next)->second;
        return to_address(before.base) + before.taken > base;
    }

    /// Returns: what an address that is no live block's start is to us.
    misuse_kind kind_of(std::uint64_t address) const noexcept {
        if (overlaps(address, 1)) return misuse_kind::interior_pointer;
        return known_.contains(address) ? misuse_kind::double_free : misuse_kind::foreign_pointer;
    }

    /// Effects: the range has been ours. Only the kind of a later misuse depends on it, so missing host memory may
    /// make us forget.
    void remember(std::uint64_t base, std::size_t size) noexcept {
        try {
            known_.insert(base, size);
        } catch (...) {
        }
    }

    Device* device_;
    pool_handle pool_ = nullptr;
    mutable std::mutex mutex_;
    event_cache<Device> events_;
    block_map live_;                 ///< by the address handed out
    own_lines_vector<node> waiting_; ///< freed, not yet taken by the driver; oldest first
    own_lines_vector<node> spare_;   ///< for blocks to come
    std::size_t nodes_ = 0;          ///< of blocks of all three kinds
    std::uint64_t awaited_ = 0;      ///< streams that waiting blocks are not marked on yet, see `bit`
    std::size_t marked_waiting_ = 0; ///< waiting blocks that are marked on all their streams
    address_ranges known_;           ///< all that has been ours since the pool was last empty
    mutable usage_counters usage_;
};

} // namespace tenure
