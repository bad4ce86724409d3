// Private pools: graph capture, MemPool, checkpoints.

#include "counting_allocator.hpp"
#include "pool_ids.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

using namespace tenure;
using namespace tenure::test;

TEST_CASE("a capture allocates in its pool, and its addresses stay until the pool is released",
          "[torch][pools]") {
    const std::string policy = GENERATE("remap", "caching", "best_fit", "async", "fronted_remap");
    CAPTURE(policy);
    torch_world w(1_GiB, "policy=" + policy);
    auto& gpu = w.gpu();
    const stream_handle s = w.world.stream = gpu.create_stream();
    w.a->beginAllocateToPool(0, graph_pool, w.graph_filter());
    CHECK(w.a->getPoolUseCount(0, graph_pool) == 1);
    REQUIRE(gpu.begin_capture(s) != 0);
    void* const p = w.a->raw_alloc(3_MiB);
    void* const q = w.a->raw_alloc(100);
    w.a->raw_delete(p);
    CHECK(w.a->raw_alloc(3_MiB) == p); // the capture reuses its own
    w.a->raw_delete(p);
    w.a->endAllocateToPool(0, graph_pool);
    REQUIRE(gpu.end_capture(s));

    // Freed, but a replay writes to it: nobody else gets it.
    w.a->raw_delete(q);
    CHECK(w.a->raw_alloc(3_MiB) != p);
    w.a->emptyCache();
    CHECK(now(w.stats().segment) == 2);
    CHECK(w.a->validate());
    w.a->releasePool(0, graph_pool);
    w.a->emptyCache();
    CHECK(now(w.stats().segment) == 0);
    CHECK(w.a->validate());
    CHECK(gpu.violations().empty());
}

TEST_CASE("segments of private pools have torch's sizes, small and large apart", "[torch][pools]") {
    torch_world w;
    w.a->beginAllocateToPool(0, user_pool, always);
    std::vector<void*> all;
    for (const std::size_t n : {std::size_t{512}, 1_MiB, 1_MiB + 1, 8_MiB, 11_MiB})
        all.push_back(w.a->raw_alloc(n));
    w.a->endAllocateToPool(0, user_pool);
    const auto picture = w.a->snapshot(user_pool);
    std::multiset<std::size_t> small, large;
    for (const auto& s : picture.segments) (s.is_large ? large : small).insert(s.total_size);
    CHECK(small == std::multiset<std::size_t>{2_MiB});
    CHECK(large == std::multiset<std::size_t>{12_MiB, 20_MiB});
    CHECK(w.stats().segment[1].current == 1);
    CHECK(w.stats().segment[2].current == 2);
    CHECK(w.stats().allocated_bytes[1].current == static_cast<std::int64_t>(1_MiB + 512));
    CHECK(w.a->validate());
    for (void* p : all) w.a->raw_delete(p);
    CHECK(w.a->validate());
}

TEST_CASE("the latest pool that accepts the stream is the one", "[torch][pools]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle s1 = gpu.create_stream();
    const stream_handle s2 = gpu.create_stream();
    const pool_id outer{0, 1}, inner{0, 2};
    w.a->beginAllocateToPool(0, outer, always);
    w.world.stream = s1;
    w.a->beginAllocateToPool(0, inner, [s1](cudaStream_t x) { return x == s1; });
    CHECK_THROWS_AS(w.a->beginAllocateToPool(0, inner, always), c10::Error);
    void* const in = w.a->raw_alloc_with_stream(1_MiB, s1);
    void* const out = w.a->raw_alloc_with_stream(1_MiB, s2);
    w.a->endAllocateToPool(0, inner);
    CHECK_THROWS_AS(w.a->endAllocateToPool(0, inner), c10::Error);
    w.a->endAllocateToPool(0, outer);
    CHECK(w.a->checkPoolLiveAllocations(0, inner, {in}));
    CHECK(w.a->checkPoolLiveAllocations(0, outer, {out}));
    CHECK_FALSE(w.a->checkPoolLiveAllocations(0, outer, {in}));
    CHECK_FALSE(w.a->checkPoolLiveAllocations(0, outer, {out, in}));
    CHECK_FALSE(w.a->checkPoolLiveAllocations(0, outer, {}));
    void* const none = w.a->raw_alloc_with_stream(1_MiB, s1);
    CHECK(w.a->checkPoolLiveAllocations(0, inner, {in}));
    w.a->raw_delete(none);
}

TEST_CASE("a MemPool's own allocator gives whole segments, and gets them back when the pool is gone",
          "[torch][pools]") {
    torch_world w;
    auto source = std::make_shared<counting_allocator>();
    w.a->createOrIncrefPool(0, user_pool, source);
    w.a->beginAllocateToPool(0, user_pool, always);
    std::vector<void*> tensors;
    for (int i = 0; i < 10; ++i) tensors.push_back(w.a->raw_alloc(1_MiB));
    w.a->endAllocateToPool(0, user_pool);
    w.a->releasePool(0, user_pool);
    CHECK(source->calls == 5);
    CHECK(now(w.stats().reserved_bytes) == 10_MiB);
    CHECK(w.a->validate());
    for (void* p : tensors) w.a->raw_delete(p);
    w.a->emptyCache();
    CHECK(source->frees == 0); // the pool lives
    w.a->releasePool(0, user_pool);
    w.a->emptyCache(user_pool);
    CHECK(source->frees == 5);
    CHECK(source->live.empty());
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(w.a->validate());
}

TEST_CASE("a MemPool's own allocator that has no more is out of memory", "[torch][pools][oom]") {
    torch_world w;
    auto source = std::make_shared<counting_allocator>();
    source->allowed = 40_MiB;
    w.a->createOrIncrefPool(0, user_pool, source);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const p = w.a->raw_alloc(40_MiB);
    CHECK_THROWS_AS(w.a->raw_alloc(40_MiB), c10::OutOfMemoryError);
    w.a->raw_delete(p);
    CHECK(w.a->raw_alloc(40_MiB) == p);
    w.a->endAllocateToPool(0, user_pool);
    CHECK(w.a->validate());
}

TEST_CASE("a pool may lend when memory is short, until it is gone", "[torch][pools][oom]") {
    torch_world w(100_MiB);
    w.a->createOrIncrefPool(0, user_pool);
    w.a->setUseOnOOM(0, user_pool, true);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const p = w.a->raw_alloc(60_MiB);
    w.a->endAllocateToPool(0, user_pool);
    w.a->releasePool(0, user_pool);
    w.a->raw_delete(p);
    CHECK(w.a->raw_alloc(60_MiB) == p); // outside of the pool: borrowed
    w.a->raw_delete(p);
    w.a->setUseOnOOM(0, user_pool, false);
    CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError);
    w.a->releasePool(0, user_pool);
    void* const mine = w.a->raw_alloc(60_MiB); // the pool is gone, so its memory is everybody's
    CHECK(mine != nullptr);
    CHECK(w.a->validate());
}

TEST_CASE("a pool that does not split hands out whole segments", "[torch][pools]") {
    torch_world w;
    w.a->createOrIncrefPool(0, user_pool);
    w.a->setNoSplit(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const p = w.a->raw_alloc(1000);
    void* const q = w.a->raw_alloc(1000);
    w.a->endAllocateToPool(0, user_pool);
    CHECK(now(w.stats().segment) == 2);
    CHECK(now(w.stats().inactive_split) == 0);
    CHECK(w.a->validate());
    w.a->raw_delete(p);
    w.a->raw_delete(q);
}

// ---- scenarios from public bug reports ----

TEST_CASE("pytorch 159674: inside a pool, its own free segments give way to a larger request",
          "[torch][pools]") {
    torch_world w(80_MiB);
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    w.a->raw_delete(w.a->raw_alloc(60_MiB));
    CHECK_NOTHROW(w.a->raw_alloc(70_MiB));
    w.a->endAllocateToPool(0, user_pool);
    CHECK(w.a->validate());
}

TEST_CASE("pytorch 175015: in a pool without a capture, recorded uses do not pile memory up",
          "[torch][pools]") {
    torch_world w(1_GiB);
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    for (int i = 0; i < 100; ++i) {
        c10::DataPtr d = w.a->allocate(10_MiB);
        gpu.launch(side, sim::nanoseconds{1000});
        w.a->record_stream(d, side);
        d.clear();
        gpu.advance(sim::nanoseconds{2000});
    }
    w.a->endAllocateToPool(0, user_pool);
    CHECK(w.stats().reserved_bytes[0].peak <= static_cast<std::int64_t>(20_MiB));
    CHECK(w.a->validate());
}

TEST_CASE("pytorch PR 126125: a checkpoint waits for frees that streams hold back", "[torch][pools]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    c10::DataPtr d = w.a->allocate(4_MiB);
    w.a->endAllocateToPool(0, user_pool);
    gpu.launch(side, sim::nanoseconds{1'000'000});
    w.a->record_stream(d, side);
    d.clear();
    CHECK_NOTHROW(w.a->getCheckpointState(0, user_pool));
    CHECK(now(w.stats().active) == 0);
}

TEST_CASE("pytorch PR 190348: a capture that fails leaves nothing behind", "[torch][pools]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle s = w.world.stream = gpu.create_stream();
    w.a->beginAllocateToPool(0, graph_pool, w.graph_filter());
    (void)gpu.begin_capture(s);
    w.a->raw_delete(w.a->raw_alloc(20_MiB));
    (void)gpu.end_capture(s);
    SECTION("and says that it ended") {
        w.a->endAllocateToPool(0, graph_pool);
    }
    SECTION("and does not even say that it ended") {}
    w.a->releasePool(0, graph_pool);
    w.a->emptyCache();
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(gpu.reserved() == 0);
    CHECK_FALSE(w.a->heap_of(0).capture_active());
}

TEST_CASE("pytorch PR 169699: a lending pool that was dropped does not serve a failure",
          "[torch][pools][oom]") {
    torch_world w(100_MiB);
    w.a->createOrIncrefPool(0, user_pool);
    w.a->setUseOnOOM(0, user_pool, true);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const p = w.a->raw_alloc(60_MiB);
    w.a->endAllocateToPool(0, user_pool);
    w.a->releasePool(0, user_pool);
    w.a->setUseOnOOM(0, user_pool, false);
    w.a->releasePool(0, user_pool);
    w.a->emptyCache(user_pool);
    CHECK_THROWS_AS(w.a->raw_alloc(60_MiB), c10::OutOfMemoryError); // p is still live
    w.a->raw_delete(p);
    CHECK_NOTHROW(w.a->raw_alloc(90_MiB));
    CHECK(w.a->validate());
}

// ---- captures and what surrounds them ----

TEST_CASE("while a capture is active nothing is queried, waited for or given back",
          "[torch][pools][capture]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    c10::DataPtr before = w.a->allocate(8_MiB);
    const stream_handle s = w.world.stream = gpu.create_stream();
    w.a->beginAllocateToPool(0, graph_pool, w.graph_filter());
    REQUIRE(gpu.begin_capture(s) != 0);
    w.a->record_stream(before, side);
    const auto calls = gpu.call_counts();
    before.clear();
    w.a->emptyCache();
    (void)w.stats();
    const auto after = gpu.call_counts();
    for (const auto kind :
         {sim::call::query, sim::call::synchronize_event, sim::call::synchronize_stream,
          sim::call::synchronize_device, sim::call::deallocate, sim::call::unmap, sim::call::record})
        CHECK(after[static_cast<std::size_t>(kind)] == calls[static_cast<std::size_t>(kind)]);
    CHECK(now(w.stats().active) == 1);
    w.a->endAllocateToPool(0, graph_pool);
    REQUIRE(gpu.end_capture(s));
    w.world.stream = nullptr;
    w.look();
    CHECK(now(w.stats().active) == 0);
    w.a->releasePool(0, graph_pool);
    w.a->emptyCache();
    CHECK(gpu.reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("memory from before a capture that is freed on its stream meanwhile is free again after it",
          "[torch][pools][capture]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle s = w.world.stream = gpu.create_stream();
    c10::DataPtr before = w.a->allocate(8_MiB);
    w.a->beginAllocateToPool(0, graph_pool, w.graph_filter());
    REQUIRE(gpu.begin_capture(s) != 0);
    before.clear();
    w.a->endAllocateToPool(0, graph_pool);
    REQUIRE(gpu.end_capture(s));
    w.look();
    CHECK(now(w.stats().active) == 0);
    w.a->emptyCache();
    CHECK(gpu.reserved() == 0);
    w.a->releasePool(0, graph_pool);
}

TEST_CASE("a user's pool that a capture uses is kept like the capture's own", "[torch][pools][capture]") {
    torch_world w(80_MiB);
    auto& gpu = w.gpu();
    const stream_handle s = w.world.stream = gpu.create_stream();
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, [s](cudaStream_t x) { return x == s; });
    REQUIRE(gpu.begin_capture(s) != 0);
    w.a->raw_delete(w.a->raw_alloc(60_MiB));
    w.a->endAllocateToPool(0, user_pool);
    REQUIRE(gpu.end_capture(s));
    w.a->beginAllocateToPool(0, user_pool, always);
    CHECK_THROWS_AS(w.a->raw_alloc(70_MiB), c10::OutOfMemoryError); // a replay may write to the free 60 MiB
    w.a->endAllocateToPool(0, user_pool);
    CHECK(w.a->validate());
}

// ---- checkpoints ----

TEST_CASE("a checkpoint brings the same blocks back to the same addresses", "[torch][checkpoint]") {
    torch_world w;
    w.a->createOrIncrefPool(0, user_pool);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const a = w.a->raw_alloc(1000);
    void* const b = w.a->raw_alloc(3_MiB);
    void* const c = w.a->raw_alloc(2_MiB);
    void* const d = w.a->raw_alloc(700);
    w.a->raw_delete(c);
    const auto state = w.a->getCheckpointState(0, user_pool);

    w.a->raw_delete(a);
    w.a->raw_delete(b);
    void* const later = w.a->raw_alloc(19_MiB); // in a segment that the checkpoint does not know
    w.a->endAllocateToPool(0, user_pool);

    auto delta = w.a->setCheckpointPoolState(0, state);
    CHECK(std::unordered_set<void*>(delta.ptrs_freed.begin(), delta.ptrs_freed.end()) ==
          std::unordered_set<void*>{d, later});
    std::unordered_set<void*> live;
    for (const auto& p : delta.dataptrs_allocd) {
        CHECK(p.get_deleter() == w.a->raw_deleter());
        CHECK(p.get_context() == p.get());
        live.insert(p.get());
    }
    CHECK(live == std::unordered_set<void*>{a, b, d});
    CHECK(w.a->checkPoolLiveAllocations(0, user_pool, live));
    CHECK(now(w.stats().requested_bytes) == static_cast<std::int64_t>(1000 + 3_MiB + 700));
    CHECK(w.a->validate());

    delta.dataptrs_allocd.clear();
    CHECK(now(w.stats().allocation) == 0);
    CHECK(w.a->validate());
    (void)w.a->setCheckpointPoolState(0, state); // as often as one likes
    CHECK(w.a->validate());
}

TEST_CASE("a checkpoint of another allocator, or of a pool that is gone, is refused", "[torch][checkpoint]") {
    torch_world w;
    struct other final : tenure::torch::native::AllocatorState {};
    CHECK_THROWS_AS(w.a->setCheckpointPoolState(0, std::make_shared<other>()), c10::Error);
    CHECK_THROWS_AS(w.a->getCheckpointState(0, user_pool), c10::Error);
}
