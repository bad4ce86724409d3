/// \file
/// Layouts when host memory fails: every allocation of host memory inside `add`, `allocate` and `allocate_across` is made to
/// fail in turn, which must change nothing; `deallocate`, `recolor` and `remove` must not ask for any.
///
/// The global `operator new` of this test program is replaced, see `failing_host_memory.hpp`.

#include "support/catch.hpp"
#include "support/failing_host_memory.hpp"
#include "support/layout_oracle.hpp"
#include "support/random.hpp"

#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/buddy.hpp>
#include <tenure/layout/slab.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

namespace {

using namespace tenure;
using test::host_memory::fail_at;
using test::host_memory::requests;

struct picture {
    std::vector<layout::block_view> blocks;
    std::size_t free, used;
};

bool same(const picture& a, const picture& b) {
    return a.free == b.free && a.used == b.used &&
           std::equal(a.blocks.begin(), a.blocks.end(), b.blocks.begin(), b.blocks.end(),
                      [](const layout::block_view& x, const layout::block_view& y) {
                          return x.id == y.id && x.offset == y.offset && x.size == y.size &&
                                 x.free == y.free && x.color == y.color;
                      });
}

template <class L>
picture picture_of(const L& l) {
    return {test::layout_oracle::blocks_of(l), l.free_bytes(), l.used_bytes()};
}

/// Runs `call` with each of its requests of host memory failing in turn, until it succeeds.
///
/// What a failed attempt has reserved stays reserved, so the next attempt makes fewer requests: failing its
/// second one, again and again, reaches each reservation. Only then does the count go up, for requests that
/// come back. Returns: how often it failed.
template <class L, class Call>
std::uint64_t fail_each(L& l, Call&& call) {
    constexpr std::uint64_t reservations = 8; // more than any layout makes in one call
    const picture before = picture_of(l);
    for (std::uint64_t attempt = 0;; ++attempt) {
        bool failed = false;
        fail_at = requests + (attempt == 0 ? 1 : attempt <= reservations ? 2 : attempt - reservations + 2);
        try {
            call();
        } catch (const std::bad_alloc&) {
            failed = true;
        }
        fail_at = 0;
        if (!failed) return attempt;
        REQUIRE(l.validate());
        REQUIRE(same(picture_of(l), before));
        REQUIRE(attempt < 100);
    }
}

template <class Call>
std::uint64_t requests_of(Call&& call) {
    const std::uint64_t before = requests;
    call();
    return requests - before;
}

} // namespace

TEMPLATE_TEST_CASE("failing host memory changes nothing, and frees need none", "[layout][model][memory]", //
                   layout::best_fit, layout::bitmap, layout::buddy, layout::slab) {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    const std::array<layout::domain, 3> all{0, 1, 2};
    TestType l;
    std::vector<layout::block_id> live;
    std::uint64_t failures = 0;
    layout::address next_base = std::uint64_t{1} << 21;
    for (int step = 0; step < 1200; ++step) {
        CAPTURE(step);
        const std::uint64_t dice = test::below(rng, 100);
        const auto d = static_cast<layout::domain>(test::below(rng, 3));
        if (dice < 5 || step == 0) {
            failures += fail_each(l, [&] { l.add({next_base, std::size_t{1} << 21}, d); });
            next_base += std::uint64_t{1} << 21;
        } else if (dice < (step % 400 < 250 ? 70 : 20)) {
            const std::size_t n = test::log_uniform(rng, 1, std::size_t{1} << 17);
            const std::size_t a = std::size_t{1} << test::below(rng, 14);
            layout::block_id id = layout::no_block;
            failures += fail_each(l, [&] { id = l.allocate(n, a, all); });
            if (id != layout::no_block) live.push_back(id);
        } else if (dice < 90) {
            if (live.empty()) continue;
            std::swap(live[test::below(rng, live.size())], live.back());
            const layout::block_id id = live.back();
            live.pop_back();
            REQUIRE(requests_of([&] { l.deallocate(id, d); }) == 0);
        } else if (dice < 93) {
            REQUIRE(requests_of([&] { l.recolor(d, static_cast<layout::domain>((d + 1) % 3)); }) == 0);
        } else if (dice < 97) {
            const std::size_t n = test::log_uniform(rng, 1, std::size_t{1} << 20);
            layout::block_id id = layout::no_block;
            failures += fail_each(l, [&] { id = l.allocate_across(n, 512, all, d); });
            if (id != layout::no_block) live.push_back(id);
        } else {
            const layout::address base = (1 + test::below(rng, next_base >> 21)) << 21;
            REQUIRE(requests_of([&] { (void)l.remove(base); }) == 0);
        }
        REQUIRE(l.validate());
    }
    CHECK(failures > 0);

    // Domains far apart and never seen before: the hardest free.
    std::uint64_t needed = 0;
    for (std::size_t i = 0; i < live.size(); ++i)
        needed += requests_of([&] { l.deallocate(live[i], static_cast<layout::domain>(65535 - 7 * i)); });
    CHECK(needed == 0);
    CHECK(l.validate());
    CHECK(l.used_bytes() == 0);
}

TEMPLATE_TEST_CASE("failing host memory changes nothing when every allocation splits twice",
                   "[layout][model][memory]", layout::best_fit, layout::bitmap) {
    // 512 bytes at each 4 KiB: something stays free before and behind, so that the nodes reach each growth of
    // their table two at a time.
    const std::array<layout::domain, 1> domains{0};
    TestType l;
    l.add({(std::size_t{1} << 21) + layout::granule, std::size_t{1} << 21}, 0);
    std::uint64_t failures = 0;
    for (int i = 0; i < 300; ++i) {
        layout::block_id id = layout::no_block;
        failures += fail_each(l, [&] { id = l.allocate(512, 4096, domains); });
        REQUIRE(id != layout::no_block);
        REQUIRE(l.validate());
    }
    CHECK(failures > 0);
}
