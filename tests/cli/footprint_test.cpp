/// `footprint_recorder` and `memory_picture`: no peak is lost, and bytes add up.

#include "cli/footprint.hpp"

#include "support/catch.hpp"

#include <algorithm>

using namespace tenure;
using namespace tenure::cli;

TEST_CASE("a footprint keeps the lowest and the highest value of every span", "[cli][footprint]") {
    constexpr std::uint64_t events = 1'234'567;
    footprint_recorder seen(events);
    for (std::uint64_t i = 0; i < events; ++i) {
        std::uint64_t live = 1000 + i % 7;
        if (i == 777'777) live = 5'000'000;
        if (i == 888'888) live = 3;
        seen.add(i, 10 * i, live, i < 500'000 ? 4096 : 8192);
    }
    const footprint& f = seen.result();
    CHECK(f.spans.size() <= footprint::most_spans);
    CHECK(f.spans.size() > footprint::most_spans / 2);
    std::uint64_t high = 0;
    std::uint64_t low = ~std::uint64_t{0};
    for (std::size_t i = 0; i < f.spans.size(); ++i) {
        const footprint::span& s = f.spans[i];
        high = std::max(high, s.live_high);
        low = std::min(low, s.live_low);
        CHECK(s.t_us == 10 * s.event);
        CHECK(s.live_low <= s.live_high);
        if (i > 0) CHECK(s.event == f.spans[i - 1].event + f.spans[1].event);
    }
    CHECK(high == 5'000'000);
    CHECK(low == 3);
    // Of those with most reserved, the moment with most live.
    CHECK(f.peak_event == 777'777);
    CHECK(f.peak_reserved == 8192);
    CHECK(f.peak_live == 5'000'000);
}

TEST_CASE("a small last purchase does not move the peak to a moment when little lives", "[cli][footprint]") {
    footprint_recorder seen(10);
    seen.add(0, 0, 900'000, 1'000'000);
    seen.add(1, 0, 100, 1'000'000);
    seen.add(2, 0, 200, 1'002'000); // a fifth of a percent
    CHECK(seen.result().peak_event == 0);
    seen.add(3, 0, 300, 1'100'000); // ten percent
    CHECK(seen.result().peak_event == 3);
    seen.add(4, 0, 950'000, 500'000); // much lives, but much less is reserved
    CHECK(seen.result().peak_event == 3);
    CHECK(seen.result().peak_reserved == 1'100'000);
}

TEST_CASE("the peak stays within a percent of the most, however many steps lead away from it",
          "[cli][footprint]") {
    footprint_recorder seen(1000);
    std::uint64_t reserved = 1'000'000;
    for (std::uint64_t i = 0; i < 1000; ++i) {
        seen.add(i, 0, i, reserved);
        reserved -= reserved / 200; // half a percent less, and a byte more lives
    }
    CHECK(seen.result().peak_reserved >= 990'000);
}

TEST_CASE("a picture is runs of one state that add up", "[cli][footprint]") {
    memory_snapshot pool;
    pool.segments.push_back({0x1000,
                             4096,
                             {{0x1000, 512, 500, block_state::allocated},
                              {0x1200, 512, 512, block_state::allocated},
                              {0x1400, 1024, 0, block_state::free},
                              {0x1800, 1024, 0, block_state::free},
                              {0x1c00, 1024, 900, block_state::pending}}});
    pool.segments.push_back({0x4000, 1024, {{0x4000, 1024, 0, block_state::free}}});
    memory_picture p;
    p.add(pool);
    p.finish(6000);
    CHECK(p.runs.size() == 4);
    CHECK(p.boundaries == std::vector<std::size_t>{0, 3});
    CHECK(p.live == 1024);
    CHECK(p.rounding == 12);
    CHECK(p.free == 3072);
    CHECK(p.waiting == 1024);
    CHECK(p.unplaced == 6000 - 5120);
    CHECK(p.free_pieces == 2); // not merged across segments
    CHECK(p.largest_free == 2048);
}
