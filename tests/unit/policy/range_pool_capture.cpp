/// `range_pool` and captured graphs: what a graph may replay into is nobody else's until `release_captured`.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds long_time{100};

struct graph_world {
    graph_world()
        : device({.cost = sim::costs::zero()}), bare(device, {.segment_bytes = 2_MiB}), pool(bare, device) {}

    /// Checks: nothing is left when nobody holds anything any more.
    void finish() {
        device.advance(long_time);
        pool.trim(0);
        CHECK(pool.validate());
        CHECK(pool.usage().allocated.current == 0);
        CHECK(pool.usage().captured == 0);
        CHECK(pool.usage().pending == 0);
        CHECK(device.reserved() == 0);
        CHECK(pool.violations() == std::vector<std::string>{});
    }

    sim::device device;
    best_fit_pool<sim::device> bare;
    test::checked_resource<best_fit_pool<sim::device>> pool;
    const stream_handle s = device.create_stream();
    const stream_handle t = device.create_stream();
    const stream_handle u = device.create_stream();
};

} // namespace

TEST_CASE("a block of a capture that is released before the block is freed is an ordinary block",
          "[policy][range_pool][capture]") {
    graph_world w;
    const std::uint64_t capture = w.device.begin_capture(w.s);
    void* const p = w.pool.allocate(w.s, 2_MiB);
    REQUIRE(w.device.end_capture(w.s));
    w.bare.release_captured(capture);
    w.pool.deallocate(w.s, p, 2_MiB);
    CHECK(w.pool.usage().captured == 0);
    CHECK(w.pool.allocate(w.s, 2_MiB) == p);
    w.pool.deallocate(w.s, p, 2_MiB);
    w.finish();
}

TEST_CASE("a pending block of a capture that is released meanwhile becomes free when its uses have passed",
          "[policy][range_pool][capture]") {
    graph_world w;
    const std::uint64_t capture = w.device.begin_capture(w.s);
    void* const p = w.pool.allocate(w.s, 2_MiB);
    REQUIRE(w.device.end_capture(w.s));
    w.pool.use(p, w.t, 1ms);
    w.pool.deallocate(w.s, p, 2_MiB);
    CHECK(w.pool.usage().pending == 2_MiB);
    w.bare.release_captured(capture);
    w.device.advance(1s);
    void* const q = w.pool.allocate(w.s, 2_MiB);
    CHECK(q == p);
    w.pool.deallocate(w.s, q, 2_MiB);
    w.finish();
}

TEST_CASE("releasing a capture does not end the work outside of it", "[policy][range_pool][capture]") {
    graph_world w;
    const std::uint64_t capture = w.device.begin_capture(w.s);
    void* const p = w.pool.allocate(w.s, 2_MiB);
    REQUIRE(w.device.end_capture(w.s));
    w.device.replay(capture, w.t);
    REQUIRE(w.device.synchronize(w.t) == status::ok);
    w.pool.use_own(p, w.t, long_time); // reads the graph's output, in order after it
    w.pool.deallocate(w.t, p, 2_MiB);
    CHECK(w.pool.usage().captured == 2_MiB);
    w.bare.release_captured(capture);
    void* const q = w.pool.allocate(w.u, 2_MiB);
    CHECK(q != p);
    w.pool.deallocate(w.u, q, 2_MiB);
    w.finish();
}

TEST_CASE("a block used in a capture stays the graph's after the capture, wherever it is freed",
          "[policy][range_pool][capture]") {
    graph_world w;
    void* const p = w.pool.allocate(w.t, 2_MiB);
    REQUIRE(w.device.synchronize(w.t) == status::ok);
    const std::uint64_t capture = w.device.begin_capture(w.s);
    w.pool.use(p, w.s, 1us);
    REQUIRE(w.device.end_capture(w.s));
    SECTION("on a stream") {
        w.pool.deallocate(w.t, p, 2_MiB);
    }
    SECTION("on the stream of its allocation") {
        w.pool.release(p);
    }
    SECTION("by the host") {
        w.pool.deallocate_sync(p, 2_MiB);
    }
    w.device.advance(1s);
    void* const q = w.pool.allocate(w.t, 2_MiB);
    CHECK(q != p);
    REQUIRE(w.device.synchronize(w.t) == status::ok); // the graph is launched after all that came before
    w.device.replay(capture, w.s);
    w.pool.deallocate(w.t, q, 2_MiB);
    w.device.advance(1s);
    w.bare.release_captured(capture);
    w.finish();
}

TEST_CASE("a block freed on a capturing stream stays the graph's after the capture",
          "[policy][range_pool][capture]") {
    graph_world w;
    void* const p = w.pool.allocate(w.s, 2_MiB);
    const std::uint64_t capture = w.device.begin_capture(w.s);
    w.pool.use_own(p, w.s, 1us);
    w.pool.deallocate(w.s, p, 2_MiB);
    REQUIRE(w.device.end_capture(w.s));
    void* const q = w.pool.allocate(w.s, 2_MiB);
    CHECK(q != p);
    w.device.replay(capture, w.s);
    w.pool.deallocate(w.s, q, 2_MiB);
    w.device.advance(1s);
    w.bare.release_captured(capture);
    w.finish();
}

TEST_CASE("a capture takes again what it has freed on the same stream, and nothing that others in it used",
          "[policy][range_pool][capture]") {
    graph_world w;
    const std::uint64_t capture = w.device.begin_capture(w.s);
    const result<event_handle, status> fork = w.device.create_event();
    REQUIRE(fork);
    REQUIRE(w.device.record(*fork, w.s) == status::ok);
    REQUIRE(w.device.wait(w.t, *fork) == status::ok); // t is in the capture too
    void* const p = w.pool.allocate(w.s, 2_MiB);
    w.pool.use_own(p, w.s, 1us);
    w.pool.deallocate(w.s, p, 2_MiB);
    CHECK(w.pool.allocate(w.s, 2_MiB) == p);
    w.pool.use(p, w.t, 1us); // a branch that s does not wait for
    w.pool.deallocate(w.s, p, 2_MiB);
    void* const q = w.pool.allocate(w.s, 2_MiB);
    CHECK(q != p);
    w.pool.deallocate(w.s, q, 2_MiB);
    REQUIRE(w.device.record(*fork, w.t) == status::ok);
    REQUIRE(w.device.wait(w.s, *fork) == status::ok);
    REQUIRE(w.device.end_capture(w.s));
    REQUIRE(w.device.destroy_event(*fork) == status::ok);
    w.device.replay(capture, w.s);
    w.device.advance(1s);
    REQUIRE(w.device.synchronize(w.s) == status::ok);
    w.bare.release_captured(capture);
    w.finish();
}

TEST_CASE("a block that two captures use waits for both", "[policy][range_pool][capture]") {
    graph_world w;
    void* const p = w.pool.allocate(w.u, 2_MiB);
    REQUIRE(w.device.synchronize(w.u) == status::ok);
    const std::uint64_t first = w.device.begin_capture(w.s);
    w.pool.use(p, w.s, 1us);
    REQUIRE(w.device.end_capture(w.s));
    const std::uint64_t second = w.device.begin_capture(w.t);
    w.pool.use(p, w.t, 1us);
    REQUIRE(w.device.end_capture(w.t));
    w.pool.deallocate(w.u, p, 2_MiB);
    w.device.advance(1s);
    CHECK(w.pool.usage().allocated.current == 2_MiB);
    const bool first_goes_first = GENERATE(true, false);
    w.bare.release_captured(first_goes_first ? first : second);
    w.pool.trim(0);
    CHECK(w.pool.usage().captured == 2_MiB);
    REQUIRE(w.device.synchronize(w.u) == status::ok);
    w.device.replay(first_goes_first ? second : first, w.s);
    w.device.advance(1s);
    REQUIRE(w.device.synchronize(w.s) == status::ok);
    w.bare.release_captured(first_goes_first ? second : first);
    CHECK(w.pool.usage().captured == 0);
    w.finish();
}

TEST_CASE("an arena passes the release of a capture on to its policy", "[tenancy][arena][capture]") {
    sim::device device;
    arena<best_fit_pool, sim::device> a(device);
    const stream_handle s = device.create_stream();
    const std::uint64_t capture = device.begin_capture(s);
    void* const p = a.allocate(s, 1_MiB);
    a.deallocate(s, p, 1_MiB);
    REQUIRE(device.end_capture(s));
    CHECK(a.usage().captured == 1_MiB);
    a.release_captured(capture);
    a.trim(0);
    CHECK(a.limits().charged == 0);
}
