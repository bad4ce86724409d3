// Sets of addresses as disjoint ranges.

#include <tenure/core/address_ranges.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <random>
#include <vector>

using tenure::address_ranges;

TEST_CASE("an empty set contains nothing", "[core][address_ranges]") {
    const address_ranges set;
    CHECK_FALSE(set.contains(0));
    CHECK_FALSE(set.contains(~std::uint64_t{0}));
}

TEST_CASE("ranges that overlap or touch become one", "[core][address_ranges]") {
    address_ranges set;
    set.insert(100, 50);
    set.insert(200, 50);
    CHECK(set.contains(100));
    CHECK(set.contains(149));
    CHECK_FALSE(set.contains(99));
    CHECK_FALSE(set.contains(150));
    CHECK_FALSE(set.contains(199));
    set.insert(150, 50);
    for (std::uint64_t a = 100; a < 250; ++a) CHECK(set.contains(a));
    CHECK_FALSE(set.contains(250));
    set.clear();
    CHECK_FALSE(set.contains(120));
}

TEST_CASE("random ranges agree with a set of addresses", "[core][address_ranges]") {
    CAPTURE(tenure::test::seed());
    std::mt19937_64 rng(tenure::test::seed());
    for (int round = 0; round < 50; ++round) {
        address_ranges set;
        std::vector<bool> oracle(300, false);
        for (int i = 0; i < 12; ++i) {
            const std::uint64_t begin = tenure::test::below(rng, 250);
            const std::uint64_t size = 1 + tenure::test::below(rng, 40);
            set.insert(begin, size);
            for (std::uint64_t a = begin; a < begin + size; ++a) oracle[a] = true;
        }
        for (std::uint64_t a = 0; a < oracle.size(); ++a) REQUIRE(set.contains(a) == oracle[a]);
    }
}
