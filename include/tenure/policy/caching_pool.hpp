#pragma once

/// \file
/// `caching_pool<Device>`: PyTorch's scheme. Segments of a few fixed sizes are bought from the device, split
/// and merged, and kept; a block serves the stream it was first allocated on for as long as its segment
/// lives.
///
///     small blocks (to 1 MiB)   segments of 2 MiB         best fit per stream, rest split off from 512 B
///     large blocks              segments of 20 MiB, or    best fit per stream, rest split off over 1 MiB
///                               of the block's own size
///
/// With the default options it buys from the device what PyTorch's native allocator buys for the same
/// program, to the byte and to the segment, as long as memory lasts and the device hands out ascending
/// addresses (the lowest of equal blocks is taken first, so where segments lie decides ties).
///
/// An allocation, stopping at the first success:
///   1. what has completed meanwhile: frees that waited for other streams (`record_use`)
///   2. the best block of its own stream; with `cross_stream_reuse` then what others have finished with
///   3. garbage collection, if more than `garbage_collection_threshold` of the limit is reserved
///   4. a new segment
///   5. with `max_split`: just enough oversize blocks go back to the device, then 4 again
///   6. the host waits for frees that are pending (`synchronize_on_oom`), and *searches again*
///   7. free segments go back to the device: all, or just enough (`release_all_on_oom`), then 4 again
///   8. a segment only as large as the block needs
///   9. a typed failure; nothing has changed
/// Steps 6 (the second search) and 8 are where PyTorch gives up.
///
/// Streams are known by identity, not by handle. Freeing on another stream than the block's own is a use of
/// it there: it waits for an event. Memory of a destroyed stream stays its own, and goes back to the device
/// at step 7.
///
/// Captured graphs: what is allocated on a capturing stream comes from segments of that capture; freed, it
/// serves the same stream in the same capture and nobody else, until `release_captured`. A block that a
/// capture uses without having allocated it waits for that too. A call on a capturing stream records, queries
/// and waits for nothing, and gives nothing back to the device: of the steps above it takes 2, 4 and 8.
///
/// Invariants: those of `caching::heap`.
/// Complexity: O(log free blocks). Cost: no driver call on the default stream; on others one `describe` an
/// operation, which is what makes recycled handles and captures safe. One event for each other stream that
/// used a block. Thread-safety: thread-safe. One mutex, held over driver calls other than `describe`; it is
/// not held over the misuse handler.

#include <tenure/core.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/ordering/stream_names.hpp>
#include <tenure/policy/caching/giving_back.hpp>
#include <tenure/policy/caching/heap.hpp>
#include <tenure/policy/caching/lane_marks.hpp>
#include <tenure/policy/caching_options.hpp>
#include <tenure/policy/held_block.hpp>
#include <tenure/resource/resource.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

namespace tenure {

template <device Device>
class caching_pool : public holding<caching_pool<Device>> {
  public:
    using device_type = Device;
    using options_type = caching_options;

    /// What is released without a stream (`release_batch`) is kept for the capture that its stream was last seen in.
    static constexpr bool keeps_what_comes_in_capture = true;

    /// Throws: `std::invalid_argument` for options that make no sense.
    explicit caching_pool(Device& device, caching_options options = {})
        : device_(&device)
        , options_(checked(options))
        , heap_(device, options_)
        , marks_(device, heap_.events(), heap_.lanes(), options_.small_size) {}

    caching_pool(const caching_pool&) = delete;
    caching_pool& operator=(const caching_pool&) = delete;

    /// Gives everything back to the device; live blocks are reported first (`live_at_destruction`).
    ~caching_pool() {
        const usage_counters& now = heap_.counters();
        if (now.blocks.current != 0)
            report_misuse({.kind = misuse_kind::live_at_destruction,
                           .bytes = now.requested.current,
                           .expected = now.blocks.current});
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        return value_of(try_allocate(stream, bytes, alignment));
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        request q{.bytes = bytes, .alignment = alignment, .stream = stream};
        return serve(q);
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        request q{.bytes = bytes, .alignment = alignment, .for_all_streams = true};
        return value_of(serve(q));
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        report(try_deallocate(stream, p, bytes, alignment));
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t = default_alignment) noexcept {
        return take_back(p, bytes, free_kind::on_stream, stream);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t = default_alignment) noexcept {
        report(take_back(p, bytes, free_kind::synchronous));
    }

    void release(void* p) noexcept { report(take_back(p, 0, free_kind::on_own_stream)); }

    void record_use(void* p, stream_handle stream) noexcept {
        if (p == nullptr) return;
        const result<stream_state, status> state = device_->describe(stream);
        std::optional<misuse> wrong;
        {
            const std::lock_guard lock(mutex_);
            if (const std::optional<block_id> id = heap_.live_block(p)) {
                note_use(*id, stream, state);
                if (state && state->capturing()) add_use(*id, stream, *state); // for what follows the capture
            } else {
                wrong = classify(p, 0);
            }
        }
        if (wrong) report_misuse(*wrong);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return heap_.live_block(p).has_value();
    }

    [[nodiscard]] usage_counters usage() const {
        const std::lock_guard lock(mutex_);
        return heap_.counters();
    }

    std::size_t trim(std::size_t bytes_to_keep) {
        const std::lock_guard lock(mutex_);
        settle();
        return caching::release_until(heap_, bytes_to_keep);
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot picture;
        heap_.backing().for_each([&](const segment_range& s) {
            picture.segments.push_back({s.base, s.size, {}});
        });
        auto segment = picture.segments.begin();
        heap_.blocks().for_each_block([&](const layout::block_view& b) {
            while (b.offset >= segment->address + segment->size) ++segment;
            segment->blocks.push_back(heap_.describe(b));
        });
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        return heap_.validate();
    }

    // ---- beyond resource ----

    /// Effects: what only this capture may have becomes free. Requires: the graphs made from it are gone, or
    /// will not be launched again, and their work is over. `capture` is the identity that `device.describe`
    /// gives.
    void release_captured(std::uint64_t capture) noexcept {
        const std::lock_guard lock(mutex_);
        heap_.release_captured(capture);
    }

    [[nodiscard]] const caching_options& options() const noexcept { return options_; }

  private:
    friend class holding<caching_pool>;
    using heap_type = caching::heap<Device>;
    using lane_table = caching::lane_table;
    using lane_id = caching::lane_id;
    using block_id = layout::block_id;
    using candidate = typename heap_type::candidate;

    enum class free_kind : std::uint8_t { on_stream, synchronous, on_own_stream };

    struct request {
        std::size_t bytes;
        std::size_t alignment;
        stream_handle stream = default_stream;
        bool for_all_streams = false; ///< `allocate_sync`
        stream_state state{};
        std::size_t block = 0; ///< bytes, as rounded
        lane_id lane = lane_table::shared;
        [[nodiscard]] bool capturing() const noexcept { return state.capturing(); }
    };

    static const caching_options& checked(const caching_options& options) {
        options.check();
        return options;
    }
    static void* value_of(const allocate_result& r) {
        if (!r) throw_failure(r.error());
        return *r;
    }
    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }

    // ---- allocation ----

    allocate_result serve(request& q) noexcept {
        if (q.bytes == 0) return static_cast<void*>(nullptr);
        q.block = options_.block_size(q.bytes);
        if (!is_power_of_two(q.alignment) || q.alignment > max_alignment)
            return allocation_failure{.requested = q.bytes,
                                      .rounded = q.block,
                                      .cause = failure_cause::invalid_alignment,
                                      .driver_status = status::invalid_value};
        if (!q.for_all_streams) {
            const result<stream_state, status> state = device_->describe(q.stream);
            if (!state) return driver_failure(q, state.error());
            q.state = *state;
        }
        const std::lock_guard lock(mutex_);
        try {
            const result<void*, status> p = obtain(q);
            mark_if_due(q.lane, q);
            if (p) return *p;
            return refuse(q, p.error());
        } catch (...) { // host memory
            return driver_failure(q, status::failed);
        }
    }

    // Blocks that are held are given by the first two steps alone.

    std::optional<request> held_request(stream_handle stream, bool sync, std::size_t bytes,
                                        std::size_t alignment) noexcept {
        request q{.bytes = bytes, .alignment = alignment, .stream = stream, .for_all_streams = sync};
        q.block = options_.block_size(bytes);
        if (q.block > max_block_bytes) return std::nullopt;
        if (sync) return q;
        const result<stream_state, status> state = device_->describe(stream);
        if (!state || state->capturing()) return std::nullopt;
        q.state = *state;
        return q;
    }

    bool begin_held(request& q) {
        if (!choose_lane(q)) return false;
        heap_.uses().poll(completed());
        return true;
    }

    [[nodiscard]] bool fits_within(const request&, std::size_t) const noexcept { return false; }

    void end_held(const request& q) noexcept { mark_if_due(q.lane, q); }

    /// The steps of the head comment. Returns: a block, or the device's answer that ended the search.
    result<void*, status> obtain(request& q) {
        if (q.bytes > max_block_bytes || q.block > max_block_bytes) return status::out_of_memory;
        if (!choose_lane(q)) return status::failed;
        if (!q.capturing()) heap_.uses().poll(completed());
        if (void* p = search(q)) return p;
        if (options_.cross_stream_reuse && !q.capturing())
            if (void* p = search_others(q)) return p;
        if (options_.garbage_collection_threshold > 0 && !q.capturing())
            caching::collect_garbage(heap_, options_.garbage_collection_threshold,
                                     caching::memory_limit(*device_));

        const std::size_t preferred = options_.segment_size(q.block);
        result<void*, status> p = grow(q, preferred);
        if (p || !lacks_memory(p.error())) return p;
        if (!q.capturing()) {
            if (options_.max_split != no_limit && !options_.is_small(q.block) &&
                caching::release_oversize(heap_, q.lane, q.block, options_.max_split))
                if (p = grow(q, preferred); p) return p;
            if (options_.synchronize_on_oom && wait_for_all(q))
                if (void* found = search(q)) return found;
            if (const std::optional<result<void*, status>> last = release_and_grow(q, preferred)) p = *last;
            if (p || !lacks_memory(p.error())) return p;
        }
        const std::size_t least = least_segment(q);
        return least < preferred ? grow(q, least) : p;
    }

    /// Returns: whether there was a lane left.
    bool choose_lane(request& q) {
        if (q.for_all_streams) return true;
        q.lane = heap_.lanes().find_or_make(keep_under(q.stream, q.state), q.state.capture, heap_.blocks());
        if (q.lane == lane_table::none) {
            q.lane = lane_table::shared;
            return false;
        }
        heap_.lanes().note_capture(heap_.lanes().home(q.lane), q.state.capture);
        return true;
    }

    /// Returns: a block from what the request's stream may use, or null.
    void* search(const request& q) {
        const bool small = options_.is_small(q.block);
        std::array<layout::domain, 3> domains{lane_table::domain_of(q.lane, small)};
        std::size_t n = 1;
        if (options_.cross_stream_reuse && !q.capturing() && !q.for_all_streams) {
            if (const lane_id moving = heap_.lanes().moving(q.lane); moving != lane_table::none)
                domains[n++] = lane_table::domain_of(moving, small);
            domains[n++] = lane_table::domain_of(lane_table::shared, small);
        }
        const std::optional<candidate> c = heap_.find(q.block, q.alignment, std::span(domains.data(), n));
        return c ? heap_.hand_out(*c, q.lane, q.bytes, q.block, q.alignment) : nullptr;
    }

    /// Step 2 with `cross_stream_reuse`: what other streams have freed and finished with.
    void* search_others(const request& q) {
        if (marks_.poll(heap_.blocks()))
            if (void* p = search(q)) return p;
        const result<stream_state, status> always_alive = device_->describe(default_stream);
        marks_.ask_others(q.lane, always_alive ? heap_.lanes().find(always_alive->id) : lane_table::none,
                          heap_.blocks());
        marks_.poll(heap_.blocks());
        if (!q.for_all_streams) marks_.take_back(q.lane, heap_.blocks());
        return search(q);
    }

    result<void*, status> grow(const request& q, std::size_t bytes) {
        const bool small = options_.is_small(q.block);
        const result<candidate, status> fresh = heap_.grow(q.lane, small, bytes, q.block, q.alignment);
        if (!fresh) return fresh.error();
        return heap_.hand_out(*fresh, q.lane, q.bytes, q.block, q.alignment);
    }

    /// The smallest segment that holds the block, bytes.
    [[nodiscard]] std::size_t least_segment(const request& q) const noexcept {
        return round_up(q.block, device_->allocation_granularity());
    }

    /// Step 7. Returns: the outcome of growing, or nothing when there was nothing to give back.
    std::optional<result<void*, status>> release_and_grow(const request& q, std::size_t bytes) {
        if (options_.release_all_on_oom) {
            if (caching::release_until(heap_, 0) == 0) return std::nullopt;
            return grow(q, bytes);
        }
        const std::size_t least = least_segment(q);
        for (std::size_t wanted = missing(least); caching::release_enough(heap_, wanted) != 0;
             wanted = missing(least)) {
            const result<void*, status> p = grow(q, least);
            if (p || !lacks_memory(p.error())) return p;
        }
        return std::nullopt;
    }

    /// Returns: how many bytes have to be given back before `bytes` can be bought, as far as one can know.
    std::size_t missing(std::size_t bytes) noexcept {
        std::size_t room = 0;
        if constexpr (requires { device_->room(); }) {
            room = device_->room();
        } else {
            allocation_failure f;
            f.driver_status = status::over_limit; // asks who would refuse
            device_->explain(f);
            if (f.max != no_limit && f.used <= f.max) room = f.max - f.used;
        }
        return room < bytes ? bytes - room : bytes;
    }

    // ---- free ----

    deallocate_result take_back(void* p, std::size_t bytes, free_kind kind,
                                stream_handle stream = default_stream) noexcept {
        if (p == nullptr) return freed{};
        result<stream_state, status> state = stream_state{};
        if (kind == free_kind::on_stream) state = device_->describe(stream);
        const std::lock_guard lock(mutex_);
        return take_back_locked(p, bytes, kind, stream, state);
    }

    deallocate_result release_locked(void* p) noexcept {
        return take_back_locked(p, 0, free_kind::on_own_stream, default_stream, stream_state{});
    }

    void look_ahead(std::span<void* const>) const noexcept {}

    /// `bytes` are as the caller gave them; `on_own_stream` gives none.
    deallocate_result take_back_locked(void* p, std::size_t bytes, free_kind kind, stream_handle stream,
                                       const result<stream_state, status>& state) noexcept {
        const std::optional<block_id> found = heap_.live_block(p);
        if (!found) return classify(p, bytes);
        const block_id id = *found;
        if (const std::size_t expected = heap_.record(id).requested;
            kind != free_kind::on_own_stream && bytes != expected) {
            misuse wrong;
            wrong.kind = misuse_kind::size_mismatch;
            wrong.pointer = p;
            wrong.bytes = bytes;
            wrong.expected = expected;
            return wrong;
        }

        const lane_id lane = heap_.record(id).lane;
        if (const std::uint64_t capture = heap_.lanes().capture(lane);
            capture != 0 && !(kind == free_kind::on_stream && state && state->capture == capture))
            heap_.unsettle(id);
        switch (kind) {
        case free_kind::on_stream: note_use(id, stream, state); break;
        case free_kind::synchronous: heap_.uses().forget(id); break;
        case free_kind::on_own_stream: note_own_stream(id); break;
        }
        heap_.forget(id);
        if (!begin_waiting(id)) heap_.retire(id);
        if (options_.cross_stream_reuse && kind == free_kind::on_stream && state && !state->capturing())
            mark_if_due(heap_.lanes().find(state->id),
                        {.bytes = 0, .alignment = 0, .stream = stream, .state = *state});
        return freed{};
    }

    /// Effects: remembers that the work which `stream` holds at the block's free may use the live block.
    void note_use(block_id id, stream_handle stream, const result<stream_state, status>& state) noexcept {
        auto& b = heap_.record(id);
        const lane_table& lanes = heap_.lanes();
        if (!state) {
            b.lost = true;
            return;
        }
        const std::uint64_t kept_under = keep_under(stream, *state);
        const bool own = b.lane != lane_table::shared && lanes.stream(lanes.home(b.lane)) == kept_under;
        if (state->capturing()) {
            if (const lane_id of_stream = heap_.lanes().find(kept_under); of_stream != lane_table::none)
                heap_.lanes().note_capture(of_stream, state->capture);
            if (!own || lanes.capture(b.lane) != state->capture) heap_.hold(id, state->capture);
        } else if (!own) {
            add_use(id, stream, *state);
        }
    }

    void add_use(block_id id, stream_handle stream, const stream_state& state) noexcept {
        try {
            heap_.uses().add(id, stream, state.id, state.capturing());
        } catch (...) {
            heap_.record(id).lost = true;
        }
    }

    /// Returns: the identity under which memory of the stream is kept. It has just been described so.
    std::uint64_t keep_under(stream_handle stream, const stream_state& state) noexcept {
        return names_.note(stream, state, [this](std::uint64_t made_up, std::uint64_t id) {
            heap_.lanes().rename(made_up, id);
        });
    }

    /// A free on the block's own stream, of which only its past is known here: if it was capturing, it may
    /// still be.
    void note_own_stream(block_id id) noexcept {
        const lane_id lane = heap_.record(id).lane;
        const std::uint64_t capture = heap_.lanes().seen_capture(heap_.lanes().home(lane));
        if (lane != lane_table::shared && capture != 0 && heap_.lanes().capture(lane) != capture)
            heap_.hold(id, capture);
    }

    /// Effects: marks the work of all streams that use the block. Returns: whether it has to wait for them.
    bool begin_waiting(block_id id) noexcept {
        if (!heap_.uses().any(id)) return false;
        // Memory of a capture must have been seen to pass: it may be given to others when its graph goes.
        const lane_id lane = heap_.record(id).lane;
        const std::uint64_t owner = heap_.lanes().capture(lane) == 0 ? heap_.lanes().stream(lane) : 0;
        const auto outcome = heap_.uses().begin_free(id, owner != 0 ? owner : pending_uses<Device>::no_owner);
        if (outcome.capture != 0) heap_.hold(id, outcome.capture);
        if (outcome.lost) heap_.record(id).lost = true;
        if (outcome.pending) heap_.set_pending(id);
        return outcome.pending;
    }

    // ---- waiting ----

    auto completed() noexcept {
        return [this](block_id id, const auto&) { heap_.retire(id); };
    }

    void settle() {
        heap_.uses().poll(completed());
        if (options_.cross_stream_reuse) marks_.poll(heap_.blocks());
    }

    /// Returns: whether waiting has freed anything.
    bool wait_for_all(const request& q) {
        bool any = heap_.uses().synchronize(completed());
        if (options_.cross_stream_reuse) {
            any = marks_.synchronize(heap_.blocks()) || any;
            if (!q.for_all_streams) marks_.take_back(q.lane, heap_.blocks());
        }
        return any;
    }

    /// The end of a call that names a stream. Marking is a favour to others: failing it is no failure of this
    /// call.
    void mark_if_due(lane_id lane, const request& q) noexcept {
        if (!options_.cross_stream_reuse || q.for_all_streams || q.capturing() || lane == lane_table::none)
            return;
        try {
            marks_.mark_if_due(lane, q.stream, heap_.blocks());
        } catch (...) {
        }
    }

    // ---- answers ----

    [[nodiscard]] std::size_t size_of_live(const void* p) const noexcept {
        const std::optional<block_id> id = heap_.live_block(p);
        return id ? heap_.blocks().size(*id) : 0;
    }

    allocation_failure driver_failure(const request& q, status s) const noexcept {
        return {.requested = q.bytes, .rounded = q.block, .cause = failure_cause::driver, .driver_status = s};
    }

    allocate_result refuse(const request& q, status s) noexcept {
        heap_.count_failure();
        // What is wholly free now, the device refused to take back: it waits for work.
        std::size_t waiting = 0;
        if (!q.capturing())
            heap_.for_each_releasable([&](const layout::range& r, const auto&) { waiting += r.size; });
        const std::array mine{lane_table::domain_of(q.lane, options_.is_small(q.block))};
        allocation_failure f = driver_failure(q, s);
        f.free_bytes = heap_.blocks().free_bytes() - heap_.lanes().captured_bytes(heap_.blocks());
        f.largest_free = heap_.blocks().largest_free(mine);
        f.pending = heap_.counters().pending + waiting;
        if (s == status::capture_violation) f.cause = failure_cause::capture;
        if (!lacks_memory(s)) return f;

        f.cause = failure_cause::device;
        device_->explain(f);
        const std::size_t with_pending = f.free_bytes + heap_.counters().pending;
        if (q.capturing() && with_pending >= q.block)
            f.cause = failure_cause::capture;
        else if (f.free_bytes - waiting >= q.block)
            f.cause = failure_cause::fragmentation;
        else if (with_pending >= q.block)
            f.cause = failure_cause::stream_pending;
        return f;
    }

    /// Says what is wrong with a pointer that is not a live block. Linear in the blocks: only misuse pays.
    [[nodiscard]] misuse classify(const void* p, std::size_t bytes) const noexcept {
        misuse wrong{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = bytes};
        const std::uint64_t at = to_address(p);
        if (heap_.backing().find(at).size == 0) return wrong;
        wrong.kind = misuse_kind::double_free;
        heap_.blocks().for_each_block([&](const layout::block_view& b) {
            if (!b.free && at > b.offset && at < b.offset + b.size &&
                heap_.record(b.id).state == block_state::allocated)
                wrong.kind = misuse_kind::interior_pointer;
        });
        return wrong;
    }

    mutable ordered_mutex<lock_level::pool>
        mutex_; ///< guards what follows `options_`; see there for the order
    Device* device_;
    const caching_options options_;
    heap_type heap_;
    stream_names names_;
    caching::lane_marks<Device> marks_;
};

template <device Device>
caching_pool(Device&, caching_options = {}) -> caching_pool<Device>;

} // namespace tenure
