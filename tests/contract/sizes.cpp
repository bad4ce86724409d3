/// Contract: which sizes and alignments are served, and which are refused.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace tenure;
using namespace tenure::test;

POLICY_TEST_CASE("zero bytes are null and charge nothing", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    const usage_counters before = w.pool().usage();
    CHECK(w.pool().allocate(s, 0) == nullptr);
    CHECK(w.pool().allocate_sync(0) == nullptr);
    const allocate_result r = w.pool().try_allocate(s, 0, max_alignment);
    REQUIRE(r);
    CHECK(*r == nullptr);
    CHECK(w.pool().usage() == before);
    w.finish();
}

POLICY_TEST_CASE("freeing null does nothing", "[contract][sizes]") {
    policy_world w(subject);
    misuse_log log;
    const stream_handle s = w.stream();
    const usage_counters before = w.pool().usage();
    w.pool().deallocate(s, nullptr, 0);
    w.pool().deallocate(s, nullptr, 100);
    w.pool().deallocate_sync(nullptr, 100);
    w.pool().release(nullptr);
    w.pool().record_use(nullptr, s);
    CHECK(w.pool().try_deallocate(s, nullptr, 100));
    CHECK_FALSE(w.pool().owns(nullptr));
    CHECK(log.take().empty());
    CHECK(w.pool().usage() == before);
    w.finish();
}

POLICY_TEST_CASE("every size is served, from one byte to more than 4 GiB", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    std::vector<std::size_t> sizes;
    for (unsigned power = 0; power <= 32; ++power)
        for (const std::size_t n :
             {(std::size_t{1} << power) - 1, std::size_t{1} << power, (std::size_t{1} << power) + 1})
            if (n != 0) sizes.push_back(n);
    sizes.push_back(9_GiB + 12345);
    for (const std::size_t n : sizes) {
        CAPTURE(n);
        void* const p = w.pool().allocate(s, n);
        REQUIRE(p != nullptr);
        CHECK(w.pool().owns(p));
        const usage_counters u = w.pool().usage();
        CHECK(u.requested.current == n);
        CHECK(u.allocated.current >= n);
        CHECK(u.reserved.current >= u.allocated.current);
        CHECK(w.pool().validate());
        w.pool().deallocate(s, p, n);
        CHECK_FALSE(w.pool().owns(p));
    }
    w.finish();
}

POLICY_TEST_CASE("a block smaller and one larger than 4 GiB live side by side", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    std::vector<std::size_t> sizes{4_GiB - 1, 5_GiB, 1, 4_GiB + 1, 17_GiB, 512};
    std::vector<void*> blocks;
    for (const std::size_t n : sizes) blocks.push_back(w.pool().allocate(s, n));
    CHECK(w.pool().validate());
    CHECK(disagreement(w.pool().snapshot(), w.pool().usage(), w.traits) == "");
    for (std::size_t i = 0; i < sizes.size(); ++i) w.pool().deallocate(s, blocks[i], sizes[i]);
    w.finish();
}

POLICY_TEST_CASE("every alignment is honoured, from one byte to 1 GiB", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    struct request {
        std::size_t n;
        std::size_t a;
        void* p;
    };
    std::vector<request> live;
    for (std::size_t a = 1; a <= max_alignment; a *= 2)
        for (const std::size_t n : {std::size_t{1}, std::size_t{3000}, std::size_t{3_MiB + 1}}) {
            CAPTURE(n, a);
            void* const p = w.pool().allocate(s, n, a);
            REQUIRE(p != nullptr);
            CHECK(is_aligned(to_address(p), a));
            live.push_back({n, a, p});
            if (a < 64_MiB) continue;
            w.pool().deallocate(s, p, n, a);
            live.pop_back();
        }
    CHECK(w.pool().validate());
    CHECK(disagreement(w.pool().snapshot(), w.pool().usage(), w.traits, 64_GiB) == "");
    for (const request& r : live) {
        CHECK(w.pool().owns(r.p));
        w.pool().deallocate(s, r.p, r.n, r.a);
    }
    w.finish();
}

POLICY_TEST_CASE("blocks say nothing of alignment and get what cudaMalloc gives", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 64; ++i) {
        blocks.push_back(w.pool().allocate(s, 1 + static_cast<std::size_t>(i) * 7));
        CHECK(is_aligned(to_address(blocks.back()), default_alignment));
    }
    for (int i = 0; i < 64; ++i)
        w.pool().deallocate(s, blocks[static_cast<std::size_t>(i)], 1 + static_cast<std::size_t>(i) * 7);
    w.finish();
}

POLICY_TEST_CASE("an alignment that is no power of two, or too large, is refused", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const kept = w.pool().allocate(s, 1000);
    const usage_counters before = w.pool().usage();
    for (const std::size_t a :
         {std::size_t{0}, std::size_t{3}, std::size_t{255}, std::size_t{257}, std::size_t{384},
          max_alignment + 1, 2 * max_alignment, std::size_t{1} << 63, no_limit}) {
        CAPTURE(a);
        const allocate_result r = w.pool().try_allocate(s, 64, a);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::invalid_alignment);
        CHECK(r.error().requested == 64);
        CHECK_THROWS_AS(w.pool().allocate(s, 64, a), invalid_alignment);
        CHECK_THROWS_AS(w.pool().allocate_sync(64, a), invalid_alignment);
    }
    const usage_counters after = w.pool().usage();
    CHECK(after.requested == before.requested);
    CHECK(after.allocated == before.allocated);
    CHECK(after.reserved == before.reserved);
    w.pool().deallocate(s, kept, 1000);
    w.finish();
}

POLICY_TEST_CASE("sizes that overflow when rounded are refused, never wrapped", "[contract][sizes]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const kept = w.pool().allocate(s, 1000);
    const std::size_t top = std::numeric_limits<std::size_t>::max();
    for (const std::size_t n : {top, top - 1, top - 254, top - 255, top - 256, top - 511, top - 512,
                                top - 2_MiB, top - 32_MiB + 1, top / 2 + 1, top / 2, std::size_t{1} << 62,
                                max_block_bytes + 1, max_block_bytes, max_block_bytes - 1}) {
        for (const std::size_t a : {std::size_t{1}, default_alignment, 2_MiB, max_alignment}) {
            CAPTURE(n, a);
            const usage_counters before = w.pool().usage();
            const allocate_result r = w.pool().try_allocate(s, n, a);
            REQUIRE_FALSE(r);
            CHECK(r.error().cause == failure_cause::device);
            CHECK(r.error().requested == n);
            CHECK(r.error().rounded >= n - n % 2_MiB);
            CHECK_THROWS_AS(w.pool().allocate(s, n, a), out_of_memory);
            const usage_counters after = w.pool().usage();
            CHECK(after.requested == before.requested);
            CHECK(after.allocated == before.allocated);
            if (!w.traits.grows_when_refused) CHECK(after.reserved.current <= before.reserved.current);
            CHECK(after.failures > before.failures);
        }
    }
    CHECK(w.pool().validate());
    w.pool().deallocate(s, kept, 1000);
    w.finish();
}

POLICY_TEST_CASE("live blocks never overlap", "[contract][sizes]") {
    policy_world w(subject); // whose book compares every new block with all live ones
    const stream_handle s = w.stream();
    struct request {
        std::size_t n;
        void* p;
    };
    std::vector<request> live;
    for (int round = 0; round < 4; ++round) {
        for (std::size_t n :
             {1_B, 511_B, 512_B, 513_B, 4_KiB, 65537_B, 1_MiB, 1_MiB + 1, 2_MiB, 3_MiB, 21_MiB, 40_MiB})
            for (int i = 0; i < 4; ++i) live.push_back({n, w.pool().allocate(s, n)});
        std::vector<request> kept;
        for (std::size_t i = 0; i < live.size(); ++i) {
            if (i % 3 == 0)
                kept.push_back(live[i]);
            else
                w.pool().deallocate(s, live[i].p, live[i].n);
        }
        live = kept;
        CHECK(w.pool().validate());
    }
    for (const request& r : live) w.pool().deallocate(s, r.p, r.n);
    w.finish();
}
