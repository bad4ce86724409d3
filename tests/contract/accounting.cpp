/// Contract: counters, trims and snapshots agree with each other and with the device.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::test;

POLICY_TEST_CASE("a new pool holds nothing", "[contract][accounting]") {
    policy_world w(subject);
    CHECK(w.pool().usage() == usage_counters{});
    CHECK(w.pool().snapshot().segments.empty());
    CHECK(w.device.reserved() == 0);
    CHECK(w.pool().validate());
    CHECK(w.pool().trim(0) == 0);
    w.close();
}

POLICY_TEST_CASE("requested, allocated and reserved are counted exactly", "[contract][accounting]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    struct request {
        std::size_t n;
        void* p;
    };
    std::vector<request> live;
    std::size_t requested = 0;
    std::size_t most = 0;
    std::size_t flowed = 0;
    for (std::size_t i = 1; i <= 60; ++i) {
        const std::size_t n = i * i * 997;
        live.push_back({n, w.pool().allocate(s, n)});
        requested += n;
        flowed += n;
        most = std::max(most, requested);
        if (i % 3 == 0) {
            const request r = live[live.size() / 2];
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(live.size() / 2));
            w.pool().deallocate(s, r.p, r.n);
            requested -= r.n;
        }
        const usage_counters u = w.pool().usage();
        REQUIRE(u.requested.current == requested);
        if (w.traits.bounds_peaks)
            REQUIRE(u.requested.peak >= most);
        else
            REQUIRE(u.requested.peak == most);
        REQUIRE(u.requested.total_in == flowed);
        REQUIRE(u.blocks.current == live.size());
        REQUIRE(u.reserved.current == w.device.reserved());
        REQUIRE(disagreement(w.pool().snapshot(), u, w.traits) == "");
        REQUIRE(w.pool().validate());
    }
    for (const request& r : live) w.pool().deallocate(s, r.p, r.n);
    const usage_counters u = w.pool().usage();
    CHECK(u.requested.current == 0);
    CHECK(u.blocks.current == 0);
    CHECK(u.reserved.peak >= u.allocated.peak);
    CHECK(u.allocated.peak >= most);
    if (w.traits.bounds_peaks) {
        INFO(w.traits.bounds_peaks.reason);
        CHECK(u.requested.peak >= most);
        CHECK(u.reserved.peak >= w.device.reserved_peak());
    } else {
        CHECK(u.requested.peak == most);
        CHECK(u.reserved.peak == w.device.reserved_peak());
    }
    w.finish();
}

POLICY_TEST_CASE("trim gives free memory back down to what is to be kept", "[contract][accounting]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 8; ++i) blocks.push_back(w.pool().allocate(s, 64_MiB));
    void* const kept = w.pool().allocate(s, 48_MiB);
    for (void* p : blocks) w.pool().deallocate(s, p, 64_MiB);
    w.drain();

    const std::size_t full = w.pool().usage().reserved.current;
    CHECK(w.pool().trim(no_limit) == 0);
    CHECK(w.pool().usage().reserved.current == full);

    const std::size_t half = w.pool().trim(300_MiB);
    const usage_counters u = w.pool().usage();
    CHECK(u.reserved.current == full - half);
    CHECK(u.reserved.current == w.device.reserved());
    if (w.traits.keeps_nothing) {
        INFO(w.traits.keeps_nothing.reason);
        CHECK(u.reserved.current == u.allocated.current);
    } else {
        // Whole segments of 64 MiB only: it stops within one of them, on one side or the other.
        CHECK(u.reserved.current >= 300_MiB - 64_MiB);
        CHECK(u.reserved.current <= 300_MiB + 64_MiB);
    }

    w.pool().trim(0);
    CHECK(w.pool().usage().requested.current == 48_MiB);
    CHECK(w.pool().usage().reserved.current >= 48_MiB);
    CHECK(w.pool().usage().reserved.current < 48_MiB + 64_MiB);
    CHECK(w.pool().owns(kept));
    CHECK(w.pool().validate());
    CHECK(disagreement(w.pool().snapshot(), w.pool().usage(), w.traits) == "");
    w.pool().deallocate(s, kept, 48_MiB);
    w.finish();
}

POLICY_TEST_CASE("a trimmed pool serves again", "[contract][accounting]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    for (int round = 0; round < 5; ++round) {
        void* const a = w.pool().allocate(s, 10_MiB);
        void* const b = w.pool().allocate(s, 1000);
        w.pool().deallocate(s, b, 1000);
        w.pool().deallocate(s, a, 10_MiB);
        w.drain();
        w.pool().trim(0);
        CHECK(w.pool().usage().reserved.current == 0);
    }
    w.finish();
}

POLICY_TEST_CASE("owns is true of the starts of live blocks only", "[contract][accounting]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 5000);
    CHECK(w.pool().owns(p));
    CHECK_FALSE(w.pool().owns(to_pointer(to_address(p) + 1)));
    CHECK_FALSE(w.pool().owns(to_pointer(to_address(p) + 512)));
    CHECK_FALSE(w.pool().owns(to_pointer(to_address(p) - 1)));
    CHECK_FALSE(w.pool().owns(nullptr));
    CHECK_FALSE(w.pool().owns(&w));
    w.pool().deallocate(s, p, 5000);
    CHECK_FALSE(w.pool().owns(p));
    w.finish();
}

POLICY_TEST_CASE("every live block is in the snapshot", "[contract][accounting]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    for (const std::size_t n : {1_B, 700_B, 1_MiB, 12_MiB, 40_MiB})
        for (const std::size_t a : {256_B, 4_KiB, 4_MiB}) w.pool().allocate(s, n, a);
    const memory_snapshot picture = w.pool().snapshot();
    for (const auto& b : w.pool().live()) {
        const std::uint64_t begin = to_address(b.pointer);
        std::size_t requested = 0; // of its pieces, if it lies in several places
        for (const segment_snapshot& segment : picture.segments)
            for (const block_snapshot& block : segment.blocks) {
                const bool is_piece = block.block != 0 && block.block == begin;
                const bool holds_it = block.block == 0 && block.address <= begin &&
                                      begin + b.bytes <= block.address + block.size;
                if (block.state == block_state::allocated && (is_piece || holds_it))
                    requested += block.requested;
            }
        CHECK(requested == b.bytes);
    }
    w.free_all();
    w.finish();
}
