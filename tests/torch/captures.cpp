// Graph captures: those that fail, and what may happen to memory while one is under way.

#include "counting_allocator.hpp"
#include "pool_ids.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"

#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

/// One capture on a stream of its own, as `at::cuda::CUDAGraph` makes it.
struct capture {
    capture(torch_world& world, pool_id pool) : w(&world), id(pool) {
        s = w->world.stream = w->gpu().create_stream();
        begin();
    }
    void begin() {
        w->a->beginAllocateToPool(0, id, w->graph_filter());
        REQUIRE(w->gpu().begin_capture(s) != 0);
    }
    /// The driver refuses it: `CUDAGraph` throws, and neither ends the route nor releases the pool.
    void fail() {
        (void)w->gpu().end_capture(s);
        w->world.stream = nullptr;
    }
    void end() {
        (void)w->gpu().end_capture(s);
        w->a->endAllocateToPool(0, id);
        w->world.stream = nullptr;
    }
    torch_world* w;
    pool_id id;
    stream_handle s;
};

} // namespace

TEST_CASE("a capture that failed is over for everybody", "[torch][capture]") {
    const bool allocates = GENERATE(true, false);
    CAPTURE(allocates);
    torch_world w(1_GiB);
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    capture c(w, graph_pool);
    if (allocates) {
        w.a->raw_delete(w.a->raw_alloc(20_MiB));
        CHECK(w.a->heap_of(0).capture_active());
    }
    c.fail();
    CHECK_FALSE(w.a->heap_of(0).capture_active());
    // Its memory can be given back, and uses of streams complete.
    for (int i = 0; i < 40; ++i) {
        c10::DataPtr d = w.a->allocate(100_MiB);
        gpu.launch(side, sim::nanoseconds{1000});
        w.a->record_stream(d, side);
        d.clear();
        gpu.advance(sim::nanoseconds{2000});
    }
    w.look();
    CHECK(now(w.stats().active) == 0);
    if (!allocates) { // nobody has seen it: the next one on its stream ends it
        w.world.stream = c.s;
        w.a->beginAllocateToPool(0, {8, 0}, w.graph_filter());
        w.a->endAllocateToPool(0, {8, 0});
        w.a->releasePool(0, {8, 0});
        w.world.stream = nullptr;
    }
    CHECK(w.a->getPoolUseCount(0, graph_pool) == 0);
    w.a->emptyCache();
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(gpu.reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("a pool that a failed capture used is captured into again", "[torch][capture]") {
    const bool allocates = GENERATE(true, false);
    CAPTURE(allocates);
    torch_world w;
    capture c(w, graph_pool);
    if (allocates) w.a->raw_delete(w.a->raw_alloc(20_MiB));
    c.fail();
    w.world.stream = c.s;
    c.begin(); // torch: graph(g2, pool=handle)
    CHECK(w.a->getPoolUseCount(0, graph_pool) == 1);
    void* const p = w.a->raw_alloc(1_MiB);
    CHECK(w.a->checkPoolLiveAllocations(0, graph_pool, {p}));
    CHECK_THROWS_AS(w.a->beginAllocateToPool(0, graph_pool, w.graph_filter()), c10::Error);
    w.a->raw_delete(p);
    c.end();
    w.a->releasePool(0, graph_pool);
    w.a->emptyCache();
    CHECK(w.gpu().reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("the filter of a graph that is gone is not asked", "[torch][capture]") {
    torch_world w;
    auto alive = std::make_shared<bool>(true);
    const stream_handle s = w.world.stream = w.gpu().create_stream();
    w.a->beginAllocateToPool(0, graph_pool, [alive, in_capture = w.graph_filter()](cudaStream_t x) {
        CHECK(*alive);
        return in_capture(x);
    });
    (void)w.gpu().begin_capture(s);
    w.a->raw_delete(w.a->raw_alloc(1_MiB));
    (void)w.gpu().end_capture(s);
    *alive = false;
    std::thread([&] { w.a->raw_delete(w.a->raw_alloc(1_MiB)); }).join(); // the capture was not this thread's
    capture another(w, {8, 0});
    void* const p = w.a->raw_alloc(1_MiB);
    CHECK(w.a->checkPoolLiveAllocations(0, {8, 0}, {p}));
    another.end();
}

TEST_CASE("a capture that succeeds is not taken for a failed one by other threads", "[torch][capture]") {
    torch_world w;
    capture c(w, graph_pool);
    void* const p = w.a->raw_alloc(1_MiB);
    (void)w.gpu().end_capture(c.s); // here torch has not yet told that it has ended
    w.world.stream = nullptr;
    std::thread([&] {
        w.look();
        w.a->emptyCache();
    }).join();
    CHECK(w.a->getPoolUseCount(0, graph_pool) == 1);
    w.a->endAllocateToPool(0, graph_pool);
    CHECK(w.a->checkPoolLiveAllocations(0, graph_pool, {p}));
    w.a->raw_delete(p);
    w.a->releasePool(0, graph_pool);
    w.a->emptyCache();
    CHECK(w.gpu().reserved() == 0);
}

TEST_CASE("between a capture's announcement and its begin other threads mark nothing", "[torch][capture]") {
    torch_world w;
    const stream_handle s = w.world.stream = w.gpu().create_stream();
    c10::DataPtr before = w.a->allocate(1_MiB);
    w.a->record_stream(before, w.gpu().create_stream());
    w.a->beginAllocateToPool(0, graph_pool, w.graph_filter());
    const auto records = w.gpu().calls(sim::call::record);
    std::thread([&] { before.clear(); }).join();
    CHECK(w.gpu().calls(sim::call::record) == records);
    REQUIRE(w.gpu().begin_capture(s) != 0);
    REQUIRE(w.gpu().end_capture(s));
    w.a->endAllocateToPool(0, graph_pool);
    w.look();
    CHECK(w.gpu().calls(sim::call::record) > records);
    w.a->releasePool(0, graph_pool);
}

TEST_CASE("a thread's pool serves on after a capture inside it", "[torch][capture]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle s = w.world.stream = gpu.create_stream();
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    REQUIRE(gpu.begin_capture(s) != 0); // by plain CUDA calls
    void* const p = w.a->raw_alloc(1_MiB);
    CHECK(w.a->heap_of(0).capture_active());
    REQUIRE(gpu.end_capture(s));
    CHECK_FALSE(w.a->heap_of(0).capture_active());
    void* const q = w.a->raw_alloc(1_MiB);
    CHECK(w.a->checkPoolLiveAllocations(0, user_pool, {p, q}));
    w.a->endAllocateToPool(0, user_pool);
    CHECK(w.a->validate());
}

TEST_CASE("a MemPool's own allocator may call the device in a capture", "[torch][capture]") {
    torch_world w;
    using scope = tenure::torch::outside_captures<sim::device>;
    auto source = std::make_shared<counting_allocator>();
    int inside = 0;
    source->on_alloc = source->on_delete = [&] { inside += scope::depth() > 0; };
    w.a->createOrIncrefPool(0, user_pool, source);
    capture c(w, user_pool);
    w.a->raw_delete(w.a->raw_alloc(32_MiB));
    c.end();
    CHECK(inside == 1);
    w.a->releasePool(0, user_pool); // the capture's
    w.a->releasePool(0, user_pool);
    w.a->emptyCache();
    CHECK(source->frees == 1);
    CHECK(inside == 2);
    CHECK(scope::depth() == 0);
}

TEST_CASE("what empty_cache could not do in a capture is done after it, arenas included",
          "[torch][capture]") {
    torch_world w;
    w.a->raw_delete(w.a->raw_alloc(200_MiB));
    capture c(w, graph_pool);
    w.a->emptyCache();
    CHECK(now(w.stats().reserved_bytes) >= static_cast<std::int64_t>(200_MiB));
    c.end();
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(w.gpu().reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("limits that change in a capture hold at once, and memory goes back after it", "[torch][capture]") {
    torch_world w(1_GiB);
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    const auto as_alice = [&](std::size_t n) {
        tenure::torch::tenants::push(alice);
        void* p = nullptr;
        try {
            p = w.a->raw_alloc(n);
        } catch (const c10::OutOfMemoryError&) {
        }
        tenure::torch::tenants::pop();
        return p;
    };
    const bool of_arena = GENERATE(true, false);
    CAPTURE(of_arena);
    w.a->raw_delete(as_alice(200_MiB));
    capture c(w, graph_pool);
    const auto calls = w.gpu().call_counts();
    if (of_arena)
        w.a->heap_of(0).set_max(*alice, 64_MiB);
    else
        w.a->set_limit(-1, 64_MiB);
    const auto after = w.gpu().call_counts();
    for (const auto kind :
         {sim::call::deallocate, sim::call::unmap, sim::call::release_memory, sim::call::synchronize_device})
        CHECK(after[static_cast<std::size_t>(kind)] == calls[static_cast<std::size_t>(kind)]);
    CHECK(as_alice(300_MiB) == nullptr);
    c.end();
    CHECK(now(w.stats().reserved_bytes) <= static_cast<std::int64_t>(64_MiB));
    CHECK(w.a->validate());
}

// ---- pools that lend ----

TEST_CASE("a lending pool lends nothing to a capture, to another pool, or past an arena's limit",
          "[torch][pools][oom]") {
    torch_world w(100_MiB);
    w.a->createOrIncrefPool(0, user_pool);
    w.a->setUseOnOOM(0, user_pool, true);
    w.a->beginAllocateToPool(0, user_pool, always);
    w.a->raw_delete(w.a->raw_alloc(60_MiB));
    w.a->endAllocateToPool(0, user_pool);
    SECTION("a capture in a pool") {
        capture c(w, graph_pool);
        CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError);
        c.end();
    }
    SECTION("a capture by plain CUDA calls") {
        const stream_handle s = w.world.stream = w.gpu().create_stream();
        REQUIRE(w.gpu().begin_capture(s) != 0);
        CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError);
        (void)w.gpu().end_capture(s);
    }
    SECTION("another pool") {
        w.a->beginAllocateToPool(0, {0, 4}, always);
        CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError);
        w.a->endAllocateToPool(0, {0, 4});
    }
    SECTION("an arena at its limit") {
        const auto alice = w.a->arenas().create("alice", 10_MiB, {});
        tenure::torch::tenants::push(alice);
        CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError);
        tenure::torch::tenants::pop();
    }
    w.world.stream = nullptr;
    CHECK_NOTHROW(w.a->raw_delete(w.a->raw_alloc(60_MiB))); // to an ordinary request it does
    CHECK(w.a->validate());
}

TEST_CASE("a lending pool that a graph was captured in lends nothing", "[torch][pools][oom]") {
    torch_world w(100_MiB);
    w.a->createOrIncrefPool(0, user_pool);
    w.a->setUseOnOOM(0, user_pool, true);
    capture c(w, user_pool);
    w.a->raw_delete(w.a->raw_alloc(60_MiB));
    c.end();
    CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError); // a replay writes there
    CHECK(w.a->validate());
}
