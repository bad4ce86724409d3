#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

using tenant = arena<best_fit_pool, sim::device>;
constexpr pool_options fine{.segment_bytes = 2_MiB};

struct tree_world {
    ~tree_world() {
        CHECK(gpu.limits().charged == 0);
        CHECK(device.reserved() == 0);
        CHECK(device.violations() == std::vector<std::string>{});
    }
    sim::device device{{.capacity = 1_GiB, .cost = sim::costs::zero()}};
    arena_group gpu{{.name = "gpu", .max = 100_MiB}};
};

/// A thread that has a block for a moment, when it gets one.
std::thread take_and_give(tree_world& w, tenant& t, std::size_t bytes, std::atomic<bool>& got) {
    return std::thread([&, bytes] {
        const stream_handle s = w.device.create_stream();
        if (const auto r = t.try_allocate(s, bytes)) {
            got = true;
            t.deallocate(s, *r, bytes);
            (void)w.device.synchronize(s);
        }
    });
}

} // namespace

TEST_CASE("an arena's path, limits and place in the tree", "[tenancy][arena][tree]") {
    tree_world w;
    arena_group org(w.gpu, {.name = "org", .min = 10_MiB, .high = 50_MiB, .max = 60_MiB, .weight = 300});
    tenant a(org, w.device, {.name = "a", .min = 5_MiB, .weight = 7});
    CHECK(a.node().path() == "gpu/org/a");
    CHECK(a.limits().min == 5_MiB);
    CHECK(a.limits().weight == 7);
    CHECK(org.limits().weight == 300);
    CHECK(w.gpu.limits().charged == 10_MiB);
    CHECK(w.gpu.picture().size() == 3);
    CHECK(w.gpu.picture()[2].arena);
    CHECK_THROWS_AS(tenant(org, w.device, {.name = "b", .min = 56_MiB}), not_admitted);
    tenant below(a.node(), w.device, {.name = "below"}); // an arena may stand under an arena
    void* const p = below.allocate(default_stream, 8_MiB);
    CHECK(a.limits().charged == below.limits().charged);
    CHECK(a.limits().own == 0);
    CHECK(a.validate());
    below.deallocate(default_stream, p, 8_MiB);
}

TEST_CASE("at an ancestor's limit siblings give what is idle, above their min, and nothing live",
          "[tenancy][arena][tree]") {
    tree_world w;
    tenant idle(w.gpu, w.device, {.name = "idle", .min = 20_MiB}, fine);
    tenant busy(w.gpu, w.device, {.name = "busy"}, fine);
    tenant asking(w.gpu, w.device, {.name = "asking"}, fine);
    std::vector<void*> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(idle.allocate(default_stream, 5_MiB));
    for (void* p : blocks) idle.deallocate(default_stream, p, 5_MiB);
    void* const live = busy.allocate(default_stream, 40_MiB);
    CHECK(idle.limits().own > 50_MiB - 1);
    const auto r = asking.try_allocate(default_stream, 35_MiB);
    REQUIRE(r);
    CHECK(idle.limits().charged >= 20_MiB);
    CHECK(busy.owns(live));
    CHECK(asking.limits().borrowed == idle.limits().reclaimed);
    const auto more = asking.try_allocate(default_stream, 10_MiB); // would go below idle's min
    REQUIRE_FALSE(more);
    CHECK(more.error().cause == failure_cause::ancestor_limit);
    CHECK(more.error().arena.view() == "gpu");
    void* const back = idle.allocate(default_stream, 20_MiB); // its guarantee
    idle.deallocate(default_stream, back, 20_MiB);
    asking.deallocate(default_stream, *r, 35_MiB);
    busy.deallocate(default_stream, live, 40_MiB);
}

TEST_CASE("two arenas that take from each other at once do not block each other",
          "[tenancy][arena][tree][threads]") {
    tree_world w;
    tenant a(w.gpu, w.device, {.name = "a"}, fine);
    tenant b(w.gpu, w.device, {.name = "b"}, fine);
    std::atomic<int> granted{0};
    const auto run = [&](tenant& mine) {
        const stream_handle s = w.device.create_stream();
        for (int i = 0; i < 200; ++i)
            if (const auto r = mine.try_allocate(s, 70_MiB)) {
                ++granted;
                mine.deallocate(s, *r, 70_MiB);
                (void)w.device.synchronize(s);
            }
    };
    std::thread one([&] { run(a); });
    std::thread two([&] { run(b); });
    one.join();
    two.join();
    CHECK(granted > 0);
    CHECK(w.gpu.limits().peak <= 100_MiB);
}

TEST_CASE("a full device lends idle memory, too, where no limit is in the way", "[tenancy][arena][tree]") {
    sim::device device({.capacity = 100_MiB, .cost = sim::costs::zero()});
    arena_group gpu({.name = "gpu"});
    tenant idle(gpu, device, {.name = "idle"}, fine);
    tenant asking(gpu, device, {.name = "asking"}, fine);
    void* const p = idle.allocate(default_stream, 80_MiB);
    idle.deallocate(default_stream, p, 80_MiB);
    void* const q = asking.allocate(default_stream, 90_MiB);
    CHECK(idle.limits().reclaimed >= 70_MiB);
    asking.deallocate(default_stream, q, 90_MiB);
}

TEST_CASE("above high an arena is told and its idle memory trimmed, and the request stands",
          "[tenancy][arena][tree]") {
    tree_world w;
    int told = 0;
    tenant* self = nullptr;
    tenant a(w.gpu, w.device,
             {.name = "a",
              .high = 30_MiB,
              .on_high =
                  [&](const pressure& p) {
                      ++told;
                      CHECK(p.level.view() == "gpu/a");
                      // No lock is held: the arena may be used.
                      self->deallocate(default_stream, self->allocate(default_stream, 1_MiB), 1_MiB);
                  }},
             fine);
    self = &a;
    void* const idle = a.allocate(default_stream, 20_MiB);
    void* const live = a.allocate(default_stream, 8_MiB);
    a.deallocate(default_stream, idle, 20_MiB);
    CHECK(told == 0);
    void* const p = a.allocate(default_stream, 22_MiB);
    CHECK(told == 1);
    CHECK(a.limits().charged <= 32_MiB); // the idle 20 are gone
    CHECK(a.limits().at_high > 0);
    CHECK(a.set_high(10_MiB) > 0);
    a.deallocate(default_stream, p, 22_MiB);
    a.deallocate(default_stream, live, 8_MiB);
}

TEST_CASE("a waiting request is served by another tenant's free", "[tenancy][arena][wait][threads]") {
    tree_world w;
    tenant holder(w.gpu, w.device, {.name = "holder"}, fine);
    tenant waiting(w.gpu, w.device, {.name = "waiting", .wait = {.limit = 60s}}, fine);
    void* const p = holder.allocate(default_stream, 90_MiB);
    std::atomic<bool> got{false};
    std::thread t = take_and_give(w, waiting, 50_MiB, got);
    while (waiting.limits().waits == 0) std::this_thread::yield();
    holder.deallocate(default_stream, p, 90_MiB); // into its own cache: no meter hears of it
    t.join();
    CHECK(got);
    CHECK(waiting.limits().waited_ns > 0);
}

TEST_CASE("what can never be had is not waited for, nor anything by a capturing stream",
          "[tenancy][arena][wait]") {
    tree_world w;
    tenant holder(w.gpu, w.device, {.name = "holder", .min = 40_MiB}, fine);
    tenant waiting(w.gpu, w.device, {.name = "waiting", .wait = {.limit = 60s}}, fine);
    CHECK_FALSE(waiting.try_allocate(default_stream, 101_MiB)); // above the root's max
    CHECK_FALSE(waiting.try_allocate(default_stream, 61_MiB));  // above what guarantees leave
    void* const p = holder.allocate(default_stream, 90_MiB);
    const stream_handle s = w.device.create_stream();
    (void)w.device.begin_capture(s);
    CHECK_FALSE(waiting.try_allocate(s, 20_MiB));
    CHECK(waiting.limits().waits == 0);
    CHECK(w.device.end_capture(s));
    holder.deallocate(default_stream, p, 90_MiB);
}

TEST_CASE("a wait ends at its deadline with the failure that began it", "[tenancy][arena][wait]") {
    tree_world w;
    tenant holder(w.gpu, w.device, {.name = "holder"}, fine);
    tenant waiting(w.gpu, w.device, {.name = "waiting", .wait = {.limit = 10ms}}, fine);
    void* const p = holder.allocate(default_stream, 90_MiB);
    const auto begin = std::chrono::steady_clock::now();
    const auto r = waiting.try_allocate(default_stream, 50_MiB);
    CHECK(std::chrono::steady_clock::now() - begin >= 10ms);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::ancestor_limit);
    CHECK_THROWS_AS(waiting.allocate_sync(50_MiB, 256), out_of_memory);
    CHECK(waiting.limits().waits == 2);
    holder.deallocate(default_stream, p, 90_MiB);
}

TEMPLATE_TEST_CASE("release_all frees every live block of one tenant and none of another",
                   "[tenancy][arena][tree]", (arena<best_fit_pool, sim::device>),
                   (arena<caching_pool, sim::device>), (arena<async_pool, sim::device>),
                   (arena<remap_pool, sim::device>), (arena<slab_pool, sim::device>)) {
    tree_world w;
    TestType a(w.gpu, w.device, {.name = "a"});
    tenant other(w.gpu, w.device, {.name = "other"}, fine);
    void* const stays = other.allocate(default_stream, 1_MiB);
    const stream_handle s = w.device.create_stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i)
        blocks.push_back(
            a.allocate(i % 2 == 0 ? s : default_stream, (static_cast<std::size_t>(i) % 5 + 1) * 300_KiB));
    a.deallocate(s, blocks[4], 5 * 300_KiB);
    CHECK(a.release_all(s) == 19);
    CHECK(a.usage().blocks.current == 0);
    CHECK(a.usage().requested.current == 0);
    CHECK(a.validate());
    CHECK(w.device.synchronize(s) == status::ok);
    CHECK(w.device.synchronize(default_stream) == status::ok);
    a.trim(0);
    CHECK(a.limits().charged == 0);
    CHECK(other.owns(stays));
    other.deallocate(default_stream, stays, 1_MiB);
}

TEST_CASE("an arena moves to another group with all that it holds", "[tenancy][arena][tree]") {
    tree_world w;
    arena_group small(w.gpu, {.name = "small", .max = 20_MiB});
    arena_group large(w.gpu, {.name = "large", .max = 80_MiB});
    tenant a(large, w.device, {.name = "a"}, fine);
    void* const p = a.allocate(default_stream, 30_MiB);
    CHECK(a.set_parent(small) == status::over_limit);
    a.deallocate(default_stream, p, 30_MiB);
    a.trim(0);
    void* const q = a.allocate(default_stream, 10_MiB);
    CHECK(a.set_parent(small) == status::ok);
    CHECK(a.node().path() == "gpu/small/a");
    CHECK(small.limits().charged == 10_MiB);
    CHECK(large.limits().charged == 0);
    const auto r = a.try_allocate(default_stream, 15_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().arena.view() == "gpu/small");
    a.deallocate(default_stream, q, 10_MiB);
}

TEST_CASE("blocks of a destroyed arena live on in its group, paid for, until they are freed there",
          "[tenancy][arena][tree]") {
    tree_world w;
    test::misuse_log log;
    arena_group org(w.gpu, {.name = "org"});
    void* p = nullptr;
    void* q = nullptr;
    {
        tenant a(org, w.device, {.name = "a", .at_destruction = leftovers::reparent}, fine);
        p = a.allocate(default_stream, 10_MiB);
        q = a.allocate(default_stream, 6_MiB);
    }
    CHECK(log.size() == 0);
    CHECK(org.owns(p));
    CHECK(org.limits().charged >= 16_MiB);
    CHECK(w.device.reserved() == org.limits().charged);
    org.deallocate(default_stream, p, 10_MiB);
    CHECK(org.owns(q));
    org.deallocate(default_stream, p, 10_MiB); // not twice
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::foreign_pointer);
    CHECK(log[0].owner.view() == "org");
    tenant b(org, w.device, {.name = "b"});
    b.deallocate(default_stream, q, 6_MiB); // not b's
    REQUIRE(log.size() == 2);
    CHECK(log[1].kind == misuse_kind::wrong_arena);
    CHECK(log[1].real_owner.view() == "a");
    org.release(q);
    CHECK(org.limits().charged == 0);
    CHECK(w.device.reserved() == 0);
    {
        tenant c(org, w.device, {.name = "c", .at_destruction = leftovers::reparent});
        c.deallocate(default_stream, c.allocate(default_stream, 1_MiB), 1_MiB);
    }
    CHECK(w.device.reserved() == 0); // nothing live: nothing to inherit
    CHECK(log.size() == 2);
}

TEST_CASE("what nobody has freed when its group goes, or that had no group, is reported",
          "[tenancy][arena][tree][misuse]") {
    tree_world w;
    test::misuse_log log;
    {
        arena_group org(w.gpu, {.name = "org"});
        tenant a(org, w.device, {.name = "a", .at_destruction = leftovers::reparent});
        (void)a.allocate(default_stream, 10_MiB);
        tenant alone(w.device, {.name = "alone", .at_destruction = leftovers::reparent});
        (void)alone.allocate(default_stream, 4_MiB);
    }
    REQUIRE(log.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) CHECK(log[i].kind == misuse_kind::live_at_destruction);
}

TEST_CASE("set_min takes idle memory of others to keep its word", "[tenancy][arena][tree]") {
    tree_world w;
    tenant idle(w.gpu, w.device, {.name = "idle"}, fine);
    tenant a(w.gpu, w.device, {.name = "a"}, fine);
    void* const p = idle.allocate(default_stream, 90_MiB);
    CHECK(a.set_min(50_MiB) == status::over_limit);
    idle.deallocate(default_stream, p, 90_MiB);
    CHECK(a.set_min(50_MiB) == status::ok);
    CHECK(w.gpu.limits().charged <= 100_MiB);
    CHECK(a.set_min(101_MiB) == status::over_limit);
    CHECK(a.set_min(0) == status::ok);
}

TEST_CASE("a group's set_max gives back what is idle below it", "[tenancy][arena][tree]") {
    tree_world w;
    arena_group org(w.gpu, {.name = "org"});
    tenant a(org, w.device, {.name = "a"}, fine);
    tenant b(org, w.device, {.name = "b"}, fine);
    void* const live = a.allocate(default_stream, 30_MiB);
    void* const p = b.allocate(default_stream, 40_MiB);
    b.deallocate(default_stream, p, 40_MiB);
    CHECK(org.set_max(20_MiB) == 10_MiB);
    CHECK_FALSE(b.try_allocate(default_stream, 1_MiB));
    CHECK(org.trim(0) == 0);
    a.deallocate(default_stream, live, 30_MiB);
    CHECK(org.trim(0) == 30_MiB);
}

TEST_CASE("an arena whose group went first reports what it leaves, as one without a group",
          "[tenancy][arena][tree][misuse]") {
    tree_world w;
    test::misuse_log log;
    auto org = std::make_unique<arena_group>(w.gpu, group_options{.name = "org"});
    {
        tenant job(*org, w.device, {.name = "job", .at_destruction = leftovers::reparent}, fine);
        (void)job.allocate(default_stream, 10_MiB);
        org.reset();
        CHECK(w.gpu.limits().charged == 10_MiB); // moved up
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::live_at_destruction);
    CHECK(log[0].owner.view() == "job");
}

TEST_CASE("a group's guarantee keeps nobody in the group from its idle memory", "[tenancy][arena][tree]") {
    tree_world w;
    arena_group x(w.gpu, {.name = "x", .min = 50_MiB});
    tenant a(x, w.device, {.name = "a"}, fine);
    tenant b(x, w.device, {.name = "b"}, fine);
    tenant c(w.gpu, w.device, {.name = "c"}, fine);
    void* const mine = a.allocate(default_stream, 20_MiB);
    b.deallocate(default_stream, b.allocate(default_stream, 30_MiB), 30_MiB);
    void* const live = c.allocate(default_stream, 50_MiB);
    const auto r = a.try_allocate(default_stream, 20_MiB);
    REQUIRE(r);
    CHECK(x.limits().charged <= 50_MiB);
    CHECK_FALSE(c.try_allocate(default_stream, 2_MiB)); // which protects it from c
    a.deallocate(default_stream, *r, 20_MiB);
    a.deallocate(default_stream, mine, 20_MiB);
    c.deallocate(default_stream, live, 50_MiB);
    a.trim(0);
    b.trim(0);
    c.trim(0);
    CHECK(x.set_min(0) == status::ok);
}

TEST_CASE("a request that no device could serve takes nothing from anybody, and is not waited for",
          "[tenancy][arena][tree]") {
    sim::device device({.capacity = 100_MiB, .cost = sim::costs::zero()});
    arena_group gpu({.name = "gpu"}); // no limit: only the device refuses
    tenant idle(gpu, device, {.name = "idle"}, fine);
    tenant asking(gpu, device, {.name = "asking", .wait = {.limit = 10min}}, fine);
    idle.deallocate(default_stream, idle.allocate(default_stream, 60_MiB), 60_MiB);
    const auto r = asking.try_allocate(default_stream, 1_TiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    CHECK(idle.limits().own == 60_MiB);
    CHECK(idle.limits().reclaimed == 0);
    CHECK(asking.limits().waits == 0);
    const auto fits = asking.try_allocate(default_stream, 90_MiB);
    REQUIRE(fits);
    asking.deallocate(default_stream, *fits, 90_MiB);
}

TEST_CASE("a new arena's min is admitted however warm its neighbours are", "[tenancy][arena][tree]") {
    tree_world w;
    tenant idle(w.gpu, w.device, {.name = "idle"}, fine);
    idle.deallocate(default_stream, idle.allocate(default_stream, 90_MiB), 90_MiB);
    tenant b(w.gpu, w.device, {.name = "b", .min = 50_MiB}, fine);
    CHECK(w.gpu.limits().charged <= 100_MiB);
    void* const p = b.allocate(default_stream, 50_MiB);
    CHECK_THROWS_AS(tenant(w.gpu, w.device, {.name = "c", .min = 51_MiB}), not_admitted);
    CHECK(w.gpu.picture().size() == 3);
    b.deallocate(default_stream, p, 50_MiB);
    b.trim(0);
    idle.trim(0);
    CHECK(b.set_min(0) == status::ok);
}

TEST_CASE("a limit set below what an arena and its tenants hold takes idle memory of all of them",
          "[tenancy][arena][tree]") {
    tree_world w;
    tenant a(w.gpu, w.device, {.name = "a"}, fine);
    tenant below(a.node(), w.device, {.name = "below"}, fine);
    a.deallocate(default_stream, a.allocate(default_stream, 20_MiB), 20_MiB);
    void* const live = below.allocate(default_stream, 30_MiB);
    CHECK(a.set_max(40_MiB) == 0);
    CHECK(a.limits().charged <= 40_MiB);
    CHECK(a.set_max(20_MiB) == 10_MiB);
    CHECK(a.limits().own == 0);
    below.deallocate(default_stream, live, 30_MiB);
}

TEST_CASE("a refusal of the past explains nothing that is refused later", "[tenancy][arena][tree][async]") {
    sim::device device({.capacity = 1_GiB, .cost = sim::costs::zero()});
    arena_group gpu({.name = "gpu", .max = 128_MiB});
    tenant other(gpu, device, {.name = "other"}, fine);
    arena<async_pool, sim::device> a(gpu, device,
                                     {.name = "a", .max = 64_MiB}); // the pool's own limit, for good
    void* const live = other.allocate(default_stream, 96_MiB);
    const auto first = a.try_allocate(default_stream, 64_MiB);
    REQUIRE_FALSE(first);
    CHECK(first.error().arena.view() == "gpu");
    CHECK_FALSE(a.node().last_refusal()); // it has been told
    other.deallocate(default_stream, live, 96_MiB);
    void* const p = a.allocate(default_stream, 32_MiB);
    void* const q = a.allocate(default_stream, 32_MiB);
    (void)a.set_max(no_limit);
    const std::size_t warm = other.limits().own;
    const auto r = a.try_allocate(default_stream, 32_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::arena_limit);
    CHECK(r.error().arena.view() == "a");
    CHECK(other.limits().own == warm); // nobody gave anything for what is not theirs to give
    a.deallocate(default_stream, p, 32_MiB);
    a.deallocate(default_stream, q, 32_MiB);
}

TEST_CASE("a segment that reaches below a sibling's min goes whole, and is had back for the asking",
          "[tenancy][arena][tree]") {
    tree_world w;
    tenant asking(w.gpu, w.device, {.name = "asking"}, fine);
    tenant sibling(w.gpu, w.device, {.name = "sibling", .min = 4_MiB}, fine);
    void* const live = asking.allocate(default_stream, 80_MiB);
    void* const one = sibling.allocate(default_stream, 10_MiB);
    void* const two = sibling.allocate(default_stream, 10_MiB);
    sibling.deallocate(default_stream, one, 10_MiB);
    sibling.deallocate(default_stream, two, 10_MiB);
    const auto r = asking.try_allocate(default_stream, 15_MiB); // 5 MiB would be left, and segments are of 10
    REQUIRE(r);
    CHECK(sibling.limits().own < 4_MiB);
    CHECK(w.gpu.limits().charged - w.gpu.limits().used == 4_MiB - sibling.limits().own); // nobody else's
    CHECK_FALSE(asking.try_allocate(default_stream, 4_MiB));
    const auto back = sibling.try_allocate(default_stream, 4_MiB);
    REQUIRE(back);
    CHECK(w.gpu.limits().charged <= 100_MiB);
    sibling.deallocate(default_stream, *back, 4_MiB);
    asking.deallocate(default_stream, *r, 15_MiB);
    asking.deallocate(default_stream, live, 80_MiB);
    CHECK(sibling.set_min(0) == status::ok);
}

TEST_CASE("a min buys nothing before it is asked for, and is a claim that a full card cannot meet",
          "[tenancy][arena][tree]") {
    tree_world w;
    tenant job(w.gpu, w.device, {.name = "job", .min = 50_MiB}, fine);
    CHECK(w.device.reserved() == 0);
    CHECK(w.gpu.limits().charged == 50_MiB);
    CHECK(w.gpu.limits().used == 0);
    const result<void*, status> other = w.device.allocate(1_GiB - 10_MiB); // beside the library
    REQUIRE(other);
    CHECK(w.gpu.limits().used == 0); // which counts what goes through it
    const auto r = job.try_allocate(default_stream, 20_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    CHECK(job.limits().min == 50_MiB);
    CHECK(job.limits().failures[static_cast<std::size_t>(failure_cause::device)] == 1);
    REQUIRE(w.device.deallocate(*other, 1_GiB - 10_MiB) == status::ok);
    const auto now = job.try_allocate(default_stream, 50_MiB);
    REQUIRE(now);
    job.deallocate(default_stream, *now, 50_MiB);
    job.trim(0);
    CHECK(job.set_min(0) == status::ok);
}

TEST_CASE("who does not wait is not held back by those who do", "[tenancy][arena][wait][threads]") {
    tree_world w;
    tenant holder(w.gpu, w.device, {.name = "holder"}, fine);
    tenant waiting(w.gpu, w.device, {.name = "waiting", .wait = {.limit = 60s}}, fine);
    tenant quick(w.gpu, w.device, {.name = "quick"}, fine);
    void* const p = holder.allocate(default_stream, 60_MiB);
    std::atomic<bool> got{false};
    std::thread t = take_and_give(w, waiting, 50_MiB, got);
    while (waiting.limits().waits == 0) std::this_thread::yield();
    const auto r = quick.try_allocate(default_stream, 30_MiB); // for which there is room
    CHECK(r);
    CHECK_FALSE(got);
    holder.deallocate(default_stream, p, 60_MiB);
    t.join();
    CHECK(got);
    if (r) quick.deallocate(default_stream, *r, 30_MiB);
}
