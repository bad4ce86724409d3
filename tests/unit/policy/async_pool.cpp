// What async_pool adds to the driver's pool, call by call. The contract that it shares with every policy is tested in
// tests/contract.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/async_pool.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

using namespace tenure;
using namespace std::chrono_literals;
using sim::call;

namespace {

using pool_type = async_pool<sim::device>;

struct world {
    sim::device device{{.cost = sim::costs::zero()}};
    stream_handle s = device.create_stream();
    stream_handle other = device.create_stream();
};

std::uint64_t made(const sim::device& d, call c, const std::array<std::uint64_t, sim::call_kinds>& before) {
    return d.calls(c) - before[static_cast<std::size_t>(c)];
}

} // namespace

TEST_CASE("async_pool makes one pool, at construction", "[policy][async]") {
    world w;
    {
        pool_type pool(w.device);
        CHECK(w.device.calls(call::create_pool) == 1);
        CHECK(w.device.live_pools() == 1);
        void* const p = pool.allocate(w.s, 1000);
        pool.deallocate(w.s, p, 1000);
        CHECK(w.device.calls(call::create_pool) == 1);
    }
    CHECK(w.device.live_pools() == 0);
    w.device.fail_call(call::create_pool, 1, status::not_supported);
    CHECK_THROWS_AS(pool_type(w.device), driver_error);
    CHECK(w.device.live_pools() == 0);
}

TEST_CASE("async_pool asks for the stream and the driver's pool, and nothing else", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    void* p = pool.allocate(w.s, 1000);
    pool.deallocate(w.s, p, 1000);
    const auto before = w.device.call_counts();
    const std::uint64_t total = w.device.total_calls();
    for (int i = 0; i < 100; ++i) {
        p = pool.allocate(w.s, 1000);
        pool.deallocate(w.s, p, 1000);
    }
    CHECK(made(w.device, call::allocate_from, before) == 100);
    CHECK(made(w.device, call::deallocate_to, before) == 100);
    CHECK(w.device.total_calls() - total == 400); // and `describe` on each path

    const std::uint64_t now = w.device.total_calls();
    p = pool.allocate(default_stream, 1000);
    pool.deallocate(default_stream, p, 1000);
    CHECK(w.device.total_calls() - now == 2); // the default stream has one identity
}

TEST_CASE("async_pool orders a recorded use by one event, without a host wait", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    void* const p = pool.allocate(w.s, 1_MiB);
    const auto before = w.device.call_counts();
    pool.record_use(p, w.other);
    pool.record_use(p, w.other);
    CHECK(w.device.call_counts() == before);
    w.device.hold(w.other);
    pool.deallocate(w.s, p, 1_MiB);
    CHECK(made(w.device, call::record, before) == 1);
    CHECK(made(w.device, call::wait, before) == 1);
    CHECK(made(w.device, call::deallocate_to, before) == 1);
    CHECK(made(w.device, call::synchronize_event, before) +
              made(w.device, call::synchronize_stream, before) ==
          0);
    CHECK(pool.usage().pending == 0);
    w.device.finish(w.other);
}

TEST_CASE("async_pool gives a free in a capture to the driver at the stream's first call after it",
          "[policy][async]") {
    world w;
    pool_type pool(w.device);
    void* const p = pool.allocate(w.s, 1_MiB);
    REQUIRE(w.device.begin_capture(w.s) != 0);
    const auto before = w.device.call_counts();
    pool.deallocate(w.s, p, 1_MiB);
    CHECK(made(w.device, call::deallocate_to, before) == 0);
    CHECK(made(w.device, call::record, before) == 0);
    CHECK(pool.usage().pending == 1_MiB);
    CHECK(pool.usage().requested.current == 0);

    void* q = pool.allocate(w.other, 1_MiB); // another stream's calls neither help nor ask
    pool.deallocate(w.other, q, 1_MiB);
    CHECK(pool.usage().pending == 1_MiB);
    CHECK_FALSE(pool.try_allocate(w.s, 1_MiB));
    REQUIRE(w.device.end_capture(w.s));

    q = pool.allocate(w.s, 1_MiB);
    CHECK(q != p);
    pool.deallocate(w.s, q, 1_MiB);
    CHECK(pool.usage().pending == 0);
    CHECK(pool.usage().allocated.current == 0);
    CHECK(w.device.violations().empty());
}

TEST_CASE("async_pool goes on with a waiting free only when its marks have passed", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    void* const p = pool.allocate(w.s, 1_MiB);
    pool.record_use(p, w.other);
    w.device.hold(w.s);
    REQUIRE(w.device.begin_capture(w.other) != 0);
    pool.deallocate(w.s, p, 1_MiB); // `s` is marked now, `other` when it is named after its capture
    REQUIRE(w.device.end_capture(w.other));
    pool.deallocate(w.other, pool.allocate(w.other, 100), 100);
    CHECK(pool.usage().pending == 1_MiB);
    pool.trim(no_limit);
    CHECK(pool.usage().pending == 1_MiB);
    w.device.finish(w.s);
    pool.trim(no_limit);
    CHECK(pool.usage().pending == 0);
    CHECK(pool.validate());
}

TEST_CASE("async_pool trims and asks once more before it fails", "[policy][async]") {
    // Scenario 25: free memory in the wrong shape goes back to the device.
    sim::device device{{.capacity = 128_MiB, .cost = sim::costs::zero()}};
    const stream_handle s = device.create_stream();
    pool_type pool(device);
    std::array<void*, 4> blocks{};
    for (void*& p : blocks) p = pool.allocate(s, 32_MiB);
    for (void* p : blocks) pool.deallocate(s, p, 32_MiB);
    REQUIRE(device.synchronize(s) == status::ok);
    void* const p = pool.allocate(s, 100_MiB);
    CHECK(device.calls(call::trim_pool) == 1);
    CHECK(pool.usage().failures == 0);
    CHECK(pool.usage().reserved.peak == 128_MiB);

    CHECK_FALSE(pool.try_allocate(s, 100_MiB));
    CHECK(device.calls(call::trim_pool) == 2);
    CHECK(pool.usage().failures == 1);
    pool.deallocate(s, p, 100_MiB);
}

TEST_CASE("async_pool keeps its memory when the host synchronises", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    pool.deallocate(w.s, pool.allocate(w.s, 100_MiB), 100_MiB);
    REQUIRE(w.device.synchronize(w.s) == status::ok);
    CHECK(w.device.reserved() == 128_MiB);
    CHECK(pool.usage().reserved.current == 128_MiB);
    CHECK(pool.usage().segments.current == 4);
    CHECK(pool.trim(0) == 128_MiB);
    CHECK(w.device.reserved() == 0);
}

TEST_CASE("async_pool hands the driver's own limit on", "[policy][async]") {
    world w;
    pool_type pool(w.device, {.max_bytes = 64_MiB});
    void* const p = pool.allocate(w.s, 60_MiB);
    const allocate_result r = pool.try_allocate(w.s, 10_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    pool.deallocate(w.s, p, 60_MiB);
}

TEST_CASE("async_pool finds a large alignment inside a larger block", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    void* const first = pool.allocate(w.s, 512);
    void* const p = pool.allocate(w.s, 1000, 64_KiB);
    CHECK(to_address(p) % 64_KiB == 0);
    CHECK(pool.usage().allocated.current == 512 + 1024 + 64_KiB - 512);
    {
        test::misuse_log log;
        CHECK_FALSE(pool.try_deallocate(w.s, to_pointer(to_address(p) - 512), 1000));
        CHECK(log.size() == 0);
    }
    pool.deallocate(w.s, p, 1000, 64_KiB);
    pool.deallocate(w.s, first, 512);
    CHECK(pool.usage().allocated.current == 0);
}

TEST_CASE("async_pool: a wait that could never end fails and leaves nothing", "[policy][async]") {
    world w;
    pool_type pool(w.device);
    w.device.hold(default_stream);
    CHECK_THROWS_AS(pool.allocate_sync(1000), driver_error);
    CHECK(pool.usage().requested == gauge{});
    CHECK(pool.usage().blocks == gauge{});
    w.device.finish(default_stream);
    void* const p = pool.allocate_sync(1000);
    pool.deallocate_sync(p, 1000);
    CHECK(pool.validate());
}

TEST_CASE("an async pool says what it cannot have at construction, and reuses as it is told",
          "[policy][async]") {
    sim::device d({.cost = sim::costs::zero()});
    try {
        const async_pool<sim::device> pool(d, {.peers = 2});
        CHECK(false);
    } catch (const driver_error& e) {
        CHECK(e.code() == status::not_supported);
        CHECK(std::string(e.what()).find("peers") != std::string::npos);
    }
    CHECK(d.live_pools() == 0);

    async_pool<sim::device> pool(d, {.reuse_follows_events = false, .reuse_when_passed = false});
    const stream_handle s = d.create_stream();
    const stream_handle t = d.create_stream();
    void* const p = pool.allocate(s, 32_MiB);
    pool.deallocate(s, p, 32_MiB);
    d.advance(std::chrono::seconds{1});
    void* const q = pool.allocate(t, 32_MiB); // not p's memory, though nothing runs any more
    CHECK(pool.usage().reserved.current == 64_MiB);
    void* const again = pool.allocate(s, 32_MiB);
    CHECK(again == p);
    pool.deallocate(s, again, 32_MiB);
    pool.deallocate(t, q, 32_MiB);
}
