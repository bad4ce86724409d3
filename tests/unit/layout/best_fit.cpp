#include "support/catch.hpp"
#include "support/holes.hpp"

#include <tenure/core/units.hpp>
#include <tenure/layout/best_fit.hpp>

#include <array>
#include <limits>

using namespace tenure;
using layout::best_fit;
using layout::domain;
using layout::no_block;

namespace {

constexpr std::array<domain, 1> d0{0}, d1{1};
constexpr std::array<domain, 2> both{0, 1};

} // namespace

TEST_CASE("best_fit rounds to granules and never wraps", "[layout][best_fit]") {
    STATIC_REQUIRE(best_fit::rounded(1, 1) == 512);
    STATIC_REQUIRE(best_fit::rounded(512, 4096) == 512);
    STATIC_REQUIRE(best_fit::rounded(513, 1) == 1024);
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    STATIC_REQUIRE(best_fit::rounded(most, 1) == most - 511);
    best_fit l;
    CHECK(l.allocate(1, 1, d0) == no_block);
    l.add({2_MiB, 2_MiB}, 0);
    CHECK(l.allocate(most, 1, d0) == no_block);
    CHECK(l.allocate(1, std::size_t{1} << 63, d0) == no_block);
    CHECK(l.allocate(most, std::size_t{1} << 63, d0) == no_block);
    CHECK(l.validate());
}

TEST_CASE("best_fit takes the smallest hole that fits, the lowest among equals", "[layout][best_fit]") {
    best_fit l = test::with_holes<best_fit>(2_MiB, {8192, 4096, 16384, 4096, 2048});
    const auto c = l.find(3000, 1, d0);
    REQUIRE(c);
    CHECK(c->size == 4096);
    CHECK(c->offset == 2_MiB + 512 + 8192 + 512); // the first of the two
    const layout::block_id id = l.allocate(3000, 1, d0);
    CHECK(l.offset(id) == c->offset);
    CHECK(l.size(id) == 3072);
    CHECK(l.validate());
}

TEST_CASE("best_fit hands out the front and keeps the rest free", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 64_KiB}, 3);
    const std::array<domain, 1> d3{3};
    const layout::block_id id = l.allocate(1000, 1, d3);
    CHECK(l.offset(id) == 2_MiB);
    CHECK(l.free_bytes(3) == 64_KiB - 1024);
    CHECK(l.used_bytes() == 1024);
    CHECK(l.largest_free(d3) == 64_KiB - 1024);
}

TEST_CASE("best_fit leaves what alignment skips free, in its domain", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB + 512, 4_MiB}, 1);
    const layout::block_id id = l.allocate(1_MiB, 1_MiB, d1);
    CHECK(l.offset(id) == 3_MiB);
    CHECK(l.free_bytes(1) == 3_MiB);
    const layout::block_id front = l.allocate(1_MiB - 512, 1, d1); // the remainder before it
    CHECK(l.offset(front) == 2_MiB + 512);
    CHECK(l.validate());
}

TEST_CASE("best_fit goes on to larger holes when the smallest is not aligned", "[layout][best_fit]") {
    // The holes start at odd granules; only the last and largest contains an aligned 4 KiB.
    best_fit l = test::with_holes<best_fit>(2_MiB + 512, {4096, 4608, 5120, 7680});
    const auto c = l.find(4096, 4096, d0);
    REQUIRE(c);
    CHECK(c->size == 7680);
    CHECK(is_aligned(l.offset(l.allocate(4096, 4096, d0)), 4096));
    CHECK(l.allocate(4096, 4096, d0) == no_block);
    CHECK(l.allocate(4096, 512, d0) != no_block);
    CHECK(l.validate());
}

TEST_CASE("best_fit looks only in the domains asked for, and at all of them", "[layout][best_fit]") {
    best_fit l = test::with_holes<best_fit>(2_MiB, {8192, 4096}, 2); // 8192 in domain 0, 4096 in domain 1
    CHECK(l.find(4096, 1, d0)->size == 8192);
    CHECK(l.find(4096, 1, d1)->size == 4096);
    CHECK(l.find(4096, 1, both)->size == 4096);
    CHECK_FALSE(l.find(4096, 1, {}));
    CHECK(l.domain_of(l.find(4096, 1, both)->id) == 1);
    const std::array<domain, 1> unknown{9};
    CHECK_FALSE(l.find(1, 1, unknown));
    CHECK(l.free_bytes(9) == 0);
}

TEST_CASE("best_fit merges with both neighbours of the same domain only", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 2048}, 0);
    std::array<layout::block_id, 4> b{};
    for (auto& id : b) id = l.allocate(512, 1, d0);
    l.deallocate(b[0], 0);
    l.deallocate(b[2], 1);
    l.deallocate(b[1], 0); // left neighbour: same domain; right one: another
    CHECK(l.largest_free(d0) == 1024);
    CHECK(l.largest_free(d1) == 512);
    l.deallocate(b[3], 1);
    CHECK(l.largest_free(d1) == 1024);
    l.recolor(1, 0);
    CHECK(l.largest_free(d0) == 2048);
    CHECK(l.free_bytes(1) == 0);
    CHECK(l.validate());
}

TEST_CASE("best_fit never merges across ranges", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 1_MiB}, 0);
    l.add({3_MiB, 1_MiB}, 0);
    CHECK(l.largest_free(d0) == 1_MiB);
    const layout::block_id a = l.allocate(1_MiB, 1, d0), b = l.allocate(1_MiB, 1, d0);
    CHECK(l.allocate(1, 1, d0) == no_block);
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    CHECK(l.largest_free(d0) == 1_MiB);
    CHECK(l.remove(2_MiB));
    CHECK_FALSE(l.remove(2_MiB));
    CHECK(l.total_bytes() == 1_MiB);
    CHECK(l.validate());
}

TEST_CASE("best_fit absorbs what touches, transitively, and nothing else", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 8 * 512}, 0);
    std::array<layout::block_id, 8> b{};
    for (auto& id : b) id = l.allocate(512, 1, d0);
    // colours:   1 0 1 0 1 U 1 2     (U is used)
    for (const std::size_t i : {0u, 2u, 4u, 6u}) l.deallocate(b[i], 1);
    for (const std::size_t i : {1u, 3u}) l.deallocate(b[i], 0);
    l.deallocate(b[7], 2);
    l.absorb(0, 1);
    CHECK(l.free_bytes(0) == 5 * 512);
    CHECK(l.largest_free(d0) == 5 * 512);
    CHECK(l.free_bytes(1) == 512);
    CHECK(l.free_bytes(2) == 512);
    CHECK(l.validate());
    l.absorb(1, 0);
    CHECK(l.free_bytes(1) == 512); // 0 and 1 do not touch
    l.absorb(1, 2);
    CHECK(l.free_bytes(1) == 1024);
    l.absorb(1, 1);
    CHECK(l.validate());
}

TEST_CASE("best_fit takes the smallest run of neighbours that holds a request", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 10 * 512}, 0);
    std::array<layout::block_id, 10> b{};
    for (auto& id : b) id = l.allocate(512, 1, d0);
    // colours:   0 1 0 1 U 1 2 0 1 U
    const std::array<domain, 10> colors{0, 1, 0, 1, 0, 1, 2, 0, 1, 0};
    for (const std::size_t i : {0u, 1u, 2u, 3u, 5u, 6u, 7u, 8u}) l.deallocate(b[i], colors[i]);
    const layout::block_id small = l.allocate_across(1024, 1, both, 0); // the run of two, not the one of four
    REQUIRE(small != no_block);
    CHECK(l.offset(small) == 2_MiB + 7 * 512);
    const layout::block_id three = l.allocate_across(3 * 512, 1, both, 0);
    REQUIRE(three != no_block);
    CHECK(l.offset(three) == 2_MiB);
    CHECK(l.free_bytes(1) == 2 * 512); // what is left is what it was
    CHECK(l.free_bytes(0) == 0);
    REQUIRE(l.validate());
    CHECK(l.allocate_across(1024, 1, d0, 0) == no_block);
    CHECK(l.allocate_across(~std::size_t{0}, 1, both, 0) == no_block);
    l.deallocate(small, 2);
    l.deallocate(three, 2);
    CHECK(l.validate());
}

TEST_CASE("best_fit removes a range that is free in several domains, and no other", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 1024}, 0);
    const layout::block_id a = l.allocate(512, 1, d0);
    CHECK_FALSE(l.remove(2_MiB));
    CHECK(l.validate());
    l.deallocate(a, 1);
    CHECK_FALSE(l.remove(2_MiB + 512));
    CHECK(l.remove(2_MiB));
    CHECK(l.total_bytes() == 0);
    CHECK(l.validate());
}

TEST_CASE("a block over 4 GiB works in best_fit", "[layout][best_fit][scenario][D2]") {
    best_fit l;
    l.add({0, std::size_t{1} << 48}, 0); // all of the space
    const layout::block_id a = l.allocate(5_GiB + 1, 1, d0), b = l.allocate(100_TiB, 1_GiB, d0);
    CHECK(l.size(a) == 5_GiB + 512);
    CHECK(l.size(b) == 100_TiB);
    CHECK(l.offset(b) == 6_GiB);
    CHECK(l.allocate(200_TiB, 1, d0) == no_block);
    CHECK(l.validate());
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    CHECK(l.largest_free(d0) == std::size_t{1} << 48);
}

TEST_CASE("best_fit lets a caller look before it takes", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 20_MiB}, 0);
    const auto c = l.find(1_MiB, 512, d0);
    REQUIRE(c);
    CHECK(c->size == 20_MiB);
    CHECK(l.free_bytes() == 20_MiB); // nothing taken yet
    CHECK(l.find(1_MiB, 512, d0) == c);
    CHECK(l.is_whole_range(c->id));
    CHECK(l.range_of(c->id) == layout::range{2_MiB, 20_MiB});

    const layout::block_id part = l.take(*c, 1_MiB, 512);
    CHECK(part == c->id);
    CHECK_FALSE(l.is_whole_range(part));
    CHECK(l.range_of(part) == layout::range{2_MiB, 20_MiB});
    l.deallocate(part, 0);

    const auto whole = l.find(1_MiB, 512, d0);
    const layout::block_id all = l.take(*whole, whole->size, 512);
    CHECK(l.size(all) == 20_MiB);
    CHECK(l.is_whole_range(all));
    CHECK_FALSE(l.find(1, 1, d0));
    CHECK(l.validate());
}

TEST_CASE("best_fit keeps the id of the lowest part through splits and merges", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 4096}, 0);
    const layout::block_id base = l.find(1, 1, d0)->id;
    const layout::block_id a = l.allocate(512, 1, d0), b = l.allocate(512, 1, d0);
    CHECK(a == base);
    l.deallocate(b, 0);
    l.deallocate(a, 0);
    CHECK(l.find(1, 1, d0)->id == base);
    const layout::block_id again = l.allocate(512, 2048, d0);
    l.deallocate(again, 0);
    CHECK(l.find(1, 1, d0)->id == base);
}

TEST_CASE("best_fit names blocks densely", "[layout][best_fit]") {
    best_fit l;
    l.add({2_MiB, 2_MiB}, 0);
    for (int round = 0; round < 50; ++round) {
        std::array<layout::block_id, 16> b{};
        for (auto& id : b) {
            id = l.allocate(512, 1, d0);
            CHECK(id <= b.size()); // as many as there are blocks at once, free ones included
        }
        for (const auto id : b) l.deallocate(id, 0);
    }
}
