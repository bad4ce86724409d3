#pragma once

/// \file
/// `tenure::sim::device`: a GPU made of arithmetic, on which nearly all of tenure is tested.
///
/// It models every device concept without a GPU, deterministically, and stricter than the real thing:
///
///     the concepts' calls     counted, paid for in virtual time, made to fail on request
///          |
///     memory . . . . . . .    allocations, driver pools and mapped memory share one capacity
///     schedule . . . . . .    streams, events, captures; work takes virtual time
///     overlap check. . . .    no two blocks share a physical byte at the same time, in stream order
///
/// Addresses are numbers dressed as pointers, 2 MiB aligned, below 2^47; nobody may dereference them. What a
/// real device would answer with undefined behaviour is written down in `violations()`, which is empty after
/// a clean run.
///
///   1. `reserved() <= capacity`, counting allocations (rounded up to the granularity), pools and created
///      memory together.
///   2. A call that fails, injected or not, changes nothing but the clock, the counters and (as on CUDA) the
///      validity of a capture it had no business in.
///   3. Virtual time moves only by the cost of calls, by waits, and by `advance`.
///   4. A wait for held work that nobody has finished answers `would_deadlock` at once.
///   5. `deallocate` waits for all enqueued work of the device. Captured work is not enqueued: it is not
///      waited for, and every capture stays valid, as in the relaxed mode that the concept asks for.
///   6. Calls of a pool on a capturing stream answer `capture_violation` and leave the capture valid.
///
/// The overlap check needs to be told about blocks by whoever uses a resource: `block_allocated` *after* the
/// resource has returned the block; `block_used` for each use on another stream than its own; `block_freed`
/// *before* the resource is given it back. The free counts as the block's last use on its stream.
///
/// Cost: a few microseconds of real time a call, most of it the overlap check, which can be switched off. Host memory: when it runs out, the process ends.
/// Thread-safe: one mutex. All host threads share one clock and one knowledge of what has passed.

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim/address_space.hpp>
#include <tenure/device/sim/call.hpp>
#include <tenure/device/sim/call_ledger.hpp>
#include <tenure/device/sim/contents.hpp>
#include <tenure/device/sim/costs.hpp>
#include <tenure/device/sim/driver_pool.hpp>
#include <tenure/device/sim/handle_table.hpp>
#include <tenure/device/sim/memory_budget.hpp>
#include <tenure/device/sim/overlap_checker.hpp>
#include <tenure/device/sim/schedule.hpp>
#include <tenure/device/sim/violation_log.hpp>
#include <tenure/device/sim/virtual_memory.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/device/vmm_device.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::sim {

/// Bytes. Powers of two, except the capacity.
struct device_options {
    std::size_t capacity = 141_GiB;  ///< an H200
    std::size_t granularity = 2_MiB; ///< what allocations and physical memory are multiples of
    std::size_t pool_step = 32_MiB;  ///< what driver pools grow by; a multiple of the granularity
    costs cost = costs::h200();
    bool check_overlap = true; ///< off: the `block_` calls do nothing
    bool vmm = true;           ///< off: a device without virtual memory, as some virtual GPUs are
};

class device {
  public:
    device() : device(device_options{}) {}
    explicit device(device_options options)
        : options_(options)
        , budget_(options.capacity)
        , mapped_(budget_, {0x1000'0000'0000, base}, options.granularity) {}
    device(const device&) = delete;
    device& operator=(const device&) = delete;

    // ----------------------------------------------------------------------------------------------------------------
    // `tenure::device`
    // ----------------------------------------------------------------------------------------------------------------

    /// Returns: null for n == 0, as `cudaMalloc` does.
    result<void*, status> allocate(std::size_t n) noexcept {
        return enter(call::allocate, options_.cost.allocate(n), [&]() -> result<void*, status> {
            if (n == 0) return static_cast<void*>(nullptr);
            const std::size_t taken = round_up(n, options_.granularity);
            const auto address = take(taken);
            if (!address) return status::out_of_memory;
            allocations_.emplace(*address, n);
            return to_pointer(*address);
        });
    }

    /// `n` is checked against what was allocated: a mismatch is a violation, and the memory is freed all the
    /// same.
    status deallocate(void* p, std::size_t n) noexcept {
        return enter(call::deallocate, p == nullptr ? nanoseconds{0} : options_.cost.deallocate(n),
                     [&]() -> status {
                         if (p == nullptr) return status::ok;
                         const auto it = allocations_.find(to_address(p));
                         if (it == allocations_.end()) return status::invalid_value;
                         const nanoseconds before = world_.now();
                         if (const status s = world_.synchronize_device(); s != status::ok) return s;
                         waited_ += world_.now() - before;
                         const std::size_t taken = round_up(it->second, options_.granularity);
                         if (round_up(n, options_.granularity) != taken)
                             log_.add("memory at " + hex(it->first) + " of " + std::to_string(it->second) +
                                      " B freed as " + std::to_string(n) + " B");
                         const extent gone{it->first, it->first + taken};
                         allocations_.erase(it);
                         give_back(gone, "freed", {});
                         host_synchronized();
                         return status::ok;
                     });
    }

    [[nodiscard]] std::size_t allocation_granularity() const noexcept { return options_.granularity; }

    result<device_memory, status> memory() noexcept {
        return enter(call::memory, {}, [&]() -> result<device_memory, status> {
            return device_memory{budget_.capacity() - budget_.reserved(), budget_.capacity()};
        });
    }

    /// Asks no driver about a permanent stream: it has one identity and is never in a capture.
    result<stream_state, status> describe(stream_handle s) noexcept {
        if (permanent(s)) return stream_state{sim::schedule::default_stream_id, 0};
        return enter(call::describe, {}, [&] { return world_.describe(s); });
    }

    /// See `stream_waits`. What the program makes streams wait for is told here by the program alone, as on a GPU.
    [[nodiscard]] stream_waits& waits() noexcept { return waits_; }

    /// Only the default stream's handle never comes to name another stream.
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return s == default_stream; }

    result<event_handle, status> create_event() noexcept {
        return enter(call::create_event, {},
                     [&]() -> result<event_handle, status> { return world_.create_event(); });
    }

    status destroy_event(event_handle e) noexcept {
        return enter(call::destroy_event, {}, [&] { return world_.destroy_event(e); });
    }

    status record(event_handle e, stream_handle s) noexcept {
        return enter(call::record, {}, [&] { return world_.record(e, s); });
    }

    /// An event that was never recorded has passed.
    status query(event_handle e) noexcept {
        return enter(call::query, {}, [&] {
            const status s = world_.query(e);
            if (s == status::ok) spend(options_.cost.passed);
            return s;
        });
    }

    status synchronize(event_handle e) noexcept {
        return enter(call::synchronize_event, {},
                     [&] { return waiting([&] { return world_.synchronize(e); }); });
    }

    status synchronize(stream_handle s) noexcept {
        return enter(call::synchronize_stream, {},
                     [&] { return waiting([&] { return world_.synchronize(s); }); });
    }

    /// Waits for all work of the device, as `deallocate` does.
    status synchronize() noexcept {
        return enter(call::synchronize_device, {},
                     [&] { return waiting([&] { return world_.synchronize_device(); }); });
    }

    status wait(stream_handle s, event_handle e) noexcept {
        return enter(call::wait, {}, [&] { return world_.wait(s, e); });
    }

    /// Not a driver call. Here only the device limits: `used` of `max`; the cause stays as it is.
    void explain(allocation_failure& f) noexcept {
        const std::lock_guard lock(mutex_);
        f.used = budget_.reserved();
        f.max = budget_.capacity();
    }

    // ----------------------------------------------------------------------------------------------------------------
    // `tenure::filling_device`
    // ----------------------------------------------------------------------------------------------------------------

    result<stream_handle, status> own_stream() noexcept {
        return enter(call::own_stream, {}, [&]() -> result<stream_handle, status> {
            if (!own_stream_) own_stream_ = world_.create_stream();
            return *own_stream_;
        });
    }

    /// Filling what a live block uses, or what work may still be using, is a violation.
    status fill_zero(void* p, std::size_t n, stream_handle on) noexcept {
        return enter(call::fill_zero, {}, [&]() -> status {
            stream* s = world_.use(on, "given work");
            if (s == nullptr) return status::invalid_value;
            if (s->capture != 0) return status::capture_violation;
            if (n == 0) return status::ok;
            const auto physical = translate({to_address(p), saturating_add(to_address(p), n)});
            if (!physical) return status::invalid_value;
            const point end = world_.launch(*s, options_.cost.fill(n));
            for (const extent& part : *physical) {
                contents_.clear(part);
                if (options_.check_overlap) check_.filled(part, end);
            }
            return status::ok;
        });
    }

    // ----------------------------------------------------------------------------------------------------------------
    // `tenure::pool_device`
    // ----------------------------------------------------------------------------------------------------------------

    [[nodiscard]] std::size_t pool_step() const noexcept { return options_.pool_step; }

    result<pool_handle, status> create_pool(const pool_properties& properties) noexcept {
        return enter(call::create_pool, {}, [&]() -> result<pool_handle, status> {
            if (properties.peers != 0) return status::not_supported; // a simulated device is alone
            return pools_.insert(std::make_unique<driver_pool>(world_, properties, options_.pool_step));
        });
    }

    /// The pool's memory goes back when its last block has been freed and the work before has passed.
    status destroy_pool(pool_handle pool) noexcept {
        return enter(call::destroy_pool, {}, [&]() -> status {
            auto* p = pools_.find(pool);
            if (p == nullptr) return status::invalid_value;
            draining_.push_back(std::move(*p));
            pools_.erase(pool);
            drain_pools();
            return status::ok;
        });
    }

    /// Returns: null for n == 0, as `cudaMallocFromPoolAsync` does. `out_of_memory` is the pool's limit or
    /// the device's.
    result<void*, status> allocate_from(pool_handle pool, std::size_t n, stream_handle on) noexcept {
        return enter(call::allocate_from, {}, [&]() -> result<void*, status> {
            auto* p = pools_.find(pool);
            stream* s = world_.use(on, "allocated on");
            if (p == nullptr || s == nullptr) return status::invalid_value;
            if (s->capture != 0) return status::capture_violation;
            if (n == 0) return static_cast<void*>(nullptr);
            if (const auto found = (*p)->allocate(n, *s)) return to_pointer(*found);
            const auto growth = (*p)->growth_for(n);
            if (!growth) return status::out_of_memory;
            spend(options_.cost.grow_pool(*growth));
            const auto chunk = take(*growth);
            if (!chunk) return status::out_of_memory;
            (*p)->grow({*chunk, *chunk + *growth});
            return to_pointer((*p)->allocate(n, *s).value_or(0));
        });
    }

    /// Like `cudaFreeAsync`, it does not need the pool: a block of a pool that was destroyed is found too.
    status deallocate_to(pool_handle pool, void* p, stream_handle on) noexcept {
        return enter(call::deallocate_to, {}, [&]() -> status {
            if (p == nullptr) return status::ok;
            stream* s = world_.use(on, "freed on");
            if (s == nullptr) return status::invalid_value;
            if (s->capture != 0) return status::capture_violation;
            if (auto* owner = pools_.find(pool); owner != nullptr && (*owner)->deallocate(to_address(p), *s))
                return status::ok;
            for (const auto& owner : draining_) {
                if (!owner->deallocate(to_address(p), *s)) continue;
                drain_pools();
                return status::ok;
            }
            return status::invalid_value;
        });
    }

    status trim_pool(pool_handle pool, std::size_t keep) noexcept {
        return enter(call::trim_pool, {}, [&]() -> status {
            auto* p = pools_.find(pool);
            if (p == nullptr) return status::invalid_value;
            take_back((*p)->trim(keep));
            return status::ok;
        });
    }

    result<pool_memory, status> memory_of(pool_handle pool) noexcept {
        return enter(call::memory_of, {}, [&]() -> result<pool_memory, status> {
            auto* p = pools_.find(pool);
            if (p == nullptr) return status::invalid_value;
            return pool_memory{(*p)->reserved(), (*p)->used()};
        });
    }

    // ----------------------------------------------------------------------------------------------------------------
    // `tenure::vmm_device`
    // ----------------------------------------------------------------------------------------------------------------

    [[nodiscard]] bool supports_vmm() const noexcept { return options_.vmm; }

    result<void*, status> reserve_address(std::size_t n, std::size_t alignment,
                                          std::uint64_t near = 0) noexcept {
        return enter(call::reserve_address, {}, [&] { return mapped_.reserve(n, alignment, near); });
    }

    status free_address(void* p, std::size_t n) noexcept {
        return enter(call::free_address, {}, [&] { return mapped_.free(to_address(p), n); });
    }

    result<memory_handle, status> create_memory(std::size_t n) noexcept {
        return enter(call::create_memory, options_.cost.create_memory(n), [&] { return mapped_.create(n); });
    }

    status release_memory(memory_handle h) noexcept {
        const std::lock_guard lock(mutex_);
        return enter_locked(call::release_memory, options_.cost.release_memory(mapped_.size_of(h)),
                            [&]() -> status {
                                std::vector<extent> gone;
                                const status s = mapped_.release(h, gone);
                                vanish(gone);
                                return s;
                            });
    }

    status map(void* p, memory_handle h) noexcept {
        return enter(call::map, {}, [&] { return mapped_.map(to_address(p), h); });
    }

    status set_access(void* p, std::size_t n) noexcept {
        return enter_for_handles(call::set_access, options_.cost.set_access, p, n,
                                 [&] { return mapped_.set_access(to_address(p), n); });
    }

    status unmap(void* p, std::size_t n) noexcept {
        return enter_for_handles(call::unmap, options_.cost.unmap, p, n, [&]() -> status {
            const std::uint64_t address = to_address(p);
            if (!mapped_.whole_mappings(address, n)) return status::invalid_value;
            if (options_.check_overlap) check_.retire({address, address + n}, "unmapped");
            std::vector<extent> gone;
            mapped_.unmap(address, n, gone);
            vanish(gone);
            return status::ok;
        });
    }

    // ----------------------------------------------------------------------------------------------------------------
    // The simulated world: no driver calls
    // ----------------------------------------------------------------------------------------------------------------

    /// Returns: a stream. Its handle may have been another stream's before, its identity never was.
    stream_handle create_stream() {
        const std::lock_guard lock(mutex_);
        return world_.create_stream();
    }

    /// Effects: the handle is dead; work enqueued on the stream runs to its end.
    void destroy_stream(stream_handle s) {
        const std::lock_guard lock(mutex_);
        world_.destroy_stream(s);
        if (world_.lines().closed() >= sweep_at_) sweep();
    }

    /// Effects: enqueues work of the given length (virtual time) on the stream.
    void launch(stream_handle on, nanoseconds length) {
        const std::lock_guard lock(mutex_);
        if (stream* s = world_.use(on, "given work")) world_.launch(*s, length);
    }

    /// Effects: enqueues work that lasts until `finish(s)`. `device_waits`: whether `deallocate`, which waits
    /// for the whole device, waits for it, too (and so cannot succeed before). Without, it stands for work
    /// that a real device would have waited for, where only the order of events counts and not the time they
    /// take; what is behind it does not count as seen by the host after such a wait.
    void hold(stream_handle s, bool device_waits = true) {
        const std::lock_guard lock(mutex_);
        world_.hold(s, device_waits);
    }

    /// Effects: all held work that was enqueued through this handle is over, also that of destroyed streams
    /// that had the handle.
    void finish(stream_handle s) {
        const std::lock_guard lock(mutex_);
        world_.finish(s);
    }

    /// Effects: the oldest of them is over.
    void finish_oldest(stream_handle s) {
        const std::lock_guard lock(mutex_);
        world_.finish_oldest(s);
    }

    [[nodiscard]] nanoseconds now() const {
        const std::lock_guard lock(mutex_);
        return world_.now();
    }
    void advance(nanoseconds t) {
        const std::lock_guard lock(mutex_);
        world_.advance_to(world_.now() + t);
    }
    /// Effects: virtual time is at least `t`.
    void advance_to(nanoseconds t) {
        const std::lock_guard lock(mutex_);
        world_.advance_to(t);
    }

    // --- contents ---

    /// Effects: the n bytes at p carry `tag`. Requires: accessible memory.
    void write(const void* p, std::size_t n, std::uint64_t tag) {
        const std::lock_guard lock(mutex_);
        for_each_physical(p, n, "written", [&](extent e) { contents_.write(e, tag); });
    }
    /// Returns: the tags that any of the n bytes at p carries; none: all of them are zero.
    [[nodiscard]] std::set<std::uint64_t> read(const void* p, std::size_t n) {
        const std::lock_guard lock(mutex_);
        std::set<std::uint64_t> found;
        for_each_physical(p, n, "read", [&](extent e) { contents_.read(e, found); });
        return found;
    }

    // --- captures ---

    /// Returns: identity of the capture, never 0 unless the stream cannot be captured (a violation).
    std::uint64_t begin_capture(stream_handle s, capture_mode = capture_mode::global) {
        const std::lock_guard lock(mutex_);
        return world_.begin_capture(s);
    }

    /// Effects: ends the capture that began on `s`. Returns: whether it was still valid, and so became a
    /// graph.
    bool end_capture(stream_handle s) {
        const std::lock_guard lock(mutex_);
        const auto [id, valid] = world_.end_capture(s);
        if (!valid) check_.discard(id);
        return valid;
    }

    /// Effects: runs the graph that the capture became on `on`, as one piece of work: all its uses of blocks
    /// happen again, and are checked against what lives in their bytes by now.
    void replay(std::uint64_t capture, stream_handle on) {
        const std::lock_guard lock(mutex_);
        stream* s = world_.use(on, "given a graph");
        if (s == nullptr) return;
        if (!world_.is_graph(capture) || s->capture != 0)
            return log_.add("graph " + std::to_string(capture) +
                            " cannot be launched: it is none, or the stream is captured");
        const auto bytes = [this](extent e) { return translate(e); };
        check_.replay_begins(capture, s->id, bytes);
        check_.replay_enqueued(capture, world_.launch_graph(*s, capture), bytes);
    }

    // --- faults and counters ---

    /// Effects: the nth call (1: the next) of this kind from now on, and the `count - 1` after it, answer
    /// `with` instead of acting. They are counted and cost their time.
    void fail_call(call kind, std::uint64_t nth, status with, std::uint64_t count = 1) {
        const std::lock_guard lock(mutex_);
        ledger_.fail(kind, nth, with, count);
    }
    /// Effects: the same for the nth call of any kind.
    void fail_any_call(std::uint64_t nth, status with) {
        const std::lock_guard lock(mutex_);
        ledger_.fail(std::nullopt, nth, with, 1);
    }
    void clear_faults() {
        const std::lock_guard lock(mutex_);
        ledger_.clear_faults();
    }

    [[nodiscard]] std::uint64_t calls(call kind) const {
        const std::lock_guard lock(mutex_);
        return ledger_.counts()[index(kind)];
    }
    [[nodiscard]] std::uint64_t total_calls() const {
        const std::lock_guard lock(mutex_);
        return ledger_.total();
    }
    [[nodiscard]] std::array<std::uint64_t, call_kinds> call_counts() const {
        const std::lock_guard lock(mutex_);
        return ledger_.counts();
    }
    /// Returns: what all calls so far have cost, without what they waited for.
    [[nodiscard]] nanoseconds driver_time() const {
        const std::lock_guard lock(mutex_);
        return driver_time_;
    }
    /// Returns: how long the host has waited for work inside calls.
    [[nodiscard]] nanoseconds waited_time() const {
        const std::lock_guard lock(mutex_);
        return waited_;
    }

    /// Returns: bytes taken from the device by allocations, pools and created memory.
    [[nodiscard]] std::size_t reserved() const {
        const std::lock_guard lock(mutex_);
        return budget_.reserved();
    }
    [[nodiscard]] std::size_t reserved_peak() const {
        const std::lock_guard lock(mutex_);
        return budget_.peak();
    }
    [[nodiscard]] std::size_t live_allocations() const {
        const std::lock_guard lock(mutex_);
        return allocations_.size();
    }
    [[nodiscard]] std::size_t live_events() const {
        const std::lock_guard lock(mutex_);
        return world_.live_events();
    }
    [[nodiscard]] std::size_t live_pools() const {
        const std::lock_guard lock(mutex_);
        return pools_.size();
    }

    // --- the overlap check ---

    /// Effects: a resource has returned these bytes for use on `s`, which counts as a first use. Null or no
    /// bytes: nothing.
    void block_allocated(const void* p, std::size_t bytes, stream_handle s) {
        const std::lock_guard lock(mutex_);
        if (const auto at = place_of(s, "allocated on")) block_allocated_at(p, bytes, *at);
    }
    /// Effects: the same, for use on every stream at once.
    void block_allocated_sync(const void* p, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        block_allocated_at(p, bytes, {});
    }
    /// Effects: the block that starts at p is used on `s`. A use on another stream than the block's own
    /// counts, at its free, as all that `s` holds then.
    void block_used(const void* p, stream_handle s) {
        const std::lock_guard lock(mutex_);
        if (!options_.check_overlap || p == nullptr) return;
        if (const auto at = place_of(s, "used")) check_.used(to_address(p), *at);
    }
    /// Effects: the block is about to be freed on `s`. A handle that is dead by now stands for no order at
    /// all: the uses known so far are what is left.
    void block_freed(const void* p, stream_handle s) {
        const std::lock_guard lock(mutex_);
        if (!options_.check_overlap || p == nullptr) return;
        const stream* on = world_.find(s);
        if (on != nullptr)
            check_.freed(to_address(p), {on->timeline(), on->capture});
        else
            check_.freed_nowhere(to_address(p));
    }
    /// Effects: the block is about to be freed by a host that has seen all its uses pass.
    void block_freed_sync(const void* p) {
        const std::lock_guard lock(mutex_);
        if (options_.check_overlap && p != nullptr) check_.freed_sync(to_address(p));
    }

    /// Returns: all that went wrong, in order; empty when all is well. The first thousand texts are kept.
    [[nodiscard]] std::vector<std::string> violations() const {
        const std::lock_guard lock(mutex_);
        return log_.texts();
    }

  private:
    static constexpr std::uint64_t base = 0x7000'0000'0000;  ///< allocations and chunks of pools from here,
    static constexpr std::uint64_t limit = 0x8000'0000'0000; ///< to the end of the user's half of 48 bits

    template <class F>
    auto enter(call kind, nanoseconds extra, F&& act) -> decltype(act()) {
        const std::lock_guard lock(mutex_);
        return enter_locked(kind, extra, act);
    }

    template <class F>
    status enter_for_handles(call kind, const cost_curve& cost, void* p, std::size_t n, F&& act) {
        const std::lock_guard lock(mutex_);
        nanoseconds extra{0};
        mapped_.for_each_handle(to_address(p), n, [&](std::size_t bytes) { extra += cost(bytes); });
        return enter_locked(kind, extra, act);
    }

    template <class F>
    auto enter_locked(call kind, nanoseconds extra, F&& act) -> decltype(act()) {
        spend(options_.cost.fixed[index(kind)] + extra);
        if (const auto fault = ledger_.enter(kind)) return *fault;
        if (!options_.vmm && is_vmm(kind)) return status::not_supported;
        if (!draining_.empty()) drain_pools();
        return act();
    }

    void spend(nanoseconds cost) {
        driver_time_ += cost;
        world_.advance_to(world_.now() + cost);
    }

    template <class F>
    status waiting(F&& synchronize) {
        const nanoseconds before = world_.now();
        const status s = synchronize();
        waited_ += world_.now() - before;
        if (s == status::ok) host_synchronized();
        return s;
    }

    /// Pools give memory back when the host has synchronised, not when it has merely asked.
    void host_synchronized() {
        pools_.for_each([this](std::unique_ptr<driver_pool>& p) {
            if (p->reserved() > p->release_threshold()) take_back(p->trim(p->release_threshold()));
        });
        if (!draining_.empty()) drain_pools();
    }

    void drain_pools() {
        for (const auto& p : draining_) take_back(p->drain());
        draining_.erase(std::remove_if(draining_.begin(), draining_.end(),
                                       [](const auto& p) { return p->reserved() == 0; }),
                        draining_.end());
    }

    void take_back(const std::vector<driver_pool::returned>& chunks) {
        for (const driver_pool::returned& r : chunks) {
            spend(options_.cost.shrink_pool(r.chunk.end - r.chunk.begin));
            give_back(r.chunk, "given back by a pool", r.past);
        }
    }

    /// n bytes of device memory at a new address.
    std::optional<std::uint64_t> take(std::size_t n) {
        if (!budget_.take(n)) return std::nullopt;
        const auto address = space_.take(n, std::max(options_.granularity, 2_MiB));
        if (address)
            backed_.emplace(*address, *address + n);
        else
            budget_.give_back(n);
        return address;
    }

    void give_back(extent gone, const char* what, const vector_clock& known) {
        if (options_.check_overlap) check_.retire(gone, what, known);
        contents_.clear(gone);
        backed_.erase(gone.begin);
        space_.give_back(gone.begin, gone.end - gone.begin);
        budget_.give_back(gone.end - gone.begin);
    }

    void vanish(const std::vector<extent>& gone) {
        for (const extent& e : gone) {
            check_.vanish(e);
            contents_.clear(e);
        }
    }

    /// The physical bytes behind an address range that one piece of device memory, or mapped memory, backs.
    std::optional<std::vector<extent>> translate(extent e) const {
        if (e.begin < base) return mapped_.translate(e);
        auto it = backed_.upper_bound(e.begin);
        if (it == backed_.begin() || (--it)->second < e.end) return std::nullopt;
        return std::vector<extent>{e};
    }

    template <class F>
    void for_each_physical(const void* p, std::size_t n, const char* what, F&& f) {
        if (n == 0) return;
        const extent e{to_address(p), saturating_add(to_address(p), n)};
        const auto physical = translate(e);
        if (!physical)
            return log_.add("memory at " + hex(e.begin) + " " + what + ", which is not accessible");
        for (const extent& part : *physical) f(part);
    }

    std::optional<overlap_checker::place> place_of(stream_handle handle, const char* what) {
        const stream* s = world_.use(handle, what);
        if (s == nullptr) return std::nullopt;
        return overlap_checker::place{s->timeline(), s->capture};
    }

    void block_allocated_at(const void* p, std::size_t bytes, overlap_checker::place at) {
        if (!options_.check_overlap || p == nullptr || bytes == 0) return;
        const extent e{to_address(p), saturating_add(to_address(p), bytes)};
        auto physical = translate(e);
        if (physical)
            check_.allocated(e, std::move(*physical), at);
        else
            log_.add("block " + hex(e.begin) + " of " + std::to_string(bytes) +
                     " B lies outside of accessible device memory");
    }

    /// Forgets destroyed streams that nobody can ask about, as often as their number has doubled.
    void sweep() {
        std::unordered_set<timeline_id> asked_for;
        check_.mention(asked_for);
        pools_.for_each([&](const std::unique_ptr<driver_pool>& p) { p->mention(asked_for); });
        for (const auto& p : draining_) p->mention(asked_for);
        world_.lines().sweep(asked_for);
        sweep_at_ = std::max<std::size_t>(64, 2 * world_.lines().closed());
    }

    stream_waits waits_;
    const device_options options_;
    mutable std::mutex mutex_;
    violation_log log_;
    call_ledger ledger_;
    schedule world_{log_};
    overlap_checker check_{world_.lines(), log_};
    contents contents_;
    memory_budget budget_;
    std::optional<stream_handle> own_stream_;
    address_space space_{base, limit};
    virtual_memory mapped_;
    std::map<std::uint64_t, std::size_t> allocations_; // address to bytes, as asked
    std::map<std::uint64_t, std::uint64_t> backed_;    // allocations and chunks of pools: begin to end
    handle_table<pool_handle, std::unique_ptr<driver_pool>> pools_{0xb'0000'0000};
    std::vector<std::unique_ptr<driver_pool>>
        draining_; // destroyed, with blocks still live or work still running
    nanoseconds driver_time_{0};
    nanoseconds waited_{0};
    std::size_t sweep_at_ = 64;
};

static_assert(tenure::device<device>);
static_assert(tenure::tells_waits<device>);
static_assert(tenure::filling_device<device>);
static_assert(tenure::pool_device<device>);
static_assert(tenure::vmm_device<device>);

} // namespace tenure::sim
