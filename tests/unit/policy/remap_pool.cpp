// What `remap_pool` promises beyond the contract: no driver calls in a loop, no refusal for fragmentation, and memory
// that goes back in whole handles.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using pool_type = remap_pool<sim::device>;

/// No slack, nothing ahead: what is bought is what is missing.
constexpr remap_options exact{.least_handle_bytes = 8_MiB,
                              .most_handle_bytes = 8_MiB,
                              .handles_per_request = 0,
                              .purchases_per_pool = 0,
                              .slack_divisor = 0,
                              .worth_showing_bytes = 4_MiB};

struct world {
    sim::device device;
    std::optional<pool_type> pool;
    test::checked_resource<pool_type> checked;

    explicit world(std::size_t capacity, remap_options options = exact)
        : device({.capacity = capacity, .cost = sim::costs::zero()})
        , pool(std::in_place, device, options)
        , checked(*pool, device) {}

    void* take(std::size_t bytes, stream_handle s = default_stream) { return checked.allocate(s, bytes); }
    void give(void* p, std::size_t bytes, stream_handle s = default_stream) {
        checked.deallocate(s, p, bytes);
    }
    [[nodiscard]] std::size_t held() const { return pool->usage().reserved.current; }
    void finish() {
        CHECK(checked.violations().empty());
        CHECK(pool->validate());
        pool->trim(0);
        CHECK(held() == 0);
        CHECK(device.reserved() == 0);
    }
};

} // namespace

TEST_CASE("a request that fits in the free bytes of whole handles never fails for fragmentation",
          "[policy][remap]") {
    world w(64_MiB);
    std::vector<void*> p;
    for (int i = 0; i < 8; ++i) p.push_back(w.take(8_MiB));
    CHECK(w.held() == 64_MiB);
    for (std::size_t i = 0; i < 8; i += 2) w.give(p[i], 8_MiB); // every second one
    void* const large = w.take(32_MiB);
    CHECK(w.held() == 64_MiB);
    w.give(large, 32_MiB);
    for (std::size_t i = 1; i < 8; i += 2) w.give(p[i], 8_MiB);
    w.finish();
}

TEST_CASE("the free ends of half used handles count, too", "[policy][remap]") {
    world w(40_MiB);
    void* const a = w.take(2_MiB);
    void* const b = w.take(6_MiB);
    void* const c = w.take(16_MiB);
    void* const d = w.take(10_MiB);
    void* const e = w.take(6_MiB);
    REQUIRE(w.held() == 40_MiB);
    w.give(b, 6_MiB);  // free: 2..8, the end of the first handle
    w.give(d, 10_MiB); // 24..34: a handle and the beginning of the next
    void* const all = w.take(16_MiB);
    CHECK(w.held() == 40_MiB);
    w.give(all, 16_MiB);
    for (const auto& [p, n] : {std::pair{a, 2_MiB}, {c, 16_MiB}, {e, 6_MiB}}) w.give(p, n);
    w.finish();
}

TEST_CASE("only what is missing is bought", "[policy][remap]") {
    world w(1_GiB);
    void* const a = w.take(8_MiB);
    void* const b = w.take(8_MiB);
    void* const c = w.take(8_MiB);
    w.give(a, 8_MiB);
    w.give(c, 8_MiB);
    CHECK(w.held() == 24_MiB);
    void* const d = w.take(20_MiB); // 16 are free, in two places
    CHECK(w.held() == 28_MiB);
    w.give(b, 8_MiB);
    w.give(d, 20_MiB);
    w.finish();
}

TEST_CASE("a loop whose sizes recur makes no driver call once it is warm", "[policy][remap]") {
    CAPTURE(test::seed());
    world w(2_GiB);
    const stream_handle s = w.device.create_stream();
    std::mt19937_64 rng(test::seed());
    std::vector<std::size_t> sizes;
    for (int i = 0; i < 60; ++i) sizes.push_back((std::size_t{1} << (rng() % 16)) * 512 * (1 + rng() % 7));
    const auto step = [&] {
        std::vector<std::pair<void*, std::size_t>> live;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            live.emplace_back(w.take(sizes[i], s), sizes[i]);
            if (i % 3 == 2) { // as layers do: what is freed early lies between what lives on
                const auto [p, n] = live[live.size() / 2];
                w.give(p, n, s);
                live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
            }
        }
        for (const auto& [p, n] : live) w.give(p, n, s);
    };
    // Most are warm after ten steps; one in some hundred shows a shape anew after sixty.
    for (int warm = 0; warm < 400; ++warm) step();
    const auto before = w.device.call_counts();
    for (int measured = 0; measured < 10; ++measured) step();
    auto made = w.device.call_counts();
    const auto of = [&](sim::call c) {
        const auto i = static_cast<std::size_t>(c);
        return made[i] - before[i];
    };
    for (const sim::call c : {sim::call::create_memory, sim::call::map, sim::call::set_access,
                              sim::call::unmap, sim::call::release_memory, sim::call::reserve_address,
                              sim::call::allocate, sim::call::deallocate, sim::call::synchronize_device}) {
        CAPTURE(to_string(c));
        CHECK(of(c) == 0);
    }
    w.finish();
}

TEST_CASE("a stream uses its own memory in a new view without waiting", "[policy][remap]") {
    world w(32_MiB);
    const stream_handle s = w.device.create_stream();
    std::vector<void*> p;
    for (int i = 0; i < 4; ++i) p.push_back(w.take(8_MiB, s));
    w.device.hold(s); // work that does not end
    w.give(p[0], 8_MiB, s);
    w.give(p[2], 8_MiB, s);
    void* const q = w.take(16_MiB, s); // over both, behind the work in the stream's order
    CHECK(w.device.calls(sim::call::synchronize_device) == 0);
    CHECK(w.device.calls(sim::call::unmap) == 0);
    w.device.finish(s);
    w.give(q, 16_MiB, s);
    w.give(p[1], 8_MiB, s);
    w.give(p[3], 8_MiB, s);
    w.finish();
}

TEST_CASE("another stream gets that memory when the work has passed, and is refused before",
          "[policy][remap]") {
    remap_options options = exact;
    options.release_on_oom = false;
    world w(32_MiB, options);
    const stream_handle s = w.device.create_stream();
    const stream_handle t = w.device.create_stream();
    std::vector<void*> p;
    for (int i = 0; i < 4; ++i) p.push_back(w.take(8_MiB, s));
    w.device.hold(s);
    w.give(p[0], 8_MiB, s);
    w.give(p[2], 8_MiB, s);
    const allocate_result refused = w.checked.try_allocate(t, 16_MiB);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().cause == failure_cause::stream_pending);
    w.device.finish(s);
    void* const q = w.take(16_MiB, t);
    w.give(q, 16_MiB, t);
    w.give(p[1], 8_MiB, s);
    w.give(p[3], 8_MiB, s);
    w.finish();
}

TEST_CASE("what goes back is unmapped everywhere, in whole handles", "[policy][remap]") {
    world w(64_MiB);
    std::vector<void*> p;
    for (int i = 0; i < 4; ++i) p.push_back(w.take(8_MiB));
    w.give(p[0], 8_MiB);
    w.give(p[2], 8_MiB);
    void* const q = w.take(16_MiB);
    w.give(q, 16_MiB);
    CHECK(w.pool->trim(0) == 16_MiB);
    CHECK(w.held() == 16_MiB);
    CHECK(w.device.reserved() == 16_MiB); // no mapping kept it
    CHECK(w.pool->validate());
    void* const again = w.take(16_MiB);
    CHECK(w.held() == 32_MiB);
    w.give(again, 16_MiB);
    w.give(p[1], 8_MiB);
    w.give(p[3], 8_MiB);
    w.finish();
}

TEST_CASE("views are bounded, and the oldest goes first", "[policy][remap]") {
    remap_options options = exact;
    options.max_views = 3;
    world w(512_MiB, options);
    // Ever new shapes, over handles that are never both free for long: each round two other ones are shown in a row.
    std::vector<void*> p;
    for (int i = 0; i < 40; ++i) p.push_back(w.take(8_MiB));
    for (const std::size_t apart : {20u, 21u})
        for (std::size_t i = 0; i + apart < 40; ++i) {
            w.give(p[i], 8_MiB);
            w.give(p[i + apart], 8_MiB);
            void* const q = w.take(16_MiB);
            CHECK(w.held() == 320_MiB);
            w.give(q, 16_MiB);
            p[i] = w.take(8_MiB);
            p[i + apart] = w.take(8_MiB);
        }
    // 39 views of two handles were made. Three stay; of the others 24 may wait for a proof that nobody uses them.
    CHECK(w.device.calls(sim::call::unmap) >= 2 * (39 - 3 - 24));
    CHECK(w.device.calls(sim::call::synchronize_device) == 1);
    CHECK(w.pool->validate());
    for (void* const x : p) w.give(x, 8_MiB);
    w.finish();
}

TEST_CASE("a view is made longer where that is less to show", "[policy][remap]") {
    world w(80_MiB);
    std::vector<void*> p;
    for (int i = 0; i < 10; ++i) p.push_back(w.take(8_MiB));
    for (const std::size_t i : {0u, 2u, 4u}) w.give(p[i], 8_MiB);
    void* const three = w.take(24_MiB);
    w.give(three, 24_MiB);
    w.give(p[6], 8_MiB);
    const auto maps = w.device.calls(sim::call::map);
    void* const four = w.take(32_MiB);
    CHECK(w.device.calls(sim::call::map) == maps + 1);
    CHECK(w.held() == 80_MiB);
    w.give(four, 32_MiB);
    void* const again = w.take(24_MiB); // the shorter request still fits there
    CHECK(w.device.calls(sim::call::map) == maps + 1);
    w.give(again, 24_MiB);
    CHECK(w.pool->trim(0) == 32_MiB); // out of the middle of the view
    CHECK(w.pool->validate());
    for (const std::size_t i : {1u, 3u, 5u, 7u, 8u, 9u}) w.give(p[i], 8_MiB);
    w.finish();
}

TEST_CASE("an aligned block costs its own bytes, in new memory and in a view", "[policy][remap]") {
    world w(88_MiB);
    void* const first = w.take(8_MiB);
    const allocate_result p = w.checked.try_allocate(default_stream, 16_MiB, 64_MiB);
    REQUIRE(p);
    CHECK(to_address(*p) % 64_MiB == 0);
    CHECK(w.held() == 24_MiB);
    std::vector<void*> rest;
    for (int i = 0; i < 8; ++i) rest.push_back(w.take(8_MiB));
    CHECK(w.held() == 88_MiB);
    w.give(rest[1], 8_MiB);
    w.give(rest[3], 8_MiB);
    const allocate_result q = w.checked.try_allocate(default_stream, 16_MiB, 1_GiB);
    REQUIRE(q);
    CHECK(to_address(*q) % 1_GiB == 0);
    w.checked.deallocate(default_stream, *q, 16_MiB, 1_GiB);
    w.checked.deallocate(default_stream, *p, 16_MiB, 64_MiB);
    w.give(first, 8_MiB);
    for (const std::size_t i : {0u, 2u, 4u, 5u, 6u, 7u}) w.give(rest[i], 8_MiB);
    w.finish();
}

TEST_CASE("what is more than the device has is refused without buying any of it", "[policy][remap]") {
    world w(512_MiB, remap_options{});
    void* const p = w.take(100_MiB);
    const std::size_t held = w.held();
    const auto released = w.device.calls(sim::call::release_memory);
    const auto created = w.device.calls(sim::call::create_memory);
    CHECK_FALSE(w.checked.try_allocate(default_stream, 500_MiB));
    CHECK(w.held() == held);
    CHECK(w.device.calls(sim::call::release_memory) == released);
    CHECK(w.device.calls(sim::call::create_memory) - created <= 4); // tries, each for all of what is missing
    w.give(p, 100_MiB);
    w.finish();
}

TEST_CASE("more than is missing is bought for what comes next, but not at a limit", "[policy][remap]") {
    world w(32_MiB, remap_options{});
    void* const a = w.take(2_MiB);
    CHECK(w.held() == remap_options{}.least_purchase_bytes);
    void* const b = w.take(6_MiB);
    CHECK(w.held() == remap_options{}.least_purchase_bytes);
    void* const c = w.take(20_MiB);
    void* const d = w.take(4_MiB); // only 4 MiB are left
    CHECK(w.held() == 32_MiB);
    for (const auto& [p, n] : {std::pair{a, 2_MiB}, {b, 6_MiB}, {c, 20_MiB}, {d, 4_MiB}}) w.give(p, n);
    w.finish();
}

TEST_CASE("a window that is nearly full does not fail a request that the device grants", "[policy][remap]") {
    world w(100_GiB);
    std::vector<void*> p;
    for (int i = 0; i < 63; ++i) p.push_back(w.take(1_GiB)); // of the 64 GiB that a window has
    void* const rest = w.take(1_GiB - 20_MiB);
    w.give(w.take(10_MiB), 10_MiB);
    void* const q = w.take(40_MiB); // 10 MiB are free, 10 are left of the window
    w.give(q, 40_MiB);
    w.give(rest, 1_GiB - 20_MiB);
    for (void* const x : p) w.give(x, 1_GiB);
    w.finish();
}

TEST_CASE("rounds of growth and trim use no more addresses with time", "[policy][remap]") {
    remap_options options = exact;
    options.max_views = 3;
    world w(1_GiB, options);
    w.give(w.take(8_MiB), 8_MiB);
    void* const low = w.take(1_MiB);
    void* const high = w.take(14_MiB);
    w.give(high, 14_MiB);
    void* const end = w.take(1_MiB);
    void* const last = w.take(8_MiB);
    w.give(end, 1_MiB); // low has a free end of 7 MiB behind it, which is not the pool's end
    for (int i = 0; i < 200; ++i) {
        void* const q = w.take(20_MiB); // over that end and what is bought behind it
        w.give(q, 20_MiB);
        w.pool->trim(0);
    }
    CHECK(w.device.calls(sim::call::reserve_address) - w.device.calls(sim::call::free_address) < 50);
    w.give(low, 1_MiB);
    w.give(last, 8_MiB);
    w.finish();
    CHECK(w.device.calls(sim::call::reserve_address) == w.device.calls(sim::call::free_address));
}

TEST_CASE("a purchase that cannot be taken back is nothing lost", "[policy][remap]") {
    using sim::call;
    for (const call first : {call::create_memory, call::map, call::set_access})
        for (const call second : {call::unmap, call::release_memory, call::free_address})
            for (std::uint64_t k = 1; k <= 7; ++k) {
                CAPTURE(to_string(first), to_string(second), k);
                test::misuse_log log;
                world w(200_MiB);
                void* const x = w.take(8_MiB);
                void* const y = w.take(3_MiB);
                w.give(x, 8_MiB);
                w.device.fail_call(first, k, status::out_of_memory);
                w.device.fail_call(second, 1, status::failed, 2);
                const allocate_result failing = w.checked.try_allocate(default_stream, 60_MiB);
                w.device.clear_faults();
                CHECK(w.pool->validate());
                CHECK(w.held() == w.device.reserved());
                void* const z = w.take(60_MiB);
                CHECK(w.pool->validate());
                if (failing) w.give(*failing, 60_MiB);
                w.give(z, 60_MiB);
                w.give(y, 3_MiB);
                w.finish();
                w.pool.reset();
                CHECK(log.take().empty());
            }
}

TEST_CASE("what could not be taken back is in nobody's way", "[policy][remap]") {
    // With the default options more is asked for than is missing, and then less: the second purchase must not go behind
    // a mapping that the first has left.
    using sim::call;
    for (const std::uint64_t refusals : {1u, 2u, 3u}) {
        CAPTURE(refusals);
        world w(1_GiB, {});
        void* const first = w.take(7_MiB);
        w.device.fail_call(call::set_access, 1, status::out_of_memory);
        w.device.fail_call(call::unmap, 1, status::failed, refusals);
        const allocate_result second = w.checked.try_allocate(default_stream, 3_MiB);
        w.device.clear_faults();
        CHECK(w.pool->validate());
        std::vector<void*> more;
        for (int i = 0; i < 40; ++i) { // all that there is, and some to be bought
            more.push_back(w.take(3_MiB));
            w.checked.use_own(more.back(), default_stream, std::chrono::microseconds(1));
        }
        w.pool->trim(0); // asks once more about what was stuck
        for (void* const p : more) {
            w.checked.use_own(p, default_stream, std::chrono::microseconds(1));
            w.give(p, 3_MiB);
        }
        if (second) w.give(*second, 3_MiB);
        w.give(first, 7_MiB);
        w.finish();
    }
}

TEST_CASE("requests that are refused use no addresses, and do not change where the pool grows",
          "[policy][remap]") {
    using sim::call;
    world w(64_MiB);
    void* const first = w.take(8_MiB);
    const auto addresses = [&] {
        return w.device.calls(call::reserve_address) - w.device.calls(call::free_address);
    };
    w.give(w.take(4_MiB), 4_MiB); // the free end of the newest home
    const auto before = addresses();
    for (int i = 0; i < 1000; ++i) CHECK_FALSE(w.checked.try_allocate(default_stream, 1_GiB, 1_GiB));
    CHECK(addresses() == before);
    for (int i = 0; i < 10; ++i) CHECK_FALSE(w.checked.try_allocate(default_stream, 1_TiB));
    CHECK(addresses() == before);
    void* const b = w.take(8_MiB);
    CHECK(w.held() == 16_MiB);
    w.give(b, 8_MiB);
    w.give(first, 8_MiB);
    w.finish();
}

TEST_CASE("an aligned request after one that was refused buys what fits it", "[policy][remap]") {
    world w(1_GiB);
    REQUIRE(
        w.device.reserve_address(2_MiB, 0)); // so that the next addresses are multiples of no more than this
    w.device.fail_call(sim::call::create_memory, 1, status::out_of_memory);
    w.device.fail_call(sim::call::free_address, 1, status::failed); // the empty window stays
    CHECK_FALSE(w.checked.try_allocate(default_stream, 2_MiB));
    w.device.clear_faults();
    const allocate_result p = w.checked.try_allocate(default_stream, 16_MiB, 16_MiB);
    REQUIRE(p);
    w.checked.use_own(*p, default_stream, std::chrono::microseconds(1));
    w.give(*p, 16_MiB);
    w.finish();
}

TEST_CASE("a limit that once refused does not decide how large handles are", "[policy][remap]") {
    sim::device d({.capacity = 141_GiB, .cost = sim::costs::zero()});
    arena<remap_pool, sim::device> a(d, {.name = "a", .max = 64_GiB});
    void* const p = a.allocate(default_stream, 64_GiB);
    CHECK_FALSE(a.try_allocate(default_stream, 1_GiB));
    a.deallocate(default_stream, p, 64_GiB);
    a.trim(0);
    const auto before = d.calls(sim::call::create_memory);
    void* const q = a.allocate(default_stream, 16_GiB);
    CHECK(d.calls(sim::call::create_memory) - before >= 16); // and none larger than a GiB
    a.deallocate(default_stream, q, 16_GiB);
    // What the limit does not leave is asked for at once.
    const auto refused = d.calls(sim::call::create_memory);
    void* const half = a.allocate(default_stream, 32_GiB);
    const auto bought = d.calls(sim::call::create_memory);
    CHECK(bought > refused);
    CHECK_FALSE(a.try_allocate(default_stream, 60_GiB));
    CHECK(d.calls(sim::call::create_memory) == bought);
    a.deallocate(default_stream, half, 32_GiB);
}

TEST_CASE("a limit is asked for the room that it leaves, not for what it has refused", "[policy][remap]") {
    // The thread's last refusal is of a time at which the meter was full, and nobody has forgotten it.
    sim::device d({.capacity = 141_GiB, .cost = sim::costs::zero()});
    meter account("a", 64_GiB);
    metered<sim::device> paid(d, account);
    remap_pool<metered<sim::device>> pool(paid);
    void* const p = pool.allocate(default_stream, 64_GiB);
    CHECK_FALSE(pool.try_allocate(default_stream, 1_GiB));
    pool.deallocate(default_stream, p, 64_GiB);
    pool.trim(0);
    REQUIRE(account.last_refusal());
    const auto before = d.calls(sim::call::create_memory);
    void* const q = pool.allocate(default_stream, 16_GiB);
    CHECK(d.calls(sim::call::create_memory) - before >= 16); // and none larger than a GiB
    pool.deallocate(default_stream, q, 16_GiB);
}

TEST_CASE("options that mean nothing are refused", "[policy][remap]") {
    sim::device d;
    CHECK_THROWS_AS(pool_type(d, remap_options{.handles_per_pool = 0}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(d, remap_options{.least_handle_bytes = 0}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(d, remap_options{.small_handle_bytes = 0}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(d, remap_options{.small_handle_bytes = 3_MiB}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(d, remap_options{.max_views = 0}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(d, remap_options{.least_handle_bytes = 8_MiB, .most_handle_bytes = 2_MiB}),
                    std::invalid_argument);
}

TEST_CASE("whatever is refused at a limit did not fit in whole free handles", "[policy][remap]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    constexpr std::size_t handle = 2_MiB;
    remap_options options = exact;
    options.least_handle_bytes = options.most_handle_bytes = handle;
    world w(282_MiB, options);
    // Homes of 2 MiB begin at multiples of it, so what is free of them can be read from the picture.
    const auto whole_bytes = [&] {
        std::size_t whole = 0;
        for (const segment_snapshot& s : w.pool->snapshot().segments)
            for (const block_snapshot& b : s.blocks)
                if (b.state == block_state::free)
                    whole += round_down(b.address + b.size, handle) -
                             std::min(round_up(b.address, handle), round_down(b.address + b.size, handle));
        return whole + round_down(282_MiB - w.held(), handle);
    };
    std::vector<std::pair<void*, std::size_t>> live;
    std::size_t refused = 0;
    for (int i = 0; i < 20000; ++i) {
        const std::size_t n = (std::size_t{1} << (9 + rng() % 16)) + (rng() % 64) * 512;
        if (rng() % 5 < 3) {
            if (const allocate_result p = w.checked.try_allocate(default_stream, n)) {
                live.emplace_back(*p, n);
            } else {
                ++refused;
                CAPTURE(n, w.pool->snapshot().segments.size());
                CHECK(whole_bytes() < n);
            }
        } else if (!live.empty()) {
            std::swap(live[rng() % live.size()], live.back());
            w.give(live.back().first, live.back().second);
            live.pop_back();
        }
    }
    CHECK(refused > 100);
    CHECK(w.pool->validate());
    for (const auto& [p, n] : live) w.give(p, n);
    w.finish();
}
