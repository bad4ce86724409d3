// Installed when another allocator has been in use: what it handed out stays its own.

#include "counting_allocator.hpp"
#include "pool_ids.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"

#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

/// tenure in the place of a `counting_allocator` that has been in use, on two devices.
struct installed_late {
    explicit installed_late(std::size_t capacity = 1_GiB) {
        world.options.capacity = capacity;
        a = std::make_unique<sim_allocator>(world, tenure::torch::settings{}, tenure::torch::heap_settings{},
                                            &former);
    }
    sim_world world{};
    counting_allocator former{};
    std::unique_ptr<sim_allocator> a;
};

} // namespace

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

TEST_CASE("pools of the former allocator stay its own until they die", "[torch][install]") {
    installed_late l;
    l.a->take_over(1);
    const pool_id graph{5, 0}, user{0, 9}, mine{0, 10};
    l.former.pool_users = {{graph, 1}, {user, 1}};
    CHECK_THROWS_AS(l.a->beginAllocateToPool(0, user, always), c10::Error);
    CHECK(l.a->getPoolUseCount(0, graph) == 1);
    CHECK(l.a->checkPoolLiveAllocations(0, graph, {}));
    CHECK(l.a->getCheckpointState(0, graph) == nullptr);
    CHECK_NOTHROW(l.a->setCheckpointPoolState(0, nullptr));
    // As ~MemPool and ~CUDAGraph do, where an error would end the process.
    CHECK_NOTHROW(l.a->endAllocateToPool(0, user));
    CHECK_NOTHROW(l.a->setUseOnOOM(0, user, false));
    CHECK_NOTHROW(l.a->releasePool(0, user));
    CHECK_NOTHROW(l.a->emptyCache(user));
    CHECK_NOTHROW(l.a->releasePool(0, graph));
    CHECK(l.former.pool_users == std::map<pool_id, int>{{graph, 0}, {user, 0}});
    CHECK(l.former.pool_calls ==
          std::vector<std::string>{"check", "end", "use_on_oom", "release", "release"});

    l.a->createOrIncrefPool(0, mine);
    l.a->setNoSplit(0, mine);
    l.a->beginAllocateToPool(0, mine, always);
    l.a->endAllocateToPool(0, mine);
    l.a->releasePool(0, mine);
    l.a->releasePool(0, mine);
    CHECK(l.former.pool_calls.size() == 5);
    CHECK(l.a->heap_of(0).pools().empty());
}

TEST_CASE("what the former allocator has cached makes room before a request fails", "[torch][install][oom]") {
    installed_late l(1_GiB);
    l.a->take_over(1);
    auto& gpu = l.a->heap_of(0).upstream();
    const auto cached = gpu.allocate(900_MiB);
    REQUIRE(cached);
    int asked = 0;
    l.former.on_empty_cache = [&] {
        CHECK(tenure::torch::outside_captures<sim::device>::depth() == 1);
        if (asked++ == 0) CHECK(gpu.deallocate(*cached, 900_MiB) == status::ok);
    };
    void* const p = l.a->raw_alloc(600_MiB);
    CHECK(p != nullptr);
    CHECK(asked == 1);
    SECTION("not for an arena's own limit") {
        l.a->raw_delete(p);
        const auto alice = l.a->arenas().create("alice", 10_MiB, {});
        tenure::torch::tenants::push(alice);
        CHECK_THROWS_AS(l.a->raw_alloc(20_MiB), c10::OutOfMemoryError);
        tenure::torch::tenants::pop();
        CHECK(asked == 1);
    }
    SECTION("not while a capture is under way, nor by empty_cache") {
        const stream_handle s = l.world.stream = gpu.create_stream();
        l.a->beginAllocateToPool(0, {7, 0}, [&](cudaStream_t x) {
            const auto state = gpu.describe(x);
            return state && state->capturing();
        });
        REQUIRE(gpu.begin_capture(s) != 0);
        CHECK_THROWS_AS(l.a->raw_alloc(600_MiB), c10::OutOfMemoryError);
        l.a->emptyCache();
        CHECK(asked == 1);
    }
}

TEST_CASE("streams are recorded with whom the memory is from", "[torch][install][streams]") {
    installed_late l;
    l.a->take_over(1);
    const auto stream = c10::cuda::getStreamFromExternal(
        reinterpret_cast<cudaStream_t>(l.a->heap_of(0).upstream().create_stream()), 0);
    int byte = 0;
    const c10::DataPtr old(&byte, &byte, l.former.raw_deleter(), c10::Device(c10::kCUDA, 0));
    l.a->recordStream(old, stream);
    CHECK(l.former.recorded_streams == 1);
    const c10::DataPtr mine = l.a->allocate(1000);
    l.a->recordStream(mine, stream);
    const c10::DataPtr none;
    l.a->recordStream(none, stream);
    CHECK(l.former.recorded_streams == 1);
}

TEST_CASE("the former allocator's memory fraction still holds", "[torch][install][limits]") {
    installed_late l(1_GiB);
    l.former.fraction = 0.25;
    l.a->take_over(2);
    CHECK(l.a->heap_if_any(0) == nullptr); // a device that is not used stays so
    CHECK(l.a->getMemoryFraction(1) == 0.25);
    CHECK_THROWS_AS(l.a->raw_alloc(300_MiB), c10::OutOfMemoryError);
    CHECK_NOTHROW(l.a->raw_delete(l.a->raw_alloc(200_MiB)));
    l.a->setMemoryFraction(1.0, 0);
    CHECK_NOTHROW(l.a->raw_delete(l.a->raw_alloc(300_MiB)));
}

TEST_CASE("peers that torch believes admitted are admitted", "[torch][install][peers]") {
    installed_late l;
    l.a->take_over(2);
    void* const p = l.a->raw_alloc(1_MiB);
    CHECK(l.world.gates_opened_to_peers == 1);
    l.a->raw_delete(p);
    torch_world alone;
    alone.a->init(2);
    alone.look();
    CHECK(alone.world.gates_opened_to_peers == 0); // torch will ask
}

TEST_CASE("settings say what is wrong with them", "[torch][install]") {
    using tenure::torch::parse_settings;
    CHECK(parse_settings("").policy.name == "remap");
    const auto installed = tenure::torch::settings::of_install(); // tight
    CHECK(parse_settings("", installed).policy.options.size() == 1);
    CHECK(parse_settings("policy=remap\nslack_divisor=20", installed).policy.options.size() == 2);
    CHECK(parse_settings("policy=best_fit", installed).policy.options.empty());
    CHECK(parse_settings("policy=remap")
              .policy.options.empty()); // of arenas and pools: what they are made with
    CHECK(parse_settings("limit=2GiB\npolicy=caching\nmax_split=64MiB").limit == 2_GiB);
    CHECK_THROWS_AS(parse_settings("policy"), std::invalid_argument);
    CHECK_THROWS_AS(parse_settings("share=perhaps"), std::invalid_argument);
    CHECK(parse_settings("").waits);
    CHECK_FALSE(parse_settings("waits=off").waits);
    CHECK_FALSE(parse_settings("waits=off") == parse_settings("waits=on"));
    CHECK_THROWS_AS(parse_settings("waits=perhaps"), std::invalid_argument);
    CHECK_THROWS_AS(parse_settings("limit=2GB"), std::invalid_argument);
    CHECK_THROWS_AS(tenure::torch::check_policy({.name = "best"}), std::invalid_argument);
    CHECK_THROWS_AS(tenure::torch::check_policy({.name = "remap", .options = {{"speed", "11"}}}),
                    std::invalid_argument);
    CHECK_NOTHROW(tenure::torch::check_policy({.name = "fronted_remap", .options = {{"magazines", "off"}}}));
}
