#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <array>
#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace tenure::test;

namespace {

using fronted = magazines<best_fit_pool<sim::device>>;

template <device D>
using fronted_pool = magazines<best_fit_pool<D>>;

static_assert(resource<fronted> && capture_resource<fronted>);
static_assert(holding_resource<best_fit_pool<sim::device>> &&
              holding_resource<exact_best_fit_pool<sim::device>> &&
              holding_resource<buddy_pool<sim::device>> && holding_resource<slab_pool<sim::device>> &&
              holding_resource<caching_pool<sim::device>>);
static_assert(!holding_resource<async_pool<sim::device>>);
static_assert(resource<magazines<async_pool<sim::device>>>);
static_assert(resource<arena<fronted_pool, sim::device>>);

sim::device_options plain_device() {
    return {.cost = sim::costs::zero()};
}

/// Effects: the size has a magazine, with at least one block in it.
template <class R>
void warm(R& r, stream_handle s, std::size_t n) {
    for (int i = 0; i < 4; ++i) {
        void* const p = r.allocate(s, n);
        r.deallocate(s, p, n);
    }
}

std::size_t parked(fronted& f) {
    return f.pool().usage().allocated.current - f.usage().allocated.current;
}

} // namespace

TEST_CASE("a warm pair does not reach the pool", "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d, pool_options{}, {.max_block_bytes = 32_MiB});
    for (const std::size_t n : {1_B, 512_B, 4000_B, 64_KiB, 1_MiB, 20_MiB, 32_MiB}) {
        CAPTURE(n);
        warm(f, default_stream, n);
        const usage_counters before = f.pool().usage();
        const auto calls = d.total_calls();
        for (int i = 0; i < 100; ++i) {
            void* const p = f.allocate(default_stream, n);
            f.deallocate(default_stream, p, n);
        }
        CHECK(f.pool().usage() == before);
        CHECK(d.total_calls() == calls);
    }
    CHECK(f.validate());
}

TEST_CASE("on other streams a warm pair only asks for the identity, or nothing when changes are announced",
          "[front][magazines]") {
    for (const stream_check check : {stream_check::every_call, stream_check::announced}) {
        sim::device d(plain_device());
        fronted f(d, pool_options{}, {.check = check});
        const stream_handle s = d.create_stream();
        warm(f, s, 4096);
        const auto calls = d.total_calls();
        const auto described = d.calls(sim::call::describe);
        for (int i = 0; i < 100; ++i) {
            void* const p = f.allocate(s, 4096);
            f.deallocate(s, p, 4096);
        }
        CHECK(d.calls(sim::call::describe) - described == (check == stream_check::every_call ? 200u : 0u));
        CHECK(d.total_calls() - calls == d.calls(sim::call::describe) - described);
        f.forget(s);
        d.destroy_stream(s);
    }
}

TEST_CASE("magazines that are off keep nothing", "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d, pool_options{}, {.enabled = false});
    warm(f, default_stream, 4096);
    CHECK(f.pool().usage().blocks.current == 0);
    CHECK(f.usage() == f.pool().usage());
}

TEST_CASE("a pool that cannot be asked for what it holds works as it is", "[front][magazines]") {
    sim::device d(plain_device());
    magazines<async_pool<sim::device>> f(d);
    warm(f, default_stream, 4096);
    CHECK(f.pool().usage().blocks.current == 0);
}

TEST_CASE("a size that comes once is not parked", "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d);
    for (std::size_t n = 1; n < 300; ++n) {
        void* const p = f.allocate(default_stream, n * 1000);
        f.deallocate(default_stream, p, n * 1000);
    }
    CHECK(parked(f) <= 4_MiB);
}

TEST_CASE("requested and blocks are exact whatever is parked, and whatever shares a magazine",
          "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d);
    struct request {
        void* p;
        std::size_t n;
    };
    std::vector<request> live;
    std::size_t requested = 0;
    std::size_t flowed = 0;
    for (std::size_t i = 0; i < 2000; ++i) {
        const std::size_t n = 1 + (i * 7919) % 1500; // three sizes in granules
        live.push_back({f.allocate(default_stream, n), n});
        requested += n;
        flowed += n;
        if (live.size() > 40) {
            const request r = live[(i * 31) % live.size()];
            f.deallocate(default_stream, r.p, r.n);
            requested -= r.n;
            std::erase_if(live, [&](const request& each) { return each.p == r.p; });
        }
        const usage_counters u = f.usage();
        REQUIRE(u.requested.current == requested);
        REQUIRE(u.requested.total_in == flowed);
        REQUIRE(u.requested.peak >= requested);
        REQUIRE(u.blocks.current == live.size());
        REQUIRE(u.allocated.current <= live.size() * 1536);
        REQUIRE(u.allocated.current >= requested);
    }
    std::size_t shown = 0;
    for (const segment_snapshot& s : f.snapshot().segments)
        for (const block_snapshot& b : s.blocks) shown += b.requested;
    CHECK(shown == requested);
    CHECK(f.validate());
    for (const request& r : live) f.deallocate(default_stream, r.p, r.n);
    CHECK(f.usage().requested.current == 0);
    CHECK(f.usage().allocated.current == 0);
    f.trim(0);
    CHECK(f.usage().reserved.current == 0);
    CHECK(d.reserved() == 0);
}

TEST_CASE("what a thread keeps is bounded", "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d, pool_options{}, {.max_parked_bytes = 8_MiB, .max_block_bytes = 32_MiB});
    for (const std::size_t n : {512_B, 100_KiB, 3_MiB, 20_MiB}) {
        warm(f, default_stream, n);
        std::vector<void*> blocks;
        for (int i = 0; i < 200; ++i) blocks.push_back(f.allocate(default_stream, n));
        for (void* p : blocks) {
            f.deallocate(default_stream, p, n);
            const std::size_t live = f.usage().requested.current;
            REQUIRE(parked(f) <= std::max(std::max(8_MiB, (live + n) / 8 + n), n) + 200 * n / 8);
        }
    }
    CHECK(parked(f) <= 600_MiB);
    CHECK(f.validate());
}

TEST_CASE("a double free of a parked block is reported, and it is handed out once",
          "[front][magazines][misuse]") {
    sim::device d(plain_device());
    fronted f(d);
    misuse_log log;
    for (const std::size_t n : {100_B, 4_KiB, 1_MiB}) {
        warm(f, default_stream, n);
        void* const p = f.allocate(default_stream, n);
        f.deallocate(default_stream, p, n);
        const auto again = f.try_deallocate(default_stream, p, n);
        REQUIRE_FALSE(again);
        CHECK(again.error().kind == misuse_kind::double_free);
        CHECK_FALSE(f.owns(p));
        f.deallocate_sync(p, n);
        f.release(p);
        f.record_use(p, default_stream);
        const auto reported = log.take();
        REQUIRE(reported.size() == 3);
        for (const misuse& m : reported) CHECK(m.kind == misuse_kind::double_free);
        void* const q = f.allocate(default_stream, n);
        void* const r = f.allocate(default_stream, n);
        CHECK(q != r);
        f.deallocate(default_stream, q, n);
        f.deallocate(default_stream, r, n);
    }
    CHECK(f.validate());
    CHECK(log.take().empty());
}

TEST_CASE("a wrong size of a live block from a magazine is reported with the right one",
          "[front][magazines][misuse]") {
    sim::device d(plain_device());
    fronted f(d);
    warm(f, default_stream, 1000);
    void* const p = f.allocate(default_stream, 700); // the magazine of 1000 serves it
    for (const std::size_t wrong :
         {0_B, 699_B, 701_B, 1000_B, 1024_B, 64_MiB, no_limit, no_limit - 1, no_limit - 2}) {
        const auto r = f.try_deallocate(default_stream, p, wrong);
        REQUIRE_FALSE(r);
        CHECK(r.error().kind == misuse_kind::size_mismatch);
        CHECK(r.error().expected == 700);
        CHECK(r.error().bytes == wrong);
    }
    CHECK(f.try_deallocate(default_stream, p, 700));
}

TEST_CASE("a block of another front end is wrong here, parked or live", "[front][magazines][misuse]") {
    sim::device d(plain_device());
    arena<fronted_pool, sim::device> mine(d, {.name = "mine"});
    arena<fronted_pool, sim::device> theirs(d, {.name = "theirs"});
    warm(mine, default_stream, 4096);
    warm(theirs, default_stream, 4096);
    void* const p = theirs.allocate(default_stream, 4096);
    const auto r = mine.try_deallocate(default_stream, p, 4096);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::wrong_arena);
    CHECK(r.error().real_owner.view() == "theirs");
    CHECK(theirs.owns(p));
    CHECK(theirs.try_deallocate(default_stream, p, 4096));
    const auto parked_there = mine.try_deallocate(default_stream, p, 4096);
    REQUIRE_FALSE(parked_there);
    CHECK(parked_there.error().kind == misuse_kind::foreign_pointer);
    CHECK(theirs.allocate(default_stream, 4096) == p);
    theirs.deallocate(default_stream, p, 4096);
}

TEST_CASE("what a destroyed front end left in the table means nothing to the next",
          "[front][magazines][misuse]") {
    sim::device d(plain_device());
    void* stale = nullptr;
    {
        misuse_log log;
        fronted f(d);
        warm(f, default_stream, 4096);
        stale = f.allocate(default_stream, 4096);
    }
    fronted f(d);
    warm(f, default_stream, 512);
    void* const whole = f.allocate(default_stream, 60_MiB); // over the stale word, perhaps
    misuse_log log;
    CHECK_FALSE(f.try_deallocate(default_stream, stale, 4096));
    CHECK(f.owns(whole));
    f.deallocate(default_stream, whole, 60_MiB);
    CHECK(log.take().empty());
}

TEST_CASE("live blocks at destruction are counted as the application asked for them", "[front][magazines]") {
    sim::device d(plain_device());
    misuse_log log;
    {
        fronted f(d);
        warm(f, default_stream, 700);
        (void)f.allocate(default_stream, 700);
        (void)f.allocate(default_stream, 40_MiB + 1);
    }
    const auto reported = log.take();
    REQUIRE(reported.size() == 1);
    CHECK(reported[0].kind == misuse_kind::live_at_destruction);
    CHECK(reported[0].bytes == 700 + 40_MiB + 1);
    CHECK(reported[0].expected == 2);
    CHECK(d.reserved() == 0);
}

TEST_CASE("parked memory is taken back before the pool buys", "[front][magazines]") {
    sim::device d(plain_device());
    fronted f(d, pool_options{.segment_bytes = 32_MiB}, {.max_block_bytes = 32_MiB});
    std::vector<void*> blocks;
    warm(f, default_stream, 2_MiB);
    for (int i = 0; i < 16; ++i) blocks.push_back(f.allocate(default_stream, 2_MiB));
    const std::size_t reserved = d.reserved();
    for (void* p : blocks) f.deallocate(default_stream, p, 2_MiB);
    CHECK(parked(f) > 0);
    void* const p = f.allocate(default_stream, 30_MiB);
    CHECK(d.reserved() == reserved);
    f.deallocate(default_stream, p, 30_MiB);
    void* const q = f.allocate_sync(30_MiB);
    CHECK(d.reserved() <= reserved + 32_MiB);
    f.deallocate_sync(q, 30_MiB);
}

TEST_CASE("every pool serves behind magazines", "[front][magazines]") {
    const auto run = [](auto& f) {
        misuse_log log;
        std::vector<std::pair<void*, std::size_t>> live;
        for (std::size_t i = 0; i < 3000; ++i) {
            const std::size_t n =
                std::array<std::size_t, 7>{1, 600, 1025, 3000, 70'000, 300'000, 2_MiB}[i * i % 7];
            live.emplace_back(f.allocate(default_stream, n), n);
            if (live.size() > 30) {
                const std::size_t which = i * 7919 % live.size();
                f.deallocate(default_stream, live[which].first, live[which].second);
                live[which] = live.back();
                live.pop_back();
            }
        }
        CHECK(f.validate());
        std::size_t requested = 0;
        for (const auto& [p, n] : live) requested += n;
        CHECK(f.usage().requested.current == requested);
        for (const auto& [p, n] : live) f.deallocate(default_stream, p, n);
        CHECK(f.usage().requested.current == 0);
        CHECK(f.usage().allocated.current == 0);
        f.trim(0);
        CHECK(f.usage().reserved.current == 0);
        CHECK(log.take().empty());
    };
    sim::device d(plain_device());
    magazines<exact_best_fit_pool<sim::device>> exact(d);
    magazines<buddy_pool<sim::device>> buddy(d);
    magazines<slab_pool<sim::device>> slab(d);
    magazines<caching_pool<sim::device>> caching(d);
    run(exact);
    run(buddy);
    run(slab);
    run(caching);
}
