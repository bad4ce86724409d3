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

TEST_CASE("a large block that fits nowhere exactly is not cut around what is parked", "[front][magazines]") {
    sim::device d({.cost = sim::costs::zero(), .check_overlap = false});
    fronted f(d);
    constexpr std::size_t small = 512_KiB;
    for (int i = 0; i < 3; ++i) f.deallocate(default_stream, f.allocate(default_stream, small), small);
    std::vector<void*> blocks;
    for (int i = 0; i < 16; ++i) blocks.push_back(f.allocate(default_stream, small));
    void* const large = f.allocate(default_stream, 4_MiB);
    void* const behind = f.allocate(default_stream, 2_MiB); // so that it does not merge
    for (void* const p : blocks) f.deallocate(default_stream, p, small);
    f.deallocate(default_stream, large, 4_MiB);
    REQUIRE(parked(f) >= 8_MiB);
    const std::size_t held = parked(f);
    // There is one of exactly this size: what is parked stays where it is.
    f.deallocate(default_stream, f.allocate(default_stream, 4_MiB), 4_MiB);
    CHECK(parked(f) == held);
    // None of this size, which less than what is parked would hold.
    void* const other = f.allocate(default_stream, 3_MiB);
    CHECK(parked(f) == 0);
    f.deallocate(default_stream, other, 3_MiB);
    // More than is parked.
    f.deallocate(default_stream, f.allocate(default_stream, small), small);
    f.deallocate(default_stream, f.allocate(default_stream, small), small);
    CHECK(parked(f) != 0);
    f.deallocate(default_stream, f.allocate(default_stream, 2_MiB), 2_MiB);
    CHECK(parked(f) != 0);
    f.deallocate(default_stream, behind, 2_MiB);
    CHECK(f.validate());
}
