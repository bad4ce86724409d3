#include <support/catch.hpp>
#include <support/random.hpp>

#include <tenure/policy/remap/supply.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace tenure;

namespace {

using handle_list = remap_supply::handle_list;

/// Handle i has `sizes[i]` bytes.
remap_supply supply_of(const std::vector<std::size_t>& sizes, bool in_order) {
    remap_supply s;
    s.in_order = in_order;
    for (remap_supply::handle_id i = 0; i < sizes.size(); ++i) {
        s.whole.emplace_back(sizes[i], i);
        s.whole_bytes += sizes[i];
    }
    std::sort(s.whole.begin(), s.whole.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
    return s;
}

} // namespace

TEST_CASE("remap_supply: few handles, which are little more than is needed", "[policy][remap][supply]") {
    const remap_supply s = supply_of({8, 8, 32, 4, 4, 16}, false);
    CHECK(s.assemble(20) == handle_list{5, 3});
    CHECK(s.assemble(32) == handle_list{2});
    CHECK(s.assemble(40) == handle_list{2, 0});
    CHECK(s.assemble(72)->size() == 6);
    CHECK_FALSE(s.assemble(73));
}

TEST_CASE("remap_supply: in the order of purchase, the fewest that follow each other",
          "[policy][remap][supply]") {
    const remap_supply s = supply_of({8, 8, 32, 4, 4, 16}, true);
    CHECK(s.assemble(20) == handle_list{2});
    CHECK(s.assemble(40) == handle_list{1, 2});
    CHECK(s.assemble(52) == handle_list{0, 1, 2, 3});
    CHECK(s.assemble(72) == handle_list{0, 1, 2, 3, 4, 5});
    CHECK_FALSE(s.assemble(73));
}

TEST_CASE("remap_supply: fragments are used where whole handles do not suffice", "[policy][remap][supply]") {
    const bool in_order = GENERATE(false, true);
    remap_supply s = supply_of({8, 8}, in_order);
    s.tail = 5, s.tail_of = 10;
    s.head = 3, s.head_of = 11;
    CHECK(s.assemble(16) == handle_list{0, 1});
    CHECK(s.assemble(21) == handle_list{10, 0, 1});
    CHECK(s.assemble(24) == handle_list{10, 0, 1, 11});
    CHECK_FALSE(s.assemble(25));
    remap_supply fragments;
    fragments.in_order = in_order;
    fragments.tail = 5, fragments.tail_of = 10;
    CHECK(fragments.assemble(5) == handle_list{10});
}

TEST_CASE(
    "remap_supply: what is chosen holds the request, nothing of it can be left out, and no shorter row does",
    "[policy][remap][supply]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    for (int round = 0; round < 2000; ++round) {
        std::vector<std::size_t> sizes(1 + test::below(rng, 12));
        for (std::size_t& n : sizes) n = 1 + test::below(rng, 20);
        const bool in_order = test::chance(rng, 50);
        const remap_supply s = supply_of(sizes, in_order);
        const std::size_t n = 1 + test::below(rng, s.whole_bytes);
        const auto chosen = s.assemble(n);
        REQUIRE(chosen);
        std::size_t bytes = 0;
        std::size_t least = sizes.size() * 20;
        for (const auto h : *chosen) bytes += sizes[h], least = std::min(least, sizes[h]);
        REQUIRE(bytes >= n);
        if (!in_order) {
            REQUIRE(bytes - least < n);
            continue;
        }
        for (std::size_t i = 1; i < chosen->size(); ++i) REQUIRE((*chosen)[i] == (*chosen)[i - 1] + 1);
        for (std::size_t first = 0; first + chosen->size() <= sizes.size() + 1; ++first) {
            std::size_t row = 0;
            for (std::size_t i = first; i + 1 < first + chosen->size(); ++i) row += sizes[i];
            REQUIRE(row < n);
        }
    }
}
