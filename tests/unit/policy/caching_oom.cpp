/// \file
/// `caching_pool` when memory runs out: what goes back to the device and in which order, garbage collection,
/// waiting, typed failures, and a driver that fails.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

using namespace tenure;
using namespace std::chrono_literals;

namespace {

constexpr stream_handle s0 = default_stream;
constexpr std::size_t two = 2_MiB;

using pool_type = caching_pool<sim::device>;
using arena_type = arena<caching_pool, sim::device>;

/// Allocates blocks of `n` bytes on the default stream until `count` are live.
template <class Resource>
std::vector<void*> fill(Resource& r, std::size_t count, std::size_t n, stream_handle s = s0) {
    std::vector<void*> blocks;
    while (blocks.size() < count) blocks.push_back(r.allocate(s, n));
    return blocks;
}

template <class Resource>
void free_all(Resource& r, std::vector<void*>& blocks, std::size_t n, stream_handle s = s0) {
    for (void* p : blocks) r.deallocate(s, p, n);
    blocks.clear();
}

} // namespace

TEST_CASE("caching_pool: PyTorch's preset gives all free segments back when memory is out",
          "[policy][caching][oom]") {
    sim::device dev({.capacity = 100_MiB});
    pool_type pool(dev);
    std::vector<void*> blocks = fill(pool, 10, 10_MiB);
    free_all(pool, blocks, 10_MiB);
    void* p = pool.allocate(s0, 30_MiB);
    CHECK(dev.reserved() == 30_MiB);
    CHECK(dev.calls(sim::call::deallocate) == 10);
    CHECK(dev.calls(sim::call::allocate) == 12);
    pool.deallocate(s0, p, 30_MiB);
    CHECK(pool.validate());
}

TEST_CASE(
    "caching_pool: without release_all_on_oom only as much goes back as the block needs (pytorch #82073)",
    "[policy][caching][oom][scenario]") {
    const caching_options frugal{.release_all_on_oom = false};
    SECTION("on a device") {
        sim::device dev({.capacity = 1000_MiB});
        pool_type pool(dev, frugal);
        std::vector<void*> kept = fill(pool, 10, 10_MiB);
        std::vector<void*> blocks = fill(pool, 90, 10_MiB);
        free_all(pool, blocks, 10_MiB);
        const std::uint64_t before = dev.total_calls();
        void* p = pool.allocate(s0, 30_MiB);
        CHECK(dev.reserved() == 1000_MiB);
        CHECK(dev.total_calls() - before == 5); // one refused, three back, one granted
        pool.deallocate(s0, p, 30_MiB);
        free_all(pool, kept, 10_MiB);
    }
    SECTION("in an arena, whose limit is what is missing") {
        sim::device dev;
        arena_type a(dev, {.name = "a", .max = 1000_MiB}, frugal);
        std::vector<void*> blocks = fill(a, 98, 10_MiB);
        free_all(a, blocks, 10_MiB);
        const std::uint64_t before = dev.total_calls();
        void* p = a.allocate(s0, 30_MiB);
        CHECK(dev.total_calls() - before == 2); // one back; the meter refused before the driver was asked
        a.deallocate(s0, p, 30_MiB);
    }
    SECTION("the smallest segment that is large enough, rather than several") {
        sim::device dev({.capacity = 100_MiB});
        pool_type pool(dev, frugal);
        std::vector<void*> small = fill(pool, 3, 10_MiB);
        void* fit = pool.allocate(s0, 20_MiB);
        void* huge = pool.allocate(s0, 50_MiB);
        free_all(pool, small, 10_MiB);
        pool.deallocate(s0, fit, 20_MiB);
        const stream_handle s1 = dev.create_stream();
        void* p = pool.allocate(s1, 20_MiB);
        CHECK(dev.calls(sim::call::deallocate) == 1);
        CHECK(dev.reserved() == 100_MiB);
        pool.deallocate(s0, huge, 50_MiB);
        pool.deallocate(s1, p, 20_MiB);
        CHECK(pool.validate());
    }
}

TEST_CASE("caching_pool: with max_split, just enough oversize blocks go back before anything else does",
          "[policy][caching][oom]") {
    sim::device dev({.capacity = 400_MiB});
    pool_type pool(dev, {.max_split = 64_MiB});
    std::vector<void*> large{pool.allocate(s0, 100_MiB), pool.allocate(s0, 120_MiB)};
    std::vector<void*> small = fill(pool, 10, 10_MiB);
    free_all(pool, small, 10_MiB);
    pool.deallocate(s0, large[0], 100_MiB);
    pool.deallocate(s0, large[1], 120_MiB);
    SECTION("the smallest that is large enough") {
        void* p = pool.allocate(s0, 90_MiB + 512_KiB);
        CHECK(dev.calls(sim::call::deallocate) == 0); // the 100 is within max_non_split_rounding
        // 80 MiB left on the device. The 120 would waste too much to serve, but giving it back makes room.
        void* q = pool.allocate(s0, 82_MiB);
        CHECK(dev.calls(sim::call::deallocate) == 1);
        CHECK(dev.reserved() == 400_MiB - 80_MiB - 120_MiB + 82_MiB);
        pool.deallocate(s0, p, 90_MiB + 512_KiB);
        pool.deallocate(s0, q, 82_MiB);
    }
    SECTION("else the largest ones") {
        void* p = pool.allocate(s0, 210_MiB);
        CHECK(dev.calls(sim::call::deallocate) == 2);
        CHECK(dev.reserved() == 100_MiB + 210_MiB);
        pool.deallocate(s0, p, 210_MiB);
    }
    SECTION("and all there is, if that is not enough") {
        void* p = pool.allocate(s0, 390_MiB);
        CHECK(dev.calls(sim::call::deallocate) == 12);
        pool.deallocate(s0, p, 390_MiB);
    }
    CHECK(pool.validate());
}

TEST_CASE("caching_pool: the last resort is a segment only as large as the block", "[policy][caching][oom]") {
    sim::device dev({.capacity = 24_MiB});
    pool_type pool(dev);
    void* a = pool.allocate(s0, 19_MiB + 512_KiB); // a segment of 20 MiB
    void* b = pool.allocate(s0, 3_MiB);            // for which PyTorch would buy 20 MiB more
    CHECK(dev.reserved() == 24_MiB);
    CHECK_FALSE(pool.try_allocate(s0, 3_MiB));
    pool.deallocate(s0, a, 19_MiB + 512_KiB);
    pool.deallocate(s0, b, 3_MiB);
}

TEST_CASE("caching_pool: garbage collection needs no limit to be set (pytorch #106660)",
          "[policy][caching][oom][scenario]") {
    // Distinct sizes do not reuse each other's segments: the cache would grow to the capacity.
    const auto peak = [](auto& resource, const sim::device& dev) {
        for (std::size_t n = 20; n < 60; ++n) {
            void* p = resource.allocate(s0, n * two);
            resource.deallocate(s0, p, n * two);
        }
        return dev.reserved_peak();
    };
    SECTION("off: grows to the capacity") {
        sim::device dev({.capacity = 1000_MiB});
        pool_type pool(dev, {.max_split = 20_MiB, .max_non_split_rounding = 0});
        CHECK(peak(pool, dev) > 900_MiB);
    }
    SECTION("on a device: a fraction of its capacity") {
        sim::device dev({.capacity = 1000_MiB});
        pool_type pool(
            dev, {.max_split = 20_MiB, .max_non_split_rounding = 0, .garbage_collection_threshold = 0.5});
        CHECK(peak(pool, dev) <= 500_MiB + 118_MiB);
        CHECK(dev.calls(sim::call::deallocate) > 0);
    }
    SECTION("in an arena: a fraction of its max") {
        sim::device dev;
        arena_type a(dev, {.name = "a", .max = 400_MiB},
                     {.max_split = 20_MiB, .max_non_split_rounding = 0, .garbage_collection_threshold = 0.5});
        CHECK(peak(a, dev) <= 200_MiB + 118_MiB);
    }
    SECTION("in an arena without a limit: a fraction of the device again") {
        sim::device dev({.capacity = 1000_MiB});
        arena_type a(dev, {.name = "a"},
                     {.max_split = 20_MiB, .max_non_split_rounding = 0, .garbage_collection_threshold = 0.5});
        CHECK(peak(a, dev) <= 500_MiB + 118_MiB);
        CHECK(dev.calls(sim::call::deallocate) > 0);
    }
}

TEST_CASE("caching_pool: garbage collection takes what has been free for long, and no small segments",
          "[policy][caching][oom]") {
    sim::device dev({.capacity = 200_MiB});
    pool_type pool(dev, {.garbage_collection_threshold = 0.25});
    void* small = pool.allocate(s0, 512);
    void* old = pool.allocate(s0, 20_MiB);
    void* young = pool.allocate(s0, 30_MiB);
    pool.deallocate(s0, small, 512);
    pool.deallocate(s0, old, 20_MiB);
    for (int i = 0; i < 10; ++i) { // time passes, in searches for large blocks
        pool.deallocate(s0, young, 30_MiB);
        CHECK(pool.allocate(s0, 30_MiB) == young);
    }
    pool.deallocate(s0, young, 30_MiB);
    void* p = pool.allocate(s0, 40_MiB); // 52 MiB reserved, 50 allowed
    CHECK(dev.reserved() == 2_MiB + 30_MiB + 40_MiB);
    CHECK(pool.allocate(s0, 30_MiB) == young);
    pool.deallocate(s0, young, 30_MiB);
    pool.deallocate(s0, p, 40_MiB);
    CHECK(pool.validate());
}

TEST_CASE("caching_pool: waiting for pending frees, and searching again (pytorch #189504)",
          "[policy][caching][oom][scenario]") {
    sim::device dev;
    const stream_handle s1 = dev.create_stream();
    const auto program = [&](arena_type& a) {
        void* x = a.allocate(s0, 80_MiB);
        dev.block_allocated(x, 80_MiB, s0);
        dev.launch(s1, 25ms);
        a.record_use(x, s1);
        dev.block_used(x, s1);
        dev.block_freed(x, s0);
        a.deallocate(s0, x, 80_MiB);
        return a.try_allocate(s0, 80_MiB);
    };
    SECTION("allowed: waits, finds the block, and gives nothing back to the device") {
        arena_type a(dev, {.name = "a", .max = 100_MiB});
        const auto r = program(a);
        REQUIRE(r);
        dev.block_allocated(*r, 80_MiB, s0);
        CHECK(dev.now() >= 25ms);
        CHECK(dev.calls(sim::call::deallocate) == 0);
        dev.block_freed(*r, s0);
        a.deallocate(s0, *r, 80_MiB);
    }
    SECTION("not allowed: says so, at once") {
        arena_type a(dev, {.name = "a", .max = 100_MiB}, {.synchronize_on_oom = false});
        const auto r = program(a);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::stream_pending);
        CHECK(r.error().pending == 80_MiB);
        CHECK(dev.now() < 25ms);
        dev.advance(30ms);
        void* later = a.allocate(s0, 80_MiB);
        a.deallocate(s0, later, 80_MiB);
    }
    SECTION("work that nothing ends: the wait recovers nothing, and the failure says why") {
        dev.hold(s1);
        arena_type a(dev, {.name = "a", .max = 100_MiB});
        const auto r = program(a);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::stream_pending);
        dev.finish(s1);
    }
    CHECK(dev.violations().empty());
}

TEST_CASE("caching_pool: a failure says who refused, and what is missing", "[policy][caching][oom]") {
    SECTION("the device") {
        sim::device dev({.capacity = 100_MiB});
        pool_type pool(dev);
        void* p = pool.allocate(s0, 60_MiB);
        const auto r = pool.try_allocate(s0, 50_MiB);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::device);
        CHECK(r.error().max == 100_MiB);
        CHECK(r.error().used == 60_MiB);
        CHECK(r.error().driver_status == status::out_of_memory);
        CHECK(pool.usage().failures == 1);
        CHECK_THROWS_AS(pool.allocate(s0, 50_MiB), out_of_memory);
        CHECK_THROWS_AS(pool.allocate_sync(50_MiB), out_of_memory);
        pool.deallocate(s0, p, 60_MiB);
    }
    SECTION("the arena") {
        sim::device dev;
        arena_type a(dev, {.name = "team/alice", .max = 100_MiB});
        const auto r = a.try_allocate(s0, 101_MiB);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::arena_limit);
        CHECK(r.error().text().find("team/alice") != std::string::npos);
    }
    SECTION("fragmentation") {
        sim::device dev({.capacity = 100_MiB});
        pool_type pool(dev);
        void* whole = pool.allocate(s0, 100_MiB);
        pool.deallocate(s0, whole, 100_MiB);
        std::vector<void*> blocks = fill(pool, 10, 10_MiB);
        for (std::size_t i = 0; i < 10; i += 2) pool.deallocate(s0, blocks[i], 10_MiB);
        const auto r = pool.try_allocate(s0, 30_MiB);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::fragmentation);
        CHECK(r.error().free_bytes == 50_MiB);
        CHECK(r.error().largest_free == 10_MiB);
        for (std::size_t i = 1; i < 10; i += 2) pool.deallocate(s0, blocks[i], 10_MiB);
    }
    SECTION("the driver, which is not asked again and again") {
        sim::device dev;
        pool_type pool(dev);
        void* p = pool.allocate(s0, 1_MiB);
        pool.deallocate(s0, p, 1_MiB);
        dev.fail_call(sim::call::allocate, 1, status::failed);
        const auto r = pool.try_allocate(s0, 30_MiB);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::driver);
        CHECK(r.error().driver_status == status::failed);
        CHECK(dev.calls(sim::call::deallocate) == 0);
        dev.fail_call(sim::call::allocate, 1, status::no_device);
        CHECK_THROWS_AS(pool.allocate(s0, 30_MiB), driver_error);
    }
}

TEST_CASE("caching_pool: a refused cudaFree keeps the segment, and is tried again",
          "[policy][caching][oom]") {
    sim::device dev;
    test::misuse_log log;
    {
        pool_type pool(dev);
        std::vector<void*> blocks = fill(pool, 3, 10_MiB);
        free_all(pool, blocks, 10_MiB);
        dev.fail_call(sim::call::deallocate, 1, status::failed);
        CHECK(pool.trim(0) == 20_MiB);
        CHECK(pool.usage().reserved.current == 10_MiB);
        CHECK(dev.reserved() == 10_MiB);
        CHECK(pool.validate());
        void* p = pool.allocate(s0, 10_MiB); // still good for use
        CHECK(dev.reserved() == 10_MiB);
        pool.deallocate(s0, p, 10_MiB);
        CHECK(log.size() == 0);
        dev.fail_call(sim::call::deallocate, 1, status::failed, 2);
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::driver);
    CHECK(log[0].bytes == 10_MiB);
}

TEST_CASE("caching_pool: whatever call fails, nothing is lost", "[policy][caching][oom][fault]") {
    bool reached = true;
    for (std::uint64_t k = 1; reached; ++k) {
        CAPTURE(k);
        REQUIRE(k < 1000);
        sim::device dev({.capacity = 128_MiB});
        test::misuse_log log;
        {
            pool_type pool(dev, {.garbage_collection_threshold = 0.8, .cross_stream_reuse = k % 2 == 0});
            const stream_handle streams[] = {s0, dev.create_stream(), dev.create_stream()};
            dev.fail_any_call(k, status::failed);
            for (std::size_t i = 0; i < 40; ++i) {
                const stream_handle s = streams[i % 3], t = streams[(i / 2) % 3];
                const std::size_t n = (1 + i * 7 % 30) * 1_MiB - i;
                const auto a = pool.try_allocate(s, n);
                const auto b = pool.try_allocate(t, 1000 * i);
                if (a) {
                    dev.block_allocated(*a, n, s);
                    dev.launch(t, 100us);
                    pool.record_use(*a, t);
                    dev.block_used(*a, t);
                    dev.block_freed(*a, s);
                    REQUIRE(pool.try_deallocate(s, *a, n));
                }
                if (b && *b != nullptr) {
                    dev.block_allocated(*b, 1000 * i, t);
                    dev.block_freed(*b, s);
                    REQUIRE(pool.try_deallocate(s, *b, 1000 * i));
                }
                REQUIRE(pool.validate());
            }
            reached = dev.total_calls() >= k;
            dev.clear_faults();
            dev.advance(1s);
            pool.trim(0);
            REQUIRE(pool.validate());
            CHECK(pool.usage().requested.current == 0);
            CHECK(pool.usage().allocated.current == 0);
            CHECK(pool.usage().reserved.current == 0);
            CHECK(dev.reserved() == 0);
        }
        CHECK(dev.live_events() == 0);
        CHECK(log.size() == 0);
        const std::vector<std::string> violations = dev.violations();
        CAPTURE(violations);
        REQUIRE(violations.empty());
    }
}

namespace {

/// A device that, when told to, hands out an address that is live already.
class forgetful_device {
  public:
    result<void*, status> allocate(std::size_t n) noexcept {
        if (!forget) return last = real.allocate(n);
        return to_pointer(to_address(*last) + shift);
    }
    status deallocate(void* p, std::size_t n) noexcept { return real.deallocate(p, n); }
    std::size_t allocation_granularity() const noexcept { return real.allocation_granularity(); }
    result<device_memory, status> memory() noexcept { return real.memory(); }
    result<stream_state, status> describe(stream_handle s) noexcept { return real.describe(s); }
    bool permanent(stream_handle s) const noexcept { return real.permanent(s); }
    result<event_handle, status> create_event() noexcept { return real.create_event(); }
    status destroy_event(event_handle e) noexcept { return real.destroy_event(e); }
    status record(event_handle e, stream_handle s) noexcept { return real.record(e, s); }
    status query(event_handle e) noexcept { return real.query(e); }
    status synchronize(event_handle e) noexcept { return real.synchronize(e); }
    status synchronize(stream_handle s) noexcept { return real.synchronize(s); }
    status wait(stream_handle s, event_handle e) noexcept { return real.wait(s, e); }
    void explain(allocation_failure& f) noexcept { real.explain(f); }

    sim::device real;
    bool forget = false;
    std::size_t shift = 0;
    result<void*, status> last = status::failed;
};

} // namespace

TEST_CASE("scenario 18 (pytorch #142127): an address that is live already is detected at once",
          "[policy][caching][oom][scenario]") {
    forgetful_device dev;
    {
        caching_pool<forgetful_device> pool(dev);
        void* a = pool.allocate(s0, 30_MiB);
        for (const std::size_t shift : {std::size_t{0}, std::size_t{2_MiB}, std::size_t{28_MiB}}) {
            dev.shift = shift;
            dev.forget = true;
            const auto r = pool.try_allocate(s0, 30_MiB);
            dev.forget = false;
            REQUIRE_FALSE(r);
            CHECK(r.error().cause == failure_cause::driver);
            CHECK(pool.usage().reserved.current == 30_MiB);
            CHECK(dev.real.calls(sim::call::deallocate) == 0); // it is somebody's: not ours to give back
            CHECK(pool.validate());
        }
        void* b = pool.allocate(s0, 30_MiB);
        CHECK(a != b);
        pool.deallocate(s0, a, 30_MiB);
        pool.deallocate(s0, b, 30_MiB);
    }
    CHECK(dev.real.reserved() == 0);
}

TEST_CASE("caching_pool: driver calls of a step under a tight cap can be counted (mlcommons PR 522)",
          "[policy][caching][oom][scenario]") {
    sim::device dev;
    arena_type a(dev, {.name = "a", .max = 64_MiB});
    const auto step = [&] {
        const std::uint64_t before = dev.total_calls();
        for (const std::size_t n : {std::size_t{40_MiB}, std::size_t{50_MiB}, std::size_t{60_MiB}}) {
            void* p = a.allocate(s0, n);
            a.deallocate(s0, p, n);
        }
        return dev.total_calls() - before;
    };
    CHECK(step() == 5); // three bought, two given back to make room
    CHECK(step() == 0); // the largest serves all from now on
}
