#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/policy/remap/blocks.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using kind = remap_blocks::kind;
using home = remap_blocks::home;

constexpr layout::domain settled = 0, mine = 2, other = 3;
constexpr std::array<layout::domain, 1> only_settled{settled};
constexpr std::array<layout::domain, 2> both{mine, settled};

constexpr std::uint64_t base = std::uint64_t{1} << 40;
constexpr std::uint64_t view_base = std::uint64_t{1} << 44;

/// Three homes of 8 MiB in a row, and a view that shows the last, the middle and the first.
struct backwards {
    remap_blocks blocks;
    std::array<home, 3> homes{};
    std::uint32_t view = remap_blocks::no_view;

    backwards() {
        for (std::size_t i = 0; i < 3; ++i) {
            homes[i] = {base + i * 8_MiB, 8_MiB, kind::large};
            if (i == 0)
                blocks.add({homes[i].base, 8_MiB}, settled, kind::large);
            else
                blocks.grow(base, 8_MiB, settled, kind::large);
        }
    }
    void show() {
        view = blocks.add_view(
            {{homes[2], view_base}, {homes[1], view_base + 8_MiB}, {homes[0], view_base + 16_MiB}}, 1);
    }
};

} // namespace

TEST_CASE("homes next to each other are one place", "[policy][remap]") {
    backwards w;
    const auto id = w.blocks.allocate(20_MiB, 512, only_settled);
    REQUIRE(id != layout::no_block);
    CHECK(w.blocks.offset(id) == base);
    CHECK(w.blocks.free_bytes() == 4_MiB);
    w.blocks.deallocate(id, settled);
    CHECK(w.blocks.validate());
}

TEST_CASE("a block lies over a tail, whole handles and a head of a view", "[policy][remap]") {
    backwards w;
    // The middle of the whole is taken, then freed, so that only the two outer ends and the middle are free.
    const auto first = w.blocks.allocate(5_MiB, 512, only_settled);  // base .. 5
    const auto second = w.blocks.allocate(3_MiB, 512, only_settled); // 5 .. 8
    const auto middle = w.blocks.allocate(8_MiB, 512, only_settled); // 8 .. 16
    const auto third = w.blocks.allocate(2_MiB, 512, only_settled);  // 16 .. 18
    REQUIRE(w.blocks.free_bytes() == 6_MiB);                         // 18 .. 24
    w.blocks.deallocate(middle, settled);
    w.blocks.deallocate(first, settled);
    // Free: 0..5, 8..16, 18..24. The largest at one place is 8 MiB.
    CHECK(w.blocks.allocate(12_MiB, 512, only_settled) == layout::no_block);
    w.show(); // 16..24, 8..16, 0..8
    const auto span = w.blocks.allocate(18_MiB, 512, only_settled);
    REQUIRE(span != layout::no_block);
    CHECK(w.blocks.offset(span) == view_base + 2_MiB); // where handle 2 is free from
    CHECK(w.blocks.size(span) == 18_MiB);
    CHECK(w.blocks.free_bytes() == 1_MiB); // 4..5
    CHECK(w.blocks.spans_in(w.view) == 1);
    CHECK(w.blocks.validate());

    // At home the span is its pieces, in its own order.
    std::size_t pieces = 0;
    w.blocks.for_each_block([&](const layout::block_view& b) {
        if (b.free || w.blocks.part_of(b.id).block != span) return;
        ++pieces;
        const std::size_t before = w.blocks.part_of(b.id).before;
        if (b.offset == base + 18_MiB) CHECK(before == 0);
        if (b.offset == base + 8_MiB) CHECK(before == 6_MiB);
        if (b.offset == base) CHECK(before == 14_MiB);
    });
    CHECK(pieces == 3);

    w.blocks.deallocate(span, settled);
    CHECK(w.blocks.spans_in(w.view) == 0);
    CHECK(w.blocks.free_bytes() == 19_MiB);
    w.blocks.deallocate(second, settled);
    w.blocks.deallocate(third, settled);
    CHECK(w.blocks.largest_free(only_settled) == 24_MiB);
    CHECK(w.blocks.validate());
}

TEST_CASE("a span takes only what its request may have", "[policy][remap]") {
    backwards w;
    w.show();
    const auto a = w.blocks.allocate(8_MiB, 512, only_settled);
    const auto b = w.blocks.allocate(8_MiB, 512, only_settled);
    const auto c = w.blocks.allocate(8_MiB, 512, only_settled);
    w.blocks.deallocate(a, mine);
    w.blocks.deallocate(b, other);
    w.blocks.deallocate(c, settled);
    CHECK(w.blocks.allocate(10_MiB, 512, both) == layout::no_block); // b lies between
    w.blocks.recolor(other, mine);
    const auto span = w.blocks.allocate(24_MiB, 512, both); // pieces of both domains
    REQUIRE(span != layout::no_block);
    CHECK(w.blocks.offset(span) == view_base);
    w.blocks.deallocate(span, mine);
    CHECK(w.blocks.free_bytes(mine) == 24_MiB);
    CHECK(w.blocks.validate());
}

TEST_CASE("a span begins aligned", "[policy][remap]") {
    backwards w;
    const auto a = w.blocks.allocate(9_MiB + 512, 512, only_settled);
    const auto b = w.blocks.allocate(1_MiB, 512, only_settled);
    const auto c = w.blocks.allocate(8_MiB, 512, only_settled);
    REQUIRE(c != layout::no_block);
    w.blocks.deallocate(a, settled);
    w.show(); // handle 2 is free from 18 MiB + 512 on, then handle 1 is not free from its beginning on but 1 MiB + 512
    const auto span = w.blocks.allocate(6_MiB + 1_KiB, 4096, only_settled);
    REQUIRE(span != layout::no_block);
    CHECK(w.blocks.offset(span) % 4096 == 0);
    w.blocks.deallocate(span, settled);
    w.blocks.deallocate(b, settled);
    w.blocks.deallocate(c, settled);
    CHECK(w.blocks.validate());
}

TEST_CASE("small blocks keep to homes of their own until those are full", "[policy][remap]") {
    remap_blocks blocks;
    blocks.add({base, 2_MiB}, settled, kind::small);
    blocks.add({base + 1_GiB, 8_MiB}, settled, kind::large);
    std::vector<layout::block_id> small;
    for (int i = 0; i < 8; ++i) small.push_back(blocks.allocate(256_KiB, 512, only_settled));
    for (const auto id : small) CHECK(blocks.offset(id) < base + 2_MiB);
    const auto spilt = blocks.allocate(256_KiB, 512, only_settled);
    CHECK(blocks.offset(spilt) >= base + 1_GiB);
    blocks.deallocate(small.back(), settled);
    CHECK(blocks.allocate(1_MiB, 512, only_settled) != layout::no_block);
    CHECK(blocks.offset(blocks.allocate(4_KiB, 512, only_settled)) < base + 2_MiB);
    CHECK(blocks.validate());
}

TEST_CASE("a home that is taken away is neither free nor used, and no view shows it", "[policy][remap]") {
    backwards w;
    w.show();
    const auto hole = w.blocks.take_away(w.homes[1]);
    CHECK(w.blocks.total_bytes() == 16_MiB);
    CHECK(w.blocks.free_bytes() == 16_MiB);
    CHECK(w.blocks.used_bytes() == 0);
    CHECK(w.blocks.allocate(10_MiB, 512, only_settled) == layout::no_block);
    w.blocks.for_each_block([](const layout::block_view& b) { CHECK(b.free); });
    CHECK(w.blocks.validate());
    w.blocks.fill(hole);
    CHECK(w.blocks.total_bytes() == 24_MiB);
    CHECK(w.blocks.remove(base));
    CHECK(w.blocks.total_bytes() == 0);
    CHECK(w.blocks.validate());
}
