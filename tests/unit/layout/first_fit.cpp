#include "support/catch.hpp"
#include "support/holes.hpp"

#include <tenure/core/units.hpp>
#include <tenure/layout/first_fit.hpp>

#include <array>
#include <limits>
#include <vector>

using namespace tenure;
using layout::domain;
using layout::first_fit;
using layout::no_block;

namespace {

constexpr std::array<domain, 1> d0{0}, d1{1};
constexpr std::array<domain, 2> both{0, 1};

} // namespace

TEST_CASE("first_fit takes the lowest hole that fits, though others fit better", "[layout][first_fit]") {
    first_fit l = test::with_holes<first_fit>(2_MiB, {2048, 16384, 4096, 3072});
    const auto c = l.find(3000, 1, d0);
    REQUIRE(c);
    CHECK(c->size == 16384);
    CHECK(c->offset == 2_MiB + 512 + 2048 + 512);
    const layout::block_id id = l.allocate(3000, 1, d0);
    CHECK(l.offset(id) == c->offset);
    CHECK(l.size(id) == 3072);
    CHECK(l.find(2048, 1, d0)->offset == 2_MiB + 512);
    CHECK(l.find(14_KiB, 1, d0) == std::nullopt);
    CHECK(l.largest_free(d0) == 16384 - 3072);
    CHECK(l.validate());
}

TEST_CASE("first_fit goes on to higher holes when the lowest is not aligned", "[layout][first_fit]") {
    // The holes start at odd granules; only the last contains an aligned 4 KiB.
    first_fit l = test::with_holes<first_fit>(2_MiB + 512, {4096, 4608, 5120, 7680, 512});
    const auto c = l.find(4096, 4096, d0);
    REQUIRE(c);
    CHECK(c->size == 7680);
    CHECK(is_aligned(l.offset(l.allocate(4096, 4096, d0)), 4096));
    CHECK(l.allocate(4096, 4096, d0) == no_block);
    CHECK(l.allocate(4096, 512, d0) != no_block);
    CHECK(l.validate());
}

TEST_CASE("first_fit takes the lowest of all domains asked for", "[layout][first_fit]") {
    first_fit l = test::with_holes<first_fit>(2_MiB, {4096, 8192}, 2); // 4096 in domain 0, 8192 in domain 1
    CHECK(l.find(4096, 1, d0)->size == 4096);
    CHECK(l.find(4096, 1, d1)->size == 8192);
    CHECK(l.find(4096, 1, both)->size == 4096);
    CHECK(l.find(4097, 1, both)->size == 8192);
    CHECK_FALSE(l.find(4096, 1, {}));
    const std::array<domain, 1> unknown{9};
    CHECK_FALSE(l.find(1, 1, unknown));
    CHECK(l.largest_free(both) == 8192);
    CHECK(l.largest_free(unknown) == 0);
}

TEST_CASE("first_fit never wraps, and knows blocks over 4 GiB", "[layout][first_fit][scenario][D2]") {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    first_fit l;
    CHECK(l.allocate(1, 1, d0) == no_block);
    l.add({0, std::size_t{1} << 48}, 0); // all of the space
    CHECK(l.allocate(most, 1, d0) == no_block);
    CHECK(l.allocate(most, std::size_t{1} << 63, d0) == no_block);
    const layout::block_id a = l.allocate(5_GiB + 1, 1, d0), b = l.allocate(100_TiB, 1_GiB, d0);
    CHECK(l.size(a) == 5_GiB + 512);
    CHECK(l.offset(b) == 6_GiB);
    CHECK(l.allocate(200_TiB, 1, d0) == no_block);
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    CHECK(l.largest_free(d0) == std::size_t{1} << 48);
    CHECK(l.validate());
}

TEST_CASE("first_fit merges with neighbours of the same domain only, and the lowest part keeps its id",
          "[layout][first_fit]") {
    first_fit l;
    l.add({2_MiB, 2048}, 0);
    const layout::block_id base = l.find(1, 1, d0)->id;
    std::array<layout::block_id, 4> b{};
    for (auto& id : b) id = l.allocate(512, 1, d0);
    CHECK(b[0] == base);
    l.deallocate(b[0], 0);
    l.deallocate(b[2], 1);
    l.deallocate(b[1], 0); // below it: the same domain; above: another
    CHECK(l.largest_free(d0) == 1024);
    CHECK(l.largest_free(d1) == 512);
    CHECK(l.find(1024, 1, d0)->id == base);
    REQUIRE(l.validate());
    l.deallocate(b[3], 1);
    CHECK(l.find(1024, 1, d1)->id == b[2]);
    const layout::block_id again = l.allocate(512, 1, d1); // the block above takes its place in the trees
    CHECK(again == b[2]);
    REQUIRE(l.validate());
    l.deallocate(again, 1); // and this takes that one's
    CHECK(l.find(1024, 1, d1)->id == again);
    REQUIRE(l.validate());
    l.recolor(1, 0);
    CHECK(l.find(2048, 1, d0)->id == base);
    CHECK(l.free_bytes(0) == 2048);
    CHECK(l.free_bytes(1) == 0);
    CHECK(l.validate());
}

TEST_CASE("first_fit joins both neighbours when the block between them is freed", "[layout][first_fit]") {
    first_fit l = test::with_holes<first_fit>(2_MiB, {1024, 2048, 4096});
    std::vector<layout::block_id> used;
    l.for_each_block([&](const layout::block_view& b) {
        if (!b.free) used.push_back(b.id);
    });
    REQUIRE(used.size() == 4);
    l.deallocate(used[1], 0);
    CHECK(l.largest_free(d0) == 4096);
    CHECK(l.find(3072, 1, d0)->offset == 2_MiB + 512);
    CHECK(l.find(3072, 1, d0)->size == 1024 + 512 + 2048);
    REQUIRE(l.validate());
    l.deallocate(used[2], 0);
    CHECK(l.largest_free(d0) == 1024 + 512 + 2048 + 512 + 4096);
    CHECK(l.validate());
}

TEST_CASE("first_fit shows what is free at a place, and takes it there", "[layout][first_fit]") {
    first_fit l = test::with_holes<first_fit>(2_MiB, {4096, 8192}, 2);
    const layout::address second = 2_MiB + 512 + 4096 + 512;
    CHECK(l.free_from(0)->offset == 2_MiB + 512);
    CHECK(l.free_from(2_MiB + 512 + 4095)->offset == 2_MiB + 512);
    CHECK(l.free_from(2_MiB + 512 + 4096)->offset == second);
    CHECK(l.domain_of(l.free_from(second)->id) == 1);
    CHECK_FALSE(l.free_from(second + 8192));

    const layout::block_id middle = l.take_at(*l.free_from(second), second + 1024, 2048);
    CHECK(l.offset(middle) == second + 1024);
    CHECK(l.free_from(second + 1024)->offset == second + 3072);
    CHECK(l.free_bytes(1) == 8192 - 2048);
    const layout::block_id front = l.take_at(*l.free_from(second), second, 1024); // all of that hole
    CHECK(l.offset(front) == second);
    REQUIRE(l.validate());
    l.deallocate(middle, 1);
    l.deallocate(front, 1);
    CHECK(l.largest_free(d1) == 8192);
    CHECK(l.validate());
}

TEST_CASE("first_fit lets a range grow at its end", "[layout][first_fit]") {
    first_fit l;
    l.add({2_MiB, 4096}, 0);
    l.grow(2_MiB, 4096, 0);
    CHECK(l.largest_free(d0) == 8192);
    const layout::block_id all = l.allocate(8192, 1, d0);
    l.grow(2_MiB, 1024, 1);
    CHECK(l.find(1024, 1, d1)->offset == 2_MiB + 8192);
    l.grow(2_MiB, 1024, 0);
    CHECK(l.find(1024, 1, d0)->offset == 2_MiB + 8192 + 1024);
    CHECK(l.total_bytes() == 8192 + 2048);
    REQUIRE(l.validate());
    CHECK_FALSE(l.remove(2_MiB));
    l.deallocate(all, 0);
    CHECK(l.remove(2_MiB));
    CHECK(l.total_bytes() == 0);
    CHECK(l.validate());
}
