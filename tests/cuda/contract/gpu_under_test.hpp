#pragma once

/// \file
/// `gpu_under_test`: a real GPU behind the interface of `sim::device`, so that the contract's suite runs on both.
///
///     policy --> gpu_under_test (a capacity, held work) --> faulty_device --> timed_device (counts) --> cuda::device
///     test   --> streams, work, holds, captures; block_allocated, block_used, block_freed
///
/// What the simulated device proves by its overlap check is looked for here in memory itself: an allocated block is
/// filled with a pattern of its own, and every use, and the free, is a kernel that reads all of it. Whoever reuses memory
/// too early overwrites a pattern that somebody still reads.
///
/// | on the simulated device | here |
/// |---|---|
/// | `advance(t)` from a second on | the host waits for all work that is not held, and not behind it |
/// | `advance(t)` below | the host sleeps |
/// | `launch(s, t)` | a kernel that spins, at most 20 ms |
/// | `hold(s)`, `finish(s)` | a kernel that watches a word of pinned memory, at most 2 s |
/// | a wait for held work answers `would_deadlock` | the same, when nothing has moved for 50 ms |
/// | the capacity | allocations beyond it are refused here, and pools get it as their limit |
/// | `replay(capture)` | the graph is launched; the fills and checks captured in it run again |
///
/// A use on another stream than the block's own is put behind that stream by an event, as a program must. A free on
/// another stream is checked only if the block was used there.
///
/// The driver's own errors become violations. Streams that have been destroyed are known, and never reach the driver.
/// Thread-safety: thread-safe.

#include "cli/gpu/gpu.hpp"
#include "cli/gpu/kernels.hpp"
#include "cli/timed_device.hpp"
#include "support/faulty_device.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/device/vmm_device.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tenure::test {

/// The GPU that all tests of the program share; opened by `main`.
inline cli::gpu_device*& shared_gpu() {
    static cli::gpu_device* gpu = nullptr;
    return gpu;
}

/// `Gpu` is `cuda::device`; a template, so that it can be asked what it models.
template <class Gpu>
class basic_gpu_under_test {
  public:
    using nanoseconds = std::chrono::nanoseconds;

    basic_gpu_under_test() : basic_gpu_under_test(sim::device_options{}) {}
    /// Only the capacity counts, and no more than the GPU has free.
    explicit basic_gpu_under_test(const sim::device_options& options)
        : timed_(shared_gpu()->device(), {.observe = false}) {
        constexpr std::size_t for_others = std::size_t{4} << 30; // the driver's own, and the graphs'
        const auto now = shared_gpu()->device().memory();
        const std::size_t free = now ? now->free : 0;
        capacity_ = std::min(options.capacity, free > for_others ? free - for_others : free / 2);

        streams_.insert(default_stream);
        note(cudaStreamCreateWithFlags(&own_, cudaStreamNonBlocking), "creating a stream");
        note(cudaHostAlloc(reinterpret_cast<void**>(&words_), most_holds * sizeof *words_,
                           cudaHostAllocDefault),
             "allocating pinned memory");
        note(cudaMalloc(reinterpret_cast<void**>(&found_), sizeof *found_),
             "allocating the list of findings");
        cli::findings empty{};
        for (cli::finding& f : empty.list) f.first_bad = std::numeric_limits<unsigned long long>::max();
        note(cudaMemcpy(found_, &empty, sizeof empty, cudaMemcpyHostToDevice),
             "clearing the list of findings");
        note(cudaDeviceSynchronize(), "clearing the list of findings");
    }
    basic_gpu_under_test(const basic_gpu_under_test&) = delete;
    basic_gpu_under_test& operator=(const basic_gpu_under_test&) = delete;

    ~basic_gpu_under_test() {
        for (const held_work& h : holds_) end(h);
        (void)cudaDeviceSynchronize();
        for (const auto& [capture, g] : graphs_) (void)cudaGraphExecDestroy(g.exec);
        for (const stream_handle s : streams_)
            if (s != default_stream) (void)cudaStreamDestroy(s);
        (void)cudaStreamDestroy(own_);
        (void)cudaFree(found_);
        (void)cudaFreeHost(words_);
        (void)cudaGetLastError();
    }

    // --- tenure::device ---

    result<void*, status> allocate(std::size_t n) noexcept {
        const std::lock_guard lock(growth_);
        if (!fits(n)) return status::out_of_memory;
        auto p = faulty_.allocate(n);
        if (p && *p != nullptr) ++live_allocations_;
        return p;
    }
    /// The driver would wait for held work for ever.
    status deallocate(void* p, std::size_t n) noexcept {
        if (held()) return status::would_deadlock;
        const status s = faulty_.deallocate(p, n);
        if (s == status::ok && p != nullptr) --live_allocations_;
        return s;
    }
    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return timed_.allocation_granularity();
    }
    result<device_memory, status> memory() noexcept {
        const std::size_t reserved = timed_.reserved();
        return device_memory{capacity_ - std::min(capacity_, reserved), capacity_};
    }
    result<stream_state, status> describe(stream_handle s) noexcept {
        if (!alive(s, "described")) return status::invalid_value;
        return faulty_.describe(s);
    }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return timed_.permanent(s); }
    result<event_handle, status> create_event() noexcept { return faulty_.create_event(); }
    status destroy_event(event_handle e) noexcept { return faulty_.destroy_event(e); }
    status record(event_handle e, stream_handle s) noexcept {
        return alive(s, "recorded on") ? faulty_.record(e, s) : status::invalid_value;
    }
    status query(event_handle e) noexcept { return faulty_.query(e); }
    status synchronize(event_handle e) noexcept {
        if (held() && !passes([&] { return shared_gpu()->device().query(e) != status::not_ready; }))
            return status::would_deadlock;
        return faulty_.synchronize(e);
    }
    /// A captured stream is not spared: like the driver, and the simulated device, this invalidates its capture.
    status synchronize(stream_handle s) noexcept {
        if (!alive(s, "synchronised")) return status::invalid_value;
        if (capturing(s)) {
            (void)cudaStreamSynchronize(s);
            (void)cudaGetLastError();
            return status::capture_violation;
        }
        if (held() && !passes([&] { return idle(s); })) return status::would_deadlock;
        return faulty_.synchronize(s);
    }
    status wait(stream_handle s, event_handle e) noexcept {
        return alive(s, "made to wait") ? faulty_.wait(s, e) : status::invalid_value;
    }
    void explain(allocation_failure& f) noexcept {
        timed_.explain(f);
        f.used = timed_.reserved();
        f.max = capacity_;
    }

    // --- tenure::pool_device ---

    [[nodiscard]] std::size_t pool_step() const noexcept { return timed_.pool_step(); }
    result<pool_handle, status> create_pool(const pool_properties& wanted) noexcept {
        pool_properties p = wanted;
        const std::size_t fence = std::max(round_down(capacity_, pool_step()), pool_step());
        p.max_bytes = p.max_bytes == 0 ? fence : std::min(p.max_bytes, fence);
        return faulty_.create_pool(p);
    }
    status destroy_pool(pool_handle pool) noexcept { return faulty_.destroy_pool(pool); }
    result<void*, status> allocate_from(pool_handle pool, std::size_t n, stream_handle s) noexcept {
        if (!alive(s, "allocated on")) return status::invalid_value;
        if (n > capacity_) return status::out_of_memory;
        return faulty_.allocate_from(pool, n, s);
    }
    status deallocate_to(pool_handle pool, void* p, stream_handle s) noexcept {
        return alive(s, "freed on") ? faulty_.deallocate_to(pool, p, s) : status::invalid_value;
    }
    status trim_pool(pool_handle pool, std::size_t keep) noexcept { return faulty_.trim_pool(pool, keep); }
    result<pool_memory, status> memory_of(pool_handle pool) noexcept { return faulty_.memory_of(pool); }

    // --- tenure::vmm_device, where cuda::device is one ---

    [[nodiscard]] bool supports_vmm() const noexcept requires vmm_device<Gpu> {
        return timed_.supports_vmm();
    }
    result<void*, status> reserve_address(std::size_t n, std::size_t a,
                                          std::uint64_t near = 0) noexcept requires vmm_device<Gpu> {
        return faulty_.reserve_address(n, a, near);
    }
    status free_address(void* p, std::size_t n) noexcept requires vmm_device<Gpu> {
        return faulty_.free_address(p, n);
    }
    result<memory_handle, status> create_memory(std::size_t n) noexcept requires vmm_device<Gpu> {
        const std::lock_guard lock(growth_);
        if (!fits(n)) return status::out_of_memory;
        return faulty_.create_memory(n);
    }
    status release_memory(memory_handle h) noexcept requires vmm_device<Gpu> {
        return faulty_.release_memory(h);
    }
    status map(void* p, memory_handle h) noexcept requires vmm_device<Gpu> { return faulty_.map(p, h); }
    status set_access(void* p, std::size_t n) noexcept requires vmm_device<Gpu> {
        return faulty_.set_access(p, n);
    }
    status unmap(void* p, std::size_t n) noexcept requires vmm_device<Gpu> { return faulty_.unmap(p, n); }
    status synchronize() noexcept requires vmm_device<Gpu> {
        return held() ? status::would_deadlock : faulty_.synchronize();
    }

    // --- the program's side ---

    stream_handle create_stream() {
        stream_handle s = nullptr;
        note(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "creating a stream");
        const std::lock_guard lock(mutex_);
        streams_.insert(s);
        return s;
    }

    /// Work that is enqueued on it runs to its end.
    void destroy_stream(stream_handle s) {
        const std::shared_ptr<mark> end = mark_of(s);
        const std::lock_guard lock(mutex_);
        for (auto& [address, b] : blocks_)
            if (b.home == s && !b.home_ended) b.home_ended = end;
        ends_.push_back(end);
        streams_.erase(s);
        note_locked(cudaStreamDestroy(s), "destroying a stream");
    }

    void launch(stream_handle s, nanoseconds length) {
        if (!alive(s, "given work")) return;
        using std::chrono::microseconds;
        const auto us = std::chrono::duration_cast<microseconds>(length);
        note(cli::gpu::spin(s, std::clamp(us, microseconds{0}, microseconds{20'000})), "launching work");
    }

    /// A GPU always waits for held work when it takes memory back.
    void hold(stream_handle s, bool /*device_waits*/ = true) {
        const std::lock_guard lock(mutex_);
        if (next_word_ == most_holds) return violations_.push_back("a test holds more often than it may");
        std::uint32_t* const word = words_ + next_word_++;
        *word = 0;
        holds_.push_back({s, word});
        note_locked(cli::gpu::hold(s, word, std::chrono::seconds{2}), "holding a stream");
    }
    void finish(stream_handle s) {
        const std::lock_guard lock(mutex_);
        for (const held_work& h : holds_)
            if (h.stream == s) end(h);
        holds_.erase(
            std::remove_if(holds_.begin(), holds_.end(), [s](const held_work& h) { return h.stream == s; }),
            holds_.end());
    }

    void advance(nanoseconds t) {
        if (t < std::chrono::seconds{1}) return std::this_thread::sleep_for(t);
        quiesce();
    }

    // --- captures ---

    std::uint64_t begin_capture(stream_handle s) {
        if (cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0;
        }
        const auto state = shared_gpu()->device().describe(s);
        return state ? state->capture : 0;
    }
    bool end_capture(stream_handle s) {
        const auto state = shared_gpu()->device().describe(s);
        cudaGraph_t captured = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(s, &captured);
        if (ended != cudaSuccess || captured == nullptr || !state) {
            (void)cudaGetLastError();
            return false;
        }
        cudaGraphExec_t exec = nullptr;
        note(cudaGraphInstantiate(&exec, captured, 0), "instantiating a graph");
        note(cudaGraphDestroy(captured), "destroying a graph");
        const std::lock_guard lock(mutex_);
        graphs_[state->capture] = {exec, false};
        return true;
    }
    void replay(std::uint64_t capture, stream_handle on) {
        const std::lock_guard lock(mutex_);
        const auto it = graphs_.find(capture);
        if (it == graphs_.end()) return violations_.push_back("no such graph can be launched");
        note_locked(cudaGraphLaunch(it->second.exec, on), "launching a graph");
        it->second.launched = true;
    }

    // --- faults and counters ---

    void fail_call(sim::call kind, std::uint64_t nth, status with, std::uint64_t count = 1) {
        faulty_.fail_call(kind, nth, with, count);
    }
    void clear_faults() { faulty_.clear_faults(); }

    [[nodiscard]] std::uint64_t calls(sim::call kind) const { return timed_.call_counts()[sim::index(kind)]; }
    [[nodiscard]] std::array<std::uint64_t, sim::call_kinds> call_counts() const {
        return timed_.call_counts();
    }
    [[nodiscard]] std::uint64_t total_calls() const {
        std::uint64_t sum = 0;
        for (const std::uint64_t n : timed_.call_counts()) sum += n;
        return sum;
    }
    [[nodiscard]] std::size_t reserved() { return timed_.reserved(); }
    [[nodiscard]] std::size_t reserved_peak() { return timed_.reserved_peak(); }
    [[nodiscard]] std::size_t live_allocations() const { return live_allocations_; }
    [[nodiscard]] std::size_t live_events() const { return timed_.live_events(); }
    [[nodiscard]] std::size_t live_pools() const { return timed_.live_pools(); }

    // --- what a block holds ---

    void block_allocated(const void* p, std::size_t bytes, stream_handle s) {
        if (p == nullptr || bytes == 0 || !alive(s, "allocated on")) return;
        fill(p, bytes, s, s);
    }
    void block_allocated_sync(const void* p, std::size_t bytes) {
        if (p == nullptr || bytes == 0) return;
        fill(p, bytes, own_, own_);
        settle(own_);
    }
    void block_used(const void* p, stream_handle s) {
        if (p == nullptr || !alive(s, "used")) return;
        std::optional<block> b;
        {
            const std::lock_guard lock(mutex_);
            const auto it = blocks_.find(to_address(p));
            if (it == blocks_.end()) return;
            it->second.users.insert(s);
            b = it->second;
        }
        if (s != b->home) {
            const std::uint64_t home_capture = b->home_ended ? 0 : capture_of(b->home);
            if (home_capture != 0 && home_capture != capture_of(s)) return; // they cannot be put in an order
            // What is not captured is over by the time a graph runs.
            if (home_capture == 0 && !capturing(s)) {
                const std::shared_ptr<mark> before = b->home_ended ? b->home_ended : mark_of(b->home);
                note(cudaStreamWaitEvent(s, before->event, 0), "ordering two streams");
            }
        }
        check(p, *b, s);
    }
    void block_freed(const void* p, stream_handle s) {
        const std::optional<block> b = forget(p);
        if (!b) return;
        const bool known = (s == b->home && !b->home_ended) || b->users.count(s) != 0;
        if (known && is_alive(s)) check(p, *b, s);
    }
    void block_freed_sync(const void* p) {
        const std::optional<block> b = forget(p);
        if (!b) return;
        check(p, *b, own_);
        settle(own_);
    }

    /// Returns: all that went wrong so far. Effects: the host waits for all work that is not held.
    [[nodiscard]] std::vector<std::string> violations() {
        quiesce();
        cli::findings found{};
        const cuda::relaxed_capture relaxed;
        note(cudaMemcpyAsync(&found, found_, sizeof found, cudaMemcpyDeviceToHost, own_),
             "reading the findings");
        settle(own_);
        const std::lock_guard lock(mutex_);
        std::vector<std::string> all = violations_;
        for (const cli::finding& f : found.list) {
            if (f.check == 0) continue;
            all.push_back("check " + std::to_string(f.check) + ": block of " + checks_[f.check - 1] +
                          " differs in " + std::to_string(f.bad_words) +
                          " words of 16 bytes, the first at byte " + std::to_string(f.first_bad));
        }
        if (found.lost != 0) all.emplace_back("and more blocks differ");
        return all;
    }

  private:
    static constexpr std::size_t most_holds = 1024;
    static constexpr std::chrono::milliseconds patience{50};

    /// An event, recorded once.
    struct mark {
        cudaEvent_t event = nullptr;
        mark() = default;
        mark(const mark&) = delete;
        mark& operator=(const mark&) = delete;
        ~mark() {
            if (event != nullptr) (void)cudaEventDestroy(event);
        }
    };
    struct block {
        std::uint64_t number = 0;
        std::size_t bytes = 0;
        stream_handle home = nullptr;
        std::shared_ptr<mark> home_ended{}; ///< set when the stream of the allocation has been destroyed
        std::set<stream_handle> users{};
        std::uint64_t capture = 0; ///< in which the fill was captured: it runs when the graph does
    };
    struct graph {
        cudaGraphExec_t exec = nullptr;
        bool launched = false;
    };
    struct held_work {
        stream_handle stream;
        std::uint32_t* word;
    };

    void note(cudaError_t error, const char* what) {
        if (error == cudaSuccess) return;
        const std::lock_guard lock(mutex_);
        note_locked(error, what);
    }
    void note_locked(cudaError_t error, const char* what) {
        if (error != cudaSuccess) violations_.push_back(std::string(what) + ": " + cudaGetErrorString(error));
    }

    static void end(const held_work& h) noexcept {
        std::atomic_ref<std::uint32_t>(*h.word).store(1, std::memory_order_release);
    }

    [[nodiscard]] bool held() const {
        const std::lock_guard lock(mutex_);
        return !holds_.empty();
    }
    [[nodiscard]] bool is_alive(stream_handle s) const {
        const std::lock_guard lock(mutex_);
        return streams_.count(s) != 0;
    }
    /// Returns: whether the stream exists. If not, that is a violation.
    bool alive(stream_handle s, const char* what) {
        const std::lock_guard lock(mutex_);
        if (streams_.count(s) != 0) return true;
        violations_.push_back(std::string("a stream that does not exist was ") + what);
        return false;
    }

    [[nodiscard]] bool fits(std::size_t n) {
        const std::size_t reserved = timed_.reserved();
        return n <= capacity_ &&
               round_up(n, allocation_granularity()) <= capacity_ - std::min(capacity_, reserved);
    }

    static std::uint64_t capture_of(stream_handle s) {
        const auto state = shared_gpu()->device().describe(s);
        return state ? state->capture : 0;
    }
    static bool capturing(stream_handle s) { return capture_of(s) != 0; }

    static bool idle(stream_handle s) {
        const cuda::relaxed_capture relaxed;
        return cudaStreamQuery(s) != cudaErrorNotReady;
    }

    /// Returns: whether the condition came true before patience ran out.
    template <class F>
    static bool passes(F&& condition) {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!condition()) {
            if (std::chrono::steady_clock::now() > end) return false;
            std::this_thread::sleep_for(std::chrono::microseconds{50});
        }
        return true;
    }

    /// Effects: the host waits for a stream that nothing holds up.
    void settle(stream_handle s) {
        const cuda::relaxed_capture relaxed;
        note(cudaStreamSynchronize(s), "waiting for a stream");
    }

    /// Effects: waits for all streams that are not captured, as long as they move.
    void quiesce() {
        std::vector<stream_handle> streams;
        std::vector<std::shared_ptr<mark>> ends;
        {
            const std::lock_guard lock(mutex_);
            streams.assign(streams_.begin(), streams_.end());
            ends.swap(ends_);
        }
        const bool any_held = held();
        for (const stream_handle s : streams) {
            if (capturing(s)) continue;
            if (!any_held)
                settle(s);
            else
                (void)passes([&] { return idle(s); });
        }
        for (const std::shared_ptr<mark>& e : ends) {
            const cuda::relaxed_capture relaxed;
            if (!any_held)
                note(cudaEventSynchronize(e->event), "waiting for a destroyed stream");
            else
                (void)passes([&] { return cudaEventQuery(e->event) != cudaErrorNotReady; });
        }
    }

    std::shared_ptr<mark> mark_of(stream_handle s) {
        auto m = std::make_shared<mark>();
        note(cudaEventCreateWithFlags(&m->event, cudaEventDisableTiming), "creating an event");
        note(cudaEventRecord(m->event, s), "recording an event");
        return m;
    }

    void fill(const void* p, std::size_t bytes, stream_handle s, stream_handle home) {
        const std::uint64_t capture = capture_of(s);
        block b;
        {
            const std::lock_guard lock(mutex_);
            b.number = ++last_block_;
            b.bytes = bytes;
            b.home = home;
            b.capture = capture;
            blocks_.insert_or_assign(to_address(p), b);
        }
        note(cli::gpu::fill(s, const_cast<void*>(p), bytes, cli::key_of(b.number, 0)), "filling a block");
    }

    void check(const void* p, const block& b, stream_handle s) {
        const std::uint64_t capture = capture_of(s);
        std::uint64_t number = 0;
        {
            const std::lock_guard lock(mutex_);
            if (b.capture != 0 && b.capture != capture) {
                const auto it = graphs_.find(b.capture);
                if (it == graphs_.end() || !it->second.launched) return; // nothing has been filled yet
            }
            checks_.push_back(std::to_string(b.bytes) + " B, number " + std::to_string(b.number));
            number = checks_.size();
        }
        note(cli::gpu::check(s, p, b.bytes, cli::key_of(b.number, 0), number, found_), "checking a block");
    }

    std::optional<block> forget(const void* p) {
        const std::lock_guard lock(mutex_);
        const auto it = blocks_.find(to_address(p));
        if (it == blocks_.end()) return std::nullopt;
        block b = std::move(it->second);
        blocks_.erase(it);
        return b;
    }

    cli::timed_device<Gpu> timed_;
    faulty_device<cli::timed_device<Gpu>> faulty_{timed_};
    std::size_t capacity_ = 0;
    cudaStream_t own_ = nullptr; ///< for fills and checks that no stream of the test's may see
    std::uint32_t* words_ = nullptr;
    cli::findings* found_ = nullptr; ///< on the GPU
    std::atomic<std::size_t> live_allocations_{0};
    std::mutex growth_;        ///< keeps what is reserved from changing between the question and the growth
    mutable std::mutex mutex_; ///< guards all below
    std::set<stream_handle> streams_;
    std::vector<std::shared_ptr<mark>> ends_; ///< of destroyed streams
    std::vector<held_work> holds_;
    std::size_t next_word_ = 0;
    std::map<std::uint64_t, graph> graphs_; ///< by capture
    std::map<std::uint64_t, block> blocks_; ///< by address
    std::uint64_t last_block_ = 0;
    std::vector<std::string> checks_;
    std::vector<std::string> violations_;
};

using gpu_under_test = basic_gpu_under_test<cuda::device>;

static_assert(device<gpu_under_test>);
static_assert(pool_device<gpu_under_test>);
static_assert(vmm_device<gpu_under_test> == vmm_device<cuda::device>);

} // namespace tenure::test
