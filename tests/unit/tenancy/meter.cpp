#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/tenancy/meter.hpp>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;

TEST_CASE("a committed ticket stays charged until it is refunded", "[tenancy][meter]") {
    meter m("alice", 100);
    {
        auto t = m.reserve(60);
        REQUIRE(t);
        CHECK(m.read().charged == 60);
        t->commit();
    }
    CHECK(m.read().charged == 60);
    m.refund(60);
    CHECK(m.read().charged == 0);
    CHECK(m.read().peak == 60);
}

TEST_CASE("a ticket that is dropped gives its charge back, however it was moved", "[tenancy][meter]") {
    meter m("alice", 100);
    {
        auto a = m.reserve(40);
        REQUIRE(a);
        meter::ticket b = std::move(*a);
        meter::ticket c = std::move(b);
        CHECK(m.read().charged == 40);
    }
    CHECK(m.read().charged == 0);
}

TEST_CASE("a ticket may be committed for less than was reserved", "[tenancy][meter]") {
    meter m("alice", 100);
    auto t = m.reserve(100);
    REQUIRE(t);
    t->commit(30);
    CHECK(m.read().charged == 30);
}

TEST_CASE("the peak is what was charged for good", "[tenancy][meter]") {
    meter m("alice", 100);
    {
        auto kept = m.reserve(10);
        auto dropped = m.reserve(90);
        REQUIRE(kept);
        REQUIRE(dropped);
        kept->commit();
        CHECK(m.read().peak == 10);
    }
    auto part = m.reserve(80);
    REQUIRE(part);
    part->commit(20);
    CHECK(m.read().charged == 30);
    CHECK(m.read().peak == 30);
    m.refund(30);
    CHECK(m.read().peak == 30);
}

TEST_CASE("a charge is granted up to the limit and not a byte further", "[tenancy][meter]") {
    meter m("alice", 100);
    auto exact = m.reserve(100);
    REQUIRE(exact);
    const auto one_more = m.reserve(1);
    REQUIRE_FALSE(one_more);
    CHECK(one_more.error() == status::over_limit);
    CHECK(m.read().charged == 100);
    CHECK(m.read().refused == 1);
}

TEST_CASE("a charge near 2^64 does not wrap through the limit", "[tenancy][meter]") {
    meter m("alice", 100);
    auto held = m.reserve(50);
    REQUIRE(held);
    CHECK_FALSE(m.reserve(no_limit));
    CHECK_FALSE(m.reserve(no_limit - 49));
    CHECK(m.read().charged == 50);
}

TEST_CASE("set_max below use keeps what is charged and refuses new charges", "[tenancy][meter]") {
    meter m("alice", 100);
    auto t = m.reserve(80);
    REQUIRE(t);
    t->commit();
    CHECK(m.set_max(50) == 30);
    CHECK(m.read().charged == 80);
    CHECK_FALSE(m.reserve(1));
    CHECK(m.reserve(0));
    m.refund(40);
    CHECK(m.reserve(10));
    m.refund(40);
    CHECK(m.read().charged == 0);
}

TEST_CASE("racing charges never pass the limit and a refused one refuses nobody else",
          "[tenancy][meter][threads]") {
    // One thread keeps asking for more than ever fits. The others need, together, exactly what there is: none
    // of their charges may be refused.
    constexpr std::size_t share = 1000;
    constexpr int innocents = 7;
    constexpr int rounds = 20'000;
    meter m("alice", share * innocents);
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> over{0};
    std::thread greedy([&] {
        while (!stop) {
            if (m.reserve(share * innocents + 1)) ++over;
            if (m.reserve(no_limit)) ++over;
        }
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < innocents; ++i)
        threads.emplace_back([&] {
            for (int r = 0; r < rounds; ++r) {
                auto t = m.reserve(share);
                if (!t) ++refused;
                const meter_reading now = m.read();
                if (now.charged > now.max) ++over;
            }
        });
    for (auto& t : threads) t.join();
    stop = true;
    greedy.join();
    CHECK(refused == 0);
    CHECK(over == 0);
    CHECK(m.read().charged == 0);
    CHECK(m.read().peak <= share * innocents);
}

TEST_CASE("after set_max returned, no charge is granted against the old limit", "[tenancy][meter][threads]") {
    for (int round = 0; round < 200; ++round) {
        meter m("alice", 1000);
        std::atomic<bool> lowered{false};
        std::atomic<bool> broken{false};
        std::thread charger([&] {
            for (int i = 0; i < 100; ++i) {
                const bool after = lowered;
                if (auto t = m.reserve(600)) {
                    if (after) broken = true;
                }
            }
        });
        m.set_max(500);
        lowered = true;
        charger.join();
        REQUIRE_FALSE(broken);
    }
}
