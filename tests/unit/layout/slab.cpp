/// \file
/// `layout::slab`: size classes, binding and idling of ranges, domains, the ends of the space; and random
/// programs that know to which class each range is bound.

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/layout/slab.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

using namespace tenure;
using layout::address;
using layout::block_id;
using layout::block_view;
using layout::domain;
using layout::granule;
using layout::no_block;
using layout::slab;
using layout::slab_classes;

namespace {

constexpr domain zero[]{0}, one[]{1}, both[]{0, 1};

std::vector<block_view> blocks_of(const slab& l) {
    std::vector<block_view> v;
    l.for_each_block([&](const block_view& b) { v.push_back(b); });
    return v;
}

std::size_t free_ranges(const slab& l) {
    std::size_t n = 0;
    l.for_each_free_range([&](const layout::range&) { ++n; });
    return n;
}

/// Whether invariant 5 of the header says that the request must be served. A bound range shows its first slot
/// first, an idle one nothing but its rest.
bool could_hold(const slab& l, const std::vector<layout::range>& ranges, std::size_t n, std::size_t a,
                const std::vector<domain>& domains) {
    const std::vector<block_view> blocks = blocks_of(l);
    const std::size_t need = slab::rounded(n, a);
    for (const layout::range& r : ranges) {
        if (!is_aligned(r.base, a)) continue;
        const auto in_range = [&](const block_view& b) {
            return b.offset >= r.base && b.offset - r.base < r.size;
        };
        const auto usable = [&](const block_view& b) {
            return b.free && std::find(domains.begin(), domains.end(), b.color) != domains.end() &&
                   b.size >= need;
        };
        const auto first = std::find_if(blocks.begin(), blocks.end(), in_range);
        const bool idle = first->free && first->size == r.size;
        if (!idle && first->size != need) continue;
        if (std::any_of(blocks.begin(), blocks.end(),
                        [&](const block_view& b) { return in_range(b) && usable(b); }))
            return true;
    }
    return false;
}

} // namespace

TEST_CASE("slab classes waste less than 25 % and are multiples of the alignment", "[layout][slab]") {
    for (unsigned c = 0; c < slab_classes::count; ++c) {
        const std::size_t slot = slab_classes::slot_bytes(c);
        CAPTURE(c, slot);
        CHECK(slab_classes::class_for(slot, 1) == c);
        CHECK(is_aligned(slot, granule));
        const std::size_t smallest = c == 0 ? 1 : slab_classes::slot_bytes(c - 1) + 1;
        CHECK(slab_classes::class_for(smallest, 1) == c);
        CHECK(4 * slot < 5 * round_up(smallest, granule));
        const std::size_t range = slab_classes::range_bytes(slot);
        CHECK(is_aligned(range, 2_MiB));
        CHECK(range >= slot);
        CHECK(range <= 16_MiB);
        CHECK((range / slot >= 8 || range > 8_MiB));
    }
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (int i = 0; i < 20000; ++i) {
        const std::size_t a = std::size_t{1} << test::below(rng, 22);
        const std::size_t n = test::log_uniform(rng, 1, 8_MiB);
        const std::size_t size = slab::rounded(n, a);
        CAPTURE(n, a, size);
        REQUIRE(size >= n);
        REQUIRE(is_aligned(size, a));
        REQUIRE(4 * size < 5 * round_up(n, std::max(a, granule)));
    }
}

TEST_CASE("slab rounds large requests to 2 MiB and never wraps", "[layout][slab]") {
    CHECK(slab::rounded(0, 1) == granule);
    CHECK(slab::rounded(8_MiB, 256) == 8_MiB);
    CHECK(slab::rounded(8_MiB + 1, 256) == 10_MiB);
    CHECK(slab::rounded(1, 4_MiB) == 2_MiB);
    CHECK(slab::rounded(5_GiB + 1, 256) == 5_GiB + 2_MiB);
    CHECK(slab::rounded(std::numeric_limits<std::size_t>::max(), 256) > layout::space_end);
    CHECK(slab::range_for(1, 256, 0).size == 2_MiB);
    CHECK(slab::range_for(1, 256, 32_MiB).size == 2_MiB);
    CHECK(slab::range_for(1_MiB, 256, 0).size == 8_MiB);
    CHECK(slab::range_for(8_MiB, 256, 0).size == 16_MiB);
    CHECK(slab::range_for(9_MiB, 256, 0).size == 10_MiB);
    CHECK(slab::range_for(1, 16_MiB, 0).alignment == 16_MiB);
    CHECK(slab::range_for(std::numeric_limits<std::size_t>::max(), 1, 0).size > layout::space_end);
}

TEST_CASE("slab fills a range with slots and reuses them", "[layout][slab]") {
    slab l;
    l.add({2_MiB, 2_MiB}, 0);
    std::vector<block_id> ids;
    for (block_id id; (id = l.allocate(2560, 256, zero)) != no_block;) ids.push_back(id);
    CHECK(l.size(ids[0]) == 2560); // does not divide 2 MiB: a tail remains
    CHECK(l.offset(ids[1]) == 2_MiB + 2560);
    CHECK(ids.size() == 2_MiB / 2560);
    CHECK(l.free_bytes() == 2_MiB % 2560);
    CHECK(l.largest_free(zero) == 0); // the tail holds nothing
    REQUIRE(l.validate());

    const address freed = l.offset(ids[7]);
    l.deallocate(ids[7], 0);
    CHECK(l.largest_free(zero) == 2560);
    CHECK(l.allocate(512, 1, zero) == no_block); // another class
    ids[7] = l.allocate(2100, 1, zero);
    CHECK(l.offset(ids[7]) == freed);
    for (const block_id id : ids) l.deallocate(id, 0);
    REQUIRE(l.validate());
    CHECK(blocks_of(l).size() == 1);
    CHECK(l.largest_free(zero) == 2_MiB);
    CHECK(l.allocate(2_MiB, 1, zero) != no_block); // idle again: any class may bind it
}

TEST_CASE("slab binds an idle range of a usual size before a small one", "[layout][slab]") {
    slab l;
    l.add({0, 1_MiB}, 0);
    l.add({64_MiB, 64_MiB}, 0);
    l.add({16_MiB, 8_MiB}, 0);
    CHECK(l.offset(l.allocate(1_MiB, 1, zero)) == 16_MiB);
    CHECK(l.offset(l.allocate(512, 1, zero)) == 64_MiB);
    CHECK(l.offset(l.allocate(1_KiB, 1, zero)) == 0); // better than nothing
    CHECK(l.allocate(1536, 1, zero) == no_block);
    REQUIRE(l.validate());
}

TEST_CASE("slab keeps domains apart and idles a range when they become one", "[layout][slab]") {
    slab l;
    l.add({2_MiB, 8_MiB}, 0);
    const block_id a = l.allocate(1_MiB, 1, zero);
    const block_id b = l.allocate(1_MiB, 1, zero);
    const block_id c = l.allocate(1_MiB, 1, zero);
    l.deallocate(a, 1);
    l.deallocate(c, 2);
    l.deallocate(b, 1);
    // 1 1 2 | rest 0: wholly free, but of three domains
    REQUIRE(l.validate());
    CHECK(free_ranges(l) == 1);
    CHECK(l.free_bytes(0) == 5_MiB);
    CHECK(l.free_bytes(1) == 2_MiB);
    CHECK(l.free_bytes(2) == 1_MiB);
    const domain all[]{0, 1, 2};
    CHECK(l.allocate(512, 1, all) == no_block); // still bound
    CHECK(l.largest_free(all) == 1_MiB);

    SECTION("recolor") {
        l.recolor(1, 0);
        REQUIRE(l.validate());
        CHECK(l.allocate(512, 1, all) == no_block);
        l.recolor(0, 2);
        REQUIRE(l.validate());
        CHECK(l.free_bytes(2) == 8_MiB);
        CHECK(l.allocate(8_MiB, 1, std::vector<domain>{2}) != no_block);
    }
    SECTION("a block across binds it to another class") {
        const domain some[]{0, 1};
        CHECK(l.allocate_across(512, 1, some, 0) == no_block);
        const block_id across = l.allocate_across(512, 1, all, 1);
        REQUIRE(across != no_block);
        CHECK(l.offset(across) == 2_MiB);
        CHECK(l.free_bytes(1) == 8_MiB - l.size(across));
        CHECK(l.free_bytes(0) + l.free_bytes(2) == 0);
    }
    SECTION("a block across takes all of it") {
        const block_id across = l.allocate_across(8_MiB, 1, all, 1);
        REQUIRE(across != no_block);
        CHECK(l.free_bytes() == 0);
    }
    SECTION("remove takes several domains") {
        CHECK(l.remove(2_MiB));
        CHECK(l.total_bytes() == 0);
        for (const domain d : all) CHECK(l.free_bytes(d) == 0);
    }
    REQUIRE(l.validate());
}

TEST_CASE("slab gives large requests a whole range", "[layout][slab]") {
    slab l;
    l.add({64_MiB, 64_MiB}, 0);
    l.add({16_MiB, 12_MiB}, 0);
    const block_id a = l.allocate(9_MiB, 256, zero);
    CHECK(l.offset(a) == 16_MiB);
    CHECK(l.size(a) == 12_MiB); // all of it
    CHECK(l.used_bytes() == 12_MiB);
    l.deallocate(a, 1);
    CHECK(l.offset(l.allocate(1, 4_MiB, both)) == 16_MiB);
    CHECK(l.allocate(65_MiB, 1, both) == no_block);
    CHECK(l.offset(l.allocate(64_MiB, 1, both)) == 64_MiB);
    CHECK(l.free_bytes() == 0);
    REQUIRE(l.validate());
}

TEST_CASE("slab honours alignments where bases are not aligned", "[layout][slab]") {
    slab l;
    l.add({granule, 4_MiB}, 0);
    CHECK(l.allocate(512, 1_KiB, zero) == no_block);
    const block_id bound = l.allocate(1_KiB, 256, zero); // class 1 KiB, but its slots are not aligned to it
    l.add({8_MiB, 2_MiB}, 0);
    const block_id aligned = l.allocate(1_KiB, 1_KiB, zero);
    REQUIRE(aligned != no_block);
    CHECK(l.offset(aligned) == 8_MiB);
    const block_id next = l.allocate(1000, 1_KiB, zero);
    CHECK(l.offset(next) == 8_MiB + 1_KiB);
    l.deallocate(aligned, 0);
    l.deallocate(bound, 0);
    CHECK(l.offset(l.allocate(1000, 1_KiB, zero)) == 8_MiB);
    CHECK(l.allocate(3_MiB, 2_MiB, zero) == no_block);
    CHECK(l.allocate(3_MiB, 1, zero) != no_block);
    CHECK(l.allocate(512, 16_MiB, zero) == no_block);
    l.add({1_GiB, 2_MiB}, 0);
    CHECK(l.offset(l.allocate(512, 16_MiB, zero)) == 1_GiB);
    REQUIRE(l.validate());
}

TEST_CASE("slab spans the whole space and needs memory only for touched slots", "[layout][slab]") {
    slab l;
    l.add({0, layout::space_end}, 0);
    const block_id a = l.allocate(1, 1, zero);
    const block_id b = l.allocate(1, 1, zero);
    CHECK(l.offset(b) == granule);
    REQUIRE(l.validate());
    CHECK(blocks_of(l).size() == 3);
    l.deallocate(a, 0);
    l.deallocate(b, 0);
    CHECK(l.allocate(layout::space_end + 1, 1, zero) == no_block);
    CHECK(l.allocate(std::numeric_limits<std::size_t>::max(), 1, zero) == no_block);
    const block_id all = l.allocate(5_GiB, 1, zero);
    CHECK(l.size(all) == layout::space_end);
    l.deallocate(all, 1);
    CHECK(l.largest_free(one) == layout::space_end);
    REQUIRE(l.validate());
}

TEST_CASE("slab adds and removes ranges", "[layout][slab]") {
    slab l;
    CHECK_FALSE(l.remove(0));
    l.add({0, 2_MiB}, 0);
    l.add({2_MiB, 2_MiB}, 0);
    CHECK(l.allocate(4_MiB, 1, zero) == no_block);
    const block_id b = l.allocate(512, 1, zero);
    CHECK_FALSE(l.remove(l.offset(b)));
    CHECK(free_ranges(l) == 1);
    CHECK(l.remove(2_MiB - l.offset(b)));
    l.deallocate(b, 5);
    CHECK(free_ranges(l) == 1);
    CHECK(l.total_bytes() == 2_MiB);
    CHECK(l.remove(blocks_of(l).front().offset));
    CHECK(l.total_bytes() == 0);
    CHECK(l.free_bytes() == 0);
    REQUIRE(l.validate());
}

TEST_CASE("slab serves every request that a piece could hold", "[layout][slab]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    slab l;
    std::vector<layout::range> ranges;
    std::vector<block_id> live;
    const auto any_domain = [&] { return static_cast<domain>(test::below(rng, 3)); };
    std::size_t refused = 0;
    for (int step = 0; step < 6000; ++step) {
        CAPTURE(step);
        const std::uint64_t dice = test::below(rng, 100);
        if (dice < 50) {
            // Few sizes, so that classes compete for few ranges.
            const std::size_t n = (test::below(rng, 6) + 1) * 40000;
            const std::size_t a = test::chance(rng, 80) ? 256 : std::size_t{1} << test::below(rng, 22);
            std::vector<domain> domains{any_domain()};
            if (test::chance(rng, 50)) domains.push_back(any_domain());
            const bool could = could_hold(l, ranges, n, a, domains);
            const block_id id = l.allocate(n, a, domains);
            CAPTURE(n, a, domains);
            REQUIRE((id != no_block) == could);
            if (id != no_block) {
                REQUIRE(is_aligned(l.offset(id), a));
                live.push_back(id);
            } else {
                ++refused;
            }
        } else if (dice < 85 && !live.empty()) {
            std::swap(live[test::below(rng, live.size())], live.back());
            l.deallocate(live.back(), any_domain());
            live.pop_back();
        } else if (dice < 88) {
            l.recolor(any_domain(), any_domain());
        } else if (dice < 91) {
            const std::size_t n = test::log_uniform(rng, 1, 4_MiB);
            const block_id id = l.allocate_across(n, 1, std::vector<domain>{0, 1, 2}, any_domain());
            if (id != no_block) live.push_back(id);
        } else if (dice < 95 && ranges.size() < 12) {
            const address base = test::below(rng, 64) * 4_MiB + (test::chance(rng, 20) ? granule : 0);
            const layout::range r{base, 2_MiB + test::below(rng, 4) * 100 * granule -
                                            (test::chance(rng, 50) ? 1_MiB : 0)};
            if (std::none_of(ranges.begin(), ranges.end(), [&](const layout::range& x) {
                    return round_down(x.base, 4_MiB) == round_down(base, 4_MiB);
                })) {
                l.add(r, any_domain());
                ranges.push_back(r);
            }
        } else if (!ranges.empty()) {
            std::swap(ranges[test::below(rng, ranges.size())], ranges.back());
            if (l.remove(ranges.back().base)) ranges.pop_back();
        }
        REQUIRE(l.validate());
    }
    CHECK(refused != 0);
}
