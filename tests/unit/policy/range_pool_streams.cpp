/// `range_pool` and streams: who may have freed memory, and when.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/policy/slab_pool.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds long_time{100};
constexpr std::size_t large_device = 141_GiB;

template <class Pool>
struct world {
    explicit world(pool_options options = {}, std::size_t capacity = large_device)
        : device({.capacity = capacity, .cost = sim::costs::zero()})
        , bare(device, options)
        , pool(bare, device) {}

    /// All work is over, everything was freed: nothing may remain, and nothing was unsafe.
    void finish() {
        device.advance(long_time);
        pool.trim(0);
        CHECK(pool.validate());
        CHECK(pool.usage().requested.current == 0);
        CHECK(pool.usage().allocated.current == 0);
        CHECK(pool.usage().reserved.current == 0);
        CHECK(pool.usage().pending == 0);
        CHECK(pool.usage().captured == 0);
        CHECK(device.reserved() == 0);
        CHECK(pool.violations() == std::vector<std::string>{});
    }

    sim::device device;
    Pool bare;
    test::checked_resource<Pool> pool;
};

using best_fit_world = world<best_fit_pool<sim::device>>;

} // namespace

TEST_CASE("what one stream has freed, long ago, serves those that take settled memory alone",
          "[policy][range_pool][streams]") {
    // The device is full, the host hears nothing more of the stream that freed, and nothing can be given back: what is
    // to be had are the marks that the stream has left behind while it was alone.
    const std::string who = GENERATE("a request without a stream", "another stream", "a capture");
    INFO(who);
    best_fit_world w({.segment_bytes = 32_MiB}, 32_MiB);
    const stream_handle s = w.device.create_stream();
    const stream_handle other = w.device.create_stream();
    std::vector<void*> kept, freed;
    for (int i = 0; i < 8; ++i) {
        freed.push_back(w.pool.allocate(s, 3_MiB));
        kept.push_back(w.pool.allocate(s, 1_MiB));
    }
    for (void* const p : freed) w.pool.deallocate(s, p, 3_MiB);
    w.device.advance(long_time);
    CHECK(w.pool.usage().reserved.current == 32_MiB);

    if (who == "a request without a stream") {
        void* const p = w.pool.allocate_sync(2_MiB, default_alignment);
        w.pool.deallocate_sync(p, 2_MiB, default_alignment);
    } else if (who == "another stream") {
        const allocate_result r = w.pool.try_allocate(other, 2_MiB);
        REQUIRE(r);
        w.pool.deallocate(other, *r, 2_MiB);
    } else {
        const std::uint64_t capture = w.device.begin_capture(other);
        REQUIRE(capture != 0);
        const allocate_result r = w.pool.try_allocate(other, 2_MiB);
        REQUIRE(r);
        w.pool.deallocate(other, *r, 2_MiB);
        w.device.end_capture(other);
        w.bare.release_captured(capture);
    }
    CHECK(w.pool.usage().reserved.current == 32_MiB);
    for (void* const p : kept) w.pool.deallocate(s, p, 1_MiB);
    w.finish();
}

TEST_CASE("a lane that becomes idle is not given away under the request that asked for it",
          "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 2_MiB, .mark_bytes = no_limit});
    const stream_handle home = w.device.create_stream();
    const stream_handle user = w.device.create_stream();
    const stream_handle freeing = w.device.create_stream();
    void* const p = w.pool.allocate(home, 2_MiB);
    // 64 streams that hold no free memory: at the next new one their lanes are forgotten.
    std::vector<void*> small;
    std::vector<stream_handle> others;
    for (int i = 0; i < 63; ++i) {
        others.push_back(w.device.create_stream());
        small.push_back(w.pool.allocate(others.back(), 512));
    }
    w.device.launch(freeing, long_time);
    w.pool.use(p, user, 1us);
    w.pool.deallocate(freeing, p, 2_MiB); // waits for `user`; `freeing` has no lane yet
    w.device.advance(1ms);
    // Completes p, whose memory only `freeing` may have for now.
    void* const q = w.pool.allocate(others.back(), 2_MiB);
    CHECK(q != p);
    w.pool.deallocate(others.back(), q, 2_MiB);
    for (std::size_t i = 0; i < small.size(); ++i) w.pool.deallocate(others[i], small[i], 512);
    w.finish();
}

TEMPLATE_TEST_CASE("a request that fails takes no memory away from other streams",
                   "[policy][range_pool][streams]", best_fit_pool<sim::device>,
                   exact_best_fit_pool<sim::device>) {
    world<TestType> w({.segment_bytes = 64_MiB}, 64_MiB);
    const stream_handle greedy = w.device.create_stream();
    const stream_handle modest = w.device.create_stream();
    void* const b = w.pool.allocate(modest, 1_MiB);
    void* const a = w.pool.allocate(greedy, 1_MiB);
    void* const c = w.pool.allocate(modest, 32_MiB); // everything else is settled from here on
    w.pool.deallocate(modest, c, 32_MiB);
    w.device.launch(greedy, long_time);
    w.pool.deallocate(greedy, a, 1_MiB); // free memory beside settled memory
    CHECK_FALSE(w.pool.try_allocate(greedy, 1_GiB));
    CHECK_FALSE(w.pool.try_allocate(greedy, 64_MiB));
    const allocate_result d = w.pool.try_allocate(modest, 60_MiB);
    CHECK(d);
    if (d) w.pool.deallocate(modest, *d, 60_MiB);
    w.pool.deallocate(modest, b, 1_MiB);
    w.finish();
}

TEST_CASE("free neighbours that hold a request only together are merged for it",
          "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 64_MiB}, 64_MiB);
    const stream_handle s = w.device.create_stream();
    const stream_handle t = w.device.create_stream();
    void* const live = w.pool.allocate(t, 512);
    void* const a = w.pool.allocate(s, 30_MiB);
    void* const b = w.pool.allocate(s, 30_MiB);
    w.device.launch(s, 1s);
    w.pool.deallocate(s, a, 30_MiB);
    w.device.advance(2s); // a's mark has passed, b's never will before the request
    w.device.launch(s, long_time);
    w.pool.deallocate(s, b, 30_MiB);
    void* const c = w.pool.allocate(s, 60_MiB);
    w.pool.deallocate(s, c, 60_MiB);
    w.pool.deallocate(t, live, 512);
    w.finish();
}

TEST_CASE("record_use on the block's own stream counts when it is freed on another",
          "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 2_MiB});
    const stream_handle own = w.device.create_stream();
    const stream_handle other = w.device.create_stream();
    void* const p = w.pool.allocate(own, 2_MiB);
    w.pool.use(p, own, long_time);
    w.pool.deallocate(other, p, 2_MiB);
    CHECK(w.pool.usage().pending == 2_MiB);
    void* const q = w.pool.allocate(other, 2_MiB);
    CHECK(q != p);
    w.pool.deallocate(other, q, 2_MiB);
    w.finish();
}

TEST_CASE("record_use on the stream of the free costs nothing", "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 2_MiB, .mark_bytes = no_limit});
    const stream_handle own = w.device.create_stream();
    const stream_handle other = w.device.create_stream();
    void* const p = w.pool.allocate(own, 2_MiB);
    w.pool.use(p, own, 1ms);
    w.pool.deallocate(own, p, 2_MiB);
    void* const q = w.pool.allocate(own, 2_MiB);
    CHECK(q == p);
    w.device.synchronize(own) == status::ok ? w.pool.use(q, other, long_time) : void();
    w.pool.deallocate(other, q, 2_MiB);
    CHECK(w.pool.usage().pending == 0);
    CHECK(w.device.calls(sim::call::record) == 0);
    CHECK(w.pool.allocate(other, 2_MiB) == p);
    w.pool.deallocate(other, p, 2_MiB);
    w.finish();
}

TEST_CASE("release of a block for all streams waits for the uses that were recorded",
          "[policy][range_pool][streams]") {
    sim::device device({.cost = sim::costs::zero()});
    best_fit_pool<sim::device> pool(device, {.segment_bytes = 2_MiB});
    const stream_handle user = device.create_stream();
    void* const p = pool.allocate_sync(2_MiB, 256);
    pool.record_use(p, user);
    device.launch(user, long_time);
    pool.release(p);
    CHECK(pool.usage().pending == 2_MiB);
    void* const q = pool.allocate(default_stream, 2_MiB);
    CHECK(q != p);
    pool.release(q);
    device.advance(2 * long_time);
    pool.trim(0);
    CHECK(pool.usage().pending == 0);
    CHECK(device.reserved() == 0);
}

TEST_CASE("a host that frees knows the order even where the pool has lost it",
          "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 2_MiB});
    const stream_handle s = w.device.create_stream();
    const stream_handle t = w.device.create_stream();
    void* const p = w.pool.allocate(s, 2_MiB);
    w.device.fail_call(sim::call::describe, 1, status::failed);
    w.pool.record_use(p, t);
    REQUIRE(w.device.synchronize(s) == status::ok);
    w.pool.deallocate_sync(p, 2_MiB);
    CHECK(w.pool.allocate(t, 2_MiB) == p);
    w.pool.deallocate(t, p, 2_MiB);
    w.finish();
}

TEST_CASE("no size stands for any size", "[policy][range_pool][misuse]") {
    best_fit_world w;
    void* const p = w.pool.allocate(default_stream, 100);
    for (const std::size_t wrong :
         {std::size_t{0}, std::size_t{99}, std::numeric_limits<std::size_t>::max()}) {
        const deallocate_result r = w.pool.try_deallocate(default_stream, p, wrong);
        REQUIRE_FALSE(r);
        CHECK(r.error().kind == misuse_kind::size_mismatch);
        CHECK(r.error().bytes == wrong);
        CHECK(r.error().expected == 100);
    }
    w.pool.deallocate(default_stream, p, 100);
    w.finish();
}

TEMPLATE_TEST_CASE("one short-lived stream a request leaves little behind", "[policy][range_pool][streams]",
                   best_fit_pool<sim::device>, exact_best_fit_pool<sim::device>, buddy_pool<sim::device>) {
    // Scenario 37. Each stream dies with less freed than is marked at once; together it would be 400 MiB.
    world<TestType> w({.segment_bytes = 2_MiB});
    for (int i = 0; i < 4000; ++i) {
        const stream_handle s = w.device.create_stream();
        void* const p = w.pool.allocate(s, 100_KiB);
        w.pool.use_own(p, s, 1us);
        w.pool.deallocate(s, p, 100_KiB);
        w.device.destroy_stream(s);
        w.device.advance(1ms);
    }
    CHECK(w.pool.usage().reserved.peak <= 16_MiB);
    w.finish();
}

TEST_CASE("memory of destroyed streams is everybody's once the device has waited",
          "[policy][range_pool][streams]") {
    best_fit_world w({.segment_bytes = 2_MiB, .mark_bytes = no_limit}, 64_MiB);
    const stream_handle gone = w.device.create_stream();
    const stream_handle s = w.device.create_stream();
    void* const spare = w.pool.allocate(gone, 2_MiB);
    void* const large = w.pool.allocate(gone, 40_MiB);
    void* const live = w.pool.allocate(s, 22_MiB);
    w.pool.deallocate(gone, large, 40_MiB);
    void* const pin = w.pool.allocate(gone, 512); // the segment of 40 MiB cannot be given back
    w.pool.deallocate(gone, spare, 2_MiB);
    w.pool.use_own(pin, gone, 1ms);
    w.device.destroy_stream(gone);
    CHECK(w.pool.usage().reserved.current == 64_MiB);
    void* const p = w.pool.allocate(s, 30_MiB); // giving 2 MiB back has shown that all work is over
    w.pool.deallocate(s, p, 30_MiB);
    w.pool.deallocate_sync(pin, 512);
    w.pool.deallocate(s, live, 22_MiB);
    w.finish();
}
