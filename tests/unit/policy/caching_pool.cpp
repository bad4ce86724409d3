/// \file
/// `caching_pool`: blocks and segments, each option and the number that it moves, misuse, counters, threads.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/random.hpp"

#include <array>
#include <chrono>
#include <limits>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace tenure;

namespace {

constexpr stream_handle s0 = default_stream;

using pool_type = caching_pool<sim::device>;
static_assert(resource<pool_type>);
static_assert(resource<arena<caching_pool, sim::device>>);

void* offset(void* p, std::size_t bytes) {
    return to_pointer(to_address(p) + bytes);
}

/// Allocates blocks of these sizes on the default stream, frees them all, and returns what is reserved then.
std::size_t reserved_for(const caching_options& options, const std::vector<std::size_t>& sizes) {
    sim::device dev;
    pool_type pool(dev, options);
    std::vector<void*> blocks;
    for (const std::size_t n : sizes) blocks.push_back(pool.allocate(s0, n));
    REQUIRE(pool.validate());
    for (std::size_t i = 0; i < sizes.size(); ++i) pool.deallocate(s0, blocks[i], sizes[i]);
    REQUIRE(pool.validate());
    return dev.reserved();
}

} // namespace

TEST_CASE("caching_pool: small blocks share a segment, split off and merged again", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    void* a = pool.allocate(s0, 1000);
    void* b = pool.allocate(s0, 1);
    void* c = pool.allocate(s0, 512_KiB);
    CHECK(dev.reserved() == 2_MiB);
    CHECK(b == offset(a, 1024));
    CHECK(c == offset(b, 512));
    const usage_counters live = pool.usage();
    CHECK(live.requested.current == 1000 + 1 + 512_KiB);
    CHECK(live.allocated.current == 1024 + 512 + 512_KiB);
    CHECK(live.blocks.current == 3);

    pool.deallocate(s0, b, 1);
    CHECK(pool.allocate(s0, 500) == b); // the smallest that fits
    pool.deallocate(s0, a, 1000);
    pool.deallocate(s0, b, 500);
    CHECK(pool.allocate(s0, 1536) == a); // two have become one
    pool.deallocate(s0, a, 1536);
    pool.deallocate(s0, c, 512_KiB);
    CHECK(pool.snapshot().segments.at(0).blocks.size() == 1);
    CHECK(pool.usage().allocated.current == 0);
    CHECK(pool.trim(0) == 2_MiB);
    CHECK(dev.reserved() == 0);
    CHECK(pool.usage().segments.current == 0);
    CHECK(pool.validate());
}

TEST_CASE("caching_pool: large blocks never use small segments, nor small ones large", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    void* large = pool.allocate(s0, 5_MiB);
    CHECK(dev.reserved() == 20_MiB);
    pool.deallocate(s0, large, 5_MiB);
    void* small = pool.allocate(s0, 1_MiB);
    CHECK(dev.reserved() == 22_MiB);
    void* again = pool.allocate(s0, 1_MiB + 1);
    CHECK(again == large);
    CHECK(dev.reserved() == 22_MiB);
    pool.deallocate(s0, small, 1_MiB);
    pool.deallocate(s0, again, 1_MiB + 1);
}

TEST_CASE("caching_pool: a large block keeps a rest of up to 1 MiB", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    void* whole = pool.allocate(s0, 30_MiB);
    pool.deallocate(s0, whole, 30_MiB);
    void* most = pool.allocate(s0, 29_MiB);
    CHECK(pool.usage().allocated.current == 30_MiB);
    pool.deallocate(s0, most, 29_MiB);
    void* less = pool.allocate(s0, 29_MiB - 512);
    CHECK(pool.usage().allocated.current == 29_MiB - 512);
    pool.deallocate(s0, less, 29_MiB - 512);
}

TEST_CASE("caching_pool: each size option moves what is reserved", "[policy][caching][options]") {
    const std::vector<std::size_t> small(4, 1_MiB);
    CHECK(reserved_for({}, small) == 4_MiB);
    CHECK(reserved_for({.small_segment = 8_MiB}, small) == 8_MiB);
    CHECK(reserved_for({.small_size = 512_KiB}, small) == 20_MiB);

    const std::vector<std::size_t> middle(3, 6_MiB);
    CHECK(reserved_for({}, middle) == 20_MiB);
    CHECK(reserved_for({.large_segment = 32_MiB}, middle) == 32_MiB);
    CHECK(reserved_for({.min_large_alloc = 4_MiB}, middle) == 18_MiB);

    CHECK(reserved_for({}, {11_MiB}) == 12_MiB);
    CHECK(reserved_for({.round_large = 16_MiB}, {11_MiB}) == 16_MiB);

    CHECK(reserved_for({}, {1024, 2_MiB - 1024}) == 22_MiB);
    CHECK(reserved_for({}, {1, 1, 1, 1}) == 2_MiB);
    CHECK(reserved_for({.min_block = 1_MiB}, {1, 1, 1, 1}) == 4_MiB);
}

TEST_CASE("caching_pool: rounding to steps makes near sizes reuse each other", "[policy][caching][options]") {
    const std::vector<std::size_t> wandering{40_MiB + 1, 41_MiB, 42_MiB, 43_MiB, 44_MiB};
    const auto reserved = [&](const char* divisions) {
        caching_options options;
        options.roundup_power2_divisions = parse_roundup_power2_divisions(divisions);
        sim::device dev;
        pool_type pool(dev, options);
        for (const std::size_t n : wandering) {
            void* p = pool.allocate(s0, n);
            pool.deallocate(s0, p, n);
        }
        return dev.reserved();
    };
    CHECK(reserved("0") == 42_MiB + 44_MiB);
    CHECK(reserved("4") == 48_MiB);
    CHECK(reserved("[32:4]") == 48_MiB);
    CHECK(reserved("[64:1,>:4]") == 42_MiB + 44_MiB); // below the first key, its value: none
    CHECK(reserved("[16:0,>:2]") == 48_MiB);
}

TEST_CASE("caching_pool: max_split keeps large blocks whole", "[policy][caching][options]") {
    sim::device dev;
    const auto program = [&](caching_options options) {
        pool_type pool(dev, options);
        void* big = pool.allocate(s0, 200_MiB);
        pool.deallocate(s0, big, 200_MiB);
        void* p = pool.allocate(s0, 30_MiB);
        const std::size_t reserved = dev.reserved();
        const bool whole = pool.try_allocate(s0, 190_MiB) && dev.reserved() == reserved;
        pool.deallocate(s0, p, 30_MiB);
        if (whole) pool.deallocate(s0, big, 190_MiB);
        return std::pair{reserved, whole};
    };
    test::misuse_log log;
    CHECK(program({}).first == 200_MiB); // split
    CHECK(program({.max_split = 100_MiB}) == std::pair{std::size_t{230_MiB}, true});
    // 10 MiB of it would lie idle: more than this option allows
    CHECK(program({.max_split = 100_MiB, .max_non_split_rounding = 8_MiB}) ==
          std::pair{std::size_t{230_MiB}, false});
    CHECK(program({.max_split = 100_MiB, .max_non_split_rounding = 12_MiB}).second);
}

TEST_CASE("caching_pool: a block over max_split gets its segment even if no cached one would be acceptable",
          "[policy][caching][options]") {
    sim::device dev;
    pool_type pool(dev, {.round_large = 32_MiB, .max_split = 21_MiB, .max_non_split_rounding = 0});
    for (const std::size_t n : {std::size_t{33_MiB}, std::size_t{20_MiB + 512_KiB}}) {
        void* p = pool.allocate(s0, n);
        CHECK(pool.validate());
        pool.deallocate(s0, p, n);
    }
}

TEST_CASE("caching_pool: alignment is honoured up to 1 GiB", "[policy][caching]") {
    sim::device dev;
    {
        pool_type pool(dev);
        std::vector<std::pair<void*, std::size_t>> live;
        for (std::size_t a = 1; a <= max_alignment; a *= 2) {
            for (const std::size_t n : {std::size_t{1}, std::size_t{3_MiB}}) {
                CAPTURE(a, n);
                void* p = pool.allocate(s0, n, a);
                REQUIRE(is_aligned(to_address(p), a));
                REQUIRE(pool.validate());
                dev.block_allocated(p, n, s0);
                live.emplace_back(p, n);
            }
        }
        for (auto [p, n] : live) {
            dev.block_freed(p, s0);
            pool.deallocate(s0, p, n);
            REQUIRE(pool.validate());
        }
        CHECK(pool.usage().allocated.current == 0);
        for (const std::size_t a : {std::size_t{0}, std::size_t{48}, 2 * max_alignment}) {
            const auto r = pool.try_allocate(s0, 1, a);
            REQUIRE_FALSE(r);
            CHECK(r.error().cause == failure_cause::invalid_alignment);
            CHECK_THROWS_AS(pool.allocate(s0, 1, a), invalid_alignment);
        }
    }
    CHECK(dev.reserved() == 0);
    CHECK(dev.violations().empty());
}

TEST_CASE("caching_pool: nothing, null, and absurd sizes", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    CHECK(pool.allocate(s0, 0) == nullptr);
    CHECK(pool.allocate_sync(0) == nullptr);
    pool.deallocate(s0, nullptr, 0);
    pool.release(nullptr);
    pool.record_use(nullptr, s0);
    CHECK(dev.total_calls() == 0);
    for (const std::size_t n :
         {~std::size_t{0}, std::size_t{1} << 63, max_block_bytes + 1, max_block_bytes - 1}) {
        CAPTURE(n);
        const auto r = pool.try_allocate(s0, n);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::device);
        CHECK(r.error().requested == n);
    }
    CHECK(pool.usage().failures == 4);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("caching_pool: senseless options are refused at construction", "[policy][caching][options]") {
    sim::device dev;
    CHECK_THROWS_AS(pool_type(dev, {.max_split = 1_MiB}), std::invalid_argument);
    CHECK_THROWS_AS(pool_type(dev, {.garbage_collection_threshold = 1.5}), std::invalid_argument);
}

TEST_CASE("caching_pool: misuse is told apart, and frees nothing", "[policy][caching]") {
    sim::device dev;
    test::misuse_log log;
    {
        pool_type pool(dev);
        void* p = pool.allocate(s0, 1000);
        CHECK(pool.owns(p));
        CHECK_FALSE(pool.owns(offset(p, 1)));
        const auto kind_of = [&](void* at, std::size_t n) {
            const auto r = pool.try_deallocate(s0, at, n);
            REQUIRE_FALSE(r);
            return r.error().kind;
        };
        CHECK(kind_of(p, 1001) == misuse_kind::size_mismatch);
        CHECK(pool.try_deallocate(s0, p, 1001).error().expected == 1000);
        CHECK(kind_of(p, std::numeric_limits<std::size_t>::max()) == misuse_kind::size_mismatch);
        CHECK(kind_of(p, 0) == misuse_kind::size_mismatch);
        CHECK(kind_of(offset(p, 512), 1000) == misuse_kind::interior_pointer);
        CHECK(kind_of(offset(p, 4096), 1000) == misuse_kind::double_free); // free memory of the pool
        CHECK(kind_of(to_pointer(4096), 1) == misuse_kind::foreign_pointer);
        CHECK(pool.owns(p));
        pool.deallocate(s0, p, 1000);
        CHECK(kind_of(p, 1000) == misuse_kind::double_free);
        CHECK(log.size() == 0); // returned, not reported

        pool.deallocate(s0, p, 1000);
        pool.record_use(p, s0);
        pool.release(p);
        pool.deallocate_sync(p, 1000);
        CHECK(log.size() == 4);
        log.clear();
        (void)pool.allocate(s0, 300);
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::live_at_destruction);
    CHECK(log[0].bytes == 300);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("caching_pool: trim keeps what it is told to keep", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    std::vector<void*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(pool.allocate(s0, 10_MiB));
    for (int i = 1; i < 5; ++i) pool.deallocate(s0, blocks[static_cast<std::size_t>(i)], 10_MiB);
    CHECK(pool.trim(100_MiB) == 0);
    CHECK(pool.trim(35_MiB) == 20_MiB);
    CHECK(dev.reserved() == 30_MiB);
    CHECK(pool.trim(0) == 20_MiB); // one block is live
    CHECK(dev.reserved() == 10_MiB);
    pool.deallocate(s0, blocks[0], 10_MiB);
    CHECK(pool.validate());
}

TEST_CASE("caching_pool: a snapshot tiles the segments with blocks and their states", "[policy][caching]") {
    sim::device dev;
    const stream_handle s1 = dev.create_stream();
    pool_type pool(dev);
    void* a = pool.allocate(s0, 1000);
    void* b = pool.allocate(s0, 600);
    void* c = pool.allocate(s1, 3_MiB);
    dev.hold(s1);
    pool.record_use(b, s1);
    pool.deallocate(s0, b, 600);

    const memory_snapshot picture = pool.snapshot();
    REQUIRE(picture.segments.size() == 2);
    std::size_t total = 0;
    for (const segment_snapshot& s : picture.segments) {
        std::uint64_t end = s.address;
        for (const block_snapshot& block : s.blocks) {
            CHECK(block.address == end);
            end += block.size;
        }
        CHECK(end == s.address + s.size);
        total += s.size;
    }
    CHECK(total == dev.reserved());
    const auto& small = picture.segments[0].blocks;
    REQUIRE(small.size() == 3);
    CHECK(small[0].state == block_state::allocated);
    CHECK(small[0].requested == 1000);
    CHECK(small[1].state == block_state::pending);
    CHECK(small[2].state == block_state::free);
    CHECK(picture.segments[1].blocks[0].stream == (*dev.describe(s1)).id);
    dev.finish(s1);
    pool.deallocate(s0, a, 1000);
    pool.deallocate(s1, c, 3_MiB);
}

TEST_CASE("caching_pool: no driver call on the default stream once warm", "[policy][caching]") {
    sim::device dev;
    pool_type pool(dev);
    void* p = pool.allocate(s0, 64_KiB);
    pool.deallocate(s0, p, 64_KiB);
    const std::uint64_t before = dev.total_calls();
    for (int i = 0; i < 100; ++i) {
        p = pool.allocate(s0, 64_KiB);
        pool.deallocate(s0, p, 64_KiB);
    }
    CHECK(dev.total_calls() == before);
}

TEST_CASE("caching_pool: random programs keep every invariant", "[policy][caching][model]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    for (int round = 0; round < 8; ++round) {
        CAPTURE(round);
        caching_options options;
        if (round % 2 == 1) options.max_split = 40_MiB;
        if (round % 3 == 1) options.garbage_collection_threshold = 0.6;
        if (round % 4 >= 2) options.release_all_on_oom = false;
        options.cross_stream_reuse = round >= 4;
        sim::device dev({.capacity = 1_GiB});
        {
            pool_type pool(dev, options);
            struct block {
                void* p;
                std::size_t n;
                std::size_t stream; ///< 3: allocate_sync
                std::array<bool, 3> used{};
            };
            std::vector<stream_handle> streams{s0, dev.create_stream(), dev.create_stream()};
            std::vector<block> live;
            for (int step = 0; step < 1500; ++step) {
                CAPTURE(step);
                const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
                const std::size_t dice = pick(100);
                if (dice < 45) {
                    const std::size_t n = 1 + (std::size_t{1} << pick(28)) * (1 + pick(3)) / 2;
                    const std::size_t s = pick(10) == 0 ? 3 : pick(3);
                    const std::size_t a = std::size_t{1} << (pick(4) == 0 ? pick(24) : 8);
                    if (s == 3) {
                        try {
                            void* p = pool.allocate_sync(n, a);
                            dev.block_allocated_sync(p, n);
                            live.push_back({p, n, s, {}});
                        } catch (const out_of_memory&) {
                        }
                    } else if (const auto r = pool.try_allocate(streams[s], n, a)) {
                        dev.block_allocated(*r, n, streams[s]);
                        live.push_back({*r, n, s, {}});
                    }
                } else if (dice < 85 && !live.empty()) {
                    const std::size_t i = pick(live.size());
                    const block b = live[i];
                    live[i] = live.back();
                    live.pop_back();
                    const std::size_t on = pick(5) == 0 || b.stream == 3 ? pick(3) : b.stream;
                    dev.block_freed(b.p, streams[on]);
                    pool.deallocate(streams[on], b.p, b.n);
                } else if (dice < 92 && !live.empty()) {
                    block& b = live[pick(live.size())];
                    const std::size_t on = pick(3);
                    b.used[on] = true;
                    pool.record_use(b.p, streams[on]);
                    dev.block_used(b.p, streams[on]);
                } else if (dice < 96) {
                    dev.launch(streams[pick(3)], std::chrono::microseconds(pick(2000)));
                } else if (dice < 98) {
                    // Its handle goes to the next stream at once. Blocks that were allocated on it live on;
                    // only a stream that was told to `record_use` has to outlive the free.
                    const std::size_t old = 1 + pick(2);
                    bool needed = false;
                    for (const block& b : live) needed = needed || b.used[old];
                    if (!needed) {
                        dev.destroy_stream(streams[old]);
                        streams[old] = dev.create_stream();
                    }
                } else {
                    pool.trim(pick(512) * 1_MiB);
                }
                REQUIRE(pool.validate());
                REQUIRE(dev.reserved() == pool.usage().reserved.current);
            }
            for (const block& b : live) {
                dev.block_freed(b.p, s0);
                pool.deallocate(s0, b.p, b.n);
            }
            dev.advance(std::chrono::seconds(10));
            pool.trim(0);
            CHECK(pool.usage().requested.current == 0);
            CHECK(pool.usage().allocated.current == 0);
            CHECK(dev.reserved() == 0);
            CHECK(pool.validate());
        }
        CHECK(dev.live_events() == 0);
        const std::vector<std::string> violations = dev.violations();
        CAPTURE(violations);
        CHECK(violations.empty());
    }
}

TEST_CASE("caching_pool: many threads, each on its own stream and freeing for each other",
          "[policy][caching][threads]") {
    sim::device dev({.capacity = 2_GiB});
    {
        arena<caching_pool, sim::device> shared(dev, {.name = "shared", .max = 300_MiB});
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
                const stream_handle s = dev.create_stream();
                std::mt19937_64 rng(t);
                std::vector<std::pair<void*, std::size_t>> live;
                for (int i = 0; i < 400; ++i) {
                    const std::size_t n = 1 + static_cast<std::size_t>(rng() % 12_MiB);
                    if (const auto r = shared.try_allocate(s, n)) live.emplace_back(*r, n);
                    if (live.size() > 4) {
                        shared.deallocate(i % 7 == 0 ? s0 : s, live.front().first, live.front().second);
                        live.erase(live.begin());
                    }
                }
                for (auto [p, n] : live) shared.deallocate(s, p, n);
                dev.destroy_stream(s);
            });
        for (std::thread& t : threads) t.join();
        CHECK(dev.reserved_peak() <= 300_MiB);
        dev.advance(std::chrono::seconds(1));
        shared.trim(0);
        CHECK(dev.reserved() == 0);
        CHECK(shared.validate());
    }
    CHECK(dev.live_events() == 0);
}
