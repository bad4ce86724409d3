/// Contract: what a failing allocation says, and that it changes nothing.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

inline sim::device_options device_of(std::size_t capacity) {
    return {.capacity = capacity, .cost = sim::costs::zero()};
}

/// The live blocks that a snapshot shows: address to size.
inline std::map<std::uint64_t, std::size_t> blocks_shown(const memory_snapshot& picture) {
    std::map<std::uint64_t, std::size_t> blocks;
    for (const segment_snapshot& s : picture.segments)
        for (const block_snapshot& b : s.blocks)
            if (b.state == block_state::allocated) blocks.emplace(b.address, b.size);
    return blocks;
}

} // namespace

POLICY_TEST_CASE("an allocation larger than the device fails with what is known", "[contract][oom]") {
    policy_world w(subject, device_of(256_MiB));
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 1_MiB);
    const allocate_result r = w.pool().try_allocate(s, 300_MiB + 1);
    REQUIRE_FALSE(r);
    const allocation_failure& f = r.error();
    CHECK(to_string(f.cause) == std::string("device"));
    CHECK(to_string(f.driver_status) == std::string("out_of_memory"));
    CHECK(f.requested == 300_MiB + 1);
    CHECK(f.rounded >= f.requested);
    CHECK(f.max == 256_MiB);
    CHECK(f.pending == 0);
    CHECK(f.text().rfind("out of memory", 0) == 0);
    CHECK(w.pool().usage().failures == 1);
    CHECK_THROWS_AS(w.pool().allocate(s, 300_MiB), out_of_memory);
    CHECK_THROWS_AS(w.pool().allocate_sync(300_MiB), out_of_memory);
    CHECK(w.pool().usage().failures == 3);
    w.pool().deallocate(s, p, 1_MiB);
    w.finish();
}

POLICY_TEST_CASE("a failing allocation changes nothing", "[contract][oom]") {
    policy_world w(subject, device_of(256_MiB));
    const stream_handle s = w.stream();
    const stream_handle other = w.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 6; ++i) blocks.push_back(w.pool().allocate(i % 2 == 0 ? s : other, 30_MiB));
    w.pool().deallocate(other, blocks.back(), 30_MiB);
    blocks.pop_back();
    const usage_counters before = w.pool().usage();
    const auto live_before = blocks_shown(w.pool().snapshot());

    for (const std::size_t n : {200_MiB, 255_MiB, 256_MiB, 10_GiB}) {
        CAPTURE(n);
        for (const stream_handle on : {s, other, default_stream}) CHECK_FALSE(w.pool().try_allocate(on, n));
        CHECK_FALSE(w.pool().try_allocate(s, 1000, 384));
        const usage_counters after = w.pool().usage();
        CHECK(after.requested == before.requested);
        CHECK(after.allocated.current == before.allocated.current);
        CHECK(after.allocated.peak == before.allocated.peak);
        CHECK(after.blocks == before.blocks);
        if (w.traits.grows_when_refused) {
            INFO(w.traits.grows_when_refused.reason);
            CHECK(after.reserved.peak <= 256_MiB);
        } else {
            CHECK(after.reserved.peak == before.reserved.peak);
            CHECK(after.reserved.current <=
                  before.reserved.current); // caches may have gone back to the device
        }
        CHECK(blocks_shown(w.pool().snapshot()) == live_before);
        CHECK(disagreement(w.pool().snapshot(), after, w.traits) == "");
        CHECK(w.pool().validate());
    }
    // And nothing is broken: what fits still works.
    void* const p = w.pool().allocate(s, 1_MiB);
    w.pool().deallocate(s, p, 1_MiB);
    w.free_all();
    w.finish();
}

POLICY_TEST_CASE("a full device gives memory again as soon as some is freed", "[contract][oom]") {
    policy_world w(subject, device_of(512_MiB));
    const stream_handle s = w.stream();
    std::vector<void*> blocks;
    for (;;) {
        const allocate_result r = w.pool().try_allocate(s, 16_MiB);
        if (!r) break;
        blocks.push_back(*r);
        REQUIRE(blocks.size() <= 32);
    }
    CHECK(blocks.size() >= 16);
    CHECK(w.device.reserved() <= 512_MiB);
    for (int i = 0; i < 20; ++i) {
        w.pool().deallocate(s, blocks.back(), 16_MiB);
        blocks.back() = w.pool().allocate(s, 16_MiB);
        CHECK_FALSE(w.pool().try_allocate(s, 400_MiB));
    }
    w.free_all();
    w.finish();
}

POLICY_TEST_CASE("cached memory of other sizes does not stand in the way", "[contract][oom]") {
    // Scenario 6: cap 80, 60 MiB freed, then 70 MiB. (The device here is a little larger, for rounding to
    // segments.)
    policy_world w(subject, device_of(128_MiB));
    const stream_handle s = w.stream();
    void* const a = w.pool().allocate(s, 60_MiB);
    w.pool().deallocate(s, a, 60_MiB);
    REQUIRE(w.device.synchronize(s) == status::ok);
    const allocate_result r = w.pool().try_allocate(s, 95_MiB);
    REQUIRE(r);
    w.pool().deallocate(s, *r, 95_MiB);
    w.finish();
}

POLICY_TEST_CASE("sizes that change from round to round do not grow the pool without bound",
                 "[contract][oom]") {
    // Scenario 25: sizes 1..700 with interleaved lifetimes on a device a few times as large as what lives.
    policy_world w(subject, device_of(1_GiB));
    const stream_handle s = w.stream();
    std::vector<std::pair<void*, std::size_t>> live;
    std::size_t state = 1;
    for (int i = 0; i < 3000; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const std::size_t n = (1 + (state >> 33) % 700) * 16_KiB;
        const allocate_result r = w.pool().try_allocate(s, n);
        REQUIRE(r);
        live.emplace_back(*r, n);
        if (live.size() > 20) {
            const std::size_t which = (state >> 20) % live.size();
            w.pool().deallocate(s, live[which].first, live[which].second);
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        }
    }
    for (const auto& [p, n] : live) w.pool().deallocate(s, p, n);
    w.finish();
}

POLICY_TEST_CASE("a failure names the largest free block and what is pending", "[contract][oom]") {
    policy_world w(subject, device_of(256_MiB));
    const stream_handle s = w.stream();
    const stream_handle busy = w.stream();
    void* const a = w.pool().allocate(s, 32_MiB);
    void* const b = w.pool().allocate(busy, 64_MiB);
    void* const pin = w.pool().allocate(s, 64_MiB);
    w.device.hold(busy);
    w.pool().deallocate(s, a, 32_MiB);
    w.pool().deallocate(busy, b, 64_MiB);
    const allocate_result r = w.pool().try_allocate(s, 250_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().largest_free <= r.error().free_bytes);
    if (w.traits.does_not_know_largest_free) {
        INFO(w.traits.does_not_know_largest_free.reason);
        CHECK(r.error().largest_free == 0);
    }
    if (!w.traits.does_not_know_pending) CHECK(r.error().pending >= 64_MiB);
    CHECK(r.error().text().find("largest free block") != std::string::npos);
    w.device.finish(busy);
    w.drain();
    w.pool().deallocate(s, pin, 64_MiB);
    w.finish();
}
