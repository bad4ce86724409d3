/// `depot` and `transits`, alone.

#include "support/catch.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/front/depot.hpp>
#include <tenure/front/transits.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

using namespace tenure;

namespace {

/// A bundle of `count` blocks of `granules` each, whose addresses begin at `at`.
depot::bundle make(std::uint64_t stream_id, std::uint32_t granules, std::uint32_t count, std::uint64_t at) {
    depot::bundle b{.stream_id = stream_id, .granules = granules, .count = count, .blocks = {}};
    for (std::uint32_t i = 0; i < count; ++i) b.blocks[i] = to_pointer(at + i);
    return b;
}

} // namespace

TEST_CASE("a bundle is found under its stream and size, the last first", "[front][depot]") {
    depot d(1'000'000);
    depot::bundle out{};
    CHECK_FALSE(d.take(1, 8, out));
    REQUIRE(d.put(make(1, 8, 15, 100)));
    REQUIRE(d.put(make(1, 8, 3, 200)));
    REQUIRE(d.put(make(2, 8, 15, 300)));
    REQUIRE(d.put(make(1, 9, 15, 400)));
    CHECK(d.parked_granules() == 15 * 8 + 3 * 8 + 15 * 8 + 15 * 9);
    CHECK_FALSE(d.take(3, 8, out));
    CHECK_FALSE(d.take(2, 9, out));
    REQUIRE(d.take(1, 8, out));
    CHECK(out.count == 3);
    CHECK(out.blocks[2] == to_pointer(202));
    REQUIRE(d.take(2, 8, out));
    CHECK(out.blocks[0] == to_pointer(300));
    REQUIRE(d.take(1, 8, out));
    CHECK(out.blocks[0] == to_pointer(100));
    CHECK_FALSE(d.take(1, 8, out));
    REQUIRE(d.take(1, 9, out));
    CHECK(d.parked_granules() == 0);
}

TEST_CASE("a depot holds what it may, and no more", "[front][depot]") {
    depot d(100);
    CHECK(d.put(make(1, 8, 10, 100)));
    CHECK_FALSE(d.put(make(1, 8, 3, 200)));
    CHECK(d.put(make(1, 10, 2, 200)));
    depot::bundle out{};
    CHECK(d.take(1, 8, out));
    CHECK(d.put(make(1, 8, 10, 100)));
    CHECK_FALSE(depot(0).put(make(1, 1, 1, 100)));

    d.rack_comes();
    CHECK_FALSE(d.put(make(1, 8, 10, 200)));
    d.rack_comes(); // each brings its share
    CHECK(d.put(make(1, 8, 10, 200)));
    d.rack_goes();
    CHECK(d.take(1, 8, out));
    CHECK_FALSE(d.put(make(1, 8, 10, 200)));

    depot wide(1'000'000); // there is an end to the bundles of one size, too
    std::size_t n = 0;
    while (wide.put(make(1, 1, 1, 1 + n))) ++n;
    CHECK(n > 4);
    CHECK(n < 1000);
}

TEST_CASE("where there is too much in all, bundles are evicted in turn", "[front][depot]") {
    depot d(1'000'000);
    depot::bundle out{};
    const depot::bundle one_more = make(1, 51, 2, 1);
    CHECK_FALSE(d.evict(one_more, out));
    for (std::uint32_t size = 1; size <= 50; ++size)
        for (std::uint64_t i = 0; i < 2; ++i) REQUIRE(d.put(make(1, size, 2, 1000 * size + 10 * i)));
    std::multiset<std::uint32_t> sizes;
    while (d.evict(one_more, out)) {
        // Of two of a size, the older goes first.
        CHECK(to_address(out.blocks[0]) == 1000 * out.granules + 10 * sizes.count(out.granules));
        sizes.insert(out.granules);
    }
    CHECK(sizes.size() == 100);
    for (std::uint32_t size = 1; size <= 50; ++size) CHECK(sizes.count(size) == 2);
    CHECK(d.parked_granules() == 0);
}

TEST_CASE("where one stream and size has too much, only its own bundles are evicted", "[front][depot]") {
    constexpr std::uint32_t sizes = 200;
    depot d(1'000'000);
    for (std::uint32_t size = 2; size <= sizes; ++size) REQUIRE(d.put(make(2, size, 1, 1'000'000 + size)));
    std::uint64_t came = 0; // each block of stream 1 has the number of its coming as its address
    while (d.put(make(1, 1, 1, came + 1))) ++came;
    REQUIRE(came > 4);
    depot::bundle out{};
    std::uint64_t gone = 0;
    for (int i = 0; i < 1000; ++i) {
        REQUIRE(d.evict(make(1, 1, 1, came + 1), out));
        if (out.stream_id == 1) CHECK(to_address(out.blocks[0]) == ++gone); // the oldest
        REQUIRE(d.put(make(1, 1, 1, ++came)));
    }
    // Strangers that share the shard were as old, and went once; all others are there.
    std::uint32_t left = 0;
    for (std::uint32_t size = 2; size <= sizes; ++size) left += d.take(2, size, out) ? 1 : 0;
    CHECK(left > (sizes - 1) * 7 / 8);
    for (std::uint64_t i = 0; d.take(1, 1, out); ++i) CHECK(to_address(out.blocks[0]) == came - i);
}

TEST_CASE("bundles come back last first, whatever others take from between them", "[front][depot]") {
    // Sizes enough that some share a shard with the one that is looked at.
    constexpr std::uint32_t sizes = 100;
    depot d(1'000'000);
    for (std::uint64_t i = 1; i <= 3; ++i)
        for (std::uint32_t size = 1; size <= sizes; ++size) REQUIRE(d.put(make(1, size, 1, i)));
    depot::bundle out{};
    for (std::uint64_t i = 3; i >= 1; --i)
        for (std::uint32_t size = 1; size <= sizes; ++size) {
            REQUIRE(d.take(1, size, out));
            CHECK(to_address(out.blocks[0]) == i);
        }
    CHECK(d.parked_granules() == 0);
}

TEST_CASE("a depot is emptied by whoever selects", "[front][depot]") {
    depot d(1'000'000);
    for (std::uint32_t size = 1; size <= 50; ++size)
        for (std::uint64_t stream = 1; stream <= 2; ++stream)
            REQUIRE(d.put(make(stream, size, 2, 1000 * size + 10 * stream)));
    std::set<std::uint32_t> sizes;
    CHECK(d.empty([](const depot::bundle& b) { return b.stream_id == 2; },
                  [&](const depot::bundle& b) {
                      CHECK(b.stream_id == 2);
                      sizes.insert(b.granules);
                  }));
    CHECK(sizes.size() == 50);
    CHECK_FALSE(d.empty([](const depot::bundle& b) { return b.stream_id == 2; },
                        [](const depot::bundle&) { CHECK(false); }));
    CHECK(d.parked_granules() == 2 * 50 * 51 / 2);
    CHECK(d.empty([](const depot::bundle&) { return true; }, [](const depot::bundle&) {}));
    CHECK(d.parked_granules() == 0);
}

TEST_CASE("threads lose no bundle and get none twice", "[front][depot][threads]") {
    depot d(1'000'000);
    constexpr int rounds = 3000;
    std::atomic<std::uint64_t> put{0}, taken{0}, put_sum{0}, taken_sum{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < rounds; ++i) {
                const std::uint64_t at = (t * rounds + static_cast<unsigned>(i) + 1) * 100u;
                if (d.put(make(1, 1 + static_cast<std::uint32_t>(i) % 2, 1, at))) {
                    ++put;
                    put_sum += at;
                }
                depot::bundle out{};
                if (i % 50 == 0 && t == 0)
                    d.empty([](const depot::bundle&) { return true; },
                            [&](const depot::bundle& b) {
                                ++taken;
                                taken_sum += to_address(b.blocks[0]);
                            });
                if (d.take(1, 1 + static_cast<std::uint32_t>(i / 2) % 2, out)) {
                    ++taken;
                    taken_sum += to_address(out.blocks[0]);
                }
            }
        });
    for (std::thread& t : threads) t.join();
    d.empty([](const depot::bundle&) { return true; },
            [&](const depot::bundle& b) {
                ++taken;
                taken_sum += to_address(b.blocks[0]);
            });
    CHECK(put > 0);
    CHECK(taken == put);
    CHECK(taken_sum == put_sum);
    CHECK(d.parked_granules() == 0);
}

TEST_CASE("who waits for passages learns of those that set out meanwhile", "[front][transits]") {
    transits t;
    const std::uint64_t before = t.now();
    CHECK_FALSE(t.any_since(before));
    std::uint64_t within = 0;
    {
        const transits::passage first(t);
        within = t.now();
        t.wait(); // gives up
        CHECK(t.any_since(within));
    }
    t.wait();
    CHECK(t.any_since(before));
    CHECK(t.any_since(within)); // it was under way then
    CHECK_FALSE(t.any_since(t.now()));
}

TEST_CASE("who waits for passages sees them arrive", "[front][transits][threads]") {
    // Each passage ends once somebody waits for it. Waiting is not for ever, so not all need be seen.
    transits t;
    constexpr int rounds = 100;
    std::atomic<int> under_way{0}, waited_for{0}, looked_at{0};
    std::thread other([&] {
        for (int i = 1; i <= rounds; ++i) {
            {
                const transits::passage p(t);
                under_way = i;
                while (waited_for != i) std::this_thread::yield();
            }
            while (looked_at != i) std::this_thread::yield();
        }
    });
    int arrived = 0;
    for (int i = 1; i <= rounds; ++i) {
        while (under_way != i) std::this_thread::yield();
        const std::uint64_t moment = t.now();
        waited_for = i;
        t.wait();
        if (t.now() != moment) ++arrived;
        looked_at = i;
    }
    other.join();
    CHECK(arrived > rounds / 2);
}
