/// \file
/// `caching_pool` and streams: who may reuse what and when, destroyed and recycled streams,
/// `cross_stream_reuse`, and graph captures. Always under the simulated device's overlap check.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace tenure;
using namespace std::chrono_literals;

namespace {

constexpr stream_handle s0 = default_stream;
constexpr std::size_t much = 1_GiB;

/// A pool on a device of its own, whose blocks the overlap check knows about. Checks at its end that nothing
/// went wrong and nothing is left.
struct fixture {
    explicit fixture(caching_options options = {}, std::size_t capacity = much)
        : dev({.capacity = capacity}), pool(std::in_place, dev, options) {}
    ~fixture() {
        CHECK(pool->validate());
        CHECK(pool->usage().requested.current == 0);
        pool.reset();
        const std::vector<std::string> violations = dev.violations();
        CAPTURE(violations);
        CHECK(violations.empty());
        CHECK(dev.reserved() == 0);
        CHECK(dev.live_events() == 0);
    }
    fixture(const fixture&) = delete;
    fixture& operator=(const fixture&) = delete;

    void* take(stream_handle s, std::size_t n) {
        void* p = pool->allocate(s, n);
        dev.block_allocated(p, n, s);
        return p;
    }
    void use(void* p, stream_handle s) {
        pool->record_use(p, s);
        dev.block_used(p, s);
    }
    void give(stream_handle s, void* p, std::size_t n) {
        dev.block_freed(p, s);
        pool->deallocate(s, p, n);
    }
    std::uint64_t events() const { return dev.calls(sim::call::record); }

    sim::device dev;
    std::optional<caching_pool<sim::device>> pool;
};

} // namespace

TEST_CASE("caching_pool: a block serves its own stream only, at once and without an event",
          "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    f.dev.launch(s1, 10ms);
    f.give(s1, a, 10_MiB);
    void* b = f.take(s1, 10_MiB);
    CHECK(b == a);
    f.give(s1, b, 10_MiB);
    f.dev.advance(20ms);
    void* c = f.take(s0, 10_MiB); // PyTorch's rule, even though s1 is idle
    CHECK(c != a);
    CHECK(f.dev.reserved() == 20_MiB);
    CHECK(f.events() == 0);
    f.give(s0, c, 10_MiB);
}

TEST_CASE("caching_pool: a block that another stream uses is reused when that work has passed",
          "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream(), s2 = f.dev.create_stream();
    void* a = f.take(s0, 10_MiB);
    f.use(a, s1);
    f.use(a, s1); // once is enough
    f.use(a, s2);
    f.use(a, s0); // its own: nothing
    f.dev.launch(s1, 10ms);
    f.dev.launch(s2, 20ms);
    f.give(s0, a, 10_MiB);
    CHECK(f.events() == 2);
    CHECK(f.pool->usage().pending == 10_MiB);
    CHECK(f.pool->usage().allocated.current == 10_MiB);
    CHECK(f.pool->usage().requested.current == 0);

    f.dev.advance(15ms);
    void* b = f.take(s0, 10_MiB); // s2 has not passed
    CHECK(b != a);
    f.dev.destroy_stream(s1); // events survive their streams
    f.dev.destroy_stream(s2);
    f.dev.advance(10ms);
    void* c = f.take(s0, 10_MiB);
    CHECK(c == a);
    CHECK(f.pool->usage().pending == 0);
    f.give(s0, b, 10_MiB);
    f.give(s0, c, 10_MiB);
}

TEST_CASE("caching_pool: freeing on another stream is a use of it there", "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream(), s2 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    f.dev.hold(s2);
    f.give(s2, a, 10_MiB);
    CHECK(f.pool->usage().pending == 10_MiB);
    void* b = f.take(s1, 10_MiB);
    CHECK(b != a);
    f.dev.finish(s2);
    void* c = f.take(s1, 10_MiB); // belongs to s1 still
    CHECK(c == a);
    f.give(s1, b, 10_MiB);
    f.give(s1, c, 10_MiB);
}

TEST_CASE("caching_pool: a new stream with a dead one's handle inherits nothing",
          "[policy][caching][streams]") {
    fixture f({}, 64_MiB);
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 30_MiB);
    f.dev.launch(s1, 50ms);
    f.give(s1, a, 30_MiB);
    f.dev.destroy_stream(s1);
    const stream_handle s2 = f.dev.create_stream();
    REQUIRE(s1 == s2); // the same handle
    void* b = f.take(s2, 30_MiB);
    CHECK(b != a);
    // The dead stream's memory is not lost: at the limit its segment goes back to the device.
    void* c = f.take(s2, 20_MiB);
    CHECK(f.dev.calls(sim::call::deallocate) == 1);
    f.give(s2, b, 30_MiB);
    f.give(s2, c, 20_MiB);

    SECTION("blocks outlive their stream") {
        void* d = f.take(s2, 1_MiB);
        f.dev.launch(s2, 50ms);
        f.dev.destroy_stream(s2);
        const stream_handle s3 = f.dev.create_stream();
        f.dev.advance(60ms); // the application knows that the work is over
        f.give(s3, d, 1_MiB);
        CHECK(f.pool->usage().pending == 1_MiB); // another stream's use, in spite of the handle
        void* e = f.take(s3, 1_MiB);
        CHECK(e != d);
        f.give(s3, e, 1_MiB);
    }
}

TEST_CASE("caching_pool: a use on a stream that died too early makes the block wait for the device",
          "[policy][caching][streams]") {
    sim::device dev({.capacity = 64_MiB});
    caching_pool<sim::device> pool(dev);
    const stream_handle s1 = dev.create_stream();
    void* a = pool.allocate(s0, 30_MiB);
    dev.launch(s1, 50ms);
    pool.record_use(a, s1);
    dev.destroy_stream(s1);
    (void)dev.create_stream(); // somebody has its handle now
    pool.deallocate(s0, a, 30_MiB);
    CHECK(dev.calls(sim::call::record) == 0);
    void* b = pool.allocate(s0, 30_MiB);
    CHECK(b != a); // nobody knows when the work on it ends
    CHECK(pool.usage().allocated.current == 30_MiB);
    void* c = pool.allocate(s0, 20_MiB); // giving the segment back waits for it
    CHECK(dev.now() >= 50ms);
    pool.deallocate(s0, b, 30_MiB);
    pool.deallocate(s0, c, 20_MiB);
    CHECK(pool.validate());
}

TEST_CASE("caching_pool: a driver that cannot say what a stream is costs no safety",
          "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    f.dev.hold(s1);
    f.dev.fail_call(sim::call::describe, 1, status::failed);
    f.give(s1, a, 10_MiB);
    CHECK(f.pool->usage().allocated.current == 0);
    void* b = f.take(s1, 10_MiB);
    CHECK(b != a);
    f.dev.fail_call(sim::call::describe, 1, status::failed);
    CHECK(f.pool->try_allocate(s1, 1).error().cause == failure_cause::driver);
    f.give(s1, b, 10_MiB);
    f.dev.finish(s1);
    f.pool->trim(0);
    CHECK(f.dev.reserved() == 0);
}

TEST_CASE("caching_pool: memory of allocate_sync is valid everywhere", "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    f.dev.hold(s1);
    f.give(s1, a, 10_MiB);
    const auto take_sync = [&] {
        void* p = f.pool->allocate_sync(10_MiB);
        f.dev.block_allocated_sync(p, 10_MiB);
        return p;
    };
    void* b = take_sync();
    CHECK(b != a);
    f.dev.block_freed_sync(b);
    f.pool->deallocate_sync(b, 10_MiB);
    void* c = take_sync(); // what was freed so may serve so again
    CHECK(c == b);
    f.give(s1, c, 10_MiB); // freed on a stream: after its work
    CHECK(f.pool->usage().pending == 10_MiB);
    void* d = take_sync();
    CHECK(d != c);
    f.dev.finish(s1);
    void* e = f.pool->allocate_sync(10_MiB);
    CHECK(e == c);
    f.pool->deallocate_sync(e, 10_MiB);
    f.dev.block_freed_sync(d);
    f.pool->release(d);
    CHECK(f.pool->usage().allocated.current == 0);
    CHECK(f.dev.synchronize(s1) == status::ok);

    SECTION("a block of a stream, all work on which is over") {
        void* x = f.take(s1, 3_MiB);
        f.dev.hold(s0);
        f.use(x, s0);
        f.dev.finish(s0);
        CHECK(f.dev.synchronize(s0) == status::ok);
        CHECK(f.dev.synchronize(s1) == status::ok);
        f.dev.block_freed_sync(x);
        f.pool->deallocate_sync(x, 3_MiB);
        CHECK(f.pool->usage().pending == 0);
        void* y = f.take(s1, 3_MiB);
        CHECK(y == x);
        f.give(s1, y, 3_MiB);
    }
}

TEST_CASE("caching_pool: release frees on the block's own stream, whatever its size",
          "[policy][caching][streams]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    f.dev.hold(s1);
    f.dev.block_freed(a, s1);
    f.pool->release(a);
    CHECK(f.take(s1, 10_MiB) == a);
    f.use(a, s0);
    f.dev.hold(s0);
    f.dev.block_freed(a, s1);
    f.pool->release(a); // and waits for others
    CHECK(f.pool->usage().pending == 10_MiB);
    f.dev.finish(s0);
    f.dev.finish(s1);
}

TEST_CASE("caching_pool: thousands of streams come and go", "[policy][caching][streams]") {
    fixture f({}, 64_MiB);
    for (int i = 0; i < 3000; ++i) {
        const stream_handle s = f.dev.create_stream();
        void* p = f.take(s, 1_MiB);
        f.dev.launch(s, 10us);
        f.give(s, p, 1_MiB);
        f.dev.destroy_stream(s);
    }
    CHECK(f.pool->validate());
}

TEST_CASE("caching_pool: cross_stream_reuse hands memory on once the first stream has passed",
          "[policy][caching][streams][options]") {
    fixture f({.cross_stream_reuse = true});
    const stream_handle s1 = f.dev.create_stream(), s2 = f.dev.create_stream();

    SECTION("from the default stream, which can be asked at any time") {
        void* a = f.take(s0, 10_MiB);
        f.dev.launch(s0, 10ms);
        f.give(s0, a, 10_MiB);
        void* b = f.take(s1, 10_MiB); // asked too early
        CHECK(b != a);
        CHECK(f.events() == 1);
        f.dev.advance(20ms);
        void* c = f.take(s1, 10_MiB);
        CHECK(c == a);
        CHECK(f.dev.reserved() == 20_MiB);
        f.give(s1, b, 10_MiB);
        f.give(s1, c, 10_MiB);
    }
    SECTION(
        "from another stream: little of it after that stream's next call, because it may be gone by now") {
        void* kept = f.take(s1, 1_MiB);
        void* a = f.take(s1, 900_KiB);
        const std::uint64_t before = f.events();
        f.dev.launch(s1, 10ms);
        f.give(s1, a, 900_KiB);
        f.dev.advance(20ms);
        void* b = f.take(s2, 900_KiB);
        CHECK(b != a);
        CHECK(f.dev.reserved() == 4_MiB);
        CHECK(f.events() - before == 1); // on s2, which has much
        void* x = f.take(s1, 2_MiB);
        void* c = f.take(s2, 950_KiB);
        void* d = f.take(s2, 900_KiB);
        CHECK((c == a || d == a));
        CHECK(f.dev.reserved() == 4_MiB + 20_MiB);
        f.give(s1, kept, 1_MiB);
        f.give(s1, x, 2_MiB);
        f.give(s2, b, 900_KiB);
        f.give(s2, c, 950_KiB);
        f.give(s2, d, 900_KiB);
    }
    SECTION("from another stream: much of it without further ado") {
        void* a = f.take(s1, 10_MiB);
        f.dev.launch(s1, 10ms);
        f.give(s1, a, 10_MiB);
        CHECK(f.events() == 1);
        f.dev.destroy_stream(s1);
        void* b = f.take(s2, 10_MiB);
        CHECK(b != a);
        f.dev.advance(20ms);
        void* c = f.take(s2, 10_MiB);
        CHECK(c == a);
        f.give(s2, b, 10_MiB);
        f.give(s2, c, 10_MiB);
    }
    SECTION("never to somebody while its work is under way, and the owner takes it back meanwhile") {
        void* a = f.take(s0, 10_MiB);
        void* b = f.take(s0, 10_MiB);
        f.dev.hold(s0);
        f.give(s0, a, 10_MiB);
        void* c = f.take(s1, 10_MiB); // marks a
        f.give(s0, b, 10_MiB);
        CHECK(f.take(s0, 10_MiB) == a); // from what is marked
        CHECK(f.take(s0, 10_MiB) == b);
        f.dev.finish(s0);
        f.give(s0, a, 10_MiB);
        f.give(s0, b, 10_MiB);
        f.give(s1, c, 10_MiB);
    }
    SECTION("sixteen streams in turn do not reserve sixteen times") {
        for (int i = 0; i < 16; ++i) {
            const stream_handle s = f.dev.create_stream();
            void* a = f.take(s, 64_MiB);
            f.give(s, a, 64_MiB);
            void* b = f.take(s, 64_MiB);
            f.dev.launch(s, 1ms);
            f.give(s, b, 64_MiB);
            f.dev.advance(2ms);
            void* other = f.take(s0, 64_MiB); // asks
            void* small = f.take(s, 512);     // is asked
            f.give(s, small, 512);
            f.give(s0, other, 64_MiB);
            f.dev.destroy_stream(s);
        }
        CHECK(f.dev.reserved_peak() <= 4 * 64_MiB + 32_MiB);
    }
}

TEST_CASE("caching_pool: what a capture allocated serves that capture only, until it is released",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream(), s2 = f.dev.create_stream();
    void* outside = f.take(s1, 10_MiB);
    f.give(s1, outside, 10_MiB);

    const std::uint64_t graph = f.dev.begin_capture(s1);
    const std::uint64_t before = f.dev.total_calls();
    void* a = f.take(s1, 10_MiB);
    CHECK(a != outside); // other work of s1 may still run when the graph does
    f.give(s1, a, 10_MiB);
    void* b = f.take(s1, 10_MiB); // the capture reuses its own
    CHECK(b == a);
    f.give(s1, b, 10_MiB);
    CHECK(f.dev.total_calls() - before == 4 + 1); // described each time, one segment bought
    CHECK(f.pool->usage().captured == 10_MiB);
    CHECK(f.pool->usage().allocated.current == 10_MiB);
    CHECK(f.pool->usage().requested.current == 0);
    REQUIRE(f.dev.end_capture(s1));

    void* c = f.take(s1, 10_MiB);
    void* d = f.take(s1, 10_MiB);
    CHECK(c == outside);
    CHECK(d != a);
    f.dev.replay(graph, s2); // writes to a
    CHECK(f.pool->trim(0) == 0);
    CHECK(f.dev.reserved() == 30_MiB);
    f.give(s1, c, 10_MiB);
    f.give(s1, d, 10_MiB);

    f.dev.advance(1s);
    CHECK(f.dev.synchronize(s2) == status::ok);
    f.pool->release_captured(graph);
    CHECK(f.pool->usage().captured == 0);
    CHECK(f.pool->validate());
    CHECK(f.pool->trim(0) == 30_MiB);
}

TEST_CASE("caching_pool: a block may outlive the capture that it was allocated in",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    const std::uint64_t graph = f.dev.begin_capture(s1);
    void* a = f.take(s1, 10_MiB);
    REQUIRE(f.dev.end_capture(s1));
    SECTION("freed before the release: waits for it") {
        f.give(s1, a, 10_MiB);
        CHECK(f.pool->usage().captured == 10_MiB);
        void* b = f.take(s1, 10_MiB);
        CHECK(b != a);
        f.give(s1, b, 10_MiB);
        f.pool->release_captured(graph);
    }
    SECTION("freed after the release: an ordinary block by then") {
        f.pool->release_captured(graph);
        f.give(s1, a, 10_MiB);
        CHECK(f.pool->usage().captured == 0);
        void* b = f.take(s1, 10_MiB);
        CHECK(b == a);
        f.give(s1, b, 10_MiB);
    }
    SECTION("freed on another stream") {
        const stream_handle s2 = f.dev.create_stream();
        f.dev.launch(s2, 1ms);
        f.give(s2, a, 10_MiB);
        f.dev.advance(2ms);
        f.pool->trim(0);
        CHECK(f.pool->usage().captured == 10_MiB);
        f.pool->release_captured(graph);
    }
    CHECK(f.pool->usage().captured == 0);
}

TEST_CASE("caching_pool: a block that a capture uses waits for that capture too",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    void* b = f.take(s0, 10_MiB);
    void* c = f.take(s0, 10_MiB);
    const std::uint64_t first = f.dev.begin_capture(s1);
    f.use(b, s1);
    const std::uint64_t before = f.dev.total_calls();
    f.give(s1, a, 10_MiB);                    // the capture's last use of it
    CHECK(f.dev.total_calls() - before == 1); // described; no event, no query
    f.use(c, s1);
    REQUIRE(f.dev.end_capture(s1));
    const std::uint64_t second = f.dev.begin_capture(s1);
    f.use(c, s1);
    REQUIRE(f.dev.end_capture(s1));
    f.give(s0, b, 10_MiB);
    f.give(s0, c, 10_MiB);
    CHECK(f.pool->usage().pending == 20_MiB); // what s1 holds after its captures counts, too
    CHECK(f.pool->validate());

    void* other = f.take(s0, 10_MiB);
    CHECK(f.pool->usage().captured == 30_MiB);
    CHECK((other != a && other != b && other != c));
    f.dev.replay(first, s0);
    f.dev.replay(second, s0);
    f.dev.synchronize(s0);
    f.pool->release_captured(first);
    CHECK(f.pool->usage().captured == 10_MiB); // c waits for the second
    CHECK(f.take(s0, 10_MiB) == b);
    CHECK(f.take(s1, 10_MiB) == a);
    f.pool->release_captured(second);
    CHECK(f.take(s0, 10_MiB) == c);
    for (void* p : {b, c, other}) f.give(s0, p, 10_MiB);
    f.give(s1, a, 10_MiB);
}

TEST_CASE("caching_pool: a free during a capture of a stream that used the block records nothing",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s0, 10_MiB);
    f.use(a, s1); // before the capture
    const std::uint64_t graph = f.dev.begin_capture(s1);
    f.give(s0, a, 10_MiB);
    CHECK(f.events() == 0);
    CHECK(f.pool->usage().captured == 10_MiB);
    REQUIRE(f.dev.end_capture(s1));
    f.pool->release_captured(graph);
}

TEST_CASE("caching_pool: release() on a stream that is capturing is no way around",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s1, 10_MiB);
    const std::uint64_t graph = f.dev.begin_capture(s1);
    void* b = f.take(s1, 512);
    f.dev.block_freed(a, s1);
    f.pool->release(a);
    CHECK(f.pool->usage().captured >= 10_MiB);
    f.give(s1, b, 512);
    f.pool->release_captured(0); // no capture: nothing
    CHECK(f.pool->usage().captured >= 10_MiB);
    REQUIRE(f.dev.end_capture(s1));
    void* c = f.take(s1, 10_MiB);
    CHECK(c != a);
    f.dev.block_freed(c, s1);
    f.pool->release(c); // the capture is over
    CHECK(f.take(s1, 10_MiB) == c);
    f.give(s1, c, 10_MiB);
    f.pool->release_captured(graph);
}

TEST_CASE("caching_pool: out of memory during a capture gives nothing back and keeps the capture valid",
          "[policy][caching][capture]") {
    fixture f({}, 64_MiB);
    const stream_handle s1 = f.dev.create_stream();
    void* a = f.take(s0, 40_MiB);
    f.give(s0, a, 40_MiB);
    const std::uint64_t graph = f.dev.begin_capture(s1);
    const auto r = f.pool->try_allocate(s1, 30_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::capture); // 40 MiB are free, but out of reach
    CHECK(f.dev.calls(sim::call::deallocate) == 0);
    void* b = f.take(s1, 3_MiB);
    f.give(s1, b, 3_MiB);
    REQUIRE(f.dev.end_capture(s1));
    f.pool->release_captured(graph);
    void* c = f.take(s1, 60_MiB);
    f.give(s1, c, 60_MiB);
}

TEST_CASE("scenario 30 (pytorch PR 190348): memory of a failed capture comes back",
          "[policy][caching][capture][scenario]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream();
    const std::uint64_t capture = f.dev.begin_capture(s1);
    void* a = f.take(s1, 20_MiB);
    (void)f.dev.synchronize(s1); // spoils the capture
    CHECK_FALSE(f.dev.end_capture(s1));
    f.give(s1, a, 20_MiB);
    CHECK(f.pool->trim(0) == 0);
    f.pool->release_captured(capture);
    CHECK(f.pool->trim(0) == 20_MiB);
    CHECK(f.dev.reserved() == 0);
}

TEST_CASE("caching_pool: many captures leave nothing behind", "[policy][caching][capture]") {
    fixture f;
    for (int i = 0; i < 300; ++i) {
        const stream_handle s1 = f.dev.create_stream();
        const std::uint64_t graph = f.dev.begin_capture(s1);
        void* a = f.take(s1, 5_MiB);
        void* b = f.take(s1, 1000);
        f.give(s1, a, 5_MiB);
        f.give(s1, b, 1000);
        REQUIRE(f.dev.end_capture(s1));
        f.dev.replay(graph, s0);
        f.dev.synchronize(s0);
        f.pool->release_captured(graph);
        f.dev.destroy_stream(s1);
        REQUIRE(f.pool->validate());
    }
    CHECK(f.dev.reserved() ==
          22_MiB);                // segments of a released capture serve the next one, on whatever stream
    void* c = f.take(s0, 20_MiB); // and everybody
    CHECK(f.dev.reserved() == 22_MiB);
    f.give(s0, c, 20_MiB);
}

TEST_CASE("caching_pool: a result that outlives its capture stays with its stream",
          "[policy][caching][capture]") {
    fixture f;
    const stream_handle s1 = f.dev.create_stream(), s2 = f.dev.create_stream();
    const std::uint64_t graph = f.dev.begin_capture(s1);
    void* a = f.take(s1, 5_MiB);
    REQUIRE(f.dev.end_capture(s1));
    f.dev.hold(s1);
    f.give(s1, a, 5_MiB); // used by work of s1 that is not the graph's
    f.pool->release_captured(graph);
    CHECK(f.pool->usage().captured == 0);
    void* b = f.take(s2, 5_MiB);
    CHECK(b != a);
    CHECK(f.take(s1, 5_MiB) == a);
    f.give(s1, a, 5_MiB);
    f.give(s2, b, 5_MiB);
    f.dev.finish(s1);
}
