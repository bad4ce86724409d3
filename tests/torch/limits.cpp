// Limits, and what happens at them: fraction, limit, arenas, the exception, observers, recovery.

#include "sim_world.hpp"
#include "support/catch.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

std::string failure_of(sim_allocator& a, std::size_t n) {
    try {
        a.raw_delete(a.raw_alloc(n));
    } catch (const c10::OutOfMemoryError& e) {
        return e.what_without_backtrace();
    }
    return "";
}

} // namespace

TEST_CASE("out of memory is torch's exception with torch's phrases, and leaves all usable", "[torch][oom]") {
    torch_world w(100_MiB);
    const std::string text = failure_of(*w.a, 200_MiB);
    CHECK(text.find(
              "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 100.00 MiB") ==
          0);
    CHECK(text.find("is reserved by PyTorch but unallocated") != std::string::npos);
    CHECK(text.find("tenure: out of memory") != std::string::npos);
    CHECK(text.find("largest free block") != std::string::npos);
    CHECK(w.stats().num_ooms == 1);
    CHECK(w.stats().num_alloc_retries == 1);
    CHECK(failure_of(*w.a, 90_MiB).empty());
    CHECK(w.a->validate());
}

TEST_CASE("a request of more than an exabyte is refused in torch's words", "[torch][oom]") {
    torch_world w;
    try {
        const c10::DataPtr d = w.a->allocate(std::size_t{1} << 60);
        FAIL("allocated");
    } catch (const c10::OutOfMemoryError& e) {
        CHECK(std::string(e.what()).find("more than 1EB") != std::string::npos);
    }
    CHECK(!failure_of(*w.a, std::size_t{1} << 61).empty()); // raw_alloc has no such rule of its own
    CHECK(!failure_of(*w.a, ~std::size_t{0}).empty());
}

TEST_CASE("observers hear of a failure, and may allocate and free", "[torch][oom]") {
    torch_world w(100_MiB);
    std::vector<std::size_t> heard;
    w.a->attachOutOfMemoryObserver(
        [&](std::int64_t device, std::size_t n, std::size_t total, std::size_t free) {
            heard = {static_cast<std::size_t>(device), n, total, free};
            w.a->raw_delete(w.a->raw_alloc(1_MiB)); // no lock is held
        });
    CHECK(!failure_of(*w.a, 200_MiB).empty());
    REQUIRE(heard.size() == 4);
    CHECK(heard[0] == 0);
    CHECK(heard[1] == 200_MiB);
    CHECK(heard[2] == 100_MiB);
    w.a->setMemoryFraction(0.5, 0);
    CHECK(!failure_of(*w.a, 60_MiB).empty());
    CHECK(heard[2] == 50_MiB); // what is allowed
}

TEST_CASE("the memory fraction bounds everything that is reserved", "[torch][limits]") {
    torch_world w(100_MiB);
    CHECK(w.a->getMemoryFraction(0) == 1.0);
    w.a->setMemoryFraction(0.5, 0);
    CHECK(w.a->getMemoryFraction(0) == 0.5);
    CHECK(failure_of(*w.a, 50_MiB).empty());
    CHECK(!failure_of(*w.a, 51_MiB).empty());
    CHECK(w.gpu().reserved_peak() <= 50_MiB);
    CHECK_THROWS_AS(w.a->setMemoryFraction(1.5, 0), c10::Error);
    w.a->setMemoryFraction(1.0, 0);
    CHECK(failure_of(*w.a, 90_MiB).empty());
}

TEST_CASE("limit= bounds all arenas together, and the failure says so", "[torch][limits]") {
    const std::string policy = GENERATE("remap", "caching", "best_fit", "async");
    CAPTURE(policy);
    torch_world w(1_GiB, "policy=" + policy + "\nlimit=128MiB");
    CHECK(failure_of(*w.a, 100_MiB).empty());
    const std::string text = failure_of(*w.a, 129_MiB);
    CHECK(text.find("128.00 MiB allowed") != std::string::npos);
    CHECK(text.find("all arenas of device 0") != std::string::npos);
    CHECK(w.gpu().reserved_peak() <= 128_MiB);
    CHECK(w.a->validate());
}

TEST_CASE("an arena at its limit fails alone", "[torch][arenas]") {
    torch_world w(1_GiB);
    const auto alice = w.a->arenas().create("alice", 64_MiB, {});
    const auto bob = w.a->arenas().create("bob", 64_MiB, {});
    tenure::torch::tenants::push(alice);
    void* const p = w.a->raw_alloc(60_MiB);
    const std::string text = failure_of(*w.a, 10_MiB);
    CHECK(text.find("arena \"alice\"") != std::string::npos);
    CHECK(text.find("arena_limit") != std::string::npos);
    tenure::torch::tenants::push(bob);
    CHECK(failure_of(*w.a, 60_MiB).empty());
    tenure::torch::tenants::pop();
    tenure::torch::tenants::pop();
    CHECK(tenure::torch::tenants::current() == nullptr);
    CHECK(failure_of(*w.a, 500_MiB).empty());
    w.a->raw_delete(p); // to where it came from, whatever is entered
    CHECK(alice->slot(0)->arena->usage().requested.current == 0);
    CHECK(w.a->validate());
}

TEST_CASE("an arena follows what torch carries from thread to thread", "[torch][arenas]") {
    torch_world w;
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    tenure::torch::tenants::push(alice);
    const auto carried = c10::ThreadLocalDebugInfo::current();
    tenure::torch::tenants::pop();
    void* p = nullptr;
    std::thread([&] {
        const c10::DebugInfoGuard guard(carried); // as at::ThreadLocalState does for autograd's workers
        p = w.a->raw_alloc(1_MiB);
    }).join();
    REQUIRE(alice->slot(0) != nullptr);
    CHECK(alice->slot(0)->arena->usage().requested.current == 1_MiB);
    w.a->raw_delete(p);
}

TEST_CASE("a destroyed arena lives as long as its tensors", "[torch][arenas]") {
    torch_world w;
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    void* const p = w.raw_alloc_in(alice, 8_MiB);
    alice->close();
    w.a->heap_of(0).close(*alice);
    CHECK(alice->slot(0) != nullptr);
    CHECK_NOTHROW(w.a->arenas().create("alice", no_limit, {})); // the name is free
    CHECK(w.gpu().reserved() >= 8_MiB);
    w.a->raw_delete(p);
    CHECK(alice->slot(0) == nullptr);
    CHECK(w.gpu().reserved() == 0);
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(w.a->validate());
}

TEST_CASE("two open arenas cannot have one name", "[torch][arenas]") {
    torch_world w;
    (void)w.a->arenas().create("alice", no_limit, {});
    CHECK_THROWS_AS(w.a->arenas().create("alice", no_limit, {}), std::invalid_argument);
    CHECK_THROWS_AS(w.a->arenas().create("torch", no_limit, {}), std::invalid_argument);
    CHECK_THROWS_AS(w.a->arenas().create("", no_limit, {}), std::invalid_argument);
}

TEST_CASE("empty_cache gives back all that is free, and cacheInfo knows what is", "[torch][limits]") {
    torch_world w(256_MiB);
    void* const p = w.a->raw_alloc(100_MiB);
    w.a->raw_delete(p);
    CHECK(now(w.stats().reserved_bytes) >= static_cast<std::int64_t>(100_MiB));
    std::size_t largest = 0;
    w.a->cacheInfo(0, &largest);
    CHECK(largest >= 100_MiB);
    w.a->emptyCache();
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(w.gpu().reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("an arena is left although a profiler was started inside it", "[torch][arenas]") {
    torch_world w;
    struct profiler final : c10::DebugInfoBase {};
    using info = c10::ThreadLocalDebugInfo;
    constexpr auto profiling = c10::DebugInfoKind::PROFILER_STATE;
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    const auto bob = w.a->arenas().create("bob", no_limit, {});
    tenure::torch::tenants::push(alice);
    info::_push(profiling, std::make_shared<profiler>());
    tenure::torch::tenants::push(bob);
    info::_push(c10::DebugInfoKind::TEST_INFO, std::make_shared<profiler>());
    tenure::torch::tenants::pop();
    CHECK(tenure::torch::tenants::current() == alice.get());
    CHECK(info::get(profiling) != nullptr);
    tenure::torch::tenants::pop();
    CHECK(tenure::torch::tenants::current() == nullptr);
    CHECK(info::get(profiling) != nullptr);
    CHECK_THROWS_AS(tenure::torch::tenants::pop(), c10::Error);
    CHECK_NOTHROW(info::_pop(c10::DebugInfoKind::TEST_INFO)); // in the order that they had
    CHECK_NOTHROW(info::_pop(profiling));
    CHECK(info::current() == nullptr);
}

TEST_CASE("released pools give way on a device that is full to the byte", "[torch][oom][fault]") {
    torch_world w(100_MiB, "policy=caching");
    const c10::MempoolId_t graph{7, 0};
    const stream_handle s = w.world.stream = w.gpu().create_stream();
    w.a->beginAllocateToPool(0, graph, w.graph_filter());
    REQUIRE(w.gpu().begin_capture(s) != 0);
    w.a->raw_delete(w.a->raw_alloc(60_MiB));
    REQUIRE(w.gpu().end_capture(s));
    w.a->endAllocateToPool(0, graph);
    w.a->releasePool(0, graph);
    w.gpu().fail_call(sim::call::synchronize_device, 1, status::out_of_memory); // no byte to wait with
    CHECK_NOTHROW(w.a->raw_alloc(90_MiB));
    CHECK(w.a->validate());
}

TEST_CASE("an arena is not given back while nobody knows whether it is used", "[torch][arenas][fault]") {
    torch_world w;
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    void* const p = w.raw_alloc_in(alice, 8_MiB);
    alice->close();
    w.gpu().fail_call(sim::call::synchronize_device, 1, status::out_of_memory, 100);
    w.a->raw_delete(p);
    CHECK(alice->slot(0) != nullptr);
    w.gpu().clear_faults();
    w.a->emptyCache();
    CHECK(alice->slot(0) == nullptr);
    CHECK(w.gpu().reserved() == 0);
    CHECK(w.a->validate());
}

TEST_CASE("peers are admitted to what is mapped now and later, and a refused one is not", "[torch][peers]") {
    torch_world w;
    auto& gate = w.a->heap_of(0).through();
    void* const p = w.a->raw_alloc(30_MiB);
    static int granted = 0;
    static bool refuse = false;
    granted = 0;
    refuse = true;
    using gate_type = std::remove_reference_t<decltype(gate)>;
    const gate_type::grant how{.to_range =
                                   [](sim::device&, void*, std::size_t, int) noexcept {
                                       if (refuse) return status::failed;
                                       ++granted;
                                       return status::ok;
                                   },
                               .to_pool =
                                   [](sim::device&, pool_handle, int) noexcept {
                                       if (refuse) return status::failed;
                                       ++granted;
                                       return status::ok;
                                   }};
    CHECK(gate.admit(1, how) == status::failed);
    CHECK(gate.admit(1, how) == status::failed); // it was not remembered as admitted
    refuse = false;
    CHECK(gate.admit(1, how) == status::ok);
    const int before = granted;
    CHECK(before > 0);
    void* const q = w.a->raw_alloc(100_MiB);
    CHECK(granted > before);
    w.a->raw_delete(p);
    w.a->raw_delete(q);

    // Memory of driver pools, there and to come.
    const auto alice = w.a->arenas().create("alice", no_limit, {.name = "async"});
    tenure::torch::tenants::push(alice);
    const int now_granted = granted;
    w.a->raw_delete(w.a->raw_alloc(1_MiB));
    CHECK(granted == now_granted + 1);
    CHECK(gate.admit(2, how) == status::ok);
    tenure::torch::tenants::pop();
    CHECK(w.a->validate());
}
