#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/vmm_backed.hpp"

#include <tenure/device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy.hpp>

#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using best_fit_arena = arena<best_fit_pool, sim::device>;
using caching_arena = arena<caching_pool, sim::device>;
using async_arena = arena<async_pool, sim::device>;

template <device Device>
using fronted = magazines<best_fit_pool<Device>>;
using fronted_arena = arena<fronted, sim::device>;

static_assert(resource<best_fit_arena> && resource<caching_arena> && resource<async_arena>);
static_assert(device<metered<sim::device>> && pool_device<metered<sim::device>>);

} // namespace

TEST_CASE("an arena charges what its pool holds from the device", "[tenancy][arena]") {
    sim::device dev;
    best_fit_arena a(dev, {.name = "alice", .max = 1_GiB});
    void* p = a.allocate(default_stream, 5_MiB);
    CHECK(a.limits().charged == dev.reserved());
    CHECK(a.limits().charged == a.usage().reserved.current);
    a.deallocate(default_stream, p, 5_MiB);
    CHECK(a.limits().charged == dev.reserved()); // still held, still paid for
    a.trim(0);
    CHECK(a.limits().charged == 0);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("a hit in an arena's magazines asks nobody, and what is no hit is told as ever",
          "[tenancy][arena]") {
    test::misuse_log log;
    sim::device dev{{.cost = sim::costs::zero()}};
    unsigned told = 0;
    fronted_arena a(
        dev, {.name = "alice", .high = 16_MiB, .max = 64_MiB, .on_high = [&](const pressure&) { ++told; }},
        {.pool = pool_options{.segment_bytes = 2_MiB}, .magazines = {.check = stream_check::announced}});
    const stream_handle s = dev.create_stream();
    for (int i = 0; i < 3; ++i) a.deallocate(s, a.allocate(s, 1_MiB), 1_MiB); // warm
    const meter_reading before = a.limits();
    const unsigned told_before = told;
    for (int i = 0; i < 100; ++i) {
        void* const p = a.allocate(s, 1_MiB);
        const allocate_result q = a.try_allocate(s, 1_MiB);
        REQUIRE(q);
        REQUIRE(a.try_deallocate(s, *q, 1_MiB));
        a.deallocate(s, p, 1_MiB);
    }
    CHECK(a.usage().blocks.total_out >= 203);
    CHECK(a.limits().charges <= before.charges + 1); // of the second block, once
    CHECK(a.limits().own <= before.own + 32_MiB);

    // A free that is none is the arena's to report, with its name; the block stays where it is.
    void* const p = a.allocate(s, 1_MiB);
    a.deallocate(s, p, 2_MiB);
    a.deallocate(s, p, 1_MiB);
    a.deallocate(s, p, 1_MiB);
    REQUIRE(log.size() == 2);
    CHECK(log[0].kind == misuse_kind::size_mismatch);
    CHECK(log[0].owner.view() == "alice");
    CHECK(log[1].kind == misuse_kind::double_free);
    CHECK(log[1].owner.view() == "alice");

    // What has to buy is charged, told above `high`, and refused at the limit with the arena's name.
    void* const large = a.allocate(s, 40_MiB);
    CHECK(told > told_before);
    CHECK_THROWS_AS(a.allocate(s, 40_MiB), out_of_memory);
    const allocate_result r = a.try_allocate(s, 40_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().arena.view() == "alice");
    CHECK(r.error().cause == failure_cause::arena_limit);
    CHECK(a.limits().failures[static_cast<std::size_t>(failure_cause::arena_limit)] == 2);
    a.deallocate(s, large, 40_MiB);
    a.trim(0);
    CHECK(a.limits().own == 0);
    dev.destroy_stream(s);
}

TEST_CASE("a refusal at the limit names the arena, its use and its limit", "[tenancy][arena]") {
    sim::device dev;
    best_fit_arena a(dev, {.name = "alice", .max = 100_MiB});
    void* p = a.allocate(default_stream, 60_MiB);
    const auto r = a.try_allocate(default_stream, 60_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::arena_limit);
    CHECK(r.error().arena.view() == "alice");
    CHECK(r.error().max == 100_MiB);
    CHECK(r.error().used == a.limits().charged);
    CHECK(r.error().requested == 60_MiB);
    CHECK(r.error().text().find("alice") != std::string::npos);
    try {
        (void)a.allocate(default_stream, 60_MiB);
        FAIL("allocated over the limit");
    } catch (const out_of_memory& e) {
        CHECK(std::string(e.what()).find("out of memory") == 0);
        CHECK(e.failure().cause == failure_cause::arena_limit);
    }
    a.deallocate(default_stream, p, 60_MiB);
}

TEST_CASE("an arena with a limit below one segment step refuses everything and leaks nothing",
          "[tenancy][arena]") {
    sim::device dev;
    for (const std::size_t max : {std::size_t{0}, std::size_t{1}, 2_MiB - 1}) {
        best_fit_arena a(dev, {.name = "tiny", .max = max});
        CHECK_FALSE(a.try_allocate(default_stream, 1));
        async_arena b(dev, {.name = "tiny pool", .max = max});
        CHECK_FALSE(b.try_allocate(default_stream, 1));
        CHECK(dev.reserved() == 0);
    }
}

TEST_CASE("at the limit an arena gives back its own empty segments before it refuses", "[tenancy][arena]") {
    sim::device dev;
    best_fit_arena a(dev, {.name = "alice", .max = 100_MiB}, {.segment_bytes = 2_MiB});
    void* small = a.allocate(default_stream, 40_MiB);
    void* other = a.allocate(default_stream, 40_MiB);
    a.deallocate(default_stream, small, 40_MiB);
    a.deallocate(default_stream, other, 40_MiB);
    void* large = a.allocate(default_stream, 100_MiB); // only fits once both are gone
    CHECK(dev.reserved() == 100_MiB);
    a.deallocate(default_stream, large, 100_MiB);
}

TEST_CASE("on_pressure may make room, is called without locks, and only when memory is what is missing",
          "[tenancy][arena]") {
    sim::device dev;
    void* cached = nullptr;
    int calls = 0;
    best_fit_arena* self = nullptr;
    best_fit_arena a(dev, {.name = "alice", .max = 64_MiB, .on_pressure = [&](const allocation_failure& f) {
                               ++calls;
                               CHECK(f.arena.view() == "alice");
                               if (cached == nullptr) return false;
                               self->deallocate(default_stream, cached,
                                                50_MiB); // would deadlock under a lock
                               cached = nullptr;
                               return true;
                           }});
    self = &a;
    cached = a.allocate(default_stream, 50_MiB);
    void* p = a.allocate(default_stream, 50_MiB);
    CHECK(calls == 1);
    CHECK_FALSE(a.try_allocate(default_stream, 50_MiB));
    CHECK(calls == 2);
    CHECK_FALSE(a.try_allocate(default_stream, 1, 3));
    CHECK(calls == 2);
    a.deallocate(default_stream, p, 50_MiB);
}

TEST_CASE("set_max below use trims what is free and kills nothing", "[tenancy][arena]") {
    sim::device dev;
    best_fit_arena a(dev, {.name = "alice", .max = 200_MiB}, {.segment_bytes = 2_MiB});
    void* live = a.allocate(default_stream, 60_MiB);
    void* idle = a.allocate(default_stream, 80_MiB);
    a.deallocate(default_stream, idle, 80_MiB);
    CHECK(a.set_max(50_MiB) == 10_MiB); // the free 80 went back, the live 60 stay
    CHECK(a.owns(live));
    CHECK_FALSE(a.try_allocate(default_stream, 1_MiB));
    CHECK(a.set_max(64_MiB) == 0);
    void* more = a.allocate(default_stream, 1_MiB);
    a.deallocate(default_stream, more, 1_MiB);
    a.deallocate(default_stream, live, 60_MiB);
}

TEST_CASE("memory of another arena is recognised and named", "[tenancy][arena][misuse]") {
    sim::device dev;
    test::misuse_log log;
    best_fit_arena alice(dev, {.name = "alice"});
    caching_arena bob(dev, {.name = "bob"});
    void* p = alice.allocate(default_stream, 1_MiB);

    const auto r = bob.try_deallocate(default_stream, p, 1_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::wrong_arena);
    CHECK(r.error().owner.view() == "bob");
    CHECK(r.error().real_owner.view() == "alice");

    bob.deallocate(default_stream, p, 1_MiB);
    bob.release(p);
    bob.deallocate_sync(p, 1_MiB, 256);
    bob.record_use(p, default_stream);
    REQUIRE(log.size() == 4);
    for (std::size_t i = 0; i < log.size(); ++i) {
        CHECK(log[i].kind == misuse_kind::wrong_arena);
        CHECK(log[i].owner.view() == "bob");
        CHECK(log[i].real_owner.view() == "alice");
    }
    CHECK(alice.owns(p)); // nothing of it freed anything
    alice.deallocate(default_stream, p, 1_MiB);
    CHECK(log.size() == 4);
}

TEST_CASE("a pointer that no arena knows stays a foreign pointer", "[tenancy][arena][misuse]") {
    sim::device dev;
    best_fit_arena alice(dev, {.name = "alice"});
    const auto r = alice.try_deallocate(default_stream, to_pointer(0x1000), 1);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::foreign_pointer);
    CHECK(r.error().owner.view() == "alice");
}

TEST_CASE("an arena destroyed with live blocks says so by name and gives the memory back",
          "[tenancy][arena][misuse]") {
    sim::device dev;
    test::misuse_log log;
    {
        best_fit_arena alice(dev, {.name = "alice"});
        (void)alice.allocate(default_stream, 3_MiB);
        (void)alice.allocate(default_stream, 5_MiB);
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::live_at_destruction);
    CHECK(log[0].owner.view() == "alice");
    CHECK(log[0].bytes == 8_MiB);
    CHECK(log[0].expected == 2);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("an arena that may be destroyed with live blocks is silent", "[tenancy][arena]") {
    sim::device dev;
    test::misuse_log log;
    {
        best_fit_arena alice(dev, {.name = "alice", .at_destruction = leftovers::release});
        (void)alice.allocate(default_stream, 3_MiB);
        async_arena bob(dev, {.name = "bob", .at_destruction = leftovers::release});
        (void)bob.allocate(default_stream, 3_MiB);
    }
    CHECK(log.size() == 0);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("an arena that may be destroyed with live blocks does not ask their streams, which may be gone",
          "[tenancy][arena]") {
    sim::device dev;
    test::misuse_log log;
    {
        best_fit_arena alice(dev, {.name = "alice", .at_destruction = leftovers::release});
        caching_arena bob(dev, {.name = "bob", .at_destruction = leftovers::release});
        const stream_handle s = dev.create_stream();
        const stream_handle t = dev.create_stream();
        alice.record_use(alice.allocate(s, 3_MiB), t);
        bob.record_use(bob.allocate(s, 3_MiB), t);
        dev.destroy_stream(s);
        dev.destroy_stream(t);
    }
    CHECK(log.size() == 0);
    CHECK(dev.reserved() == 0);
    CHECK(dev.violations() == std::vector<std::string>{});
}

TEST_CASE("an arena that releases its blocks still reports what its driver refuses", "[tenancy][arena]") {
    sim::device dev;
    test::misuse_log log;
    {
        best_fit_arena alice(dev, {.name = "alice", .at_destruction = leftovers::release});
        (void)alice.allocate(default_stream, 3_MiB);
        dev.fail_call(sim::call::deallocate, 1, status::failed, 2);
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::driver);
    CHECK(log[0].owner.view() == "alice");
}

TEST_CASE("a driver pool in an arena never holds more than the limit, steps included",
          "[tenancy][arena][async]") {
    sim::device dev;
    async_arena a(dev, {.name = "pool", .max = 100_MiB}); // three steps of 32 MiB
    std::vector<void*> blocks;
    while (auto r = a.try_allocate(default_stream, 10_MiB)) blocks.push_back(*r);
    CHECK(dev.reserved_peak() <= 96_MiB);
    CHECK(a.limits().charged == dev.reserved());
    CHECK(blocks.size() == 9); // three a step
    a.deallocate(default_stream, blocks.back(), 10_MiB);
    blocks.pop_back();
    auto again = a.try_allocate(default_stream, 10_MiB); // full to the limit, served from what it holds
    REQUIRE(again);
    blocks.push_back(*again);
    for (void* p : blocks) a.deallocate(default_stream, p, 10_MiB);
    CHECK(dev.synchronize(default_stream) ==
          status::ok); // the driver gives back what the host has seen complete
    a.trim(0);
    CHECK(a.limits().charged == 0);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("an arena's limit holds for virtual memory", "[tenancy][arena][vmm]") {
    sim::device dev({.capacity = 64_MiB, .cost = sim::costs::zero()});
    {
        arena<test::windowed_pool, sim::device> alice(dev, {.name = "alice", .max = 10_MiB},
                                                      {.segment_bytes = 2_MiB});
        void* const p = alice.allocate(default_stream, 3_MiB);
        CHECK(alice.limits().charged == 4_MiB);
        CHECK(alice.limits().charged == dev.reserved());
        void* const q = alice.allocate(default_stream, 6_MiB);
        CHECK(alice.limits().charged == 10_MiB);
        const allocate_result over = alice.try_allocate(default_stream, 2_MiB);
        REQUIRE_FALSE(over);
        CHECK(over.error().cause == failure_cause::arena_limit);
        CHECK(over.error().arena.view() == "alice");
        CHECK(alice.limits().charged == dev.reserved());
        alice.deallocate(default_stream, p, 3_MiB);
        alice.deallocate(default_stream, q, 6_MiB);
        alice.trim(0);
        CHECK(alice.limits().charged == 0);
        CHECK(alice.validate());
    }
    CHECK(dev.reserved() == 0);
    CHECK(dev.violations().empty());
}

TEST_CASE("a driver pool that goes while frees in it are pending is paid for until they have passed",
          "[tenancy][arena][async]") {
    sim::device dev({.cost = sim::costs::zero()});
    meter root("root", 64_MiB);
    const stream_handle s = dev.create_stream();
    {
        async_arena a(root, dev, {.name = "a"});
        void* const p = a.allocate(s, 64_MiB);
        dev.launch(s, std::chrono::milliseconds{5});
        a.deallocate(s, p, 64_MiB);
    }
    CHECK(root.read().charged == 0);
    CHECK(dev.reserved() == 0); // or somebody else would be granted what the driver does not have
}
