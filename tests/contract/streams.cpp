/// Contract: when freed memory serves again, and whom.
///
/// Whether a reuse was safe is judged by the device's overlap check, in stream order; the tests build the situations in
/// which a wrong policy would be caught.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

/// A device so small that a second block of `big` needs the memory of the first.
inline constexpr std::size_t big = 40_MiB;
inline sim::device_options small_device() {
    return {.capacity = 66_MiB, .cost = sim::costs::zero()};
}

bool overlap(const void* p, const void* q, std::size_t n) {
    const std::uint64_t a = to_address(p);
    const std::uint64_t b = to_address(q);
    return a < b + n && b < a + n;
}

} // namespace

POLICY_TEST_CASE("memory freed on a stream serves that stream at once, without growth or event",
                 "[contract][streams]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    w.device.hold(s); // nothing on this stream ever passes
    void* const first = w.pool().allocate(s, big);
    w.pool().deallocate(s, first, big);
    if (w.traits.keeps_nothing) {
        INFO(w.traits.keeps_nothing.reason);
        CHECK(w.pool().usage().pending >= big); // the device does not take it back while work runs
        w.device.finish(s);
    } else {
        const std::size_t reserved = w.device.reserved();
        const auto calls = w.device.call_counts();
        for (int i = 0; i < 100; ++i) {
            void* const p = w.pool().allocate(s, big);
            w.pool().use_own(p, s, microseconds{5});
            w.pool().deallocate(s, p, big);
        }
        CHECK(w.device.reserved() == reserved);
        const auto later = w.device.call_counts();
        for (const sim::call c :
             {sim::call::allocate, sim::call::deallocate, sim::call::query, sim::call::wait,
              sim::call::synchronize_event, sim::call::synchronize_stream, sim::call::trim_pool}) {
            CAPTURE(sim::to_string(c));
            CHECK(later[static_cast<std::size_t>(c)] == calls[static_cast<std::size_t>(c)]);
        }
        const auto events = static_cast<std::size_t>(sim::call::create_event);
        CHECK(later[events] - calls[events] <= 8);
        w.device.finish(s);
    }
    w.finish();
}

POLICY_TEST_CASE("small blocks of one stream reuse each other's memory without an event a free",
                 "[contract][streams]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    if (w.traits.keeps_nothing) {
        INFO(w.traits.keeps_nothing.reason);
        void* const p = w.pool().allocate(s, 4096);
        w.pool().deallocate(s, p, 4096);
        CHECK(w.device.reserved() == 0);
    } else {
        w.device.hold(s);
        void* const first = w.pool().allocate(s, 4096);
        w.pool().deallocate(s, first, 4096);
        const std::size_t reserved = w.device.reserved();
        const std::uint64_t records = w.device.calls(sim::call::record);
        for (int i = 0; i < 200; ++i) {
            void* const p = w.pool().allocate(s, 4096);
            w.pool().use_own(p, s, microseconds{5});
            w.pool().deallocate(s, p, 4096);
        }
        CHECK(w.device.reserved() == reserved);
        CHECK(w.device.calls(sim::call::record) - records <= 2);
        w.device.finish(s);
    }
    w.finish();
}

POLICY_TEST_CASE("memory freed on a stream serves others only after its work", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle busy = w.stream();
    const stream_handle other = w.stream();
    void* const p = w.pool().allocate(busy, big);
    w.device.hold(busy);
    w.pool().use_own(p, busy, microseconds{5});
    w.pool().deallocate(busy, p, big);

    const allocate_result early = w.pool().try_allocate(other, big);
    if (w.traits.makes_streams_wait) {
        INFO(w.traits.makes_streams_wait.reason);
        REQUIRE(early);
        w.pool().deallocate(other, *early, big);
    } else {
        REQUIRE_FALSE(early); // the only memory there is, is in use
        if (w.traits.does_not_know_pending) {
            INFO(w.traits.does_not_know_pending.reason);
            CHECK(early.error().cause != failure_cause::driver);
        } else {
            CHECK(to_string(early.error().cause) == std::string("stream_pending"));
            CHECK(early.error().pending >= big);
        }
    }
    CHECK(w.pool().validate());

    w.device.finish(busy);
    w.device.advance(long_time);
    w.name(busy); // the call on its stream after which the free is marked
    w.device.advance(long_time);
    const allocate_result late = w.pool().try_allocate(other, big);
    REQUIRE(late);
    w.pool().use_own(*late, other, microseconds{5});
    w.pool().deallocate(other, *late, big);
    w.finish();
}

POLICY_TEST_CASE("many streams share what each of them has freed", "[contract][streams]") {
    // Scenario 3: 16 new streams one after the other, each with 2 x 64 MiB, freed and passed.
    policy_world w(subject);
    for (int i = 0; i < 16; ++i) {
        const stream_handle s = w.stream();
        void* const a = w.pool().allocate(s, 64_MiB);
        void* const b = w.pool().allocate(s, 64_MiB);
        w.pool().use_own(a, s, microseconds{50});
        w.pool().use_own(b, s, microseconds{50});
        w.pool().deallocate(s, a, 64_MiB);
        w.pool().deallocate(s, b, 64_MiB);
        w.name(s);
        w.device.advance(long_time);
    }
    if (w.traits.does_not_share) {
        INFO(w.traits.does_not_share.reason);
        CHECK(w.pool().usage().reserved.peak >= 16 * 2 * 64_MiB);
    } else {
        CHECK(w.pool().usage().reserved.peak <= 4 * 64_MiB + 64_MiB);
    }
    w.finish();
}

POLICY_TEST_CASE("a recorded use holds a block back until that stream's work has passed",
                 "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle home = w.stream();
    const stream_handle user = w.stream();
    const stream_handle third = w.stream();
    void* const p = w.pool().allocate(home, big);
    w.device.hold(user);
    w.pool().use(p, user, microseconds{5});
    w.pool().deallocate(home, p, big);

    // Whoever gets the memory now, on whatever stream, must come after the work of `user`; the check sees to
    // that.
    for (const stream_handle s : {home, third, user}) {
        const allocate_result r = w.pool().try_allocate(s, big);
        if (!r) continue;
        w.pool().use_own(*r, s, microseconds{5});
        w.pool().deallocate(s, *r, big);
    }
    w.device.finish(user);
    w.drain();
    const allocate_result late = w.pool().try_allocate(home, big);
    REQUIRE(late);
    w.pool().deallocate(home, *late, big);
    w.finish();
}

POLICY_TEST_CASE("a recorded use protects work that is enqueued until the free", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle home = w.stream();
    const stream_handle user = w.stream();
    void* const p = w.pool().allocate(home, big);
    w.pool().record_use(p, user);
    for (int i = 0; i < 3; ++i)
        w.pool().use_own(p, user, milliseconds{10}); // after record_use, before the free
    w.pool().deallocate(home, p, big);
    const allocate_result r = w.pool().try_allocate(home, big);
    if (r) {
        w.pool().use_own(*r, home, microseconds{5});
        w.pool().deallocate(home, *r, big);
    }
    w.finish();
}

POLICY_TEST_CASE("a block used by many streams waits for all of them", "[contract][streams]") {
    policy_world w(subject);
    const stream_handle home = w.stream();
    std::vector<stream_handle> users;
    for (int i = 0; i < 12; ++i) users.push_back(w.stream());
    for (int round = 0; round < 4; ++round) {
        void* const p = w.pool().allocate(home, 4_MiB);
        for (std::size_t i = 0; i < users.size(); ++i)
            for (int twice = 0; twice < 2; ++twice) // the second record of a stream changes nothing
                w.pool().use(p, users[i], microseconds{10 * (1 + (i * 7) % users.size())});
        w.pool().deallocate(home, p, 4_MiB);
        CHECK(w.pool().validate());
        CHECK(disagreement(w.pool().snapshot(), w.pool().usage(), w.traits) == "");
        void* const q = w.pool().allocate(users[0], 4_MiB);
        w.pool().use_own(q, users[0], microseconds{5});
        w.pool().deallocate(users[0], q, 4_MiB);
        w.device.advance(microseconds{40});
    }
    w.finish();
}

POLICY_TEST_CASE("uses on another stream do not make the pool grow without end", "[contract][streams]") {
    // Scenario 7: 100 x {10 MiB on s0, used on s1, freed}, with s1 keeping up.
    policy_world w(subject);
    const stream_handle s0 = w.stream();
    const stream_handle s1 = w.stream();
    for (int i = 0; i < 100; ++i) {
        void* const p = w.pool().allocate(s0, 10_MiB);
        w.pool().use(p, s1, microseconds{20});
        w.pool().deallocate(s0, p, 10_MiB);
        w.device.advance(microseconds{30});
    }
    CHECK(w.pool().usage().reserved.peak <= 64_MiB);
    w.finish();
}

POLICY_TEST_CASE("a block may be freed on another stream than it was allocated on", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle first = w.stream();
    const stream_handle second = w.stream();
    void* const p = w.pool().allocate(first, big);
    w.pool().use_own(p, first, milliseconds{1});
    // The program itself puts `second` after `first`, as it must before it frees there.
    const result<event_handle, status> e = w.device.create_event();
    REQUIRE(e);
    REQUIRE(w.device.record(*e, first) == status::ok);
    REQUIRE(w.device.wait(second, *e) == status::ok);
    REQUIRE(w.device.destroy_event(*e) == status::ok);
    w.device.hold(second);
    w.pool().use_own(p, second, milliseconds{1});
    w.pool().deallocate(second, p, big);

    // The memory belongs to `second` now: the stream of the allocation has no claim to it.
    const allocate_result early = w.pool().try_allocate(first, big);
    if (w.traits.makes_streams_wait) {
        REQUIRE(early);
        w.pool().deallocate(first, *early, big);
    } else {
        if (early) CHECK_FALSE(overlap(*early, p, big));
        REQUIRE_FALSE(early);
    }
    w.device.finish(second);
    w.drain();
    const allocate_result late = w.pool().try_allocate(second, big);
    REQUIRE(late);
    w.pool().use_own(*late, second, milliseconds{1});
    w.pool().deallocate(second, *late, big);
    w.finish();
}

POLICY_TEST_CASE("the stream of the allocation may be recorded as a user", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle first = w.stream();
    const stream_handle second = w.stream();
    void* const p = w.pool().allocate(first, big);
    w.device.hold(first);
    w.pool().use(p, first, milliseconds{1});
    w.pool().deallocate(second, p, big); // in no order with `first` but by the recorded use
    for (const stream_handle s : {second, first}) {
        const allocate_result early = w.pool().try_allocate(s, big);
        if (!early) continue;
        w.pool().use_own(*early, s, milliseconds{1});
        w.pool().deallocate(s, *early, big);
    }
    w.device.finish(first);
    w.drain();
    const allocate_result late = w.pool().try_allocate(second, big);
    REQUIRE(late);
    w.pool().deallocate(second, *late, big);
    w.finish();
}

POLICY_TEST_CASE("release waits for the recorded uses of a block of allocate_sync", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle user = w.stream();
    const stream_handle other = w.stream();
    void* const p = w.pool().allocate_sync(big);
    w.device.hold(user);
    w.pool().use(p, user, milliseconds{1});
    w.pool().release(p);
    const allocate_result early = w.pool().try_allocate(other, big);
    if (early) {
        w.pool().use_own(*early, other, milliseconds{1});
        w.pool().deallocate(other, *early, big);
    }
    w.device.finish(user);
    w.drain();
    const allocate_result late = w.pool().try_allocate(other, big);
    REQUIRE(late);
    w.pool().deallocate(other, *late, big);
    w.finish();
}

POLICY_TEST_CASE("the handle of a destroyed stream inherits nothing", "[contract][streams]") {
    policy_world w(subject, small_device());
    for (int round = 0; round < 5; ++round) {
        const stream_handle s = w.stream();
        const allocate_result r = w.pool().try_allocate(s, big);
        REQUIRE(r);
        w.pool().use_own(*r, s, milliseconds{10});
        w.pool().deallocate(s, *r, big);
        w.destroy(s); // its work goes on
        const stream_handle same = w.stream();
        if (world_is_simulated) REQUIRE(same == s);
        const allocate_result early =
            w.pool().try_allocate(same, big); // must not be what the dead stream still uses
        if (early) {
            w.pool().use_own(*early, same, microseconds{1});
            w.pool().deallocate(same, *early, big);
        }
        w.drain();
        w.pool().trim(0);
        w.destroy(same);
    }
    w.finish();
}

POLICY_TEST_CASE("blocks outlive the stream they were allocated on", "[contract][streams]") {
    policy_world w(subject);
    const stream_handle old = w.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 10; ++i) {
        blocks.push_back(w.pool().allocate(old, 100'000));
        w.pool().use_own(blocks.back(), old, microseconds{10});
    }
    w.device.advance(long_time);
    REQUIRE(w.device.synchronize(old) == status::ok);
    w.destroy(old);
    const stream_handle young = w.stream();
    const stream_handle other = w.stream();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        const stream_handle s = i % 2 == 0 ? young : other;
        w.pool().use_own(blocks[i], s, microseconds{10});
        w.pool().deallocate(s, blocks[i], 100'000);
        void* const p = w.pool().allocate(young, 100'000);
        w.pool().use_own(p, young, microseconds{10});
        w.pool().deallocate(young, p, 100'000);
    }
    w.finish();
}

POLICY_TEST_CASE("a thousand short-lived streams leave nothing behind", "[contract][streams]") {
    policy_world w(subject);
    // Blocks large enough that every policy marks them: what is smaller may stay with a stream that died early.
    for (int i = 0; i < 1000; ++i) {
        const stream_handle s = w.stream();
        void* const p = w.pool().allocate(s, big);
        w.pool().use_own(p, s, microseconds{3});
        w.pool().deallocate(s, p, big);
        w.device.advance(microseconds{10});
        REQUIRE(w.device.synchronize(s) == status::ok);
        w.destroy(s);
    }
    if (!w.traits.does_not_share) CHECK(w.pool().usage().reserved.current <= 16 * big);
    CHECK(w.device.live_events() <= 512);
    w.finish();
}

POLICY_TEST_CASE("allocate_sync gives a block that every stream may use at once", "[contract][streams]") {
    policy_world w(subject);
    std::vector<stream_handle> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(w.stream());
    for (int round = 0; round < 8; ++round) {
        // Free memory of every kind lies about: in order with one stream only, behind running work, behind
        // uses.
        for (const stream_handle s : streams) {
            void* const p = w.pool().allocate(s, 3_MiB);
            w.pool().use_own(p, s, milliseconds{5});
            w.pool().use(p, streams[0], milliseconds{5});
            w.pool().deallocate(s, p, 3_MiB);
        }
        void* const d = w.pool().allocate(default_stream, 3_MiB);
        w.pool().use_own(d, default_stream, milliseconds{5});
        w.pool().deallocate(default_stream, d, 3_MiB);

        void* const p = w.pool().allocate_sync(3_MiB);
        for (const stream_handle s : streams) w.pool().use(p, s, milliseconds{1});
        if (round % 2 == 0) {
            for (const stream_handle s : streams) REQUIRE(w.device.synchronize(s) == status::ok);
            w.pool().deallocate_sync(p, 3_MiB);
        } else {
            w.pool().deallocate(streams[1], p, 3_MiB); // the others were recorded
        }
        CHECK(w.pool().validate());
    }
    w.finish();
}

POLICY_TEST_CASE("memory freed by deallocate_sync serves every stream at once", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle first = w.stream();
    const stream_handle second = w.stream();
    void* const p = w.pool().allocate(first, big);
    w.pool().use(p, second, milliseconds{1});
    w.device.advance(long_time);
    REQUIRE(w.device.synchronize(first) == status::ok);
    REQUIRE(w.device.synchronize(second) == status::ok);
    w.pool().deallocate_sync(p, big);
    const allocate_result r = w.pool().try_allocate(second, big);
    REQUIRE(r);
    w.pool().use_own(*r, second, milliseconds{1});
    w.pool().deallocate(second, *r, big);
    w.finish();
}

POLICY_TEST_CASE("release frees on the stream of the allocation", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle s = w.stream();
    const stream_handle other = w.stream();
    w.device.hold(s);
    void* const p = w.pool().allocate(s, big);
    w.pool().use_own(p, s, milliseconds{1});
    w.pool().release(p);
    const allocate_result early = w.pool().try_allocate(other, big);
    CHECK(early.has_value() == static_cast<bool>(w.traits.makes_streams_wait));
    if (early) w.pool().deallocate(other, *early, big);
    if (!w.traits.keeps_nothing) {
        const allocate_result same = w.pool().try_allocate(s, big);
        REQUIRE(same);
        w.pool().use_own(*same, s, milliseconds{1});
        w.pool().deallocate(s, *same, big);
    }
    w.device.finish(s);
    w.finish();
}

POLICY_TEST_CASE("a block released after its stream was destroyed and its work is over is free for all",
                 "[contract][streams]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 2_MiB);
    w.pool().use_own(p, s, milliseconds{1});
    w.device.advance(long_time);
    REQUIRE(w.device.synchronize(s) == status::ok);
    w.destroy(s);
    if (w.traits.release_needs_stream) {
        INFO(w.traits.release_needs_stream.reason);
        // Its handle names another stream, which is the case that can be recognised.
        const stream_handle again = w.stream();
        if (world_is_simulated) REQUIRE(again == s);
        if (again != s) {
            w.pool().deallocate_sync(p, 2_MiB);
            return w.finish();
        }
    }
    w.pool().release(p);
    CHECK_FALSE(w.pool().owns(p));
    CHECK(w.pool().validate());
    w.finish();
}

POLICY_TEST_CASE("the default stream is a stream like any other", "[contract][streams]") {
    policy_world w(subject, small_device());
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(default_stream, big);
    w.device.hold(default_stream);
    w.pool().use_own(p, default_stream, milliseconds{1});
    w.pool().deallocate(default_stream, p, big);
    const allocate_result early = w.pool().try_allocate(s, big);
    CHECK(early.has_value() == static_cast<bool>(w.traits.makes_streams_wait));
    if (early) w.pool().deallocate(s, *early, big);
    w.device.finish(default_stream);
    w.device.advance(long_time);
    const allocate_result r = w.pool().try_allocate(s, big);
    REQUIRE(r);
    w.pool().use_own(*r, s, milliseconds{1});
    w.pool().deallocate(s, *r, big);
    w.finish();
}
