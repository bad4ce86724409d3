#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/bits.hpp>

#include <cstdint>
#include <limits>
#include <random>

using namespace tenure;

namespace {
constexpr std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
}

TEST_CASE("powers of two are told from other numbers", "[core][bits]") {
    CHECK_FALSE(is_power_of_two(0));
    CHECK(is_power_of_two(1));
    CHECK_FALSE(is_power_of_two(3));
    CHECK(is_power_of_two(std::uint64_t{1} << 63));
    CHECK_FALSE(is_power_of_two(top));
}

TEST_CASE("rounding goes to the nearest multiple and saturates", "[core][bits]") {
    CHECK(round_up(0, 512) == 0);
    CHECK(round_up(1, 512) == 512);
    CHECK(round_up(512, 512) == 512);
    CHECK(round_up(513, 512) == 1024);
    CHECK(round_up(7, 1) == 7);
    CHECK(round_down(1023, 512) == 512);
    CHECK(round_up(top, 512) == top - 511);
    CHECK(round_up(top - 511, 512) == top - 511);
    CHECK(round_up(top - 512, 512) == top - 511);
    CHECK(round_up(top, 1) == top);
    CHECK(is_aligned(1024, 512));
    CHECK_FALSE(is_aligned(1025, 512));
}

TEST_CASE("rounding agrees with division", "[core][bits]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t power = std::uint64_t{1} << test::below(rng, 31);
        const std::uint64_t n = test::log_uniform(rng, 1, std::uint64_t{1} << 62);
        CAPTURE(n, power);
        REQUIRE(round_down(n, power) == n / power * power);
        REQUIRE(round_up(n, power) == (n + power - 1) / power * power);
        REQUIRE(is_aligned(n, power) == (n % power == 0));
    }
}

TEST_CASE("logarithms round down and up", "[core][bits]") {
    CHECK(log2_floor(1) == 0);
    CHECK(log2_ceil(1) == 0);
    CHECK(log2_ceil(2) == 1);
    CHECK(log2_floor(3) == 1);
    CHECK(log2_ceil(3) == 2);
    CHECK(log2_floor(top) == 63);
    CHECK(log2_ceil(top) == 64);
}

TEST_CASE("sums saturate", "[core][bits]") {
    CHECK(saturating_add(1, 2) == 3);
    CHECK(saturating_add(top, 0) == top);
    CHECK(saturating_add(top, 1) == top);
    CHECK(saturating_add(top - 1, top - 1) == top);
}

TEST_CASE("addresses survive the way to a pointer and back", "[core][bits]") {
    int x = 0;
    CHECK(to_pointer(to_address(&x)) == &x);
    CHECK(to_address(nullptr) == 0);
}
