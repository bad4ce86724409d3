// Memory of MemPools: from arenas of their own, and from allocators of others under the limit of all.

#include "counting_allocator.hpp"
#include "pool_ids.hpp"
#include "segment_source.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

using namespace tenure;
using namespace tenure::test;

namespace {

/// A world in which a device is opened once, so that a test can look at it.
struct one_device_world {
    using device_type = sim::device;
    sim::device* opened = nullptr;
    [[nodiscard]] std::unique_ptr<sim::device> open(int, tenure::torch::sharing) {
        auto d =
            std::make_unique<sim::device>(sim::device_options{.capacity = 256_MiB, .cost = sim::costs{}});
        opened = d.get();
        return d;
    }
};

using source = tenure::torch::segment_source<one_device_world>;

tenure::torch::policy_choice policy(const std::string& name) {
    tenure::torch::policy_choice p;
    p.name = name;
    return p;
}

} // namespace

TEST_CASE("what torch gives back to a source goes back to the device", "[torch][sources]") {
    const std::string name = GENERATE("caching", "remap", "best_fit");
    CAPTURE(name);
    one_device_world w;
    source s(w, "pool", no_limit, policy(name), tenure::torch::sharing::where_possible);
    void* const p = s.allocate(20_MiB, 0);
    void* const q = s.allocate(200_MiB, 0);
    REQUIRE(p != nullptr);
    REQUIRE(q != nullptr);
    CHECK(s.allocate(200_MiB, 0) == nullptr);
    s.deallocate(q, 200_MiB, 0);
    s.deallocate(p, 20_MiB, 0);
    CHECK(s.live() == 0);
    CHECK(w.opened->reserved() == 0);
}

TEST_CASE("a source with policy caching takes what torch asks for and no more", "[torch][sources]") {
    one_device_world w;
    source s(w, "pool", 24_MiB, policy("caching"), tenure::torch::sharing::where_possible);
    void* const p = s.allocate(2_MiB, 0);
    void* const q = s.allocate(20_MiB, 0);
    REQUIRE(p != nullptr);
    REQUIRE(q != nullptr);
    CHECK(w.opened->reserved() == 22_MiB);
    CHECK(s.allocate(4_MiB, 0) == nullptr); // the limit
    s.deallocate(p, 2_MiB, 0);
    CHECK(w.opened->reserved() == 20_MiB);
    s.deallocate(q, 20_MiB, 0);
}

TEST_CASE("a full device is made to wait for all the same", "[torch][sources][fault]") {
    one_device_world w;
    source s(w, "pool", no_limit, policy("caching"), tenure::torch::sharing::where_possible);
    void* const p = s.allocate(100_MiB, 0);
    REQUIRE(p != nullptr);
    w.opened->fail_call(sim::call::synchronize_device, 1, status::out_of_memory);
    s.deallocate(p, 100_MiB, 0);
    CHECK(s.live() == 0);
    CHECK(w.opened->reserved() == 0);
}

TEST_CASE("a source is closed only when nothing of it is out, and for good", "[torch][sources]") {
    one_device_world w;
    source s(w, "pool", no_limit, policy("caching"), tenure::torch::sharing::where_possible);
    void* const p = s.allocate(2_MiB, 0);
    CHECK_FALSE(s.close());
    void* const q = s.allocate(2_MiB, 0);
    CHECK(q != nullptr); // nothing has changed
    s.deallocate(p, 2_MiB, 0);
    s.deallocate(q, 2_MiB, 0);
    CHECK(s.close());
    CHECK(s.allocate(2_MiB, 0) == nullptr);
}

TEST_CASE("memory of a MemPool's own allocator counts against limit= and the fraction",
          "[torch][sources][limits]") {
    torch_world w(1_GiB, "limit=100MiB");
    auto from = std::make_shared<counting_allocator>();
    w.a->createOrIncrefPool(0, user_pool, from);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* const p = w.a->raw_alloc(60_MiB);
    CHECK(w.a->heap_of(0).limits().charged == 60_MiB);
    std::string text;
    try {
        (void)w.a->raw_alloc(50_MiB);
    } catch (const c10::OutOfMemoryError& e) {
        text = e.what_without_backtrace();
    }
    CHECK(text.find("all arenas of device 0") != std::string::npos);
    CHECK(from->calls == 1); // it was not even asked
    from->allowed = 0;
    CHECK_THROWS_AS(w.a->raw_alloc(30_MiB), c10::OutOfMemoryError); // its own refusal costs nothing
    CHECK(w.a->heap_of(0).limits().charged == 60_MiB);
    from->on_alloc = [] { throw std::runtime_error("broken"); };
    CHECK_THROWS_AS(w.a->raw_alloc(30_MiB), std::runtime_error);
    CHECK(w.a->heap_of(0).limits().charged == 60_MiB);
    w.a->endAllocateToPool(0, user_pool);
    CHECK_THROWS_AS(w.a->raw_alloc(50_MiB), c10::OutOfMemoryError); // outside of the pool, too
    w.a->raw_delete(p);
    w.a->releasePool(0, user_pool);
    w.a->emptyCache();
    w.a->releasePool(0, user_pool);
    w.a->emptyCache(user_pool);
    CHECK(from->live.empty());
    CHECK(w.a->heap_of(0).limits().charged == 0);
    CHECK(w.a->validate());
}

TEST_CASE("a pool whose last user goes while its allocator is called is not forgotten", "[torch][sources]") {
    torch_world w;
    auto from = std::make_shared<counting_allocator>();
    w.a->createOrIncrefPool(0, user_pool, from);
    w.a->beginAllocateToPool(0, user_pool, always);
    bool done = false;
    from->on_alloc = [&] { // another thread might do this
        if (std::exchange(done, true)) return;
        w.a->endAllocateToPool(0, user_pool);
        w.a->releasePool(0, user_pool);
        w.a->releasePool(0, user_pool);
    };
    void* const p = w.a->raw_alloc(4_MiB);
    CHECK(p != nullptr);
    CHECK(w.a->validate());
    w.a->raw_delete(p);
    w.a->emptyCache();
    CHECK(from->live.empty());
    CHECK(w.a->heap_of(0).pools().empty());
}

TEST_CASE("two threads may buy for one pool at once", "[torch][sources]") {
    torch_world w;
    auto from = std::make_shared<counting_allocator>();
    w.a->createOrIncrefPool(0, user_pool, from);
    w.a->beginAllocateToPool(0, user_pool, always);
    void* taken = nullptr;
    bool done = false;
    from->on_alloc = [&] { // another thread, while this one buys
        if (std::exchange(done, true)) return;
        taken = w.a->raw_alloc(40_MiB);
    };
    void* const p = w.a->raw_alloc(40_MiB);
    REQUIRE(p != nullptr);
    REQUIRE(taken != nullptr);
    CHECK(p != taken);
    w.a->endAllocateToPool(0, user_pool);
    w.a->raw_delete(p);
    w.a->raw_delete(taken);
    CHECK(w.a->validate());
}
