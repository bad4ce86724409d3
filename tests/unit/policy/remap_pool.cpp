// What `remap_pool` promises beyond the contract: no driver calls in a loop, no refusal for fragmentation, and memory
// that goes back in whole handles.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/remap_pool.hpp>

#include <algorithm>
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

/// No slack: what is bought is what is missing.
constexpr remap_options exact{.least_handle_bytes = 8_MiB, .most_handle_bytes = 8_MiB, .slack_divisor = 0};

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
    for (int warm = 0; warm < 10; ++warm) step();
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
    for (std::size_t i = 0; i + 2 < 40; ++i) {
        w.give(p[i], 8_MiB);
        w.give(p[i + 2], 8_MiB);
        void* const q = w.take(16_MiB);
        CHECK(w.held() == 320_MiB);
        w.give(q, 16_MiB);
        p[i] = w.take(8_MiB);
        p[i + 2] = w.take(8_MiB);
    }
    // 38 views of two handles were made. Three stay; of the others 24 may wait for a proof that nobody uses them.
    CHECK(w.device.calls(sim::call::unmap) >= 2 * (38 - 3 - 24));
    CHECK(w.device.calls(sim::call::synchronize_device) == 1);
    CHECK(w.pool->validate());
    for (void* const x : p) w.give(x, 8_MiB);
    w.finish();
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
    world w(282_MiB, {.least_handle_bytes = handle, .most_handle_bytes = handle, .slack_divisor = 0});
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
