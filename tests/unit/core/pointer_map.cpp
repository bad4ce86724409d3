#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/pointer_map.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

using namespace tenure;

TEST_CASE("an empty pointer_map finds nothing", "[core][pointer_map]") {
    pointer_map m;
    CHECK(m.empty());
    CHECK_FALSE(m.find(512));
    CHECK_FALSE(m.find(0));
    CHECK_FALSE(m.erase(512));
    CHECK(m.validate());
}

TEST_CASE("pointer_map keeps the first value of a key", "[core][pointer_map]") {
    pointer_map m;
    CHECK(m.insert(512, 1));
    CHECK_FALSE(m.insert(512, 2));
    CHECK(m.find(512) == std::optional<std::uint32_t>(1));
    CHECK(m.size() == 1);
    CHECK(m.erase(512) == std::optional<std::uint32_t>(1));
    CHECK_FALSE(m.erase(512));
    CHECK(m.insert(512, 3));
    CHECK(m.find(512) == std::optional<std::uint32_t>(3));
}

TEST_CASE("pointer_map holds every value and the whole width of keys", "[core][pointer_map]") {
    pointer_map m;
    CHECK(m.insert(~std::uint64_t{511}, 0));
    CHECK(m.insert(std::uint64_t{1} << 32, 0xffffffffu));
    CHECK(m.find(~std::uint64_t{511}) == std::optional<std::uint32_t>(0));
    CHECK(m.find(std::uint64_t{1} << 32) == std::optional<std::uint32_t>(0xffffffffu));
    CHECK_FALSE(m.find((std::uint64_t{1} << 32) + 1)); // inside a block
    m.clear();
    CHECK(m.empty());
    CHECK_FALSE(m.find(std::uint64_t{1} << 32));
    CHECK(m.validate());
}

TEST_CASE("pointer_map agrees with std::map", "[core][pointer_map]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    const std::uint64_t stride = std::uint64_t{512} << (4 * test::below(rng, 6));
    pointer_map m;
    std::map<std::uint64_t, std::uint32_t> oracle;
    for (int step = 0; step < 6000; ++step) {
        const std::uint64_t key = stride * (1 + test::below(rng, 400));
        const auto value = static_cast<std::uint32_t>(rng());
        CAPTURE(step, key);
        const auto known = oracle.find(key);
        if (test::chance(rng, step % 1000 < 500 ? 60 : 35)) {
            REQUIRE(m.insert(key, value) == (known == oracle.end()));
            oracle.emplace(key, value);
        } else {
            const auto expected = known == oracle.end() ? std::nullopt : std::optional(known->second);
            REQUIRE(m.find(key) == expected);
            REQUIRE(m.erase(key) == expected);
            if (known != oracle.end()) oracle.erase(known);
        }
        REQUIRE(m.size() == oracle.size());
        if (step % 16 == 0) REQUIRE(m.validate());
    }
    std::map<std::uint64_t, std::uint32_t> all;
    m.for_each([&](std::uint64_t key, std::uint32_t value) { REQUIRE(all.emplace(key, value).second); });
    CHECK(all == oracle);
}

TEST_CASE("pointer_map spreads addresses at every stride", "[core][pointer_map]") {
    for (unsigned power = 9; power <= 30; ++power) {
        CAPTURE(power);
        pointer_map m;
        for (std::uint64_t i = 1; i <= 20000; ++i)
            REQUIRE(m.insert(i << power, static_cast<std::uint32_t>(i)));
        REQUIRE(m.validate());
        CHECK(m.longest_probe() <= 64); // random keys: some 20 to 40
        for (std::uint64_t i = 1; i <= 20000; i += 2) REQUIRE(m.erase(i << power));
        REQUIRE(m.validate());
        REQUIRE(m.size() == 10000);
    }
}

TEST_CASE("pointer_map keeps its entries when it grows by reserve", "[core][pointer_map]") {
    pointer_map m;
    for (std::uint32_t i = 1; i <= 20; ++i) m.insert(i * 512u, i);
    m.reserve(5000);
    CHECK(m.validate());
    for (std::uint32_t i = 1; i <= 20; ++i) CHECK(m.find(i * 512u) == std::optional(i));
}
