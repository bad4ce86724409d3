#pragma once

/// \file
/// `range_pool<Device, Stock>`: the engine of the pools that are one layout over ranges of device memory.
///
///     where?   Stock::blocks()  the layout, best fit, first fit, bitmap, buddy, slab: blocks inside ranges
///     when?    stream_order     which free blocks a stream may take; pending_uses for blocks that several streams use
///     whence?  Stock            ranges got from the device and given back; the device may be an arena's meter
///
/// An allocation searches its stream's free blocks. On a miss, in this order, stopping at the first success:
///   1. what has completed meanwhile: pending frees, marks of other streams
///   2. neighbours that hold the request only together: its own free blocks and settled ones
///   3. other streams are asked for marks
///   4. more memory, as the stock sees fit: a new segment; free memory mapped behind new addresses. Where that would make it
///      hold more than it must, the host may wait a while first for what others have freed (`patience`)
///   5. the stock makes room until the request fits in what that settles, or in memory of its own
///      (`release_on_oom`); not if it could not. Segments are given back, the largest first, and the device
///      waits for all work
///   6. waiting for marks and pending frees (`synchronize_on_oom`), then a last search and 4 again
///   7. a typed failure; what others may use is as it was
///
/// Captured graphs: a block that was allocated, used or freed on a capturing stream belongs to that capture,
/// since a replay may write to it: after its free nobody has it until `release_captured`. Only what the
/// capture itself has allocated and freed may serve its same stream again before. An allocation on a
/// capturing stream takes only settled or new memory.
///
/// Invariants:
///   1. Every live block is in the pointer map, and its side-table entry holds its size as requested.
///   2. `reserved` equals what the segments take from the device; `allocated` the sum of used blocks of the layout.
///   3. No block is handed out before the work of its former users is over or ordered before.
///
/// Cost: a hit is one `describe` (none on the default stream), the layout's search and an insert into the pointer map;
/// a free the same in reverse. No event, but for blocks of 1 MiB and more where other streams hold as much: see
/// `look_before`. A miss is linear in the free blocks before it costs a driver call.
/// Thread-safety: thread-safe. One mutex, held over driver calls; it is not held over the misuse handler.

#include <tenure/backing.hpp>
#include <tenure/core.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/pointer_map.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/ordering.hpp>
#include <tenure/policy/capture_holds.hpp>
#include <tenure/policy/held_block.hpp>
#include <tenure/policy/moving_block.hpp>
#include <tenure/policy/patience.hpp>
#include <tenure/policy/pool_options.hpp>
#include <tenure/policy/range_stock.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

namespace tenure {

template <device Device, class Stock>
class range_pool : public holding<range_pool<Device, Stock>> {
  public:
    using device_type = Device;
    using options_type = typename Stock::options_type;

    /// Whether `try_allocate_held_within` ever gives a block.
    static constexpr bool sees_exact_fits = requires(const typename Stock::layout_type& l, std::size_t n,
                                                     std::span<const layout::domain> usable) {
        l.fits_within(n, n, n, usable);
    };

    explicit range_pool(Device& device, options_type options = {})
        : device_(&device)
        , options_(options)
        , stock_(device, options)
        , blocks_(stock_.blocks())
        , events_(device)
        , uses_(device, events_)
        , order_(device, events_, options.mark_bytes)
        , patience_(patience_of(stock_)) {}

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

    void release(void* p) noexcept { report(take_back(p, 0, default_stream, free_kind::on_own_stream)); }

    void record_use(void* p, stream_handle stream) noexcept {
        if (p == nullptr) return;
        std::optional<misuse> wrong;
        {
            const std::lock_guard lock(mutex_);
            if (const std::optional<layout::block_id> id = live_block(p))
                note_use(*id, stream);
            else
                wrong = classify(p, 0);
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
        std::size_t given_back = give_back_until(bytes_to_keep);
        // The device has waited meanwhile; what that completes may be the rest of another segment.
        if (given_back != 0 && settle()) given_back += give_back_until(bytes_to_keep);
        return given_back;
    }

    /// Effects: the graphs made from this capture are gone and their work is over; their memory is free, or
    /// will be when the work outside of graphs that its frees waited for is over.
    void release_captured(std::uint64_t capture) noexcept {
        const std::lock_guard lock(mutex_);
        order_.tidy(blocks_);
        holds_.release(capture, [this](layout::block_id id) {
            counters_.captured -= blocks_.size(id);
            become_free(id);
        });
    }

    // ---- a block that moves to another pool: see `moves_blocks` ----

    [[nodiscard]] result<moving_block, move_refusal> offer(void* p) const noexcept
        requires(Stock::moves_segments) {
        const std::lock_guard lock(mutex_);
        const std::optional<layout::block_id> id = live_block(p);
        if (!id) return move_refusal::not_live;
        const block_info& b = info_[*id];
        const segment_range segment = stock_.backing().find(to_address(p));
        if (segment.base != to_address(p) || segment.size != blocks_.size(*id))
            return move_refusal::shares_memory;
        if (uses_.any(*id) || holds_.held(*id) || b.lost) return move_refusal::in_use;
        const auto extent = stock_.backing().extent_of(segment.base);
        return moving_block{segment.base, segment.size, extent.allocation, extent.allocated, b.requested,
                            b.stream_id,  b.sync};
    }

    bool accept(const moving_block& m) requires(Stock::moves_segments) {
        const std::lock_guard lock(mutex_);
        const follow_stock follow{*this};
        order_.tidy(blocks_);
        // For this instant the segment is the only free memory of some domain, so that the search finds it.
        layout::domain alone = ordering_type::settled;
        while (blocks_.free_bytes(alone) != 0) ++alone;
        stock_.adopt({m.base, m.size}, {m.allocation, m.allocated}, alone);
        layout::block_id id = layout::no_block;
        try {
            id = blocks_.allocate(m.size, layout::granule, {&alone, 1});
            if (id != layout::no_block && blocks_.offset(id) == m.base && blocks_.size(id) == m.size) {
                if (id >= info_.size()) info_.resize(std::size_t{id} + 1);
                holds_.make_room(info_.size());
                live_.insert(m.base, id);
                counters_.allocated.add(m.size);
                counters_.requested.add(m.requested);
                counters_.blocks.add(1);
                info_[id] = block_info{.requested = m.requested,
                                       .stream_id = m.stream_id,
                                       .state = block_state::allocated,
                                       .sync = m.sync};
                return true;
            }
        } catch (...) {
            if (id != layout::no_block) blocks_.deallocate(id, alone);
            stock_.forget(m.base);
            throw;
        }
        if (id != layout::no_block) blocks_.deallocate(id, alone);
        stock_.forget(m.base);
        return false;
    }

    void let_go(void* p) noexcept requires(Stock::moves_segments) {
        const std::lock_guard lock(mutex_);
        const follow_stock follow{*this};
        const layout::block_id id = *live_block(p);
        block_info& b = info_[id];
        counters_.requested.subtract(b.requested);
        counters_.allocated.subtract(blocks_.size(id));
        counters_.blocks.subtract(1);
        b = {};
        live_.erase(to_address(p));
        blocks_.deallocate(id, ordering_type::settled);
        stock_.forget(to_address(p));
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        const std::lock_guard lock(mutex_);
        memory_snapshot picture;
        stock_.backing().for_each([&](const segment_range& s) {
            picture.segments.push_back({s.base, s.size, {}});
        });
        std::sort(picture.segments.begin(), picture.segments.end(),
                  [](const auto& x, const auto& y) { return x.address < y.address; });
        blocks_.for_each_block([&](const layout::block_view& b) {
            const auto above =
                std::upper_bound(picture.segments.begin(), picture.segments.end(), b.offset,
                                 [](std::uint64_t at, const segment_snapshot& s) { return at < s.address; });
            std::prev(above)->blocks.push_back(describe_block(b));
        });
        for (segment_snapshot& s : picture.segments) // the device has refused to take it back
            if (s.blocks.empty()) s.blocks.push_back({s.address, s.size, 0, block_state::free, 0});
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        if (!blocks_.validate() || !live_.validate()) return false;
        if constexpr (requires { stock_.validate(); })
            if (!stock_.validate()) return false;
        if (blocks_.used_bytes() != counters_.allocated.current) return false;
        if (stock_.backing().bytes() != counters_.reserved.current) return false;
        if (stock_.backing().count() != counters_.segments.current) return false;
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
    friend class holding<range_pool>;
    using layout_type = typename Stock::layout_type;
    using ordering_type = stream_order<Device>;
    using domain_list = typename ordering_type::domain_list;
    using lane_id = typename ordering_type::lane_id;
    using amount = stock_amount;

    static constexpr bool has_patience = tells_time<Device> && requires(const Stock& s) { s.patience(); };

    static patience patience_of(const Stock& stock) noexcept {
        if constexpr (has_patience) return patience(stock.patience());
        return patience({});
    }

    enum class free_kind : std::uint8_t { on_stream, synchronous, on_own_stream };

    struct request {
        stream_handle stream;
        bool sync; ///< valid on every stream at once
        std::size_t bytes;
        std::size_t alignment;
        stream_state state{};
        std::uint64_t stream_id = 0; ///< under which its memory is kept
        std::size_t rounded = 0;
        lane_id lane = ordering_type::no_lane;
        bool from_any = false; ///< runs of neighbours are searched together with single blocks
    };

    /// What the layout does not know about a used block.
    struct block_info {
        std::size_t requested = 0;
        std::uint64_t stream_id = 0; ///< of the allocation; from the free on, of the free
        std::uint64_t capture = 0;   ///< it was allocated in this capture
        block_state state = block_state::free;
        bool sync = false;       ///< every stream may use it at once; from the free on, it was freed so
        bool lost = false;       ///< what its reuse must wait for is not known
        bool only_graph = false; ///< freed in the capture that it was allocated in, and used by nobody else
    };

    static void report(const deallocate_result& r) noexcept {
        if (!r) report_misuse(r.error());
    }

    // ---- allocation ----

    allocate_result serve(request& q) noexcept {
        if (q.bytes == 0) return static_cast<void*>(nullptr);
        if (!is_power_of_two(q.alignment) || q.alignment > max_alignment)
            return fail(q, failure_cause::invalid_alignment, status::invalid_value);
        q.rounded = layout_type::rounded(q.bytes, q.alignment);
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
            q.stream_id = keep_under(q.stream, q.state);
        }
        if (q.bytes > max_block_bytes || q.rounded > max_block_bytes) return refuse(q, status::out_of_memory);
        order_.tidy(blocks_);
        if (q.state.capturing()) {
            if (void* p = reuse_in_capture(q)) return p;
        } else if (!q.sync) {
            q.lane = order_.lane_of(q.stream_id);
        }
        learn(q.lane);
        look_before(q);
        if (void* p = search(q)) return marked(q, p);
        if (void* p = search_again(q)) return marked(q, p);
        if (order_.ask_others(q.lane, blocks_))
            if (void* p = search_again(q)) return marked(q, p);
        if (void* p = wait_a_while(q)) return marked(q, p);
        status s = grow(q);
        if (s == status::ok) {
            if (void* p = search(q)) return marked(q, p);
            if (void* p = search_across(q)) return marked(q, p);
        }
        if (lacks_memory(s) && options_.release_on_oom)
            if (void* p = make_room(q, s)) return marked(q, p);
        if (options_.synchronize_on_oom && !q.state.capturing() && wait_for_all()) {
            if (void* p = search(q)) return marked(q, p);
            if (void* p = search_across(q)) return marked(q, p);
            if (grow(q) == status::ok)
                if (void* p = search(q)) return marked(q, p);
        }
        marked(q, nullptr);
        return refuse(q, s);
    }

    // Blocks that are held are given by the first search of the walk alone.

    std::optional<request> held_request(stream_handle stream, bool sync, std::size_t bytes,
                                        std::size_t alignment) noexcept {
        request q{stream, sync, bytes, alignment};
        q.rounded = layout_type::rounded(bytes, alignment);
        if (q.rounded > max_block_bytes) return std::nullopt;
        if (sync) return q;
        const result<stream_state, status> state = device_->describe(stream);
        if (!state || state->capturing()) return std::nullopt;
        q.state = *state;
        return q;
    }

    bool begin_held(request& q) {
        order_.tidy(blocks_);
        if (!q.sync) {
            q.stream_id = keep_under(q.stream, q.state);
            q.lane = order_.lane_of(q.stream_id);
        }
        learn(q.lane);
        look_before(q);
        return true;
    }

    /// Returns: whether the search would cut the block from a free one of at most `most` bytes, as far as that is known.
    [[nodiscard]] bool fits_within(const request& q, std::size_t most) const noexcept {
        if constexpr (sees_exact_fits)
            return blocks_.fits_within(q.rounded, q.alignment, most, order_.usable(q.lane).view());
        return false;
    }

    void end_held(const request& q) noexcept { marked(q, nullptr); }

    /// The end of every allocation that names a stream: a chance to record a mark that is due.
    void* marked(const request& q, void* p) noexcept {
        if (!q.sync && !q.state.capturing()) order_.mark_if_due(q.lane, q.stream, blocks_);
        return p;
    }

    /// Effects: what the program has said of its streams since the last time counts.
    void learn(lane_id lane) noexcept {
        if constexpr (tells_waits<Device>) {
            if (!device_->waits().told()) return;
            stream_waits::enter();
            (void)uses_.learn(completed());
            (void)order_.learn(lane, blocks_);
        }
    }

    /// What others hold and nobody asks about stays theirs while they take what is free for all: so a large request asks
    /// first, where the answer could change much. On a GPU at work a query costs more than all the rest of this.
    /// Free neighbours that wait for different marks do not merge, and a search of single blocks alone cuts up the wrong
    /// ones: for a layout that sees exact fits, a large request without one sees neighbours as one. On a recorded program
    /// with three streams the pool held 1.12 times the live peak, and 1.03 with this.
    void look_before(request& q) noexcept {
        constexpr std::size_t large = std::size_t{1} << 20;
        if (q.rounded < large || q.lane == ordering_type::no_lane || order_.is_sole(q.lane)) return;
        if (fits_within(q, q.rounded)) return;
        if (counters_.pending >= 2 * q.rounded) uses_.poll(completed());
        order_.mark_others(q.lane, q.rounded, blocks_);
        const std::size_t marked = order_.marked_by_others(q.lane, blocks_);
        looked_for_ = saturating_add(looked_for_, q.rounded);
        // A layout that does not know exact fits would ask at each request of a warm loop: so once for as much as is marked.
        if (marked >= q.rounded && (sees_exact_fits || looked_for_ >= marked)) {
            looked_for_ = 0;
            order_.poll(blocks_);
        }
        q.from_any = sees_exact_fits;
    }

    /// Returns: a block for the request from what its stream may use, or null.
    void* search(request& q) {
        const auto usable = order_.usable(q.lane);
        if constexpr (sees_exact_fits)
            if (q.from_any) return found(q, blocks_.allocate_from_any(q.bytes, q.alignment, usable.view()));
        return found(q, blocks_.allocate(q.bytes, q.alignment, usable.view()));
    }

    /// Returns: the same, after a look at what has completed meanwhile, or null.
    void* search_again(request& q) {
        bool any = false;
        if (order_.is_sole(q.lane)) { // whether its marks have passed makes no difference to it
            any = uses_.poll(completed());
            if (order_.gather(q.lane, q.stream, blocks_)) any = true;
        } else {
            any = settle();
        }
        if (any)
            if (void* p = search(q)) return p;
        return search_across(q);
    }

    /// Returns: a block for the request, with the stock no larger than it must be, or null: then what is missing is to be
    /// bought. May wait for what other streams have freed, as long as there is patience for it.
    void* wait_a_while(request& q) {
        if constexpr (has_patience) {
            if (q.lane == ordering_type::no_lane || patience_.left() == patience::duration::zero())
                return nullptr;
            const auto could_do = [&] {
                const std::size_t others = order_.marked_by_others(q.lane, blocks_);
                const std::size_t own = blocks_.free_bytes() - order_.bytes_of_others(q.lane, blocks_);
                return others != 0 && own + others >= q.rounded;
            };
            if (!could_do()) return nullptr;
            void* p = serve_within_slack(q);
            if (p != nullptr) return p;
            const waiting lap(*this);
            // No poll takes less than some 10 ns, but on a simulated clock.
            auto polls = patience_.left() / std::chrono::nanoseconds(10);
            const std::chrono::nanoseconds end = device_->now() + patience_.left();
            while (p == nullptr && could_do() && polls-- > 0 && device_->now() < end)
                if (settle()) p = serve_within_slack(q);
            return p;
        }
        return nullptr;
    }

    /// Counts as waited until the end of a scope, however that is left.
    struct waiting {
        explicit waiting(range_pool& p) : pool(p), begin(p.device_->now()) {}
        waiting(const waiting&) = delete;
        waiting& operator=(const waiting&) = delete;
        ~waiting() { pool.patience_.has_waited(pool.device_->now() - begin); }
        range_pool& pool;
        std::chrono::nanoseconds begin;
    };

    void* serve_within_slack(request& q) {
        if (void* p = search(q)) return p;
        if (void* p = search_across(q)) return p;
        return grow(q, amount::within_slack) == status::ok ? search(q) : nullptr;
    }

    /// Returns: the same, from free neighbours that hold the request only together, or null. What is left of them
    /// stays whose it was: given to this stream, memory that everybody may use would wait for its work.
    void* search_across(request& q) {
        const domain_list usable = order_.usable(q.lane);
        std::size_t together = 0, domains = 0;
        for (const layout::domain d : usable.view()) {
            together += blocks_.free_bytes(d);
            domains += blocks_.free_bytes(d) != 0 ? 1 : 0;
        }
        if (domains < 2 || together < q.rounded) return nullptr;
        const layout::domain open = order_.open(q.lane);
        const std::size_t before = blocks_.free_bytes(open);
        const layout::block_id id = blocks_.allocate_across(q.bytes, q.alignment, usable.view(), open);
        // A layout may have given what is left to the lane, whose own blocks went into the one taken.
        const std::size_t after = blocks_.free_bytes(open);
        if (id != layout::no_block) order_.freed(q.lane, after - std::min(after, before));
        return found(q, id);
    }

    /// Effects: the block that the layout gave is live. Returns: it, or null for `no_block`.
    void* found(const request& q, layout::block_id id) {
        if (id == layout::no_block) return nullptr;
        try {
            if (id >= info_.size()) info_.resize(std::size_t{id} + 1);
            holds_.make_room(info_.size());
            live_.insert(blocks_.offset(id), id);
        } catch (...) {
            // It came from the lane, from `settled`, or from others that the lane stands behind: it is the strictest.
            order_.freed(q.lane, blocks_.size(id));
            blocks_.deallocate(id, q.lane == ordering_type::no_lane ? ordering_type::settled
                                                                    : order_.open(q.lane));
            throw;
        }
        counters_.allocated.add(blocks_.size(id));
        return hand_out(q, id);
    }

    void* hand_out(const request& q, layout::block_id id) noexcept {
        info_[id] = {.requested = q.bytes,
                     .stream_id = q.stream_id,
                     .capture = q.state.capture,
                     .state = block_state::allocated,
                     .sync = q.sync};
        if (q.state.capturing()) holds_.hold(id, q.state.capture);
        counters_.requested.add(q.bytes);
        counters_.blocks.add(1);
        return to_pointer(blocks_.offset(id));
    }

    /// Returns: a block that this stream freed earlier in the same capture, the smallest that fits, or null.
    void* reuse_in_capture(request& q) {
        const auto& parked = holds_.parked();
        std::size_t best = parked.size();
        for (std::size_t i = 0; i < parked.size(); ++i) {
            const layout::block_id id = parked[i];
            const block_info& b = info_[id];
            if (!b.only_graph || b.capture != q.state.capture || b.stream_id != q.stream_id) continue;
            if (blocks_.size(id) < q.bytes || blocks_.size(id) / 2 > q.rounded) continue;
            if (!is_aligned(blocks_.offset(id), q.alignment)) continue;
            if (best == parked.size() || blocks_.size(id) < blocks_.size(parked[best])) best = i;
        }
        if (best == parked.size()) return nullptr;
        const layout::block_id id = parked[best];
        live_.insert(blocks_.offset(id), id);
        holds_.unpark(best);
        counters_.captured -= blocks_.size(id);
        return hand_out(q, id);
    }

    /// Effects: gets memory in which the request fits. New memory is settled, for whichever stream comes. While
    /// there is one stream only it goes to that one's lane, so that its neighbours merge with it from the start.
    /// Returns: `ok` or the device's answer.
    status grow(const request& q, amount how_much = amount::preferred) {
        if constexpr (requires { stock_.wants_proof(); })
            if (stock_.wants_proof() && order_.ask_others(ordering_type::no_lane, blocks_)) settle();
        const follow_stock follow{*this};
        const bool sole = order_.is_sole(q.lane);
        const layout::domain color = sole ? order_.open(q.lane) : ordering_type::settled;
        const domain_list usable = order_.usable(q.lane);
        const std::size_t before = blocks_.free_bytes(color);
        const bool buys = how_much != amount::within_slack;
        const status s = timed(buys, [&] {
            return stock_.grow({q.bytes, q.alignment, usable.view(), color}, how_much);
        });
        if (s == status::ok && sole) order_.freed(q.lane, blocks_.free_bytes(color) - before);
        return s;
    }

    /// Effects: grows; the time counts as spent on buying if it `buys`.
    template <class Grow>
    status timed(bool buys, Grow&& grow) {
        if constexpr (has_patience) {
            if (buys && patience_.any()) {
                const std::chrono::nanoseconds begin = device_->now();
                const status s = grow();
                patience_.has_bought(device_->now() - begin);
                return s;
            }
        }
        return grow();
    }

    /// Effects: has the stock make room, as little as will do; what remains may still serve others.
    /// Returns: a block for the request, or null; then `s` is the device's last answer.
    void* make_room(request& q, status& s) {
        if (!stock_.fit_together(q.rounded, q.alignment) && !stock_.could_grow(q.bytes, q.alignment, s))
            return nullptr;
        while (lacks_memory(s) && make_room_once()) {
            if (void* p = search(q)) return p; // all that is free is settled now
            if (void* p = search_again(q)) return p;
            if ((s = grow(q, amount::least)) == status::ok) return search(q);
        }
        return nullptr;
    }

    /// Making room means that the host has waited for all work of the device: all that is free is settled.
    bool make_room_once() {
        const follow_stock follow{*this};
        if (!stock_.make_room()) return false;
        order_.all_passed(blocks_);
        return true;
    }

    std::size_t give_back_until(std::size_t bytes_to_keep) {
        const follow_stock follow{*this};
        const auto [bytes, waited] = stock_.give_back_until(bytes_to_keep);
        if (waited) order_.all_passed(blocks_);
        return bytes;
    }

    /// Brings the counters up to the stock at the end of a scope, however that is left.
    struct follow_stock {
        range_pool& pool;
        ~follow_stock() {
            pool.counters_.reserved.set(pool.stock_.backing().bytes());
            pool.counters_.segments.set(pool.stock_.backing().count());
        }
    };

    // ---- free ----

    /// `bytes` are as the caller gave them; `on_own_stream` gives none.
    deallocate_result take_back(void* p, std::size_t bytes, stream_handle stream, free_kind kind) noexcept {
        if (p == nullptr) return freed{};
        const std::lock_guard lock(mutex_);
        return take_back_locked(p, bytes, stream, kind);
    }

    deallocate_result release_locked(void* p) noexcept {
        return take_back_locked(p, 0, default_stream, free_kind::on_own_stream);
    }

    /// Each block costs some lines that nobody has touched for long: fetched together they cost little more than one.
    void look_ahead(std::span<void* const> blocks) const noexcept {
        for (const void* const p : blocks) live_.prefetch(to_address(p));
        for (const void* const p : blocks) {
            const std::optional<layout::block_id> id = live_block(p);
            if (!id) continue;
            prefetch(&info_[*id]);
            if constexpr (requires { blocks_.prefetch(*id); }) blocks_.prefetch(*id);
        }
    }

    deallocate_result take_back_locked(void* p, std::size_t bytes, stream_handle stream,
                                       free_kind kind) noexcept {
        const std::optional<layout::block_id> found = live_block(p);
        if (!found) return classify(p, bytes);
        const layout::block_id id = *found;
        block_info& b = info_[id];
        if (kind != free_kind::on_own_stream && bytes != b.requested)
            return misuse{
                .kind = misuse_kind::size_mismatch, .pointer = p, .bytes = bytes, .expected = b.requested};

        order_.tidy(blocks_);
        live_.erase(to_address(p));
        counters_.requested.subtract(b.requested);
        counters_.blocks.subtract(1);
        b.requested = 0;
        stream_state state{b.stream_id, 0};
        if (kind == free_kind::synchronous) {
            b.sync = true;
            b.lost = false;
            uses_.forget(id);
        } else if (kind == free_kind::on_stream) {
            b.sync = false;
            if (const result<stream_state, status> now = device_->describe(stream)) {
                state = *now;
                b.stream_id = keep_under(stream, state);
                if (state.capturing()) holds_.hold(id, state.capture);
            } else {
                b.lost = true;
            }
        }
        if (!b.sync && !b.lost) uses_.forget(id, state.id); // what it holds now is before what follows on it
        b.only_graph = state.capturing() && b.capture == state.capture && holds_.only(id, b.capture) &&
                       !b.lost && !uses_.any(id);
        if (uses_.any(id)) {
            const auto outcome = uses_.begin_free(id, b.stream_id);
            if (outcome.capture != 0) holds_.hold(id, outcome.capture);
            b.lost = b.lost || outcome.lost;
            if (outcome.pending) {
                b.state = block_state::pending;
                counters_.pending += blocks_.size(id);
                return freed{};
            }
        }
        if constexpr (tells_waits<Device>)
            if (kind == free_kind::on_stream && !state.capturing() && !b.lost && device_->waits().told())
                order_.part_recorded(order_.lane_of(b.stream_id), stream, blocks_);
        const lane_id lane = complete(id);
        if (kind == free_kind::on_stream && !state.capturing()) order_.mark_if_due(lane, stream, blocks_);
        return freed{};
    }

    /// Effects: remembers that the live block is used on `stream`.
    void note_use(layout::block_id id, stream_handle stream) noexcept {
        const result<stream_state, status> state = device_->describe(stream);
        if (state && state->capturing()) holds_.hold(id, state->capture);
        try {
            if (state) uses_.add(id, stream, state->id, state->capturing());
        } catch (...) {
            info_[id].lost = true;
        }
        if (!state) info_[id].lost = true;
    }

    /// Returns: the identity under which memory of the stream is kept. It has just been described so.
    std::uint64_t keep_under(stream_handle stream, const stream_state& state) noexcept {
        return names_.note(stream, state, [this](std::uint64_t made_up, std::uint64_t id) {
            order_.rename(made_up, id);
            for (block_info& b : info_)
                if (b.stream_id == made_up) b.stream_id = id;
        });
    }

    /// Effects: a freed block whose uses are over becomes free memory, or is kept for its captures.
    /// Returns: the lane it went to, or `no_lane`.
    lane_id complete(layout::block_id id) noexcept {
        if (!holds_.held(id)) return become_free(id);
        info_[id].state = block_state::captured;
        holds_.park(id);
        counters_.captured += blocks_.size(id);
        return ordering_type::no_lane;
    }

    lane_id become_free(layout::block_id id) noexcept {
        block_info& b = info_[id];
        const bool settled = !b.lost && (b.sync || b.only_graph);
        const std::size_t size = blocks_.size(id);
        const lane_id lane = b.lost || settled ? ordering_type::no_lane : order_.lane_of(b.stream_id);
        b.state = block_state::free;
        counters_.allocated.subtract(size);
        blocks_.deallocate(id, settled ? ordering_type::settled : order_.open(lane));
        order_.freed(lane, size);
        return lane;
    }

    /// Effects: turns completed work into free memory. Returns: whether there was any.
    bool settle() noexcept {
        const bool any = uses_.poll(completed());
        return order_.poll(blocks_) || any;
    }

    bool wait_for_all() noexcept {
        const bool any = uses_.synchronize(completed());
        return order_.synchronize(blocks_) || any;
    }

    auto completed() noexcept {
        return [this](layout::block_id id, const auto& outcome) {
            counters_.pending -= blocks_.size(id);
            info_[id].lost = info_[id].lost || outcome.lost;
            complete(id);
        };
    }

    // ---- answers ----

    [[nodiscard]] std::optional<layout::block_id> live_block(const void* p) const noexcept {
        return live_.find(to_address(p));
    }

    [[nodiscard]] std::size_t size_of_live(const void* p) const noexcept {
        const std::optional<layout::block_id> id = live_block(p);
        return id ? blocks_.size(*id) : 0;
    }

    /// Says what is wrong with a pointer that is not a live block. Linear in the blocks: only misuse pays.
    [[nodiscard]] misuse classify(const void* p, std::size_t bytes) const noexcept {
        misuse wrong{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = bytes};
        const std::uint64_t at = to_address(p);
        if (stock_.backing().find(at).size == 0) return wrong;
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
        // What could still be bought counts: where it and the free blocks together would do, only their shape
        // does not.
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
        } else if constexpr (requires { blocks_.part_of(b.id); }) {
            const auto part = blocks_.part_of(b.id);
            const block_info& info = info_[part.block];
            s.requested = std::min(b.size, info.requested - std::min(info.requested, part.before));
            s.state = info.state;
            s.stream = info.stream_id;
            // The first piece at home is where the application has the block; no other place says by itself whose it is.
            if (part.before != 0 || blocks_.offset(part.block) != blocks_.home_of(part.block))
                s.block = blocks_.offset(part.block);
            s.continued = part.before != 0;
        } else {
            s.requested = info_[b.id].requested;
            s.state = info_[b.id].state;
            s.stream = info_[b.id].stream_id;
        }
        return s;
    }

    mutable ordered_mutex<lock_level::pool> mutex_; ///< guards everything below; see there for the order
    Device* device_;
    options_type options_;
    Stock stock_;
    layout_type& blocks_; ///< of `stock_`
    event_cache<Device> events_;
    pending_uses<Device> uses_;
    ordering_type order_;
    stream_names names_;
    pointer_map live_;                  ///< address of a live block -> id
    own_lines_vector<block_info> info_; ///< by block id
    capture_holds holds_;
    std::size_t looked_for_ = 0; ///< bytes of large requests since the last question about marks
    usage_counters counters_;
    patience patience_;
};

} // namespace tenure
