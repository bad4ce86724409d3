#pragma once

/// \file
/// `heap<Device>`: all of torch's memory on one device: the lock, and what can be asked of it.
///
///     allocate(n, stream, tenant)
///        |  a pool is active for this stream?
///        |      no  --> the tenant's arena  ----------------------------+
///        |      yes --> private_pool: free blocks, else a new segment --+--> gate --> device
///        |                                  (from the arena, or from the MemPool's own allocator)
///        +-- a miss that neither can serve: `heap_allocation` has the ladder to c10::OutOfMemoryError
///
/// The parts of it, and what they share, are listed in `heap_state.hpp`.
///
/// Invariants:
///   1. Every live block is in the block table; every block that is freed but still used is pending.
///   2. The statistics equal the sums over `snapshot` at every instant that the lock is free. Asking for either changes
///      neither, so that they also equal each other when asked for one after the other.
///   3. While a capture is under way, nothing is polled, waited for or given back.
///   4. Nothing of torch or of the application is called under the lock, except pool filters and trace trackers.
///
/// "A pool is active" and "a capture is under way" are two things: `torch.cuda.use_mem_pool` alone leaves everything else
/// as it is.
///
/// Thread-safety: thread-safe. One mutex, taken before every lock of arenas, gate and device.

#include "heap_allocation.hpp"
#include "heap_frees.hpp"
#include "heap_picture.hpp"
#include "heap_pools.hpp"
#include "heap_segments.hpp"
#include "heap_state.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/tenancy/meter.hpp>

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::torch {

template <device Device>
class heap {
  public:
    using pool_id = c10::MempoolId_t;
    using filter = typename heap_pools<Device>::filter;
    using segments = typename heap_segments<Device>::segments;

    /// What a change has made of the totals, for profilers. Bytes.
    struct change {
        void* ptr = nullptr;
        std::size_t size = 0;
        std::size_t allocated = 0;
        std::size_t reserved = 0;
    };

    heap(int ordinal, std::unique_ptr<Device> device, const heap_settings& s, const recorder& r)
        : all_(ordinal, std::move(device), s, r) {
        all_.apply_limits();
    }
    heap(const heap&) = delete;
    heap& operator=(const heap&) = delete;

    ~heap() {
        // Pools give their segments back to arenas, so they go first; what a MemPool's own allocator gave, it gets.
        for (auto& [id, pool] : all_.pools)
            pool->for_each_segment([](pool_segment& s) {
                if (s.source) s.source->raw_delete(s.base);
            });
        all_.pools.clear();
        all_.slots.clear();
    }

    [[nodiscard]] int ordinal() const noexcept { return all_.ordinal; }
    [[nodiscard]] Device& upstream() noexcept { return *all_.device; }
    [[nodiscard]] gate<Device>& through() noexcept { return all_.through; }
    [[nodiscard]] std::size_t total() const noexcept { return all_.total; }

    // ----------------------------------------------------------------------------------------------------------------
    // Blocks
    // ----------------------------------------------------------------------------------------------------------------

    /// Requires: bytes > 0. `watch`: asked and told when memory runs out, unlocked.
    /// Throws: `c10::OutOfMemoryError`, `c10::Error`.
    change allocate(std::size_t bytes, stream_handle stream, tenant& who, context_ptr context,
                    out_of_memory_watch& watch) {
        std::unique_lock lock(mutex_);
        frees_.catch_up();
        request q{bytes, round_up(bytes, private_pool::granule), stream, &who, nullptr, std::move(context),
                  {}};
        if (bytes > max_block_bytes) q.rounded = bytes; // refused by every policy; do not wrap
        if (!all_.routes.empty()) q.pool = pools_.pool_for(stream);
        const block& b = allocation_.run(lock, q, watch);
        all_.look_at_reserve();
        return {b.ptr, b.size, all_.counters.allocated_bytes(), all_.counters.reserved_bytes()};
    }

    /// Returns: false if it is no live block of this heap; then nothing has happened.
    bool release(void* p, const context_ptr& context, change& done) {
        const std::lock_guard lock(mutex_);
        block* const b = all_.blocks.find(p);
        if (b == nullptr) return false;
        frees_.request(b, context ? context : b->context);
        done.ptr = p;
        done.size = b->size;
        frees_.settle(b);
        all_.look_at_reserve();
        done.allocated = all_.counters.allocated_bytes();
        done.reserved = all_.counters.reserved_bytes();
        return true;
    }

    /// Returns: whether it is a live block of this heap. Effects: it is also used on `stream`.
    bool record_stream(const void* p, stream_handle stream) {
        const std::lock_guard lock(mutex_);
        block* const b = all_.blocks.find(p);
        if (b == nullptr) return false;
        if (stream == b->stream) return true;
        if (std::find(b->uses.begin(), b->uses.end(), stream) == b->uses.end()) b->uses.push_back(stream);
        return true;
    }

    /// Returns: bytes of the live block at p, rounded; 0 if there is none.
    [[nodiscard]] std::size_t size_of(const void* p) const {
        const std::lock_guard lock(mutex_);
        const block* const b = all_.blocks.find(p);
        return b == nullptr ? 0 : b->size;
    }

    /// Returns: the start of the device's allocation around the live block at p, and its bytes; where there is none
    /// (memory shown behind addresses), the block itself. Null if there is no such block.
    [[nodiscard]] std::pair<void*, std::size_t> base_of(void* p) const {
        const std::lock_guard lock(mutex_);
        const block* const b = all_.blocks.find(p);
        if (b == nullptr) return {nullptr, 0};
        if (b->segment != nullptr && b->segment->source) return {b->segment->base, b->segment->bytes};
        const std::vector<extent> around = all_.through.extents(p, b->size);
        if (around.size() == 1 && around.front().memory == 0)
            return {to_pointer(around.front().begin), around.front().bytes};
        return {p, b->size};
    }

    /// See `heap_picture`.
    [[nodiscard]] std::size_t largest_free() const {
        const std::lock_guard lock(mutex_);
        return picture_.largest_free();
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Limits and giving back
    // ----------------------------------------------------------------------------------------------------------------

    /// The part of the device that torch may hold, 1: all of it, and `limit` bytes on top of that.
    void set_fraction(double fraction) {
        const std::lock_guard lock(mutex_);
        all_.fraction = fraction;
        all_.apply_limits();
    }
    [[nodiscard]] double fraction() const {
        const std::lock_guard lock(mutex_);
        return all_.fraction;
    }
    void set_limit(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        all_.settings.limit = bytes;
        all_.apply_limits();
    }
    [[nodiscard]] meter_reading limits() const noexcept { return all_.limit.read(); }

    /// Effects: free memory goes back to the device: of everything ({0, 0}), or of one pool, if it has been released.
    /// While a capture is under way: afterwards.
    void empty_cache(pool_id only) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            const bool all = only == pool_id{0, 0};
            pools_.drop_failed_captures();
            frees_.catch_up();
            if (all_.routes.capture_under_way()) {
                all_.give_back_later = true;
                all_.trim_later = all_.trim_later || all;
            } else {
                if (all) frees_.drain();
                if (all) all_.trim_arenas(); // first: see `wait_for_device`
                segments_.give_back_released(only, gone);
                frees_.retire_closed();
                if (all) all_.trim_arenas();
                all_.keep_a_byte();
            }
            all_.look_at_reserve();
        }
        segments_.give_to_sources(gone);
    }

    /// Returns: bytes given back.
    std::size_t trim(const tenant& who, std::size_t keep) {
        const std::lock_guard lock(mutex_);
        arena_slot* const s = who.slot(all_.ordinal);
        if (s == nullptr || all_.routes.capture_under_way()) return 0;
        frees_.catch_up();
        const std::size_t n = s->memory().trim(keep);
        all_.look_at_reserve();
        return n;
    }

    /// Effects: the arena's limit from now on; memory above it goes back, after a capture if one is under way.
    void set_max(tenant& who, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        who.set_max(all_.ordinal, bytes);
        arena_slot* const s = who.slot(all_.ordinal);
        if (s == nullptr) return;
        const bool later = all_.routes.capture_under_way();
        meter& limit = s->arena->node();
        if (!later)
            (void)limit.enforce_max(bytes);
        else if (limit.set_max(bytes) != 0)
            all_.trim_later = true;
        all_.look_at_reserve();
    }

    /// Effects: the arena's memory goes back when the last block in it has been freed, which may be now.
    void close(const tenant& who) {
        const std::lock_guard lock(mutex_);
        if (arena_slot* const s = who.slot(all_.ordinal); s != nullptr && s->blocks == 0) frees_.retire(s);
        all_.look_at_reserve();
    }

    /// Effects: f(slot) for each arena with memory here, under the lock.
    template <class F>
    void for_each_slot(F&& f) const {
        const std::lock_guard lock(mutex_);
        for (const auto& s : all_.slots) f(*s);
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Private pools
    // ----------------------------------------------------------------------------------------------------------------

    // See `heap_pools`.

    void create_or_incref(pool_id id, private_pool::allocator_ptr source) {
        const std::lock_guard lock(mutex_);
        pools_.create_or_incref(id, std::move(source));
    }
    void begin(pool_id id, filter accepts, stream_handle current) {
        const std::lock_guard lock(mutex_);
        pools_.begin(id, std::move(accepts), current);
    }
    void end(pool_id id) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            pools_.end(id);
            segments_.give_back_now_if_asked(gone);
        }
        segments_.give_to_sources(gone);
    }
    void release_pool(pool_id id) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            pools_.release(id);
            segments_.give_back_now_if_asked(gone);
        }
        segments_.give_to_sources(gone);
    }
    [[nodiscard]] int use_count(pool_id id) const {
        const std::lock_guard lock(mutex_);
        return pools_.use_count(id);
    }
    void set_use_on_oom(pool_id id, bool on) {
        const std::lock_guard lock(mutex_);
        all_.pool_of(id).use_on_oom = on;
    }
    void set_no_split(pool_id id) {
        const std::lock_guard lock(mutex_);
        all_.pool_of(id).no_split = true;
    }
    [[nodiscard]] bool live_blocks_are(pool_id id, const std::unordered_set<void*>& expected) const {
        const std::lock_guard lock(mutex_);
        return pools_.live_blocks_are(id, expected);
    }
    [[nodiscard]] std::shared_ptr<pool_checkpoint> checkpoint(pool_id id) {
        const std::lock_guard lock(mutex_);
        return pools_.checkpoint(id);
    }
    native::CheckpointDelta restore(const pool_checkpoint& state, c10::DeleterFnPtr deleter) {
        const std::lock_guard lock(mutex_);
        return pools_.restore(state, deleter);
    }

    // ----------------------------------------------------------------------------------------------------------------
    // What it says about itself
    // ----------------------------------------------------------------------------------------------------------------

    [[nodiscard]] statistics::values read_statistics() {
        const std::lock_guard lock(mutex_);
        return values_now();
    }
    void reset_accumulated() {
        const std::lock_guard lock(mutex_);
        all_.counters.device_calls(all_.through.taken(), all_.through.given_back());
        all_.counters.reset_accumulated();
    }
    void reset_peak() {
        const std::lock_guard lock(mutex_);
        all_.counters.reset_peak();
    }

    void set_history(bool enabled, std::size_t max_entries, bool clear,
                     const std::vector<trace_entry::Action>& skipped) {
        const std::lock_guard lock(mutex_);
        all_.history.set(enabled, max_entries, clear, skipped);
    }
    void track(trace_tracker t) {
        const std::lock_guard lock(mutex_);
        all_.history.track(std::move(t));
    }

    /// Effects: appends all segments ({0, 0}), or those of one pool, in address order.
    void snapshot(pool_id only, std::vector<segment_info>& out) {
        const std::lock_guard lock(mutex_);
        const std::size_t active = picture_.draw(only, out);
        all_.history.add(trace_entry::SNAPSHOT, all_.index(), 0, active, nullptr, only, nullptr);
    }

    [[nodiscard]] std::vector<trace_entry> trace_entries() const {
        const std::lock_guard lock(mutex_);
        return all_.history.entries();
    }

    /// Returns: bytes reserved, by stream and pool, of segments that can grow: one entry an arena.
    void expandable(std::vector<native::StreamSegmentSize>& out) const {
        const std::lock_guard lock(mutex_);
        for (const auto& s : all_.slots)
            out.emplace_back(nullptr, false, s->memory().usage().reserved.current);
    }

    [[nodiscard]] std::vector<pool_facts> pools() const {
        const std::lock_guard lock(mutex_);
        return picture_.pools();
    }
    [[nodiscard]] bool capture_active() {
        const std::lock_guard lock(mutex_);
        return all_.routes.capture_under_way();
    }

    /// Returns: whether all invariants hold. Linear.
    [[nodiscard]] bool validate() {
        const std::lock_guard lock(mutex_);
        for (const auto& s : all_.slots)
            if (!s->memory().validate()) return false;
        for (const auto& [id, p] : all_.pools)
            if (!p->validate()) return false;
        return picture_.adds_up(values_now());
    }

  private:
    const statistics::values& values_now() {
        all_.pools_changed = true; // a driver pool may have given memory back by itself
        all_.look_at_reserve();
        all_.counters.device_calls(all_.through.taken(), all_.through.given_back());
        return all_.counters.read();
    }

    mutable std::mutex mutex_; ///< guards everything below
    heap_state<Device> all_;
    heap_frees<Device> frees_{all_};
    heap_segments<Device> segments_{all_, frees_};
    heap_allocation<Device> allocation_{all_, frees_, segments_};
    heap_pools<Device> pools_{all_, frees_};
    heap_picture<Device> picture_{all_};
};

} // namespace tenure::torch
