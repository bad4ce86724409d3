#pragma once

/// \file
/// `heap<Device>`: all of torch's memory on one device.
///
///     allocate(n, stream, tenant)
///        |  a pool is active for this stream?
///        |      no  --> the tenant's arena  ----------------------------+
///        |      yes --> private_pool: free blocks, else a new segment --+--> gate --> device
///        |                                  (from the arena, or from the MemPool's own allocator)
///        +-- a miss that neither can serve: the ladder below, then c10::OutOfMemoryError
///
/// The ladder, when an arena has already done all it can by itself:
///   1. torch's callbacks (memory that other processes have let go of), then again
///   2. pools that lend when memory is short (`use_on_oom`)
///   3. unless a capture is active: wait for pending frees, give back what released pools and, in a pool that no graph
///      knows, idle segments hold, and the free memory of all arenas; then again
///   4. the failure: observers, then the exception
///
/// Invariants:
///   1. Every live block is in `blocks_`; every block that is freed but still used is in `pending_`.
///   2. The statistics equal the sums over `snapshot` at every instant that the lock is free.
///   3. While a capture is active (`capturing`), nothing is polled, waited for or given back.
///   4. Nothing of torch or of the application is called under the lock, except pool filters and trace trackers.
///
/// "A pool is active" and "a capture is active" are two things: `torch.cuda.use_mem_pool` alone leaves everything else
/// as it is.
///
/// Thread-safety: thread-safe. One mutex.

#include "arena_slot.hpp"
#include "block.hpp"
#include "failure.hpp"
#include "gate.hpp"
#include "history.hpp"
#include "pending_frees.hpp"
#include "picture.hpp"
#include "policies.hpp"
#include "private_pool.hpp"
#include "statistics.hpp"
#include "tenant.hpp"

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/tenancy/meter.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::torch {

namespace native = c10::cuda::CUDACachingAllocator;

/// Told, with no lock held, that an allocation is about to fail for lack of memory. Bytes.
class out_of_memory_watch {
  public:
    virtual void ran_out(int device, std::size_t requested, std::size_t total, std::size_t free) = 0;

  protected:
    ~out_of_memory_watch() = default;
};

/// What all heaps have in common.
struct heap_settings {
    caching_options caching{};                         ///< what policy `caching` starts from
    std::size_t limit = no_limit;                      ///< bytes, all arenas of a device together
    double fraction = 1.0;                             ///< of the device, that they may hold
    std::size_t large_segment = std::size_t{20} << 20; ///< bytes, of private pools
    bool run_callbacks = true;                         ///< torch's `FreeCudaMemoryCallbacksRegistry`
};

template <device Device>
class heap final : private gate_listener {
  public:
    using pool_id = c10::MempoolId_t;
    using filter = std::function<bool(cudaStream_t)>;
    using segments = std::vector<std::unique_ptr<pool_segment>>;

    /// What a change has made of the totals, for profilers. Bytes.
    struct change {
        void* ptr = nullptr;
        std::size_t size = 0;
        std::size_t allocated = 0;
        std::size_t reserved = 0;
    };

    heap(int ordinal, std::unique_ptr<Device> device, const heap_settings& s, const recorder& r)
        : ordinal_(ordinal)
        , device_(std::move(device))
        , settings_(s)
        , recorder_(&r)
        , meter_("torch, all arenas of device " + std::to_string(ordinal), s.limit)
        , gate_(*device_, meter_, this)
        , trace_(r)
        , pending_(*device_) {
        if (const auto m = device_->memory()) total_ = m->total;
        fraction_ = s.fraction;
        apply_limits();
    }

    heap(const heap&) = delete;
    heap& operator=(const heap&) = delete;

    ~heap() {
        // Pools give their segments back to arenas, so they go first; what a MemPool's own allocator gave, it gets.
        for (auto& [id, pool] : pools_)
            pool->for_each_segment([](pool_segment& s) {
                if (s.source) s.source->raw_delete(s.base);
            });
        pools_.clear();
        slots_.clear();
    }

    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
    [[nodiscard]] Device& upstream() noexcept { return *device_; }
    [[nodiscard]] gate<Device>& through() noexcept { return gate_; }
    [[nodiscard]] std::size_t total() const noexcept { return total_; }

    // ----------------------------------------------------------------------------------------------------------------
    // Blocks
    // ----------------------------------------------------------------------------------------------------------------

    /// Requires: bytes > 0. `watch`: told of a failure, unlocked. Throws: `c10::OutOfMemoryError`, `c10::Error`.
    change allocate(std::size_t bytes, stream_handle stream, tenant& who, context_ptr context,
                    out_of_memory_watch& watch) {
        std::unique_lock lock(mutex_);
        if (!pending_.empty()) catch_up();
        request q{bytes, round_up(bytes, private_pool::granule), stream, &who, nullptr, {}, {}};
        if (bytes > max_block_bytes) q.rounded = bytes; // refused by every policy; do not wrap
        if (!active_.empty()) q.pool = pool_for(stream);
        q.context = std::move(context);
        block* b = find(lock, q);
        if (b == nullptr) b = last_resort(lock, q, watch);
        look_at_reserve();
        return {b->ptr, b->size, counters_.allocated_bytes(), counters_.reserved_bytes()};
    }

    /// Returns: false if it is no live block of this heap; then nothing has happened.
    bool release(void* p, context_ptr context, change& done) {
        const std::lock_guard lock(mutex_);
        block* const b = blocks_.find(p);
        if (b == nullptr) return false;
        blocks_.leave(b);
        counters_.free_requested(counted_in(*b), *b);
        note(trace_entry::FREE_REQUESTED, *b, context ? std::move(context) : b->context);
        done.ptr = p;
        done.size = b->size;
        b->allocated = false;
        b->pending = true;
        if (b->uses.empty() && (active_.empty() || b->slot == nullptr || !in_capture(b->stream)))
            complete(b);
        else if (capturing() || b->uses.empty())
            pending_.defer(b);
        else if (!pending_.add(b))
            complete(b);
        look_at_reserve();
        done.allocated = counters_.allocated_bytes();
        done.reserved = counters_.reserved_bytes();
        return true;
    }

    /// Returns: whether it is a live block of this heap. Effects: it is also used on `stream`.
    bool record_stream(const void* p, stream_handle stream) {
        const std::lock_guard lock(mutex_);
        block* const b = blocks_.find(p);
        if (b == nullptr) return false;
        if (stream == b->stream) return true;
        if (std::find(b->uses.begin(), b->uses.end(), stream) == b->uses.end()) b->uses.push_back(stream);
        return true;
    }

    [[nodiscard]] bool owns(const void* p) const {
        const std::lock_guard lock(mutex_);
        return blocks_.find(p) != nullptr;
    }

    /// Returns: bytes of the live block at p, rounded; 0 if there is none.
    [[nodiscard]] std::size_t size_of(const void* p) const {
        const std::lock_guard lock(mutex_);
        const block* const b = blocks_.find(p);
        return b == nullptr ? 0 : b->size;
    }

    /// Returns: the start of the device's allocation around the live block at p, and its bytes; where there is none
    /// (memory shown behind addresses), the block itself. Null if there is no such block.
    [[nodiscard]] std::pair<void*, std::size_t> base_of(void* p) const {
        const std::lock_guard lock(mutex_);
        const block* const b = blocks_.find(p);
        if (b == nullptr) return {nullptr, 0};
        if (b->segment != nullptr && b->segment->source) return {b->segment->base, b->segment->bytes};
        const std::vector<extent> around = gate_.extents(p, b->size);
        if (around.size() == 1 && around.front().memory == 0)
            return {to_pointer(around.front().begin), around.front().bytes};
        return {p, b->size};
    }

    /// Returns: bytes that one request may hope for without buying: an upper bound where memory can be joined, else the
    /// largest free block there is.
    [[nodiscard]] std::size_t largest_free() const {
        const std::lock_guard lock(mutex_);
        std::size_t best = 0;
        for (const auto& s : slots_) {
            if (s->memory->joins_free_memory()) {
                const usage_counters u = s->memory->usage();
                best = std::max(best, u.reserved.current - std::min(u.reserved.current, u.allocated.current));
                continue;
            }
            for (const segment_snapshot& seg : s->memory->snapshot().segments)
                for (const block_snapshot& b : seg.blocks)
                    if (b.state == block_state::free) best = std::max(best, b.size);
        }
        return best;
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Limits and giving back
    // ----------------------------------------------------------------------------------------------------------------

    /// The part of the device that torch may hold, 1: all of it, and `limit` bytes on top of that.
    void set_fraction(double fraction) {
        const std::lock_guard lock(mutex_);
        fraction_ = fraction;
        apply_limits();
    }
    [[nodiscard]] double fraction() const {
        const std::lock_guard lock(mutex_);
        return fraction_;
    }
    void set_limit(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        settings_.limit = bytes;
        apply_limits();
    }
    [[nodiscard]] meter_reading limits() const noexcept { return meter_.read(); }

    /// Effects: free memory goes back to the device: of everything ({0, 0}), or of one pool, if it has been released.
    /// While a capture is active: afterwards.
    void empty_cache(pool_id only) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            const bool all = only == pool_id{0, 0};
            catch_up();
            if (capturing()) {
                give_back_later_ = true;
            } else {
                if (all) drain();
                give_back_released(only, gone);
                retire_closed();
                if (all)
                    for (const auto& s : slots_) s->memory->trim(0);
            }
            look_at_reserve();
        }
        give_to_sources(gone);
    }

    /// Returns: bytes given back.
    std::size_t trim(const tenant& who, std::size_t keep) {
        const std::lock_guard lock(mutex_);
        arena_slot* const s = who.slot(ordinal_);
        if (s == nullptr || capturing()) return 0;
        catch_up();
        const std::size_t n = s->memory->trim(keep);
        look_at_reserve();
        return n;
    }

    void set_max(tenant& who, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        who.set_max(ordinal_, bytes);
        if (arena_slot* const s = who.slot(ordinal_)) s->memory->set_max(bytes);
        look_at_reserve();
    }

    /// Effects: the arena's memory goes back when the last block in it has been freed, which may be now.
    void close(const tenant& who) {
        const std::lock_guard lock(mutex_);
        if (arena_slot* const s = who.slot(ordinal_); s != nullptr && s->blocks == 0) retire(s);
        look_at_reserve();
    }

    /// Effects: f(slot) for each arena with memory here, under the lock.
    template <class F>
    void for_each_slot(F&& f) const {
        const std::lock_guard lock(mutex_);
        for (const auto& s : slots_) f(*s);
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Private pools
    // ----------------------------------------------------------------------------------------------------------------

    /// Effects: one user more; the pool is made if there is none. `source`: where its segments come from, null: arenas.
    void create_or_incref(pool_id id, private_pool::allocator_ptr source) {
        const std::lock_guard lock(mutex_);
        private_pool& p = pool_of(id);
        if (source) p.source = std::move(source);
        ++p.use_count;
    }

    /// Effects: from now on what `accepts` accepts is allocated in the pool; the latest begun is asked first.
    void begin(pool_id id, filter accepts) {
        const std::lock_guard lock(mutex_);
        for (const routed& r : active_)
            TORCH_CHECK(r.pool->id() != id, "beginAllocateToPool: already recording to mempool_id");
        private_pool& p = pool_of(id);
        ++p.use_count;
        // A user's own pool may be used by a capture, too: seen at the first block that the capture takes.
        const bool graph = id.first != 0;
        p.captured = p.captured || graph;
        active_.push_back({&p, std::move(accepts), graph});
    }

    void end(pool_id id) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            const auto it = std::find_if(active_.begin(), active_.end(),
                                         [&](const routed& r) { return r.pool->id() == id; });
            TORCH_CHECK(it != active_.end(), "endAllocatePool: not currently recording to mempool_id");
            active_.erase(it);
            give_back_now_if_asked(gone);
        }
        give_to_sources(gone);
    }

    /// Effects: one user less. Without users, what is free of the pool can go back to the device.
    void release_pool(pool_id id) {
        segments gone;
        {
            const std::lock_guard lock(mutex_);
            const auto it = pools_.find(id);
            TORCH_CHECK(it != pools_.end() && it->second->use_count > 0, "releasePool: no such pool in use");
            private_pool& p = *it->second;
            if (--p.use_count == 0) {
                // A capture that failed may never have said that it ended.
                active_.erase(std::remove_if(active_.begin(), active_.end(),
                                             [&](const routed& r) { return r.pool == &p; }),
                              active_.end());
                p.use_on_oom = false;
                if (p.empty()) pools_.erase(it);
            }
            give_back_now_if_asked(gone);
        }
        give_to_sources(gone);
    }

    [[nodiscard]] int use_count(pool_id id) const {
        const std::lock_guard lock(mutex_);
        const auto it = pools_.find(id);
        return it == pools_.end() ? 0 : it->second->use_count;
    }

    void set_use_on_oom(pool_id id, bool on) {
        const std::lock_guard lock(mutex_);
        pool_of(id).use_on_oom = on;
    }
    void set_no_split(pool_id id) {
        const std::lock_guard lock(mutex_);
        pool_of(id).no_split = true;
    }

    /// Returns: whether the live blocks of the pool are exactly these.
    [[nodiscard]] bool live_blocks_are(pool_id id, const std::unordered_set<void*>& expected) const {
        const std::lock_guard lock(mutex_);
        const auto it = pools_.find(id);
        TORCH_CHECK(it != pools_.end(), "Could not find pool of id");
        std::size_t found = 0;
        bool all = true;
        it->second->for_each_segment([&](const pool_segment& s) {
            for (const block* b = s.first; b != nullptr; b = b->next) {
                if (!b->allocated) continue;
                ++found;
                all = all && expected.count(b->ptr) != 0;
            }
        });
        return all && found == expected.size();
    }

    /// Returns: the pool's layout; frees that wait for streams are waited for first.
    [[nodiscard]] std::shared_ptr<pool_checkpoint> checkpoint(pool_id id) {
        const std::lock_guard lock(mutex_);
        private_pool& p = drained(id);
        return p.checkpoint();
    }

    /// Effects: the pool's live blocks are those of the checkpoint, at the same addresses; others are freed.
    native::CheckpointDelta restore(const pool_checkpoint& state, c10::DeleterFnPtr deleter) {
        const std::lock_guard lock(mutex_);
        private_pool& p = drained(state.id);
        for (const pool_checkpoint::segment& saved : state.segments)
            TORCH_CHECK(p.segment_at(saved.base) != nullptr,
                        "a segment of the checkpoint has been given back to the device");
        native::CheckpointDelta delta;
        std::vector<block*> live;
        p.for_each_segment([&](const pool_segment& s) {
            for (block* b = s.first; b != nullptr; b = b->next)
                if (b->allocated) live.push_back(b);
        });
        for (block* const b : live) {
            delta.ptrs_freed.push_back(b->ptr);
            blocks_.leave(b);
            counters_.free_requested(counted_in(*b), *b);
            note(trace_entry::FREE_REQUESTED, *b, b->context);
            complete(b);
        }
        for (const pool_checkpoint::segment& saved : state.segments)
            p.lay_out(*p.segment_at(saved.base), saved, [&](block* b) {
                blocks_.enter(b);
                note(trace_entry::ALLOC, *b, nullptr);
                delta.dataptrs_allocd.emplace_back(b->ptr, b->ptr, deleter,
                                                   c10::Device(c10::kCUDA, device_index()));
            });
        return delta;
    }

    // ----------------------------------------------------------------------------------------------------------------
    // What it says about itself
    // ----------------------------------------------------------------------------------------------------------------

    [[nodiscard]] statistics::values read_statistics() {
        const std::lock_guard lock(mutex_);
        if (!pending_.empty()) catch_up();
        pools_changed_ = true; // a driver pool may have given memory back by itself
        look_at_reserve();
        counters_.device_calls(gate_.taken(), gate_.given_back());
        return counters_.read();
    }
    void reset_accumulated() {
        const std::lock_guard lock(mutex_);
        counters_.device_calls(gate_.taken(), gate_.given_back());
        counters_.reset_accumulated();
    }
    void reset_peak() {
        const std::lock_guard lock(mutex_);
        counters_.reset_peak();
    }

    void set_history(bool enabled, std::size_t max_entries, bool clear,
                     const std::vector<trace_entry::Action>& skipped) {
        const std::lock_guard lock(mutex_);
        trace_.set(enabled, max_entries, clear, skipped);
    }
    void track(trace_tracker t) {
        const std::lock_guard lock(mutex_);
        trace_.track(std::move(t));
    }

    /// Effects: appends all segments ({0, 0}), or those of one pool, in address order.
    void snapshot(pool_id only, std::vector<segment_info>& out) {
        const std::lock_guard lock(mutex_);
        const std::size_t first = out.size();
        std::size_t active = 0;
        if (only == pool_id{0, 0}) {
            known_blocks known;
            blocks_.for_each_live([&](const block& b) { known.emplace(to_address(b.ptr), &b); });
            pending_.for_each([&](const block& b) { known.emplace(to_address(b.ptr), &b); });
            std::map<const arena_slot*, holes> cut;
            for (const auto& [id, pool] : pools_)
                pool->for_each_segment([&](const pool_segment& s) {
                    if (s.slot != nullptr) cut[s.slot].emplace(to_address(s.base), s.bytes);
                });
            for (const auto& s : slots_) draw_arena(*s, known, cut[s.get()], out);
        }
        for (const auto& [id, pool] : pools_)
            if (only == pool_id{0, 0} || only == id) draw_pool(*pool, out);
        std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                  [](const segment_info& a, const segment_info& b) { return a.address < b.address; });
        for (std::size_t i = first; i < out.size(); ++i) active += out[i].active_size;
        trace_.add(trace_entry::SNAPSHOT, device_index(), 0, active, nullptr, only, nullptr);
    }

    [[nodiscard]] std::vector<trace_entry> trace_entries() const {
        const std::lock_guard lock(mutex_);
        return trace_.entries();
    }

    /// Returns: bytes reserved, by stream and pool, of segments that can grow: one entry an arena.
    void expandable(std::vector<native::StreamSegmentSize>& out) const {
        const std::lock_guard lock(mutex_);
        for (const auto& s : slots_) out.emplace_back(nullptr, false, s->memory->usage().reserved.current);
    }

    struct pool_facts {
        pool_id id;
        int use_count;
        std::size_t segments, bytes, live, live_bytes;
        bool use_on_oom, no_split, captured;
    };
    [[nodiscard]] std::vector<pool_facts> pools() const {
        const std::lock_guard lock(mutex_);
        std::vector<pool_facts> all;
        for (const auto& [id, p] : pools_) {
            pool_facts f{id, p->use_count, 0, 0, 0, 0, p->use_on_oom, p->no_split, p->captured};
            p->for_each_segment([&](const pool_segment& s) {
                ++f.segments;
                f.bytes += s.bytes;
                for (const block* b = s.first; b != nullptr; b = b->next) {
                    if (!b->allocated) continue;
                    ++f.live;
                    f.live_bytes += b->size;
                }
            });
            all.push_back(f);
        }
        return all;
    }
    [[nodiscard]] bool capture_active() const {
        const std::lock_guard lock(mutex_);
        return capturing();
    }

    /// Returns: whether all invariants hold. Linear.
    [[nodiscard]] bool validate() {
        std::vector<segment_info> picture;
        const statistics::values now = read_statistics();
        {
            const std::lock_guard lock(mutex_);
            for (const auto& s : slots_)
                if (!s->memory->validate()) return false;
            for (const auto& [id, p] : pools_)
                if (!p->validate()) return false;
        }
        snapshot({0, 0}, picture);
        std::size_t reserved = 0, allocated = 0, active = 0, requested = 0, split = 0;
        for (const segment_info& s : picture) {
            reserved += s.total_size;
            allocated += s.allocated_size;
            active += s.active_size;
            requested += s.requested_size;
            std::size_t tiled = 0;
            for (const block_info& b : s.blocks) {
                tiled += b.size;
                if (!s.is_expandable && s.blocks.size() > 1 && !b.active) split += b.size;
            }
            if (tiled != s.total_size) return false;
        }
        const auto is = [](const statistics::array& a, std::size_t n) {
            return a[0].current == static_cast<std::int64_t>(n);
        };
        return is(now.reserved_bytes, reserved) && is(now.allocated_bytes, allocated) &&
               is(now.active_bytes, active) && is(now.requested_bytes, requested) &&
               is(now.inactive_split_bytes, split);
    }

  private:
    struct request {
        std::size_t bytes;
        std::size_t rounded;
        stream_handle stream;
        tenant* who;
        private_pool* pool;
        context_ptr context;
        allocation_failure failure;
    };

    /// A pool that is being allocated to.
    struct routed {
        private_pool* pool;
        filter accepts;
        bool graph; ///< a capture uses it
    };

    [[nodiscard]] c10::DeviceIndex device_index() const noexcept {
        return static_cast<c10::DeviceIndex>(ordinal_);
    }

    // ---- allocation ----

    /// Returns: a live block, or null with the reason in `q.failure`.
    block* find(std::unique_lock<std::mutex>& lock, request& q) {
        block* const b = q.pool == nullptr ? from_arena(q) : from_pool(lock, q);
        if (b == nullptr) return nullptr;
        b->context = std::move(q.context);
        note(trace_entry::ALLOC, *b, b->context);
        return b;
    }

    block* from_arena(request& q) {
        arena_slot& slot = slot_of(*q.who);
        block* const b = blocks_.create();
        const allocate_result r = slot.memory->allocate(q.stream, q.bytes);
        if (!r) {
            blocks_.destroy(b);
            q.failure = r.error();
            return nullptr;
        }
        b->ptr = *r;
        b->size = q.rounded;
        b->requested = q.bytes;
        b->stream = q.stream;
        b->slot = &slot;
        b->allocated = true;
        try {
            blocks_.enter(b);
        } catch (...) {
            slot.memory->deallocate(q.stream, b->ptr, q.bytes);
            blocks_.destroy(b);
            throw;
        }
        ++slot.blocks;
        counters_.allocated(statistics::pool::large, *b);
        return b;
    }

    block* from_pool(std::unique_lock<std::mutex>& lock, request& q) {
        block* b = q.pool->take(q.bytes, q.rounded, q.stream);
        if (b == nullptr) {
            if (!buy_segment(lock, q)) return nullptr;
            b = q.pool->take(q.bytes, q.rounded, q.stream);
            if (b == nullptr)
                return nullptr; // another thread was quicker, while the segment was bought unlocked
        }
        blocks_.enter(b);
        return b;
    }

    /// Returns: whether the pool has a new segment for the request.
    bool buy_segment(std::unique_lock<std::mutex>& lock, request& q) {
        const std::size_t wanted = private_pool::segment_bytes(q.rounded, settings_.large_segment);
        const std::size_t needed = private_pool::is_small(q.rounded) ? wanted : round_up(q.rounded, 2_MiB);
        auto s = std::make_unique<pool_segment>();
        s->small = private_pool::is_small(q.rounded);
        s->stream = q.stream;
        s->context = q.context;
        if (q.pool->source) {
            // Somebody else's code, perhaps Python: not under the lock. The pool stays: it is in use.
            const private_pool::allocator_ptr source = q.pool->source;
            ++q.pool->use_count;
            lock.unlock();
            void* p = nullptr;
            try {
                p = source->raw_alloc(wanted);
            } catch (const c10::OutOfMemoryError&) {
                p = nullptr;
            } catch (...) {
                lock.lock();
                --q.pool->use_count;
                throw;
            }
            lock.lock();
            --q.pool->use_count;
            if (p == nullptr) {
                q.failure.requested = q.bytes;
                q.failure.rounded = wanted;
                q.failure.cause = failure_cause::device;
                q.failure.driver_status = status::out_of_memory;
                return false;
            }
            s->base = p;
            s->bytes = wanted;
            s->source = source;
            in_sources_ += wanted;
        } else {
            arena_slot& slot = slot_of(*q.who);
            allocate_result r = slot.memory->allocate_settled(wanted);
            s->bytes = wanted;
            if (!r && needed < wanted) {
                r = slot.memory->allocate_settled(needed);
                s->bytes = needed;
            }
            if (!r) {
                q.failure = r.error();
                q.failure.requested = q.bytes;
                return false;
            }
            s->base = *r;
            s->slot = &slot;
            slot.in_segments += s->bytes;
            ++slot.blocks;
        }
        (s->small ? small_segments_ : large_segments_) += s->bytes;
        pools_changed_ = true;
        if (s->source)
            trace_.add(trace_entry::SEGMENT_ALLOC, device_index(), to_address(s->base), s->bytes, s->stream,
                       q.pool->id(), s->context);
        q.pool->add(std::move(s));
        return true;
    }

    /// Returns: a block from a pool that lends when memory is short, or null.
    block* borrow(request& q) {
        for (const auto& [id, pool] : pools_) {
            if (!pool->use_on_oom || pool->use_count == 0 || pool.get() == q.pool) continue;
            if (block* const b = pool->take(q.bytes, q.rounded, q.stream)) {
                blocks_.enter(b);
                b->context = q.context;
                note(trace_entry::ALLOC, *b, b->context);
                return b;
            }
        }
        return nullptr;
    }

    block* last_resort(std::unique_lock<std::mutex>& lock, request& q, out_of_memory_watch& watch) {
        if (q.failure.cause == failure_cause::driver) {
            lock.unlock();
            TORCH_CHECK(false, "CUDA error: tenure: ", q.failure.text());
        }
        if (settings_.run_callbacks && run_callbacks(lock, q))
            if (block* const b = find(lock, q)) return b;
        if (block* const b = borrow(q)) return b;
        if (!capturing()) {
            counters_.retried();
            drain();
            segments gone;
            give_back_released({0, 0}, gone);
            if (q.pool != nullptr && !q.pool->captured) give_back_idle(*q.pool, gone);
            for (const auto& s : slots_) s->memory->trim(0);
            give_to_sources_unlocked(lock, gone);
            if (block* const b = find(lock, q)) return b;
        }
        fail(lock, q, watch);
    }

    /// Effects: torch's own ways of freeing memory, unlocked. Returns: whether one says that it has.
    bool run_callbacks(std::unique_lock<std::mutex>& lock, const request& q) {
        if (q.pool != nullptr) ++q.pool->use_count; // it stays, whoever lets go of it meanwhile
        lock.unlock();
        bool freed = false;
        for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
            freed = c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute() || freed;
        lock.lock();
        if (q.pool != nullptr) --q.pool->use_count;
        return freed;
    }

    [[noreturn]] void fail(std::unique_lock<std::mutex>& lock, const request& q, out_of_memory_watch& watch) {
        counters_.failed();
        look_at_reserve();
        failure_report report;
        report.device = ordinal_;
        report.requested = q.bytes;
        report.reason = q.failure;
        if (const auto m = device_->memory()) {
            report.device_total = m->total;
            report.device_free = m->free;
        }
        report.allowed = meter_.read().max;
        report.allocated = counters_.allocated_bytes();
        report.reserved = counters_.reserved_bytes();
        for (const auto& [id, pool] : pools_)
            pool->for_each_segment([&](const pool_segment& s) {
                for (const block* b = s.first; b != nullptr; b = b->next)
                    if (b->allocated) report.in_private_pools += b->size;
            });
        trace_.add(trace_entry::OOM, device_index(), report.device_free, q.bytes, q.stream,
                   q.pool != nullptr ? q.pool->id() : pool_id{0, 0}, q.context);
        lock.unlock();
        c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(q.bytes), report.allocated,
                                         report.reserved, c10::Device(c10::kCUDA, device_index()));
        watch.ran_out(ordinal_, q.bytes, report.allowed_or_total(), report.device_free);
        TORCH_CHECK_WITH(OutOfMemoryError, false, report.text());
    }

    arena_slot& slot_of(tenant& who) {
        if (arena_slot* const s = who.slot(ordinal_)) [[likely]]
            return *s;
        auto fresh = std::make_unique<arena_slot>();
        fresh->owner = who.shared_from_this();
        fresh->memory =
            make_arena_memory(who.policy(), settings_.caching, gate_, who.name(), who.max(ordinal_));
        slots_.push_back(std::move(fresh));
        who.set_slot(ordinal_, slots_.back().get());
        return *slots_.back();
    }

    // ---- frees ----

    /// Effects: nobody uses `b` any more: it is free.
    void complete(block* b) {
        note(trace_entry::FREE_COMPLETED, *b, b->context);
        if (b->slot == nullptr) {
            b->segment->pool->put_back(b);
            return;
        }
        counters_.free_completed(statistics::pool::large, *b);
        arena_slot* const slot = b->slot;
        void* const p = b->ptr;
        const stream_handle stream = b->stream;
        const std::size_t bytes = b->requested;
        blocks_.destroy(b);
        slot->memory->deallocate(stream, p, bytes);
        if (--slot->blocks == 0 && !slot->owner->open()) [[unlikely]]
            retire(slot);
    }

    /// Effects: what waited for a capture or for streams, and need not any more, is free.
    void catch_up() {
        if (capturing()) return;
        for (block* const b : pending_.take_deferred()) {
            if (b->uses.empty() ? b->slot != nullptr && in_capture(b->stream) : false)
                pending_.defer(b);
            else if (b->uses.empty() || !pending_.add(b))
                complete(b);
        }
        if (pending_.any_marked()) pending_.poll([this](block* b) { complete(b); });
    }

    /// Effects: what is marked on streams has passed and is free. Requires: no capture is active.
    void drain() {
        catch_up();
        if (!pending_.any_marked()) return;
        counters_.waited();
        (void)pending_.wait([this](block* b) { complete(b); });
    }

    [[nodiscard]] bool in_capture(stream_handle stream) noexcept {
        const auto state = device_->describe(stream);
        return state && state->capturing();
    }

    /// Requires: the arena is closed and nothing is left in it. Effects: its memory goes back, after a capture if one is
    /// active.
    void retire(arena_slot* slot) noexcept {
        if (capturing()) {
            give_back_later_ = true;
            return;
        }
        const auto it =
            std::find_if(slots_.begin(), slots_.end(), [slot](const auto& s) { return s.get() == slot; });
        slot->owner->set_slot(ordinal_, nullptr);
        if constexpr (requires { device_->synchronize(); }) (void)device_->synchronize();
        slots_.erase(it);
        pools_changed_ = true;
    }

    // ---- pools ----

    private_pool& pool_of(pool_id id) {
        auto& p = pools_[id];
        if (!p) p = std::make_unique<private_pool>(id, blocks_, counters_);
        return *p;
    }

    [[nodiscard]] private_pool* pool_for(stream_handle stream) {
        for (auto r = active_.rbegin(); r != active_.rend(); ++r) {
            if (!r->accepts(stream)) continue;
            if (!r->graph && in_capture(stream)) {
                r->graph = true;
                r->pool->captured = true;
            }
            return r->pool;
        }
        return nullptr;
    }

    [[nodiscard]] bool capturing() const noexcept {
        return std::any_of(active_.begin(), active_.end(), [](const routed& r) { return r.graph; });
    }

    /// Returns: the pool, with nothing pending in it.
    private_pool& drained(pool_id id) {
        const auto it = pools_.find(id);
        TORCH_CHECK(it != pools_.end(), "Could not find pool of id");
        if (!capturing()) drain();
        bool pending = false;
        it->second->for_each_segment([&](const pool_segment& s) {
            for (const block* b = s.first; b != nullptr; b = b->next) pending = pending || b->pending;
        });
        TORCH_CHECK(!pending, "Events should have synchronized when checkpointing block");
        return *it->second;
    }

    /// Effects: idle segments of released pools go back to where they came from; those of other allocators are added to
    /// `gone`, to be given back unlocked. Requires: no capture is active.
    void give_back_released(pool_id only, segments& gone) {
        for (auto it = pools_.begin(); it != pools_.end();) {
            private_pool& p = *it->second;
            if (p.use_count != 0 || (only != pool_id{0, 0} && only != it->first)) {
                ++it;
                continue;
            }
            give_back_idle(p, gone);
            it = p.empty() ? pools_.erase(it) : std::next(it);
        }
    }

    void give_back_idle(private_pool& p, segments& gone) {
        if (!p.has_idle()) return;
        // Replays of graphs are nobody's recorded use: only the end of all work ends them.
        if constexpr (requires { device_->synchronize(); })
            if (device_->synchronize() != status::ok) return;
        for (std::unique_ptr<pool_segment>& s : p.take_idle()) {
            (s->small ? small_segments_ : large_segments_) -= s->bytes;
            pools_changed_ = true;
            if (s->source) {
                in_sources_ -= s->bytes;
                trace_.add(trace_entry::SEGMENT_FREE, device_index(), to_address(s->base), s->bytes,
                           s->stream, p.id(), s->context);
                gone.push_back(std::move(s));
                continue;
            }
            arena_slot* const slot = s->slot;
            slot->in_segments -= s->bytes;
            slot->memory->deallocate_settled(s->base, s->bytes);
            if (--slot->blocks == 0 && !slot->owner->open()) retire(slot);
        }
    }

    void give_back_now_if_asked(segments& gone) {
        if (!give_back_later_ || capturing()) return;
        give_back_later_ = false;
        give_back_released({0, 0}, gone);
        retire_closed();
        look_at_reserve();
    }

    void retire_closed() noexcept {
        for (std::size_t i = slots_.size(); i-- > 0;)
            if (slots_[i]->blocks == 0 && !slots_[i]->owner->open()) retire(slots_[i].get());
    }

    static void give_to_sources(segments& gone) {
        for (const auto& s : gone) s->source->raw_delete(s->base);
        gone.clear();
    }
    static void give_to_sources_unlocked(std::unique_lock<std::mutex>& lock, segments& gone) {
        if (gone.empty()) return;
        lock.unlock();
        give_to_sources(gone);
        lock.lock();
    }

    // ---- accounts ----

    static statistics::pool counted_in(const block& b) noexcept {
        return b.segment != nullptr ? b.segment->counted_in() : statistics::pool::large;
    }

    void note(trace_entry::Action action, const block& b, const context_ptr& context) noexcept {
        if (!trace_.active()) [[likely]]
            return;
        trace_.add(action, device_index(), to_address(b.ptr), b.requested, b.stream,
                   b.segment != nullptr ? b.segment->pool->id() : pool_id{0, 0}, context);
    }

    /// Effects: the statistics know what is reserved now. Costs one load if nothing has changed.
    void look_at_reserve() {
        const std::uint64_t now = gate_.changes();
        if (now == seen_changes_ && !pools_changed_) [[likely]]
            return;
        seen_changes_ = now;
        pools_changed_ = false;
        std::size_t arenas = 0;
        std::size_t in_segments = 0;
        for (const auto& s : slots_) {
            arenas += s->memory->usage().reserved.current;
            in_segments += s->in_segments;
        }
        counters_.set_reserved({small_segments_, arenas - std::min(arenas, in_segments) + large_segments_});
    }

    void apply_limits() {
        const auto part = static_cast<double>(total_) * fraction_;
        const std::size_t by_fraction = fraction_ >= 1.0 ? no_limit : static_cast<std::size_t>(part);
        const std::size_t max = std::min(by_fraction, settings_.limit);
        if (meter_.set_max(max) != 0 && !capturing()) {
            for (const auto& s : slots_) s->memory->trim(0);
            look_at_reserve();
        }
    }

    void draw_arena(const arena_slot& s, const known_blocks& known, const holes& cut,
                    std::vector<segment_info>& out) const {
        const std::size_t first = out.size();
        arena_painter(device_index(), known, cut, out).draw(s.memory->snapshot());
        std::size_t drawn = s.in_segments;
        for (std::size_t i = first; i < out.size(); ++i) drawn += out[i].total_size;
        const std::size_t reserved = s.memory->usage().reserved.current;
        if (drawn >= reserved) return;
        // A driver pool does not say where its free memory is: it is drawn behind the last block.
        segment_info unknown;
        unknown.device = device_index();
        unknown.is_large = true;
        unknown.is_expandable = true;
        if (first < out.size()) unknown.address = out.back().address + out.back().total_size;
        draw_block(unknown, reserved - drawn, nullptr);
        out.push_back(std::move(unknown));
    }

    void draw_pool(const private_pool& p, std::vector<segment_info>& out) const {
        p.for_each_segment([&](const pool_segment& s) {
            segment_info shown;
            shown.device = device_index();
            shown.address = to_address(s.base);
            shown.stream = s.stream;
            shown.is_large = !s.small;
            shown.owner_private_pool_id = p.id();
            shown.context_when_allocated = s.context;
            for (const block* b = s.first; b != nullptr; b = b->next)
                draw_block(shown, b->size, b->allocated || b->pending ? b : nullptr);
            shown.stream = s.stream;
            out.push_back(std::move(shown));
        });
    }

    // ---- gate_listener, under the lock ----

    void segment_taken(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_ALLOC, p, n);
    }
    void segment_given_back(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_FREE, p, n);
    }
    void range_mapped(void* p, std::size_t n) noexcept override { segment(trace_entry::SEGMENT_MAP, p, n); }
    void range_unmapped(void* p, std::size_t n) noexcept override {
        segment(trace_entry::SEGMENT_UNMAP, p, n);
    }
    void segment(trace_entry::Action action, void* p, std::size_t n) noexcept {
        if (trace_.active()) trace_.add(action, device_index(), to_address(p), n, nullptr, {0, 0}, nullptr);
    }

    const int ordinal_;
    std::unique_ptr<Device> device_;
    heap_settings settings_;
    const recorder* recorder_;
    meter meter_;
    gate<Device> gate_;
    mutable std::mutex
        mutex_; ///< guards everything below; taken before every lock of arenas, gate and device
    double fraction_ = 1.0;
    std::size_t total_ = 0; ///< bytes of the device
    trace trace_;
    statistics counters_;
    block_table blocks_;
    pending_frees<Device> pending_;
    std::vector<std::unique_ptr<arena_slot>> slots_;
    std::map<pool_id, std::unique_ptr<private_pool>> pools_;
    std::vector<routed> active_; ///< the latest begun is last
    std::uint64_t seen_changes_ = 0;
    std::size_t small_segments_ = 0; ///< bytes of segments of private pools
    std::size_t large_segments_ = 0;
    std::size_t in_sources_ = 0; ///< what of them other allocators gave
    bool pools_changed_ = false;
    bool give_back_later_ = false; ///< asked for while a capture was active
};

} // namespace tenure::torch
