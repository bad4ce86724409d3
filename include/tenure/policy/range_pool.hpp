#pragma once

/// \file
/// `range_pool<Device, Layout>`: the engine of the pools that are one layout over segments of device memory.
///
///     where?   Layout        best fit, bitmap, buddy, slab: blocks inside ranges
///     when?    stream_order  which free blocks a stream may take; pending_uses for blocks that several streams use
///     whence?  segments      ranges bought from the device; the device may be an arena's meter
///
/// An allocation searches its stream's free blocks. On a miss, in this order, stopping at the first success:
///   1. what has completed meanwhile: pending frees, marks of other streams
///   2. its own lane reopened, so that its free blocks merge with settled neighbours
///   3. other streams are asked for marks
///   4. a new segment, of `segment_bytes` or more; if refused, of just what is needed
///   5. wholly free segments given back, then 4 again (`release_on_oom`)
///   6. waiting for marks and pending frees (`synchronize_on_oom`), then a last search and 4 again
///   7. a typed failure; nothing has changed
///
/// Captured graphs: a block allocated on a capturing stream belongs to that capture, since a replay may write to it.
/// When freed it may serve later allocations of the same stream in the same capture, and nobody else until
/// `release_captured`. Such an allocation takes only settled or new memory.
///
/// Invariants:
///   1. Every live block is in the pointer map, and its side-table entry holds its size as requested.
///   2. `reserved` equals what the segments take from the device; `allocated` the sum of used blocks of the layout.
///   3. No block is handed out before the work of its former users is over or ordered before.
///
/// Thread-safety: thread-safe. One mutex, held over driver calls; it is not held over the misuse handler.

#include <tenure/backing.hpp>
#include <tenure/core.hpp>
#include <tenure/core/pointer_map.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/ordering.hpp>
#include <tenure/policy/pool_options.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace tenure {

template <device Device, layout::layout Layout>
class range_pool {
  public:
    using device_type = Device;
    using options_type = pool_options;

    explicit range_pool(Device& device, pool_options options = {}) noexcept
        : device_(&device)
        , options_(options)
        , backing_(device)
        , events_(device)
        , uses_(device, events_)
        , order_(device, events_, options.mark_bytes) {}

    range_pool(const range_pool&) = delete;
    range_pool& operator=(const range_pool&) = delete;

    /// Gives everything back to the device; live blocks are reported first (`live_at_destruction`).
    ~range_pool() {
        const std::size_t live = counters_.blocks.current;
        if (live != 0)
            report_misuse({.kind = misuse_kind::live_at_destruction,
                           .bytes = counters_.requested.current,
                           .expected = live});
    }

    /// See `resource`.
    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        allocate_result r = try_allocate(stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        request q{stream, false, bytes, alignment};
        return serve(q);
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        request q{default_stream, true, bytes, alignment};
        allocate_result r = serve(q);
        if (!r) throw_failure(r.error());
        return *r;
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        report(try_deallocate(stream, p, bytes, alignment));
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t = default_alignment) noexcept {
        return take_back(p, bytes, stream, free_kind::on_stream);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t) noexcept {
        report(take_back(p, bytes, default_stream, free_kind::synchronous));
    }

    void release(void* p) noexcept {
        report(take_back(p, any_size, default_stream, free_kind::on_own_stream));
    }

    void record_use(void* p, stream_handle stream) noexcept {
        if (p == nullptr) return;
        std::optional<misuse> wrong;
        {
            const std::lock_guard lock(mutex_);
            const std::optional<layout::block_id> id = live_block(p);
            if (!id) {
                wrong = classify(p, 0);
            } else {
                const result<stream_state, status> state = device_->describe(stream);
                if (!state) {
                    info_[*id].lost = true;
                } else { // its own stream too: the block may be freed on another
                    try {
                        uses_.add(*id, stream, state->id);
                    } catch (...) {
                        info_[*id].lost = true;
                    }
                }
            }
        }
        if (wrong) report_misuse(*wrong);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return p != nullptr && live_block(p).has_value();
    }

    [[nodiscard]] usage_counters usage() const {
        const std::lock_guard lock(mutex_);
        return counters_;
    }

    std::size_t trim(std::size_t bytes_to_keep) {
        const std::lock_guard lock(mutex_);
        settle();
        return give_back_until(bytes_to_keep);
    }

    /// Effects: the graphs made from this capture are gone and their work is over; their memory is free for all.
    void release_captured(std::uint64_t capture) noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < captured_.size();) {
            const layout::block_id id = captured_[i];
            if (info_[id].capture != capture) {
                ++i;
                continue;
            }
            captured_[i] = captured_.back();
            captured_.pop_back();
            counters_.captured -= blocks_.size(id);
            counters_.allocated.subtract(blocks_.size(id));
            blocks_.deallocate(id, ordering_type::settled);
        }
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot picture;
        backing_.for_each([&](const segment_range& s) { picture.segments.push_back({s.base, s.size, {}}); });
        auto segment = picture.segments.begin();
        blocks_.for_each_block([&](const layout::block_view& b) {
            while (b.offset >= segment->address + segment->size) ++segment;
            segment->blocks.push_back(describe_block(b));
        });
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        if (!blocks_.validate() || !live_.validate()) return false;
        if (blocks_.used_bytes() != counters_.allocated.current) return false;
        if (backing_.bytes() != counters_.reserved.current) return false;
        if (backing_.count() != counters_.segments.current) return false;
        if (live_.size() != counters_.blocks.current) return false;
        std::size_t requested = 0;
        bool good = true;
        live_.for_each([&](std::uint64_t address, layout::block_id id) {
            requested += info_[id].requested;
            good = good && blocks_.offset(id) == address && info_[id].state == block_state::allocated &&
                   info_[id].requested <= blocks_.size(id);
        });
        return good && requested == counters_.requested.current;
    }

  private:
    using backing_type = tenure::segments<Device>;
    using ordering_type = stream_order<Device>;
    using lane_id = typename ordering_type::lane_id;
    static constexpr std::size_t any_size = no_limit;

    enum class free_kind : std::uint8_t { on_stream, synchronous, on_own_stream };

    struct request {
        stream_handle stream;
        bool sync; ///< valid on every stream at once
        std::size_t bytes;
        std::size_t alignment;
        stream_state state{};
        std::size_t rounded = 0;
        lane_id lane = ordering_type::no_lane;
    };

    /// What the layout does not know about a used block.
    struct block_info {
        std::size_t requested = 0;
        std::uint64_t stream_id = 0; ///< of the allocation; from the free on, of the free
        std::uint64_t capture = 0;   ///< it was allocated in this capture
        block_state state = block_state::free;
        bool sync = false;
        bool lost = false; ///< what its reuse must wait for is not known
    };

    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }

    // ---- allocation ----

    allocate_result serve(request& q) noexcept {
        if (q.bytes == 0) return static_cast<void*>(nullptr);
        if (!is_power_of_two(q.alignment) || q.alignment > max_alignment)
            return fail(q, failure_cause::invalid_alignment, status::invalid_value);
        q.rounded = Layout::rounded(q.bytes, q.alignment);
        const std::lock_guard lock(mutex_);
        try {
            return serve_locked(q);
        } catch (...) { // host memory
            return fail(q, failure_cause::driver, status::failed);
        }
    }

    allocate_result serve_locked(request& q) {
        if (!q.sync) {
            const result<stream_state, status> state = device_->describe(q.stream);
            if (!state) return fail(q, failure_cause::driver, state.error());
            q.state = *state;
        }
        if (q.bytes > max_block_bytes || q.rounded > max_block_bytes) return refuse(q, status::out_of_memory);
        if (q.state.capturing()) {
            if (void* p = reuse_in_capture(q)) return p;
        } else if (!q.sync) {
            q.lane = order_.lane_of(q.state.id, blocks_);
        }
        if (void* p = search(q)) return marked(q, p);
        if (settle())
            if (void* p = search(q)) return marked(q, p);
        if (order_.reopen(q.lane, blocks_))
            if (void* p = search(q)) return marked(q, p);
        if (order_.ask_others(q.lane, blocks_) && settle()) {
            order_.reopen(q.lane, blocks_);
            if (void* p = search(q)) return marked(q, p);
        }
        const status s = grow(q);
        if (s == status::ok)
            if (void* p = search(q)) return marked(q, p);
        if (options_.synchronize_on_oom && !q.state.capturing() && wait_for_all()) {
            order_.reopen(q.lane, blocks_);
            if (void* p = search(q)) return marked(q, p);
            if (grow(q) == status::ok)
                if (void* p = search(q)) return marked(q, p);
        }
        marked(q, nullptr);
        return refuse(q, s);
    }

    /// The end of every allocation that names a stream: a chance to record a mark that is due.
    void* marked(const request& q, void* p) noexcept {
        if (!q.sync && !q.state.capturing()) order_.mark_if_due(q.lane, q.stream, blocks_);
        return p;
    }

    /// Returns: a block for the request from what its stream may use, or null.
    void* search(request& q) {
        const auto usable = order_.usable(q.lane);
        const layout::block_id id = blocks_.allocate(q.bytes, q.alignment, usable.view());
        if (id == layout::no_block) return nullptr;
        try {
            if (id >= info_.size()) info_.resize(std::size_t{id} + 1);
            live_.insert(blocks_.offset(id), id);
        } catch (...) {
            // It came from the lane or from `settled`: the lane is the stricter of the two.
            blocks_.deallocate(id, q.lane == ordering_type::no_lane ? ordering_type::settled
                                                                    : order_.open(q.lane));
            throw;
        }
        counters_.allocated.add(blocks_.size(id));
        return hand_out(q, id);
    }

    void* hand_out(const request& q, layout::block_id id) noexcept {
        info_[id] = {q.bytes, q.state.id, q.state.capture, block_state::allocated, q.sync, false};
        counters_.requested.add(q.bytes);
        counters_.blocks.add(1);
        return to_pointer(blocks_.offset(id));
    }

    /// Returns: a block that this stream freed earlier in the same capture, the smallest that fits, or null.
    void* reuse_in_capture(request& q) {
        std::size_t best = captured_.size();
        for (std::size_t i = 0; i < captured_.size(); ++i) {
            const layout::block_id id = captured_[i];
            const block_info& b = info_[id];
            if (b.capture != q.state.capture || b.stream_id != q.state.id || b.lost) continue;
            if (blocks_.size(id) < q.bytes || blocks_.size(id) / 2 > q.rounded) continue;
            if (!is_aligned(blocks_.offset(id), q.alignment)) continue;
            if (best == captured_.size() || blocks_.size(id) < blocks_.size(captured_[best])) best = i;
        }
        if (best == captured_.size()) return nullptr;
        const layout::block_id id = captured_[best];
        live_.insert(blocks_.offset(id), id);
        captured_[best] = captured_.back();
        captured_.pop_back();
        counters_.captured -= blocks_.size(id);
        return hand_out(q, id);
    }

    /// Effects: buys a segment in which the request fits. Returns: `ok` or the device's answer.
    status grow(const request& q) {
        const layout::range_request least = Layout::range_for(q.bytes, q.alignment, 0);
        layout::range_request wanted = Layout::range_for(q.bytes, q.alignment, options_.segment_bytes);
        status s = buy(q, wanted);
        while (lacks_memory(s) && wanted.size > least.size) { // near a limit: as large as there is room for
            const layout::range_request half = Layout::range_for(q.bytes, q.alignment, wanted.size / 2);
            wanted = half.size < wanted.size ? half : least;
            s = buy(q, wanted);
        }
        if (!lacks_memory(s) || !options_.release_on_oom) return s;
        // Give back as little as makes room, largest first; what remains may still serve others.
        while (give_back_largest()) {
            if ((s = buy(q, least)) == status::ok) return s;
        }
        return s;
    }

    static bool lacks_memory(status s) noexcept {
        return s == status::out_of_memory || s == status::over_limit;
    }

    /// New memory is settled, for whichever stream comes. While there is one stream only it goes to that one's lane,
    /// so that its neighbours merge with it from the start.
    status buy(const request& q, const layout::range_request& wanted) {
        if (wanted.size > max_block_bytes) return status::out_of_memory;
        const result<segment_range, status> got =
            backing_.acquire(wanted.size, std::max<std::size_t>(wanted.alignment, layout::granule));
        counters_.reserved_to(backing_);
        if (!got) return got.error();
        const bool sole = order_.is_sole(q.lane);
        try {
            blocks_.add({got->base, got->size}, sole ? order_.open(q.lane) : ordering_type::settled);
        } catch (...) {
            backing_.give_back(got->base);
            counters_.reserved_to(backing_);
            throw;
        }
        if (sole) order_.freed(q.lane, got->size);
        return status::ok;
    }

    bool give_back_largest() {
        std::optional<layout::range> largest;
        blocks_.for_each_free_range([&](const layout::range& r) {
            if (!largest || r.size > largest->size) largest = r;
        });
        return largest && give_back(*largest);
    }

    std::size_t give_back_until(std::size_t bytes_to_keep) {
        std::vector<layout::range> free;
        blocks_.for_each_free_range([&](const layout::range& r) { free.push_back(r); });
        std::sort(free.begin(), free.end(), [](const auto& a, const auto& b) { return a.size > b.size; });
        const std::size_t before = backing_.bytes();
        for (const layout::range& r : free) {
            if (backing_.bytes() <= bytes_to_keep) break;
            if (!give_back(r)) break;
        }
        return before - backing_.bytes();
    }

    /// The device waits for all work on the range, so its domain does not matter.
    bool give_back(const layout::range& r) noexcept {
        if (backing_.give_back(r.base) != status::ok) return false;
        blocks_.remove(r.base);
        counters_.reserved_to(backing_);
        return true;
    }

    // ---- free ----

    deallocate_result take_back(void* p, std::size_t bytes, stream_handle stream, free_kind kind) noexcept {
        if (p == nullptr) return freed{};
        const std::lock_guard lock(mutex_);
        const std::optional<layout::block_id> found = live_block(p);
        if (!found) return classify(p, bytes);
        const layout::block_id id = *found;
        block_info& b = info_[id];
        if (bytes != any_size && bytes != b.requested)
            return misuse{
                .kind = misuse_kind::size_mismatch, .pointer = p, .bytes = bytes, .expected = b.requested};

        stream_state state{b.stream_id, 0};
        if (kind == free_kind::on_stream) {
            const result<stream_state, status> now = device_->describe(stream);
            if (now)
                state = *now;
            else
                b.lost = true;
        }
        live_.erase(to_address(p));
        counters_.requested.subtract(b.requested);
        counters_.blocks.subtract(1);
        b.requested = 0;
        const bool in_capture = state.capturing();
        if (kind != free_kind::on_own_stream) b.sync = kind == free_kind::synchronous;
        b.stream_id = state.id;
        if (kind == free_kind::synchronous)
            uses_.forget(id);
        else if (!b.lost && !b.sync)
            uses_.forget(id, state.id); // the stream of the free needs no event to be in order with itself
        if (uses_.any(id)) {
            const auto outcome = uses_.begin_free(id);
            if (outcome.pending) {
                b.state = block_state::pending;
                counters_.pending += blocks_.size(id);
                return freed{};
            }
            b.lost = b.lost || outcome.lost || (b.capture != 0);
            if (outcome.capture != 0) b.capture = outcome.capture, b.lost = true;
        }
        if (b.capture != 0 && b.capture != state.capture)
            b.lost = true; // not reusable inside the capture either
        const lane_id lane = complete(id);
        if (kind == free_kind::on_stream && !in_capture && state.id == b.stream_id)
            order_.mark_if_due(lane, stream, blocks_);
        return freed{};
    }

    /// Effects: a freed block whose uses are over becomes free memory, or is kept for its capture.
    /// Returns: the lane it went to, or `no_lane`.
    lane_id complete(layout::block_id id) noexcept {
        block_info& b = info_[id];
        if (b.capture != 0) {
            try {
                captured_.push_back(id);
            } catch (...) { // stays allocated: never handed out again, which is what matters
            }
            b.state = block_state::captured;
            counters_.captured += blocks_.size(id);
            return ordering_type::no_lane;
        }
        const std::size_t size = blocks_.size(id);
        const lane_id lane = b.lost || b.sync ? ordering_type::no_lane : order_.lane_of(b.stream_id, blocks_);
        b.state = block_state::free;
        counters_.allocated.subtract(size);
        blocks_.deallocate(id, b.sync && !b.lost ? ordering_type::settled : order_.open(lane));
        order_.freed(lane, size);
        return lane;
    }

    /// Effects: turns completed work into free memory. Returns: whether there was any.
    bool settle() noexcept {
        const auto completed = [this](layout::block_id id, const auto& outcome) {
            this->finish_pending(id, outcome);
        };
        const bool a = uses_.poll(completed);
        return order_.poll(blocks_) || a;
    }

    bool wait_for_all() noexcept {
        const auto completed = [this](layout::block_id id, const auto& outcome) {
            this->finish_pending(id, outcome);
        };
        const bool a = uses_.synchronize(completed);
        return order_.synchronize(blocks_) || a;
    }

    template <class Outcome>
    void finish_pending(layout::block_id id, const Outcome& outcome) noexcept {
        block_info& b = info_[id];
        counters_.pending -= blocks_.size(id);
        b.lost = b.lost || outcome.lost;
        if (outcome.capture != 0) b.capture = outcome.capture;
        if (b.capture != 0) b.lost = true;
        complete(id);
    }

    // ---- answers ----

    [[nodiscard]] std::optional<layout::block_id> live_block(const void* p) const noexcept {
        return live_.find(to_address(p));
    }

    /// Says what is wrong with a pointer that is not a live block. Linear in the blocks: only misuse pays.
    [[nodiscard]] misuse classify(const void* p, std::size_t bytes) const noexcept {
        misuse wrong{
            .kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = bytes == any_size ? 0 : bytes};
        const std::uint64_t at = to_address(p);
        if (backing_.find(at).size == 0) return wrong;
        wrong.kind = misuse_kind::double_free;
        live_.for_each([&](std::uint64_t start, layout::block_id id) {
            if (at > start && at < start + blocks_.size(id)) wrong.kind = misuse_kind::interior_pointer;
        });
        return wrong;
    }

    allocate_result fail(const request& q, failure_cause cause, status s) noexcept {
        allocation_failure f;
        f.requested = q.bytes;
        f.rounded = q.rounded;
        f.cause = cause;
        f.driver_status = s;
        return f;
    }

    allocate_result refuse(const request& q, status s) noexcept {
        ++counters_.failures;
        allocation_failure f;
        f.requested = q.bytes;
        f.rounded = q.rounded;
        f.driver_status = s;
        const auto usable = order_.usable(q.lane);
        f.free_bytes = blocks_.free_bytes();
        f.largest_free = blocks_.largest_free(usable.view());
        const std::size_t others = order_.bytes_of_others(q.lane, blocks_);
        f.pending = counters_.pending + others;
        device_->explain(f);
        // What could still be bought counts: where it and the free blocks together would do, only their shape does not.
        const std::size_t room = s == status::over_limit && f.used < f.max ? f.max - f.used : 0;
        if (s == status::capture_violation)
            f.cause = failure_cause::capture;
        else if (!lacks_memory(s))
            f.cause = failure_cause::driver;
        else if (f.free_bytes - others + room >= q.rounded)
            f.cause = failure_cause::fragmentation;
        else if (f.free_bytes + counters_.pending + room >= q.rounded)
            f.cause = failure_cause::stream_pending;
        return f;
    }

    [[nodiscard]] block_snapshot describe_block(const layout::block_view& b) const noexcept {
        block_snapshot s{b.offset, b.size, 0, block_state::free, 0};
        if (b.free) {
            s.stream = order_.stream_of(b.color);
        } else {
            s.requested = info_[b.id].requested;
            s.state = info_[b.id].state;
            s.stream = info_[b.id].stream_id;
        }
        return s;
    }

    /// Counters whose `reserved` part follows the segments.
    struct counters : usage_counters {
        void reserved_to(const backing_type& s) noexcept {
            follow(reserved, s.bytes());
            follow(segments, s.count());
        }
        static void follow(gauge& g, std::size_t now) noexcept {
            if (now > g.current)
                g.add(now - g.current);
            else
                g.subtract(g.current - now);
        }
    };

    mutable std::mutex mutex_; ///< guards everything below; innermost but for the device's own
    Device* device_;
    pool_options options_;
    backing_type backing_;
    event_cache<Device> events_;
    pending_uses<Device> uses_;
    ordering_type order_;
    Layout blocks_;
    pointer_map live_;                       ///< address of a live block -> id
    std::vector<block_info> info_;           ///< by block id
    std::vector<layout::block_id> captured_; ///< freed, but a graph may replay into them
    counters counters_;
};

} // namespace tenure
