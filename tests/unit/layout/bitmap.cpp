#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/size_classes.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <random>
#include <vector>

using namespace tenure;
using layout::bitmap;
using layout::domain;
using layout::no_block;
using layout::size_classes;

namespace {

constexpr std::array<domain, 1> d0{0}, d1{1};
constexpr std::size_t g = layout::granule;

/// A full range from `base` on with holes of the given sizes (bytes, each below 1 MiB), kept apart by used
/// granules.
bitmap with_holes(layout::address base, const std::vector<std::size_t>& holes, domain d = 0) {
    bitmap l;
    std::size_t total = g;
    for (const std::size_t h : holes) total += h + g;
    l.add({base, total}, 0);
    std::vector<layout::block_id> blocks;
    (void)l.allocate(g, 1, d0);
    for (const std::size_t h : holes) {
        blocks.push_back(l.allocate(h, 1, d0));
        (void)l.allocate(g, 1, d0);
    }
    for (const layout::block_id id : blocks) l.deallocate(id, d);
    return l;
}

} // namespace

TEST_CASE("size classes ascend without gaps and hold their floors", "[layout][size_classes]") {
    for (unsigned c = 1; c + 1 < size_classes::count; ++c) {
        const std::uint64_t low = size_classes::floor(c), high = size_classes::floor(c + 1);
        CAPTURE(c, low, high);
        REQUIRE(low < high);
        if (high > layout::space_end / g) break;
        REQUIRE(size_classes::of(low) == c);
        REQUIRE(size_classes::of(high - 1) == c);
        REQUIRE(size_classes::not_below(low) == c);
        if (high - low > 1) REQUIRE(size_classes::not_below(low + 1) == c + 1);
        REQUIRE((high - low) * 32 <= std::max<std::uint64_t>(low, 32));
    }
    CHECK(size_classes::of(layout::space_end / g) < size_classes::count);
    CHECK(size_classes::not_below(layout::space_end) == size_classes::count);
}

TEST_CASE("class_index finds the next class that is not empty", "[layout][size_classes]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    layout::class_index index;
    std::vector<bool> oracle(size_classes::count);
    CHECK(index.empty());
    CHECK(index.last() == size_classes::count);
    for (int step = 0; step < 3000; ++step) {
        const auto c = static_cast<unsigned>(test::below(rng, size_classes::count));
        oracle[c] = test::chance(rng, step < 1500 ? 10 : 2);
        index.set_head(c, oracle[c] ? 1 : no_node);
        const auto from = static_cast<unsigned>(test::below(rng, size_classes::count + 1));
        const auto next = std::find(oracle.begin() + from, oracle.end(), true);
        REQUIRE(index.first_from(from) == static_cast<unsigned>(next - oracle.begin()));
        REQUIRE(index.empty() == (std::find(oracle.begin(), oracle.end(), true) == oracle.end()));
        if (step % 64 == 0) REQUIRE(index.validate());
    }
}

TEST_CASE("domain_table makes records on first use and never moves them", "[layout][domain_table]") {
    layout::domain_table<int> t;
    CHECK(t.find(0) == nullptr);
    t.reserve();
    int* const first = &t[3];
    *first = 7;
    t[65535] = 9;
    CHECK(&t[3] == first);
    CHECK(*t.find(3) == 7);
    CHECK(*t.find(65535) == 9);
    CHECK(*t.find(4) == 0);
}

TEST_CASE("bitmap rounds to granules and never wraps", "[layout][bitmap]") {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    STATIC_REQUIRE(bitmap::rounded(513, 1) == 1024);
    STATIC_REQUIRE(bitmap::rounded(most, 1) == most - 511);
    bitmap l;
    CHECK(l.allocate(1, 1, d0) == no_block);
    l.add({2_MiB, 2_MiB}, 0);
    CHECK(l.allocate(most, 1, d0) == no_block);
    CHECK(l.allocate(std::size_t{1} << 48, 1, d0) == no_block);
    CHECK(l.allocate(1, std::size_t{1} << 63, d0) == no_block);
    CHECK(l.allocate(1, std::size_t{1} << 48, d0) == no_block);
    CHECK(l.validate());
}

TEST_CASE("bitmap keeps small and large blocks at opposite ends", "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 64_MiB}, 0);
    const layout::block_id small = l.allocate(1_MiB - 1, 1, d0), large = l.allocate(1_MiB, 1, d0);
    CHECK(l.offset(small) == 2_MiB);
    CHECK(l.offset(large) == 65_MiB);
    const layout::block_id aligned = l.allocate(1_MiB, 4_MiB, d0);
    CHECK(l.offset(aligned) == 64_MiB);
    CHECK(l.largest_free(d0) == 61_MiB);
    CHECK(l.validate());
}

TEST_CASE("bitmap takes an exact hole before it cuts a larger one", "[layout][bitmap]") {
    bitmap l = with_holes(2_MiB, {64 * g, 8 * g, 32 * g, 9 * g});
    const layout::block_id id = l.allocate(8 * g, 1, d0);
    CHECK(l.offset(id) == 2_MiB + g + 64 * g + g);
    CHECK(l.free_bytes(0) == (64 + 32 + 9) * g);
}

TEST_CASE("bitmap finds the one hole of its class that fits", "[layout][bitmap][scenario][D1]") {
    // Sizes 1000 and 1001 granules share a class. The one block of 1001 lies behind all others in the list,
    // and no larger class has any block: good fit without a complete scan would say "no space".
    const std::size_t where = GENERATE(std::size_t{0}, std::size_t{150}, std::size_t{299});
    REQUIRE(size_classes::of(1000) == size_classes::of(1001));
    std::vector<std::size_t> holes(300, 1000 * g);
    holes[where] = 1001 * g;
    bitmap l = with_holes(2_MiB, holes);
    CHECK(l.allocate(1001 * g, 1, d0) != no_block);
    CHECK(l.validate());
    CHECK(l.allocate(1001 * g, 1, d0) == no_block);
    CHECK(l.allocate(1001 * g, 1, d0) == no_block); // the class's ceiling has come down
    CHECK(l.validate());
    CHECK(l.allocate(1000 * g, 1, d0) != no_block);
}

TEST_CASE("a class's ceiling rises again with a larger block", "[layout][bitmap]") {
    bitmap l = with_holes(2_MiB, std::vector<std::size_t>(40, 1000 * g));
    CHECK(l.allocate(1001 * g, 1, d0) == no_block);
    l.add({1_GiB, 1001 * g}, 0);
    CHECK(l.validate());
    CHECK(l.allocate(1001 * g, 1, d0) != no_block);
}

TEST_CASE("bitmap finds the one hole that is aligned, in whatever class", "[layout][bitmap][scenario][D1]") {
    // Every hole is large enough for 64 KiB, one contains an aligned 64 KiB.
    const std::size_t where = GENERATE(std::size_t{0}, std::size_t{100}, std::size_t{199});
    const std::size_t size = GENERATE(128 * g, 140 * g, 200 * g);
    bitmap l;
    std::vector<layout::block_id> blocks;
    for (std::size_t i = 0; i < 200; ++i) {
        // an own range a hole; it ends just before, or just behind, an aligned 64 KiB
        const layout::address aligned = (i + 1) * 1_MiB;
        l.add({aligned - (i == where ? size - 128 * g : g), i == where ? size : 128 * g}, 0);
    }
    const layout::block_id id = l.allocate(64_KiB, 64_KiB, d0);
    REQUIRE(id != no_block);
    CHECK(l.offset(id) == (where + 1) * 1_MiB);
    CHECK(l.allocate(64_KiB, 64_KiB, d0) == no_block);
    CHECK(l.allocate(64_KiB, 512, d0) != no_block);
    CHECK(l.validate());
}

TEST_CASE("a block over 4 GiB works in bitmap", "[layout][bitmap][scenario][D2]") {
    bitmap l;
    l.add({0, std::size_t{1} << 48}, 0); // all of the space
    CHECK(l.largest_free(d0) == std::size_t{1} << 48);
    const layout::block_id a = l.allocate(5_GiB + 1, 1, d0), b = l.allocate(100_TiB, 1_GiB, d0);
    CHECK(l.size(a) == 5_GiB + 512);
    CHECK(l.size(b) == 100_TiB);
    CHECK(is_aligned(l.offset(b), 1_GiB));
    CHECK(l.allocate(200_TiB, 1, d0) == no_block);
    CHECK(l.validate());
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    const layout::block_id all = l.allocate(std::size_t{1} << 48, 1, d0);
    CHECK(l.size(all) == std::size_t{1} << 48);
}

TEST_CASE("bitmap merges with both neighbours of the same domain only", "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 4 * g}, 0);
    std::array<layout::block_id, 4> b{};
    for (auto& id : b) id = l.allocate(g, 1, d0);
    l.deallocate(b[0], 0);
    l.deallocate(b[2], 1);
    l.deallocate(b[1], 0); // left neighbour: same domain; right one: another
    CHECK(l.largest_free(d0) == 2 * g);
    CHECK(l.largest_free(d1) == g);
    CHECK(l.validate());
    l.deallocate(b[3], 1);
    CHECK(l.largest_free(d1) == 2 * g);
    l.recolor(1, 0);
    CHECK(l.largest_free(d0) == 4 * g);
    CHECK(l.free_bytes(1) == 0);
    CHECK(l.validate());
}

TEST_CASE("bitmap never merges across ranges", "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 1_MiB}, 0);
    l.add({3_MiB, 1_MiB}, 0);
    CHECK(l.largest_free(d0) == 1_MiB);
    const layout::block_id a = l.allocate(1_MiB, 1, d0), b = l.allocate(1_MiB, 1, d0);
    CHECK(l.allocate(1, 1, d0) == no_block);
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    CHECK(l.largest_free(d0) == 1_MiB);
    CHECK(l.remove(3_MiB));
    CHECK_FALSE(l.remove(3_MiB));
    CHECK(l.validate());
}

TEST_CASE("bitmap takes one block across neighbours of several domains, and leaves the rest what it was",
          "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 9 * g}, 0);
    std::array<layout::block_id, 9> b{};
    for (auto& id : b) id = l.allocate(g, 1, d0);
    // colours 0 1 0 U 1 2 1 U 1
    const std::array<domain, 9> colors{0, 1, 0, 0, 1, 2, 1, 0, 1};
    for (const std::size_t i : {0u, 1u, 2u, 4u, 5u, 6u, 8u}) l.deallocate(b[i], colors[i]);
    const std::array<domain, 2> both{0, 1};
    CHECK(l.allocate_across(4 * g, 1, both, 0) == no_block);
    CHECK(l.allocate_across(2 * g, 1, d0, 0) == no_block);
    const layout::block_id across = l.allocate_across(2 * g, 1, both, 0);
    REQUIRE(across != no_block);
    CHECK(l.offset(across) == l.offset(b[3]) - 3 * g);
    CHECK(l.size(across) == 2 * g);
    CHECK(l.free_bytes(0) == g);
    CHECK(l.free_bytes(1) == 3 * g);
    REQUIRE(l.validate());
    const std::array<domain, 2> others{1, 2};
    const layout::block_id behind = l.allocate_across(3 * g, 1, others, 0);
    REQUIRE(behind != no_block);
    CHECK(l.offset(behind) == l.offset(b[3]) + g);
    CHECK(l.free_bytes(2) == 0);
    l.deallocate(across, 0);
    l.deallocate(behind, 3);
    CHECK(l.largest_free(d0) == 3 * g);
    CHECK(l.validate());
}

TEST_CASE("recolor of many blocks moves them all", "[layout][bitmap]") {
    const std::size_t n = GENERATE(std::size_t{5}, std::size_t{16}, std::size_t{17}, std::size_t{200});
    CAPTURE(n);
    bitmap l = with_holes(2_MiB, std::vector<std::size_t>(n, 3 * g), 4);
    const std::size_t bytes = n * 3 * g;
    CHECK(l.free_bytes(4) == bytes);
    l.recolor(4, 6); // into a domain without blocks
    CHECK(l.free_bytes(6) == bytes);
    CHECK(l.validate());
    l.add({1_GiB, g}, 0);
    l.recolor(6, 0); // into one that has some
    CHECK(l.free_bytes(0) == bytes + g);
    CHECK(l.free_bytes(6) == 0);
    CHECK(l.validate());
    l.recolor(0, 0);
    CHECK(l.free_bytes(0) == bytes + g);
    CHECK(l.validate());
}

TEST_CASE("many domains with many blocks each, and back to one", "[layout][bitmap]") {
    constexpr std::size_t domains = 300, blocks = 20;
    bitmap l;
    l.add({2_MiB, domains * blocks * 2 * g}, 0);
    std::vector<layout::block_id> used, gaps;
    for (std::size_t i = 0; i < domains * blocks; ++i) {
        used.push_back(l.allocate(g, 1, d0));
        gaps.push_back(l.allocate(g, 1, d0));
    }
    for (std::size_t i = 0; i < used.size(); ++i) l.deallocate(used[i], static_cast<domain>(i % domains));
    REQUIRE(l.validate());
    for (std::size_t d = 0; d < domains; ++d) {
        const std::array<domain, 1> one{static_cast<domain>(d)};
        REQUIRE(l.free_bytes(one[0]) == blocks * g);
        const layout::block_id id = l.allocate(g, 1, one); // this builds the domain's index
        REQUIRE(id != no_block);
        l.deallocate(id, one[0]);
    }
    REQUIRE(l.validate());
    for (std::size_t d = 1; d < domains; ++d) l.recolor(static_cast<domain>(d), 0);
    for (const layout::block_id id : gaps) l.deallocate(id, 0);
    CHECK(l.largest_free(d0) == l.total_bytes());
    CHECK(l.validate());
}

TEST_CASE("the highest domain is as good as any", "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 4 * g}, 65535);
    const std::array<domain, 1> last{65535};
    const layout::block_id id = l.allocate(g, 1, last);
    l.deallocate(id, 65534);
    CHECK(l.free_bytes(65534) == g);
    l.recolor(65535, 65534);
    CHECK(l.free_bytes(65534) == 4 * g);
    CHECK(l.validate());
}

TEST_CASE("bitmap removes a range that is free in several domains, and no other", "[layout][bitmap]") {
    bitmap l;
    l.add({2_MiB, 2 * g}, 0);
    const layout::block_id a = l.allocate(g, 1, d0);
    CHECK_FALSE(l.remove(2_MiB));
    CHECK(l.validate());
    l.deallocate(a, 1);
    CHECK_FALSE(l.remove(2_MiB + g));
    CHECK(l.remove(2_MiB));
    CHECK(l.total_bytes() == 0);
    CHECK(l.validate());
}
