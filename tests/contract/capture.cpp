/// Contract: what happens while a graph is captured, on the same stream and on others.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

inline bool overlap(const void* p, std::size_t n, const void* q, std::size_t m) {
    return to_address(p) < to_address(q) + m && to_address(q) < to_address(p) + n;
}

} // namespace

POLICY_TEST_CASE("a capture survives all calls on other streams", "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle other = w.stream();
    const stream_handle third = w.stream();
    void* const before = w.pool().allocate(other, 3_MiB);
    void* const cached = w.pool().allocate(other, 3_MiB);
    w.pool().use(cached, third, milliseconds{1});
    w.pool().deallocate(other, cached, 3_MiB);
    w.device.advance(long_time);

    REQUIRE(w.device.begin_capture(captured) != 0);
    w.device.launch(captured, microseconds{10});
    for (const std::size_t n : {100_B, 3_MiB, 80_MiB}) {
        void* const p = w.pool().allocate(other, n);
        w.pool().use(p, third, microseconds{10});
        w.pool().deallocate(other, p, n);
        void* const q = w.pool().allocate_sync(n);
        w.pool().deallocate_sync(q, n);
        void* const r = w.pool().allocate(third, n);
        w.pool().release(r);
        w.name(default_stream);
        w.device.advance(microseconds{20});
    }
    w.pool().deallocate(other, before, 3_MiB);
    CHECK_FALSE(w.pool().try_allocate(other, 1_TiB));
    CHECK_FALSE(w.pool().owns(before));
    (void)w.pool().usage();
    (void)w.pool().snapshot();
    CHECK(w.pool().validate());
    w.pool().trim(0);
    CHECK(w.device.end_capture(captured));
    w.finish();
}

POLICY_TEST_CASE("an allocation on a capturing stream is the graph's own, or refused",
                 "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle other = w.stream();
    const std::uint64_t capture = w.device.begin_capture(captured);
    const usage_counters before = w.pool().usage();
    const allocate_result r = w.pool().try_allocate(captured, 2_MiB);
    if (w.traits.refuses_in_capture) {
        INFO(w.traits.refuses_in_capture.reason);
        REQUIRE_FALSE(r);
        CHECK(to_string(r.error().cause) == std::string("capture"));
        CHECK_THROWS_AS(w.pool().allocate(captured, 2_MiB), out_of_memory);
        CHECK(w.pool().usage().requested == before.requested);
        CHECK(w.pool().usage().allocated == before.allocated);
        CHECK(w.device.end_capture(captured));
        void* const p = w.pool().allocate(captured, 2_MiB); // and works again at once
        w.pool().deallocate(captured, p, 2_MiB);
    } else {
        REQUIRE(r);
        w.pool().use_own(*r, captured, microseconds{10});
        w.pool().deallocate(captured, *r, 2_MiB);
        void* const elsewhere = w.pool().allocate(other, 2_MiB);
        if (!w.traits.keeps_nothing) CHECK_FALSE(overlap(elsewhere, 2_MiB, *r, 2_MiB));
        CHECK(w.device.end_capture(captured));
        if (!w.traits.keeps_nothing) {
            // The graph may be launched at any time and write there: nobody else may have it.
            for (int i = 0; i < 3; ++i) {
                w.device.replay(capture, captured);
                void* const p = w.pool().allocate(captured, 2_MiB);
                CHECK_FALSE(overlap(p, 2_MiB, *r, 2_MiB));
                w.pool().use_own(p, captured, microseconds{10});
                w.pool().deallocate(captured, p, 2_MiB);
            }
            CHECK(w.pool().usage().captured >= 2_MiB);
        }
        w.pool().deallocate(other, elsewhere, 2_MiB);
        w.drain();
        w.release_captured(capture);
    }
    w.finish();
}

POLICY_TEST_CASE("what a graph writes stays its own between launches", "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle other = w.stream();
    const std::uint64_t capture = w.device.begin_capture(captured);
    const allocate_result r = w.pool().try_allocate(captured, 3_MiB);
    REQUIRE(r.has_value() == !w.traits.refuses_in_capture);
    if (r) w.pool().use_own(*r, captured, microseconds{10});
    CHECK(w.device.end_capture(captured));
    for (int launch = 0; launch < 10; ++launch) {
        if (launch % 3 != 2) w.device.replay(capture, captured);
        for (const stream_handle s : {other, captured}) {
            void* const p = w.pool().allocate(s, 3_MiB);
            w.pool().use_own(p, s, microseconds{10});
            if (r) CHECK_FALSE(overlap(p, 3_MiB, *r, 3_MiB));
            w.pool().deallocate(s, p, 3_MiB);
        }
        CHECK(w.device.synchronize(other) == status::ok);
        if (r) w.pool().use_own(*r, captured, microseconds{10}); // what the launch has written is still there
    }
    if (r) w.pool().deallocate(captured, *r, 3_MiB);
    w.drain();
    w.release_captured(capture);
    w.finish();
}

POLICY_TEST_CASE("a block freed on a capturing stream is handed to nobody during the capture",
                 "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle other = w.stream();
    void* const p = w.pool().allocate(captured, 3_MiB);
    w.pool().use_own(p, captured, milliseconds{1});
    const std::uint64_t capture = w.device.begin_capture(captured);
    w.pool().use_own(p, captured, microseconds{10});
    w.pool().deallocate(captured, p, 3_MiB);
    CHECK_FALSE(w.pool().owns(p));
    w.device.advance(long_time);
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) {
        blocks.push_back(w.pool().allocate(other, 3_MiB));
        CHECK_FALSE(overlap(blocks.back(), 3_MiB, p, 3_MiB));
    }
    CHECK(w.pool().validate());
    CHECK(disagreement(w.pool().snapshot(), w.pool().usage(), w.traits) == "");
    CHECK(w.device.end_capture(captured));
    for (void* b : blocks) w.pool().deallocate(other, b, 3_MiB);
    w.drain();
    w.release_captured(capture);
    w.finish();
}

POLICY_TEST_CASE(
    "a block that a capture uses and another stream frees is handed to nobody during the capture",
    "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle home = w.stream();
    void* const p = w.pool().allocate(home, 3_MiB);
    REQUIRE(w.device.synchronize(home) == status::ok);
    const std::uint64_t capture = w.device.begin_capture(captured);
    w.pool().use(p, captured, microseconds{10});
    w.pool().deallocate(home, p, 3_MiB);
    w.device.advance(long_time);
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) {
        blocks.push_back(w.pool().allocate(home, 3_MiB));
        CHECK_FALSE(overlap(blocks.back(), 3_MiB, p, 3_MiB));
    }
    CHECK(w.pool().validate());
    CHECK(w.device.end_capture(captured));
    for (void* b : blocks) w.pool().deallocate(home, b, 3_MiB);
    w.drain();
    w.release_captured(capture);
    w.finish();
}

POLICY_TEST_CASE("many frees in a capture are all made after it", "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 500; ++i) blocks.push_back(w.pool().allocate(captured, 50'000));
    const std::uint64_t capture = w.device.begin_capture(captured);
    for (void* b : blocks) w.pool().deallocate(captured, b, 50'000);
    CHECK(w.pool().usage().blocks.current == 0);
    CHECK(w.pool().usage().requested.current == 0);
    CHECK(w.pool().validate());
    CHECK(w.device.end_capture(captured));
    w.drain();
    w.release_captured(capture);
    w.finish();
}

POLICY_TEST_CASE("a capture that failed leaves nothing behind", "[contract][capture]") {
    // Scenario 30: begin, allocate 20 MiB, the capture fails, the graph is gone, empty the pool.
    policy_world w(subject);
    const stream_handle s = w.stream();
    const std::uint64_t capture = w.device.begin_capture(s);
    const allocate_result r = w.pool().try_allocate(s, 20_MiB);
    CHECK(w.device.synchronize(s) == status::capture_violation); // somebody spoils it
    CHECK_FALSE(w.device.end_capture(s));
    if (r) w.pool().deallocate(s, *r, 20_MiB);
    w.drain();
    w.release_captured(capture);
    w.finish();
}

POLICY_TEST_CASE("a pool may be destroyed with frees that still wait for a capture", "[contract][capture]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 1_MiB);
    REQUIRE(w.device.synchronize(s) == status::ok);
    REQUIRE(w.device.begin_capture(s) != 0);
    w.pool().deallocate(s, p, 1_MiB);
    CHECK(w.device.end_capture(s));
    misuse_log log;
    w.close();
    CHECK(log.take().empty());
}

POLICY_TEST_CASE("a use that was named in a capture counts for what the stream does after it",
                 "[contract][capture]") {
    policy_world w(subject);
    const stream_handle captured = w.stream();
    const stream_handle home = w.stream();
    const bool known = GENERATE(false, true); // whether the pool has met the stream before
    if (known) w.name(captured);
    void* const p = w.pool().allocate(home, 3_MiB);
    const std::uint64_t capture = w.device.begin_capture(captured);
    w.pool().use(p, captured, microseconds{10});
    CHECK(w.device.end_capture(captured));
    w.device.hold(captured, false); // not the graph: work of the stream itself
    w.pool().deallocate(home, p, 3_MiB);
    w.release_captured(capture);
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(w.pool().allocate(home, 3_MiB)); // watched: none too early
    w.device.finish(captured);
    for (void* b : blocks) w.pool().deallocate(home, b, 3_MiB);
    w.finish();
}

POLICY_TEST_CASE("a captured stream inherits nothing from the destroyed one whose handle it has",
                 "[contract][capture]") {
    policy_world w(subject);
    const stream_handle first = w.stream();
    void* const p = w.pool().allocate(first, 3_MiB);
    w.pool().use_own(p, first, milliseconds{1});
    w.pool().deallocate(first, p, 3_MiB);
    w.device.hold(first, false);
    w.destroy(first);
    const stream_handle second = w.stream();
    REQUIRE(second == first);
    void* const q = w.pool().allocate(default_stream, 3_MiB);
    REQUIRE(w.device.synchronize(default_stream) == status::ok);
    const std::uint64_t capture = w.device.begin_capture(second);
    w.pool().use(q, second, microseconds{10});
    if (const allocate_result r = w.pool().try_allocate(second, 3_MiB)) {
        if (!w.traits.keeps_nothing) CHECK_FALSE(overlap(*r, 3_MiB, p, 3_MiB));
        w.pool().use_own(*r, second, microseconds{10});
        w.pool().deallocate(second, *r, 3_MiB);
    }
    CHECK(w.device.end_capture(second));
    w.pool().deallocate(default_stream, q, 3_MiB);
    w.release_captured(capture);
    w.device.finish(second);
    w.finish();
}
