// Installed when another allocator has been in use: what it handed out stays its own.

#include "sim_world.hpp"
#include "support/catch.hpp"

using namespace tenure;
using namespace tenure::test;

TEST_CASE("memory of the former allocator is freed to it, and nothing else is", "[torch][install]") {
    sim_world before_world;
    sim_allocator former(before_world, {}, {});
    former.init(1);
    void* const old = former.raw_alloc(1_MiB);
    void* const kept = former.raw_alloc(2_MiB);

    sim_world world; // its addresses are others
    world.options.granularity = 4_MiB;
    sim_allocator a(world, tenure::torch::parse_settings("policy=caching"), {}, &former);
    a.init(1);
    CHECK(a.former_in_use());
    a.raw_delete(old);
    CHECK(a.foreign_frees() == 1);
    CHECK(now(former.getDeviceStats(0).allocation) == 1);
    CHECK(a.getBaseAllocation(kept, nullptr) == former.getBaseAllocation(kept, nullptr));
    void* const mine = a.raw_alloc(1_MiB);
    a.raw_delete(mine);
    CHECK(a.foreign_frees() == 1);
    CHECK_THROWS_AS(a.raw_delete(mine), c10::Error); // the former does not know it either
    former.raw_delete(kept);
    CHECK(a.validate());
    CHECK(former.validate());
}

TEST_CASE("settings say what is wrong with them", "[torch][install]") {
    using tenure::torch::parse_settings;
    CHECK(parse_settings("").policy.name == "remap");
    CHECK(parse_settings("limit=2GiB\npolicy=caching\nmax_split=64MiB").limit == 2_GiB);
    CHECK_THROWS_AS(parse_settings("policy"), std::invalid_argument);
    CHECK_THROWS_AS(parse_settings("share=perhaps"), std::invalid_argument);
    CHECK_THROWS_AS(parse_settings("limit=2GB"), std::invalid_argument);
    CHECK_THROWS_AS(tenure::torch::check_policy({.name = "best"}), std::invalid_argument);
    CHECK_THROWS_AS(tenure::torch::check_policy({.name = "remap", .options = {{"speed", "11"}}}),
                    std::invalid_argument);
    CHECK_NOTHROW(tenure::torch::check_policy({.name = "fronted_remap", .options = {{"magazines", "off"}}}));
}
