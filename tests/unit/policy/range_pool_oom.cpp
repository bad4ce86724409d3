/// `range_pool` at a limit: what it gives back, and what it says.

#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {
using pool_type = best_fit_pool<sim::device>;
}

TEST_CASE("a request that cannot be met gives no segment back", "[policy][range_pool][oom]") {
    sim::device device({.capacity = 64_MiB});
    pool_type pool(device, {.segment_bytes = 2_MiB});
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(pool.allocate(default_stream, 10_MiB));
    for (int i = 1; i < 6; ++i) pool.deallocate(default_stream, blocks[static_cast<std::size_t>(i)], 10_MiB);
    const std::uint64_t frees = device.calls(sim::call::deallocate);
    CHECK_FALSE(pool.try_allocate(default_stream, 1_GiB));
    CHECK_FALSE(pool.try_allocate(default_stream, 56_MiB)); // 54 would do
    CHECK(device.calls(sim::call::deallocate) == frees);
    CHECK(pool.usage().reserved.current == 60_MiB);
    void* const p = pool.allocate(default_stream, 54_MiB);
    pool.deallocate(default_stream, p, 54_MiB);
    pool.deallocate(default_stream, blocks[0], 10_MiB);
    pool.trim(0);
    CHECK(device.reserved() == 0);
}

TEST_CASE("a request over an arena's limit gives no segment back", "[policy][range_pool][oom]") {
    sim::device device;
    arena<best_fit_pool, sim::device> a(device, {.name = "alice", .max = 64_MiB}, {.segment_bytes = 2_MiB});
    void* const p = a.allocate(default_stream, 10_MiB);
    a.deallocate(default_stream, p, 10_MiB);
    const allocate_result r = a.try_allocate(default_stream, 100_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::arena_limit);
    CHECK(device.calls(sim::call::deallocate) == 0);
}

TEST_CASE("a segment that the device refuses to take back does not keep others from going",
          "[policy][range_pool][oom]") {
    sim::device device({.capacity = 64_MiB});
    pool_type pool(device, {.segment_bytes = 2_MiB});
    void* const a = pool.allocate(default_stream, 20_MiB);
    void* const b = pool.allocate(default_stream, 30_MiB);
    pool.deallocate(default_stream, a, 20_MiB);
    pool.deallocate(default_stream, b, 30_MiB);
    device.fail_call(sim::call::deallocate, 1, status::failed); // of b's segment, the larger one
    void* const c = pool.allocate(default_stream, 32_MiB);
    CHECK(pool.owns(c));
    pool.deallocate(default_stream, c, 32_MiB);
    pool.trim(0);
    CHECK(device.reserved() == 0);
}

TEST_CASE("who refused is named only if it was the arena", "[policy][range_pool][oom]") {
    sim::device device({.capacity = 64_MiB});
    arena<best_fit_pool, sim::device> a(device, {.name = "alice", .max = 1_GiB});
    const allocate_result full = a.try_allocate(default_stream, 100_MiB);
    REQUIRE_FALSE(full);
    CHECK(full.error().cause == failure_cause::device);
    CHECK(full.error().arena.empty());
    CHECK(full.error().max == 64_MiB);
    const allocate_result over = a.try_allocate(default_stream, 2_GiB);
    REQUIRE_FALSE(over);
    CHECK(over.error().cause == failure_cause::arena_limit);
    CHECK(over.error().arena.view() == "alice");
    CHECK(a.limits().peak == 0); // nothing was ever held
}
