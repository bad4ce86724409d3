// Limits, and what happens at them: fraction, limit, arenas, the exception, observers, recovery.

#include "sim_world.hpp"
#include "support/catch.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string>
#include <thread>
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
    CHECK(alice->slot(0)->memory->usage().requested.current == 0);
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
    CHECK(alice->slot(0)->memory->usage().requested.current == 1_MiB);
    w.a->raw_delete(p);
}

TEST_CASE("a destroyed arena lives as long as its tensors", "[torch][arenas]") {
    torch_world w;
    const auto alice = w.a->arenas().create("alice", no_limit, {});
    tenure::torch::tenants::push(alice);
    void* const p = w.a->raw_alloc(8_MiB);
    tenure::torch::tenants::pop();
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
