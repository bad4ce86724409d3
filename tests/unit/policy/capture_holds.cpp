#include "support/catch.hpp"

#include <tenure/policy/capture_holds.hpp>

#include <cstdint>
#include <vector>

using namespace tenure;

namespace {
std::vector<layout::block_id> released(capture_holds& holds, std::uint64_t capture) {
    std::vector<layout::block_id> free;
    holds.release(capture, [&](layout::block_id b) { free.push_back(b); });
    return free;
}
} // namespace

TEST_CASE("a parked block is let go when its last hold is released, in any order",
          "[policy][capture_holds]") {
    capture_holds holds;
    holds.make_room(3);
    CHECK_FALSE(holds.held(1));
    holds.hold(1, 10);
    holds.hold(1, 20);
    holds.hold(1, 20);
    holds.hold(1, 30);
    holds.park(1);
    CHECK(released(holds, 20).empty());
    CHECK(released(holds, 10).empty());
    CHECK(holds.only(1, 30));
    CHECK(released(holds, 30) == std::vector<layout::block_id>{1});
    CHECK_FALSE(holds.held(1));
    CHECK(holds.parked().empty());
}

TEST_CASE("a hold that is released before the block is parked leaves nothing behind",
          "[policy][capture_holds]") {
    capture_holds holds;
    holds.make_room(2);
    holds.hold(0, 10);
    holds.hold(1, 10);
    holds.hold(1, 20);
    CHECK(holds.only(0, 10));
    CHECK_FALSE(holds.only(1, 10));
    CHECK(released(holds, 10).empty());
    CHECK_FALSE(holds.held(0));
    CHECK(holds.held(1));
    holds.park(1);
    CHECK(released(holds, 10).empty());
    CHECK(released(holds, 20) == std::vector<layout::block_id>{1});
}

TEST_CASE("a block taken out of the parked ones keeps its holds", "[policy][capture_holds]") {
    capture_holds holds;
    holds.make_room(4);
    for (layout::block_id b = 0; b < 4; ++b) {
        holds.hold(b, 10);
        holds.park(b);
    }
    REQUIRE(holds.parked()[1] == 1);
    holds.unpark(1);
    CHECK(holds.held(1));
    CHECK(released(holds, 10).size() == 3);
    CHECK_FALSE(holds.held(1));
}
