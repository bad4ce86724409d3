/// Blocks that end before an unmapped granule: where they lie, when they go, and that nothing fails because of them.

#include <tenure/core/bits.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/unmapped_guard.hpp>
#include <tenure/tenancy/arena.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <chrono>
#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

template <device Device>
using guarded_best_fit = unmapped_guard<best_fit_pool<Device>>;
using guard_type = guarded_best_fit<sim::device>;
static_assert(resource<guard_type>);

} // namespace

TEST_CASE("a guarded block ends where its mapping does", "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    {
        guard_type pool(device, {.every = 1});
        const stream_handle s = device.create_stream();
        const std::size_t granule = device.allocation_granularity();
        std::vector<std::pair<void*, std::size_t>> blocks;
        for (const std::size_t n : {1_B, 1000_B, 2_MiB, 5_MiB}) {
            void* const p = pool.allocate(s, n);
            blocks.emplace_back(p, n);
            CHECK(pool.guards(p));
            CHECK(is_aligned(to_address(p), 256));
            CHECK((to_address(p) + round_up(n, 256)) % granule == 0);
            CHECK(pool.owns(p));
        }
        CHECK(pool.usage().requested.current == 1 + 1000 + 7_MiB);
        CHECK(pool.usage().reserved.current == device.reserved());
        CHECK(pool.snapshot().segments.size() == 4);
        CHECK(pool.validate());
        for (const auto& [p, n] : blocks) pool.deallocate(s, p, n);
        CHECK(pool.usage().requested.current == 0);
        CHECK(pool.usage().pending == pool.usage().allocated.current);
        pool.trim(0);
        CHECK(pool.usage().reserved.current == 0);
        CHECK(pool.validate());
        CHECK(device.reserved() == 0);
    }
    CHECK(device.live_events() == 0);
    CHECK(device.violations().empty());
}

TEST_CASE("a guarded block stays mapped until all work on it has passed", "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    guard_type pool(device, {.every = 1});
    const stream_handle s = device.create_stream();
    const stream_handle other = device.create_stream();
    void* const p = pool.allocate(s, 1000);
    device.launch(s, std::chrono::milliseconds{5});
    device.launch(other, std::chrono::milliseconds{20});
    pool.record_use(p, other);
    pool.deallocate(s, p, 1000);
    CHECK(pool.try_deallocate(s, p, 1000).error().kind == misuse_kind::double_free);
    CHECK(pool.trim(0) == 0);
    device.advance(std::chrono::milliseconds{10});
    CHECK(pool.trim(0) == 0);
    device.advance(std::chrono::milliseconds{20});
    CHECK(pool.trim(0) == device.allocation_granularity());
    CHECK(device.reserved() == 0);
}

TEST_CASE("one block of so many is guarded, and misuse of either kind is reported",
          "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    guard_type pool(device, {.every = 4});
    const stream_handle s = device.create_stream();
    std::vector<void*> blocks;
    std::size_t guarded = 0;
    for (int i = 0; i < 16; ++i) {
        blocks.push_back(pool.allocate(s, 3000));
        if (pool.guards(blocks.back())) ++guarded;
    }
    CHECK(guarded == 4);
    for (void* p : blocks) {
        CHECK(pool.try_deallocate(s, p, 2999).error().kind == misuse_kind::size_mismatch);
        CHECK(pool.try_deallocate(s, to_pointer(to_address(p) + 512), 1).error().kind ==
              misuse_kind::interior_pointer);
        CHECK(pool.owns(p));
        if (p == blocks[1])
            pool.deallocate_sync(p, 3000);
        else
            pool.release(p);
        CHECK_FALSE(pool.owns(p));
    }
    CHECK(pool.usage().blocks.current == 0);
    CHECK(pool.allocate(s, 0) == nullptr);
    CHECK(pool.try_allocate(s, 10, 3).error().cause == failure_cause::invalid_alignment);
    void* const aligned = pool.allocate(s, 10, 4_MiB); // beyond a granule: the pool's
    CHECK_FALSE(pool.guards(aligned));
    pool.release(aligned);
}

TEST_CASE("a guard that cannot be had leaves the block to the pool", "[policy][unmapped_guard]") {
    sim::device device({.capacity = 64_MiB, .cost = sim::costs::zero()});
    guard_type pool(device, {.pool = {.segment_bytes = 32_MiB}, .every = 1, .max_bytes = 16_MiB});
    const stream_handle s = device.create_stream();
    void* const large = pool.allocate(s, 20_MiB); // more than is guarded; takes a segment of 32 MiB
    CHECK_FALSE(pool.guards(large));
    void* const a = pool.allocate(s, 16_MiB);
    CHECK(pool.guards(a));
    void* const b = pool.allocate(s, 16_MiB);
    CHECK(pool.guards(b));
    void* const c = pool.allocate(s, 10_MiB); // the device is full, the pool's segment is not
    CHECK_FALSE(pool.guards(c));
    for (const auto& [p, n] : {std::pair{large, 20_MiB}, {a, 16_MiB}, {b, 16_MiB}, {c, 10_MiB}})
        pool.deallocate(s, p, n);
    pool.trim(0);
    CHECK(device.reserved() == 0);
}

TEST_CASE("guarded blocks are charged to their arena, and given back at its end",
          "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    misuse_log log;
    {
        using tenant = arena<guarded_best_fit, sim::device>;
        tenant::policy_options options;
        options.every = 1;
        tenant job(device, {.name = "job", .max = 64_MiB}, options);
        void* const p = job.allocate(default_stream, 1000);
        CHECK(job.limits().charged == device.allocation_granularity());
        CHECK(job.policy().guards(p));
    }
    const auto reported = log.take();
    REQUIRE(reported.size() == 1);
    CHECK(reported[0].kind == misuse_kind::live_at_destruction);
    CHECK(reported[0].bytes == 1000);
    CHECK(reported[0].owner.view() == "job");
    CHECK(device.reserved() == 0);
}

TEST_CASE("what freed guarded blocks hold goes before a refusal stands", "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    arena<guarded_best_fit, sim::device> a(device, {.name = "a", .max = 4_MiB},
                                           {.pool = {.segment_bytes = 2_MiB}, .every = 64});
    const stream_handle s = device.create_stream();
    void* const guarded = a.allocate(s, 1000);
    REQUIRE(a.policy().guards(guarded));
    a.deallocate(s, guarded, 1000);
    CHECK(device.synchronize(s) == status::ok);
    const auto r = a.try_allocate(s, 4_MiB); // all of the limit, and unguarded
    REQUIRE(r);
    a.deallocate(s, *r, 4_MiB);
    void* const sync = a.allocate_sync(4_MiB, 256);
    a.deallocate_sync(sync, 4_MiB, 256);
}

TEST_CASE("release asks no stream that may be gone, and the range goes when the device was waited for",
          "[policy][unmapped_guard]") {
    sim::device device({.cost = sim::costs::zero()});
    guard_type pool(device, {.every = 1});
    const stream_handle s = device.create_stream();
    const stream_handle other = device.create_stream();
    void* const p = pool.allocate(s, 1000);
    pool.record_use(p, other);
    device.launch(other, std::chrono::milliseconds{5});
    device.destroy_stream(s);
    device.destroy_stream(other);
    pool.release(p);
    CHECK(pool.usage().pending != 0);
    CHECK(pool.trim(0) == device.allocation_granularity());
    CHECK(device.reserved() == 0);
    CHECK(device.violations() == std::vector<std::string>{});
}
