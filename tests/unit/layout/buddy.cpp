/// \file
/// `layout::buddy`: halving, merging, alignment beside unaligned bases, the ends of the space.

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/layout/buddy.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace tenure;
using layout::address;
using layout::block_id;
using layout::block_view;
using layout::buddy;
using layout::domain;
using layout::granule;
using layout::no_block;

namespace {

constexpr domain zero[]{0}, one[]{1}, both[]{0, 1};

std::vector<block_view> blocks_of(const buddy& l) {
    std::vector<block_view> v;
    l.for_each_block([&](const block_view& b) { v.push_back(b); });
    return v;
}

std::size_t free_ranges(const buddy& l) {
    std::size_t n = 0;
    l.for_each_free_range([&](const layout::range&) { ++n; });
    return n;
}

} // namespace

TEST_CASE("buddy rounds to powers of two and never wraps", "[layout][buddy]") {
    CHECK(buddy::rounded(0, 1) == granule);
    CHECK(buddy::rounded(1, 256) == granule);
    CHECK(buddy::rounded(513, 256) == 1_KiB);
    CHECK(buddy::rounded(4_GiB + 1, 256) == 8_GiB);
    CHECK(buddy::rounded(512, 2_MiB) == 2_MiB);
    CHECK(buddy::rounded(std::size_t{1} << 63, 1) == std::size_t{1} << 63);
    CHECK(buddy::rounded((std::size_t{1} << 63) + 1, 1) >= (std::size_t{1} << 63) + 1);
    CHECK(buddy::rounded(std::numeric_limits<std::size_t>::max(), 1) > layout::space_end);
}

TEST_CASE("buddy asks for ranges that can hold the request", "[layout][buddy]") {
    CHECK(buddy::range_for(1, 256, 0).size == 2_MiB);
    CHECK(buddy::range_for(1, 256, 20_MiB).size == 32_MiB);
    CHECK(buddy::range_for(3_MiB, 256, 0).size == 4_MiB);
    CHECK(buddy::range_for(1, 8_MiB, 0).size == 8_MiB);
    CHECK(buddy::range_for(1, 8_MiB, 0).alignment == 8_MiB);
    CHECK(buddy::range_for(1, 256, 0).alignment == 2_MiB);
    CHECK(buddy::range_for(std::numeric_limits<std::size_t>::max(), 1, 0).size > layout::space_end);
}

TEST_CASE("buddy carves a range of any size into powers of two, largest first", "[layout][buddy]") {
    buddy l;
    l.add({2_MiB, 7 * granule}, 0);
    REQUIRE(l.validate());
    const auto v = blocks_of(l);
    REQUIRE(v.size() == 3);
    CHECK(v[0].size == 4 * granule);
    CHECK(v[1].size == 2 * granule);
    CHECK(v[2].size == granule);
    CHECK(l.largest_free(zero) == 4 * granule);

    // The smallest that is large enough goes first; what is carved apart never merges.
    const block_id a = l.allocate(1, 1, zero);
    CHECK(l.offset(a) == 2_MiB + 6 * granule);
    const block_id b = l.allocate(1, 1, zero);
    CHECK(l.offset(b) == 2_MiB + 4 * granule);
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    REQUIRE(l.validate());
    CHECK(blocks_of(l).size() == 3);
}

TEST_CASE("buddy halves and merges back", "[layout][buddy]") {
    buddy l;
    l.add({2_MiB, 2_MiB}, 0);
    std::vector<block_id> ids;
    for (std::size_t n = 0; n < 2_MiB / granule; ++n) ids.push_back(l.allocate(granule, 1, zero));
    CHECK(l.allocate(1, 1, zero) == no_block);
    CHECK(l.used_bytes() == 2_MiB);
    CHECK(l.largest_free(zero) == 0);
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    std::shuffle(ids.begin(), ids.end(), rng);
    for (const block_id id : ids) l.deallocate(id, 0);
    REQUIRE(l.validate());
    CHECK(blocks_of(l).size() == 1);
    CHECK(l.largest_free(zero) == 2_MiB);
}

TEST_CASE("buddy merges only within a domain", "[layout][buddy]") {
    buddy l;
    l.add({2_MiB, 2_MiB}, 0);
    const block_id left = l.allocate(1_MiB, 1, zero);
    const block_id right = l.allocate(1_MiB, 1, zero);
    l.deallocate(left, 0);
    l.deallocate(right, 1);
    REQUIRE(l.validate());
    CHECK(blocks_of(l).size() == 2);
    CHECK(l.free_bytes(0) == 1_MiB);
    CHECK(l.free_bytes(1) == 1_MiB);
    CHECK(l.allocate(2_MiB, 1, both) == no_block);
    CHECK(free_ranges(l) == 1);

    SECTION("recolor joins them") {
        l.recolor(1, 0);
    }
    SECTION("recolor to a domain never seen, then back") {
        l.recolor(1, 60000);
        CHECK(l.free_bytes(60000) == 1_MiB);
        REQUIRE(l.validate());
        l.recolor(60000, 0);
    }
    SECTION("a block across both needs neither") {
        const block_id whole = l.allocate_across(2_MiB, 1, both, 0);
        REQUIRE(whole != no_block);
        CHECK(l.size(whole) == 2_MiB);
        CHECK(l.free_bytes() == 0);
        l.deallocate(whole, 0);
    }
    REQUIRE(l.validate());
    CHECK(l.free_bytes(1) == 0);
    CHECK(l.allocate(2_MiB, 1, zero) != no_block);
}

TEST_CASE("buddy takes a block across only where nothing else lies", "[layout][buddy]") {
    buddy l;
    l.add({8_MiB, 8_MiB}, 0);
    std::vector<block_id> ids;
    for (int n = 0; n < 8; ++n) ids.push_back(l.allocate(1_MiB, 1, zero));
    std::sort(ids.begin(), ids.end(), [&](block_id a, block_id b) { return l.offset(a) < l.offset(b); });
    // domains 1 2 1 | used | 1 1 2 1
    const domain colors[]{1, 2, 1, 0, 1, 1, 2, 1};
    for (std::size_t n = 0; n < 8; ++n)
        if (n != 3) l.deallocate(ids[n], colors[n]);
    const domain one_two[]{1, 2};
    CHECK(l.allocate_across(8_MiB, 1, one_two, 0) == no_block);
    CHECK(l.allocate_across(4_MiB, 1, one, 0) == no_block);
    CHECK(l.allocate_across(4_MiB, 8_MiB, one_two, 0) ==
          no_block); // it would be aligned nowhere but in front
    const block_id half = l.allocate_across(4_MiB, 1, one_two, 0);
    REQUIRE(half != no_block);
    CHECK(l.offset(half) == 12_MiB);
    CHECK(l.free_bytes() == 3_MiB);
    REQUIRE(l.validate());
    const block_id front = l.allocate_across(2_MiB, 1, one_two, 0);
    REQUIRE(front != no_block);
    CHECK(l.offset(front) == 8_MiB);
    REQUIRE(l.validate());
    l.deallocate(half, 3);
    CHECK(l.free_bytes(3) == 4_MiB);
    CHECK(l.validate());
}

TEST_CASE("buddy takes the smallest block over all domains asked for", "[layout][buddy]") {
    buddy l;
    l.add({2_MiB, 2_MiB}, 0);
    l.add({64_MiB, 1_MiB}, 1);
    CHECK(l.offset(l.allocate(512, 1, both)) == 64_MiB);
    CHECK(l.offset(l.allocate(2_MiB, 1, both)) == 2_MiB);
    CHECK(l.allocate(1_MiB, 1, both) == no_block);
    CHECK(l.allocate(512, 1, {}) == no_block);
    CHECK(l.allocate(512, 1, zero) == no_block);
    CHECK(l.allocate(512, 1, one) != no_block);
    REQUIRE(l.validate());
}

TEST_CASE("buddy honours alignments where bases are not aligned", "[layout][buddy]") {
    buddy l;
    l.add({granule, 2_MiB}, 0);
    CHECK(l.allocate(512, 1_KiB, zero) == no_block);
    l.add({4_MiB + granule, 2_MiB}, 0);
    l.add({8_MiB, 64_KiB}, 0);
    l.add({1_GiB, 64_MiB}, 0);
    const block_id small = l.allocate(512, 4_KiB, zero);
    REQUIRE(small != no_block);
    CHECK(l.offset(small) == 8_MiB);
    const block_id large = l.allocate(512, 32_MiB, zero);
    REQUIRE(large != no_block);
    CHECK(is_aligned(l.offset(large), 32_MiB));
    CHECK(l.allocate(512, 64_MiB, zero) == no_block);
    CHECK(l.offset(l.allocate(512, 256, zero)) < 1_GiB);
    REQUIRE(l.validate());
}

TEST_CASE("buddy spans the whole space and blocks over 4 GiB", "[layout][buddy]") {
    buddy l;
    SECTION("one block of 2^48 bytes") {
        l.add({0, layout::space_end}, 0);
        const block_id all = l.allocate(layout::space_end, 1, zero);
        REQUIRE(all != no_block);
        CHECK(l.size(all) == layout::space_end);
        l.deallocate(all, 1);
        const block_id least = l.allocate(1, 1, one);
        CHECK(l.used_bytes() == granule);
        REQUIRE(l.validate());
        l.deallocate(least, 1);
        CHECK(l.largest_free(one) == layout::space_end);
    }
    SECTION("5 GiB at the end of the space") {
        l.add({layout::space_end - 8_GiB, 8_GiB}, 0);
        const block_id b = l.allocate(5_GiB, 1, zero);
        CHECK(l.size(b) == 8_GiB);
        CHECK(l.offset(b) + l.size(b) == layout::space_end);
        l.deallocate(b, 0);
    }
    CHECK(l.allocate(layout::space_end + 1, 1, zero) == no_block);
    CHECK(l.allocate(std::numeric_limits<std::size_t>::max(), 1, zero) == no_block);
    REQUIRE(l.validate());
}

TEST_CASE("buddy adds and removes ranges", "[layout][buddy]") {
    buddy l;
    CHECK_FALSE(l.remove(0));
    l.add({0, 2_MiB}, 0);
    l.add({2_MiB, 2_MiB}, 0); // right behind: a block may not span both
    CHECK(l.allocate(4_MiB, 1, zero) == no_block);
    CHECK_FALSE(l.remove(1_MiB));
    const block_id b = l.allocate(2_MiB, 1, zero);
    CHECK_FALSE(l.remove(l.offset(b)));
    CHECK(free_ranges(l) == 1);
    const address base = l.offset(b);
    const block_id part = l.allocate(512, 1, zero);
    l.deallocate(part, 7);
    l.deallocate(b, 9);
    CHECK(free_ranges(l) == 2);
    CHECK(l.remove(base));
    CHECK(l.free_bytes(9) == 0);
    CHECK(l.remove(2_MiB - base)); // the other one, of two domains
    CHECK(l.total_bytes() == 0);
    CHECK(l.free_bytes() == 0);
    CHECK(blocks_of(l).empty());
    REQUIRE(l.validate());
    l.add({2_MiB, 2_MiB}, 3);
    CHECK(l.free_bytes(3) == 2_MiB);
    REQUIRE(l.validate());
}

TEST_CASE("buddy takes back into every domain there is", "[layout][buddy]") {
    buddy l;
    constexpr std::size_t blocks = std::size_t{1} << 16;
    l.add({2_MiB, blocks * granule}, 0);
    std::vector<block_id> ids;
    for (std::size_t n = 0; n < blocks; ++n) ids.push_back(l.allocate(1, 1, zero));
    for (std::size_t n = 0; n < blocks; ++n) l.deallocate(ids[n], static_cast<domain>(n));
    CHECK(blocks_of(l).size() == blocks);
    CHECK(l.free_bytes(65535) == granule);
    REQUIRE(l.validate());
    CHECK(l.remove(2_MiB));
    REQUIRE(l.validate());
}
