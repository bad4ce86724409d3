/// Canaries behind blocks: who gets one, when a damage is found, and that it is reported once.

#include <tenure/adapt/guard_canary.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/sim_canary_memory.hpp"

#include <chrono>
#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

using pool_type = best_fit_pool<sim::device>;
using guard_type = guard_canary<pool_type, sim_canary_memory>;
static_assert(canary_memory<sim_canary_memory>);
static_assert(resource<guard_type>);

struct guarded_world {
    explicit guarded_world(canary_options options = {}) : guard(pool, memory, options) {}
    sim::device device{{.cost = sim::costs::zero()}};
    sim_canary_memory memory{device};
    pool_type pool{device};
    misuse_log log;
    guard_type guard;
    stream_handle s = device.create_stream();
};

} // namespace

TEST_CASE("bytes written behind a block are reported at its free, with their place", "[adapt][canary]") {
    guarded_world w;
    void* const p = w.guard.allocate(w.s, 1000);
    void* const q = w.guard.allocate(w.s, 1000);
    w.memory.write(p, 999); // its own
    w.memory.write(q, 1007);
    w.memory.write(q, 1010);
    w.guard.deallocate(w.s, p, 1000);
    w.guard.deallocate(w.s, q, 1000);
    CHECK(w.guard.flush() == 1);
    const std::vector<misuse> reported = w.log.take();
    REQUIRE(reported.size() == 1);
    CHECK(reported[0].kind == misuse_kind::overrun);
    CHECK(reported[0].pointer == q);
    CHECK(reported[0].bytes == 1000);
    CHECK(reported[0].expected == 1007);
    CHECK(reported[0].text().find("overrun") != std::string::npos);
    CHECK(w.guard.flush() == 1);
    CHECK(w.log.take().empty());
}

TEST_CASE("a damage is reported once the work before the free has passed", "[adapt][canary]") {
    guarded_world w;
    void* const p = w.guard.allocate(w.s, 10);
    w.device.launch(w.s, std::chrono::milliseconds{5});
    w.memory.write(p, 10);
    w.guard.deallocate(w.s, p, 10);
    CHECK(w.log.take().empty());
    w.device.advance(std::chrono::milliseconds{10});
    void* const q = w.guard.allocate(w.s, 10);
    w.guard.deallocate(w.s, q, 10); // any free collects
    CHECK(w.log.take().size() == 1);
}

TEST_CASE("blocks without slack, null and failed allocations have no canary", "[adapt][canary]") {
    guarded_world w;
    void* const p = w.guard.allocate(w.s, 1024);
    CHECK(w.guard.allocate(w.s, 0) == nullptr);
    CHECK_FALSE(w.guard.try_allocate(w.s, no_limit));
    CHECK(w.memory.fills() == 0);
    w.guard.deallocate(w.s, p, 1024);
    CHECK(w.memory.checks() == 0);
}

TEST_CASE("a sampled guard guards one block of so many", "[adapt][canary]") {
    guarded_world w({.every = 4});
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(w.guard.allocate(w.s, 100));
    CHECK(w.memory.fills() == 4);
    for (void* p : blocks) w.guard.deallocate(w.s, p, 100);
    CHECK(w.memory.checks() == 4);
    CHECK(w.log.take().empty());
}

TEST_CASE("every free that names a stream checks, a wrong one does not", "[adapt][canary]") {
    guarded_world w;
    void* const p = w.guard.allocate(w.s, 100);
    w.memory.write(p, 100);
    CHECK_FALSE(w.guard.try_deallocate(w.s, p, 99));
    CHECK(w.memory.checks() == 0);
    CHECK(w.guard.try_deallocate(w.s, p, 100));
    CHECK(w.guard.flush() == 1);
    CHECK_FALSE(w.guard.try_deallocate(w.s, p, 100));
    CHECK(w.guard.flush() == 1);

    void* const q = w.guard.allocate(w.s, 100);
    w.memory.write(q, 101);
    w.guard.release(q); // its stream may be gone: nothing is enqueued
    CHECK(w.guard.flush() == 1);
    CHECK(w.memory.checks() == 1);

    void* const r = w.guard.allocate(w.s, 100);
    w.memory.write(r, 102);
    w.guard.deallocate_sync(r, 100);
    CHECK(w.log.take().size() == 2); // at once
    void* const sync = w.guard.allocate_sync(100);
    w.guard.deallocate_sync(sync, 100);
    CHECK(w.guard.validate());
    CHECK(w.guard.usage().blocks.current == 0);
}

TEST_CASE("a damage under way at the end is reported by the end", "[adapt][canary]") {
    sim::device device({.cost = sim::costs::zero()});
    sim_canary_memory memory(device);
    misuse_log log;
    {
        pool_type pool(device);
        guard_type guard(pool, memory);
        const stream_handle s = device.create_stream();
        void* const p = guard.allocate(s, 1);
        memory.write(p, 400);
        device.launch(s, std::chrono::milliseconds{5});
        guard.deallocate(s, p, 1);
        CHECK(log.take().empty());
    }
    CHECK(log.take().size() == 1);
    CHECK(device.live_events() == 0);
}
