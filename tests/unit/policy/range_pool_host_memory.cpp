/// Pools when host memory fails: whichever request it is, nothing is handed out too early and nothing is lost.

#include "support/catch.hpp"
#include "support/failing_host_memory.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/policy/slab_pool.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;
namespace host_memory = tenure::test::host_memory;

namespace {

template <class Call>
auto calm(Call call) {
    const host_memory::suspended guard;
    return call();
}

/// The simulated device, whose own host memory never fails.
class steady_device {
  public:
    explicit steady_device(sim::device& device) : device_(&device) {}

    result<void*, status> allocate(std::size_t n) noexcept {
        return calm([&] { return device_->allocate(n); });
    }
    status deallocate(void* p, std::size_t n) noexcept {
        return calm([&] { return device_->deallocate(p, n); });
    }
    [[nodiscard]] std::size_t allocation_granularity() const noexcept {
        return device_->allocation_granularity();
    }
    result<device_memory, status> memory() noexcept {
        return calm([&] { return device_->memory(); });
    }
    result<stream_state, status> describe(stream_handle s) noexcept {
        return calm([&] { return device_->describe(s); });
    }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return device_->permanent(s); }
    result<event_handle, status> create_event() noexcept {
        return calm([&] { return device_->create_event(); });
    }
    status destroy_event(event_handle e) noexcept {
        return calm([&] { return device_->destroy_event(e); });
    }
    status record(event_handle e, stream_handle s) noexcept {
        return calm([&] { return device_->record(e, s); });
    }
    status query(event_handle e) noexcept {
        return calm([&] { return device_->query(e); });
    }
    status synchronize(event_handle e) noexcept {
        return calm([&] { return device_->synchronize(e); });
    }
    status synchronize(stream_handle s) noexcept {
        return calm([&] { return device_->synchronize(s); });
    }
    status wait(stream_handle s, event_handle e) noexcept {
        return calm([&] { return device_->wait(s, e); });
    }
    void explain(allocation_failure& f) noexcept {
        calm([&] { device_->explain(f); });
    }
    [[nodiscard]] bool supports_vmm() const noexcept { return device_->supports_vmm(); }
    result<void*, status> reserve_address(std::size_t n, std::size_t a, std::uint64_t near) noexcept {
        return calm([&] { return device_->reserve_address(n, a, near); });
    }
    status free_address(void* p, std::size_t n) noexcept {
        return calm([&] { return device_->free_address(p, n); });
    }
    result<memory_handle, status> create_memory(std::size_t n) noexcept {
        return calm([&] { return device_->create_memory(n); });
    }
    status release_memory(memory_handle h) noexcept {
        return calm([&] { return device_->release_memory(h); });
    }
    status map(void* p, memory_handle h) noexcept {
        return calm([&] { return device_->map(p, h); });
    }
    status set_access(void* p, std::size_t n) noexcept {
        return calm([&] { return device_->set_access(p, n); });
    }
    status unmap(void* p, std::size_t n) noexcept {
        return calm([&] { return device_->unmap(p, n); });
    }
    status synchronize() noexcept {
        return calm([&] { return device_->synchronize(); });
    }

  private:
    sim::device* device_;
};
static_assert(vmm_device<steady_device>);

constexpr void set_sizes(pool_options& o) {
    o.segment_bytes = 4_MiB;
}
/// Small handles, so that a purchase is several, and few views, so that they come and go.
constexpr void set_sizes(remap_options& o) {
    o.least_handle_bytes = o.most_handle_bytes = 2_MiB;
    o.slack_divisor = 0;
    o.worth_showing_bytes = 1_MiB;
    o.max_views = 2;
}
template <class Pool>
constexpr typename Pool::options_type small_options() {
    typename Pool::options_type o;
    set_sizes(o);
    o.mark_bytes = 64_KiB;
    return o;
}

/// A random program on one pool: growth, large alignments, uses on several streams, a destroyed stream, a capture,
/// trims. The same seed makes the same calls, as long as the pool gives the same answers.
template <class Pool>
class program {
  public:
    /// `k`: which request of host memory fails; 0: none.
    program(std::uint64_t seed, std::uint64_t k) : rng_(seed), left_(k) {
        for (stream_handle& s : streams_) s = device_.create_stream();
        for (int i = 0; i < 150; ++i) step(i);
        finish();
    }

    /// Returns: whether the program came to the request that was to fail.
    [[nodiscard]] bool has_failed() const { return failed_; }

  private:
    struct block {
        void* pointer;
        std::size_t bytes;
        stream_handle stream;
    };

    /// Effects: makes a call of the pool, in which host memory may fail.
    template <class Call>
    void failing(Call call) {
        const std::uint64_t before = host_memory::requests;
        if (left_ != 0) host_memory::fail_at = before + left_;
        try {
            call();
        } catch (const std::bad_alloc&) { // only `trim` may
        }
        host_memory::fail_at = 0;
        const std::uint64_t made = host_memory::requests - before;
        if (left_ == 0) return;
        failed_ = made >= left_;
        left_ = failed_ ? 0 : left_ - made;
    }

    void step(int i) {
        if (i == 50) capture_ = device_.begin_capture(streams_[0]);
        if (i == 70) (void)device_.end_capture(streams_[0]);
        if (i == 100) renew(streams_[3]);
        const stream_handle s = streams_[test::below(rng_, streams_.size())];
        const std::size_t choice = test::below(rng_, 10);
        if (choice < 4 || live_.empty()) {
            allocate(s, choice == 0 ? test::log_uniform(rng_, 1, 6_MiB) : test::log_uniform(rng_, 1, 40_KiB),
                     std::size_t{1} << test::below(rng_, choice == 1 ? 24 : 10));
        } else if (choice < 7) {
            free(test::below(rng_, live_.size()), s);
        } else if (choice < 9) {
            const block& b = live_[test::below(rng_, live_.size())];
            device_.launch(s, 10us);
            failing([&] { pool_.record_use(b.pointer, s); });
            device_.block_used(b.pointer, s);
        } else {
            device_.advance(20us);
            if (test::chance(rng_, 40)) failing([&] { pool_.trim(test::log_uniform(rng_, 1, 8_MiB)); });
        }
    }

    void allocate(stream_handle s, std::size_t n, std::size_t alignment) {
        void* p = nullptr;
        failing([&] {
            if (const allocate_result r = pool_.try_allocate(s, n, alignment)) p = *r;
        });
        if (p == nullptr) return;
        device_.block_allocated(p, n, s);
        live_.push_back({p, n, s});
    }

    void free(std::size_t which, stream_handle s) {
        const block b = live_[which];
        // Elsewhere than on its own stream only what the pool knows to be in use there, too.
        if (s != b.stream) failing([&] { pool_.record_use(b.pointer, b.stream); });
        live_[which] = live_.back();
        live_.pop_back();
        device_.block_freed(b.pointer, s);
        bool done = false;
        failing([&] { done = pool_.try_deallocate(s, b.pointer, b.bytes).has_value(); });
        CHECK(done);
    }

    /// A stream may be destroyed when all blocks that it uses are freed.
    void renew(stream_handle& s) {
        while (!live_.empty()) free(live_.size() - 1, s);
        device_.destroy_stream(s);
        s = device_.create_stream();
    }

    void finish() {
        device_.advance(100s);
        while (!live_.empty()) free(live_.size() - 1, streams_[0]);
        device_.advance(100s);
        failing([&] { pool_.release_captured(capture_); });
        CHECK(pool_.validate());
        left_ = 0;
        pool_.trim(0);
        CHECK(pool_.validate());
        const usage_counters u = pool_.usage();
        CHECK(u.requested.current == 0);
        CHECK(u.allocated.current == 0);
        CHECK(u.pending == 0);
        CHECK(u.captured == 0);
        CHECK(u.segments.current == 0);
        CHECK(u.reserved.current == 0);
        CHECK(device_.reserved() == 0);
        CHECK(device_.calls(sim::call::reserve_address) == device_.calls(sim::call::free_address));
        CHECK(device_.violations() == std::vector<std::string>{});
    }

    std::mt19937_64 rng_;
    std::uint64_t left_; ///< requests until the one that fails
    bool failed_ = false;
    sim::device device_{{.capacity = 48_MiB, .cost = sim::costs::zero()}};
    steady_device steady_{device_};
    Pool pool_{steady_, small_options<Pool>()};
    std::array<stream_handle, 4> streams_{};
    std::vector<block> live_;
    std::uint64_t capture_ = 0;
};

} // namespace

TEMPLATE_TEST_CASE("whichever request of host memory fails, a pool loses nothing",
                   "[policy][range_pool][faults]", best_fit_pool<steady_device>,
                   exact_best_fit_pool<steady_device>, buddy_pool<steady_device>, slab_pool<steady_device>,
                   remap_pool<steady_device>) {
    const std::uint64_t seed = test::seed();
    CAPTURE(seed);
    for (std::uint64_t k = 1;; ++k) {
        CAPTURE(k);
        if (!program<TestType>(seed, k).has_failed()) break;
        REQUIRE(k < 2000);
    }
}

TEST_CASE("a purchase of many handles loses none when host memory fails", "[policy][remap][faults]") {
    using pool_type = remap_pool<steady_device>;
    for (std::uint64_t k = 1;; ++k) {
        CAPTURE(k);
        sim::device device({.capacity = 64_MiB, .cost = sim::costs::zero()});
        steady_device steady(device);
        pool_type pool(steady, small_options<pool_type>());
        void* const low = pool.allocate(default_stream, 7_MiB);
        void* const high = pool.allocate(default_stream, 2_MiB);
        pool.deallocate(default_stream, low, 7_MiB); // to be shown before what is bought
        const std::uint64_t before = host_memory::requests;
        host_memory::fail_at = before + k;
        const allocate_result r = pool.try_allocate(default_stream, 40_MiB);
        host_memory::fail_at = 0;
        const bool has_failed = host_memory::requests - before >= k;
        CHECK(pool.validate());
        CHECK(pool.usage().reserved.current == device.reserved());
        if (r) pool.deallocate(default_stream, *r, 40_MiB);
        pool.deallocate(default_stream, high, 2_MiB);
        pool.trim(0);
        CHECK(pool.validate());
        CHECK(device.reserved() == 0);
        CHECK(device.calls(sim::call::reserve_address) == device.calls(sim::call::free_address));
        if (!has_failed) break;
        REQUIRE(k < 1000);
    }
}

TEST_CASE("a stream that finds no host memory takes nothing from what is everybody's",
          "[policy][caching_pool]") {
    std::uint64_t k = 1;
    for (bool failed = true; failed; ++k) {
        CAPTURE(k);
        sim::device device({.cost = sim::costs::zero()});
        steady_device steady(device);
        caching_pool<steady_device> pool(steady, {.cross_stream_reuse = true});
        pool.deallocate_sync(pool.allocate_sync(20_MiB), 20_MiB); // so much that a stream would mark it
        const stream_handle busy = device.create_stream(), other = device.create_stream();
        device.hold(busy);
        std::array<held_block, 1> got;
        const std::uint64_t before = host_memory::requests;
        host_memory::fail_at = before + k;
        if (pool.try_allocate_held(busy, 10_MiB, default_alignment, got) != 0) pool.release(got[0].pointer);
        host_memory::fail_at = 0;
        failed = host_memory::requests - before >= k;
        const bool served = pool.try_allocate_held(other, 10_MiB, default_alignment, got) != 0;
        if (served) pool.release(got[0].pointer);
        CHECK((served || !failed));
        device.finish(busy);
    }
    CHECK(k > 2);
}
