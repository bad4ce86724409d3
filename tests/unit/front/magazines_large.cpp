/// Blocks too large for magazines, beside what is parked in them.

#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>

#include <cstddef>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using fronted = fronted_remap_pool<sim::device>;

std::size_t parked(fronted& f) {
    return f.pool().usage().allocated.current - f.usage().allocated.current;
}

} // namespace

TEST_CASE("a large block is not cut out of one twice its size around what is parked", "[front][magazines]") {
    sim::device d({.cost = sim::costs::zero(), .check_overlap = false});
    fronted f(d, remap_options{.purchases_per_pool = 0}); // nothing is free but what was freed
    constexpr std::size_t small = 512_KiB;
    const auto pass = [&f](std::size_t bytes) {
        f.deallocate(default_stream, f.allocate(default_stream, bytes), bytes);
    };
    for (int i = 0; i < 3; ++i) pass(small);
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(f.allocate(default_stream, small));
    void* const large = f.allocate(default_stream, 12_MiB);
    void* const behind = f.allocate(default_stream, 2_MiB); // so that it does not merge
    for (void* const p : blocks) f.deallocate(default_stream, p, small);
    f.deallocate(default_stream, large, 12_MiB);
    REQUIRE(parked(f) >= 8_MiB);
    const std::size_t held = parked(f);
    // There is one of exactly this size: what is parked stays where it is.
    pass(12_MiB);
    CHECK(parked(f) == held);
    // One from which less would be cut than is taken.
    pass(8_MiB);
    CHECK(parked(f) == held);
    pass(6_MiB + 512);
    CHECK(parked(f) == held);
    // One from which as much would be cut.
    pass(6_MiB);
    CHECK(parked(f) == 0);
    // More than is parked.
    pass(small);
    pass(small);
    CHECK(parked(f) != 0);
    pass(2_MiB);
    CHECK(parked(f) != 0);
    f.deallocate(default_stream, behind, 2_MiB);
    CHECK(f.validate());
}
