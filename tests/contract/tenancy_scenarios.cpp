// What broke other allocators where tenants share a device, each row in a tree of tenants over a hub; `scenarios.cpp` has
// the rows for one arena. Each test is named after its report and states the outcome that is right. Sizes in MiB unless a
// unit is given.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t MiB = 1_MiB;
constexpr stream_handle s0 = default_stream;

using sim_hub = hub<sim::device>;
template <template <class> class Policy>
using tenant_of = arena<Policy, sim_hub>;
using best_fit_tenant = tenant_of<best_fit_pool>;

/// A device of 1000 MiB, all of it for the tenants of one tree.
struct shared_device {
    explicit shared_device(std::size_t capacity = 1000 * MiB)
        : device({.capacity = capacity, .cost = sim::costs::zero()})
        , between(device)
        , gpu({.name = "gpu", .max = capacity}) {}

    /// Call when all arenas are gone.
    void check_empty() {
        CHECK(gpu.limits().charged == 0);
        CHECK(gpu.limits().used == 0);
        CHECK(gpu.limits().open == 0);
        CHECK(between.validate());
        between.trim(0);
        CHECK(device.reserved() == 0);
        CHECK(device.violations() == std::vector<std::string>{});
    }

    sim::device device;
    sim_hub between;
    arena_group gpu;
};

constexpr pool_options fine{.segment_bytes = 2_MiB};

} // namespace

TEST_CASE("tenants, scenario L1 (HAMi-core PR 273): a race at the limits of all levels passes none",
          "[scenario][tenancy][threads]") {
    shared_device w(200 * MiB);
    {
        arena_group org(w.gpu, {.name = "org", .max = 90 * MiB + 1});
        std::vector<std::unique_ptr<best_fit_tenant>> arenas;
        for (int i = 0; i < 4; ++i)
            arenas.push_back(std::make_unique<best_fit_tenant>(
                i < 2 ? org : w.gpu, w.between,
                arena_options{.name = std::to_string(i), .max = (60 + static_cast<std::size_t>(i)) * MiB},
                fine));
        std::atomic<bool> done{false};
        std::atomic<int> over{0};
        std::thread watcher([&] {
            while (!done) {
                for (const tenant_picture& t : w.gpu.picture())
                    if (t.reading.charged > t.reading.max) ++over;
                if (w.device.reserved() > 200 * MiB) ++over;
            }
        });
        std::vector<std::thread> threads;
        for (int t = 0; t < 8; ++t)
            threads.emplace_back([&, t] {
                best_fit_tenant& mine = *arenas[static_cast<std::size_t>(t % 4)];
                const stream_handle s = w.device.create_stream();
                for (int i = 0; i < 150; ++i) {
                    const std::size_t n = (1 + static_cast<std::size_t>((t * 7 + i) % 31)) * MiB;
                    if (auto r = mine.try_allocate(s, n)) mine.deallocate(s, *r, n);
                }
            });
        for (auto& t : threads) t.join();
        done = true;
        watcher.join();
        CHECK(over == 0);
        CHECK(org.limits().peak <= 90 * MiB + 1);
        for (auto& a : arenas) {
            CHECK(a->validate());
            CHECK(a->limits().peak <= a->limits().max);
        }
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario L2 (HAMi-core #257, #321): a pointer of another tenant is named and stays where it is",
    "[scenario][tenancy]") {
    shared_device w;
    test::misuse_log log;
    {
        best_fit_tenant alice(w.gpu, w.between, {.name = "alice"});
        best_fit_tenant bob(w.gpu, w.between, {.name = "bob"});
        void* const p = alice.allocate(s0, 10 * MiB);
        const std::size_t before = bob.limits().charged;
        bob.deallocate(s0, p, 10 * MiB);
        bob.deallocate(s0, to_pointer(0x1000), 1);
        REQUIRE(log.size() == 2);
        CHECK(log[0].kind == misuse_kind::wrong_arena);
        CHECK(log[0].real_owner.view() == "alice");
        CHECK(log[1].kind == misuse_kind::foreign_pointer);
        CHECK(bob.limits().charged == before);
        CHECK(alice.owns(p));
        alice.deallocate(s0, p, 10 * MiB);
    }
    w.check_empty();
}

TEST_CASE("tenants, scenario L3 (HAMi #1181): repeated frees move no counter of any level",
          "[scenario][tenancy]") {
    shared_device w;
    test::misuse_log log;
    {
        arena_group org(w.gpu, {.name = "org"});
        best_fit_tenant a(org, w.between, {.name = "a"});
        void* const p = a.allocate(s0, 10 * MiB);
        a.deallocate(s0, p, 10 * MiB);
        a.trim(0);
        for (int i = 0; i < 5; ++i) a.deallocate(s0, p, 10 * MiB);
        CHECK(log.size() == 5);
        for (const tenant_picture& t : w.gpu.picture()) CHECK(t.reading.charged == 0);
        CHECK(a.release_all(s0) == 0);
        CHECK(a.usage().allocated.current == 0);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario L4 (HAMi-core #93, #217, #67): driver pools, virtual memory and what graphs keep is "
    "charged in every level",
    "[scenario][tenancy]") {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .max = 400 * MiB});
        tenant_of<async_pool> pooled(org, w.between, {.name = "pooled"});
        tenant_of<remap_pool> mapped(org, w.between, {.name = "mapped"});
        best_fit_tenant graphs(org, w.between, {.name = "graphs"}, fine);
        void* const p = pooled.allocate(s0, 10 * MiB);
        void* const q = mapped.allocate(s0, 10 * MiB);
        const stream_handle s = w.device.create_stream();
        const std::uint64_t capture = w.device.begin_capture(s);
        void* const g = graphs.allocate(s, 10 * MiB);
        graphs.deallocate(s, g, 10 * MiB);
        CHECK(w.device.end_capture(s));
        CHECK(org.limits().charged == w.device.reserved());
        CHECK(graphs.usage().captured >= 10 * MiB);
        CHECK(org.limits().charged >= 30 * MiB);
        while (const auto more = pooled.try_allocate(s0, 32 * MiB)) (void)*more;
        CHECK(w.device.reserved() <= 400 * MiB); // with the steps of driver pools
        graphs.release_captured(capture);
        mapped.deallocate(s0, q, 10 * MiB);
        pooled.release_all(s0);
        (void)p;
        CHECK(w.device.synchronize(s0) == status::ok);
        pooled.trim(0);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario L5 (Umpire SizeLimiter): a charge whose memory never came goes back in every level",
    "[scenario][tenancy]") {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .min = 100 * MiB});
        best_fit_tenant a(org, w.between, {.name = "a"});
        w.device.fail_call(sim::call::allocate, 1, status::out_of_memory, 1000);
        const auto r = a.try_allocate(s0, 60 * MiB);
        w.device.clear_faults();
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::device);
        CHECK(a.limits().charged == 0);
        CHECK(org.limits().used == 0);
        CHECK(w.gpu.limits().charged == 100 * MiB); // the guarantee
    }
    w.check_empty();
}

TEST_CASE("tenants, scenario L6 (RMM limiter): huge requests of one tenant refuse no small one of another",
          "[scenario][tenancy][threads]") {
    // The small ones need, together, exactly what there is besides the guarantees.
    shared_device w(64 * MiB);
    {
        best_fit_tenant huge(w.gpu, w.between, {.name = "huge"}, fine);
        std::vector<std::unique_ptr<best_fit_tenant>> small;
        for (int i = 0; i < 4; ++i)
            small.push_back(std::make_unique<best_fit_tenant>(
                w.gpu, w.between, arena_options{.name = "small", .max = 16 * MiB}, fine));
        std::atomic<bool> begun{false}, done{false};
        std::atomic<int> refused{0};
        std::thread greedy([&] {
            for (; !done; begun = true) (void)huge.try_allocate(s0, 1000 * MiB);
        });
        while (!begun) std::this_thread::yield();
        std::vector<std::thread> threads;
        for (auto& a : small)
            threads.emplace_back([&] {
                const stream_handle s = w.device.create_stream();
                for (int i = 0; i < 100; ++i) {
                    const auto r = a->try_allocate(s, 16 * MiB);
                    if (!r) {
                        ++refused;
                        continue;
                    }
                    a->deallocate(s, *r, 16 * MiB);
                    if (i % 3 == 0) a->trim(0);
                }
            });
        for (auto& t : threads) t.join();
        done = true;
        greedy.join();
        CHECK(refused == 0);
        CHECK(huge.limits().refused > 0);
    }
    w.check_empty();
}

TEST_CASE("tenants, scenario L7 (cudf-spark #6768): what others hold idle behind completed work is not out "
          "of memory",
          "[scenario][tenancy]") {
    shared_device w(100 * MiB);
    {
        best_fit_tenant idle(w.gpu, w.between, {.name = "idle"}, fine);
        best_fit_tenant asking(w.gpu, w.between, {.name = "asking"}, fine);
        const stream_handle s1 = w.device.create_stream();
        void* const x = idle.allocate(s0, 90 * MiB);
        w.device.launch(s1, 5ms);
        idle.record_use(x, s1);
        idle.deallocate(s0, x, 90 * MiB); // pending on s1
        const auto early = asking.try_allocate(s0, 50 * MiB);
        REQUIRE_FALSE(early);
        CHECK(early.error().cause == failure_cause::ancestor_limit);
        CHECK(w.device.waited_time() == 0ns); // nobody has waited for it without being allowed
        w.device.advance(10ms);
        void* const y = asking.allocate(s0, 50 * MiB);
        CHECK(idle.limits().reclaimed > 0);
        CHECK(asking.limits().borrowed == idle.limits().reclaimed);
        asking.deallocate(s0, y, 50 * MiB);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario L8 (cudf-spark #15104): waiters that hold memory do not block each other for ever",
    "[scenario][tenancy][threads]") {
    shared_device w(100 * MiB);
    {
        const wait_options patient{.limit = 60s, .threads = 1};
        best_fit_tenant a(w.gpu, w.between, {.name = "a", .wait = patient}, fine);
        best_fit_tenant b(w.gpu, w.between, {.name = "b", .wait = patient}, fine);
        std::atomic<int> refusals{0};
        std::atomic<int> ready{0};
        const auto run = [&](best_fit_tenant& mine) {
            const stream_handle s = w.device.create_stream();
            void* first = mine.allocate(s, 50 * MiB);
            ++ready;
            while (ready < 2) std::this_thread::yield();
            for (;;) {
                const auto second = mine.try_allocate(s, 40 * MiB);
                if (second) {
                    mine.deallocate(s, *second, 40 * MiB);
                    break;
                }
                ++refusals; // the one whose wait would close the circle; it makes room and asks again
                if (first != nullptr) mine.deallocate(s, first, 50 * MiB);
                first = nullptr;
            }
            if (first != nullptr) mine.deallocate(s, first, 50 * MiB);
            (void)w.device.synchronize(s);
        };
        const auto begin = std::chrono::steady_clock::now();
        std::thread one([&] { run(a); });
        std::thread two([&] { run(b); });
        one.join();
        two.join();
        CHECK(refusals >= 1);
        CHECK(a.limits().deadlocks + b.limits().deadlocks >= 1);
        CHECK(std::chrono::steady_clock::now() - begin < 30s); // by the rule, not by the deadline
    }
    w.check_empty();
}

TEST_CASE("tenants, scenario L9 (Triton server #1765): an exhausted tenant gets nobody else's live memory, "
          "and none "
          "behind its limit",
          "[scenario][tenancy]") {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .max = 60 * MiB});
        best_fit_tenant a(org, w.between, {.name = "a"}, fine);
        best_fit_tenant b(org, w.between, {.name = "b"}, fine);
        void* const live = b.allocate(s0, 40 * MiB);
        const std::size_t before = w.device.reserved();
        const auto r = a.try_allocate(s0, 30 * MiB); // the device has plenty
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::ancestor_limit);
        CHECK(r.error().arena.view() == "gpu/org");
        CHECK(w.device.reserved() == before);
        CHECK(b.owns(live));
        b.deallocate(s0, live, 40 * MiB);
    }
    w.check_empty();
}

TEST_CASE("tenants, scenario L10 (JAX #4310): limits are bytes, whoever comes first", "[scenario][tenancy]") {
    const bool alice_first = GENERATE(true, false);
    shared_device w;
    {
        std::optional<best_fit_tenant> alice;
        std::optional<best_fit_tenant> bob;
        void* early = nullptr;
        const auto start_alice = [&] {
            alice.emplace(w.gpu, w.between, arena_options{.name = "alice", .max = 700 * MiB});
        };
        if (alice_first) {
            start_alice();
            early = alice->allocate(s0, 500 * MiB);
        }
        bob.emplace(w.gpu, w.between, arena_options{.name = "bob", .max = parse_bytes("300MiB")});
        if (!alice_first) start_alice();
        CHECK(bob->limits().max == 300 * MiB);
        CHECK(alice->limits().max == 700 * MiB);
        void* const p = bob->allocate(s0, 300 * MiB);
        bob->deallocate(s0, p, 300 * MiB);
        if (early != nullptr) alice->deallocate(s0, early, 500 * MiB);
    }
    w.check_empty();
}

TEMPLATE_TEST_CASE(
    "tenants, scenario 4 (Megatron-LM PR 6885): another stream's memory is reused once it has drained, "
    "at an ancestor's limit, too",
    "[scenario][tenancy]", tenant_of<caching_pool>, tenant_of<remap_pool>) {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .max = 1000 * MiB});
        TestType a(org, w.between, {.name = "a"});
        const stream_handle s1 = w.device.create_stream();
        std::vector<void*> blocks;
        for (int i = 0; i < 10; ++i) blocks.push_back(a.allocate(s1, 100 * MiB));
        w.device.launch(s1, 1ms);
        for (void* p : blocks) a.deallocate(s1, p, 100 * MiB);
        CHECK(w.device.synchronize(s1) == status::ok);
        blocks.clear();
        const std::size_t bought = w.between.read().from_driver;
        for (int i = 0; i < 10; ++i) blocks.push_back(a.allocate(s0, 100 * MiB));
        CHECK(w.between.read().from_driver == bought); // it is the same memory
        CHECK(w.device.reserved() <= 1000 * MiB);
        for (void* p : blocks) a.deallocate(s0, p, 100 * MiB);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario 5 (pytorch #189504): memory that only waits for a stream is waited for where allowed",
    "[scenario][tenancy]") {
    const bool allowed = GENERATE(true, false);
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .max = 100 * MiB});
        best_fit_tenant a(org, w.between, {.name = "a"},
                          {.segment_bytes = 2_MiB, .synchronize_on_oom = allowed});
        const stream_handle s1 = w.device.create_stream();
        void* const x = a.allocate(s0, 80 * MiB);
        w.device.launch(s1, 10ms);
        a.record_use(x, s1);
        a.deallocate(s0, x, 80 * MiB);
        const auto r = a.try_allocate(s0, 80 * MiB);
        CHECK(r.has_value() == allowed);
        if (r) {
            a.deallocate(s0, *r, 80 * MiB);
        } else {
            CHECK(r.error().cause == failure_cause::stream_pending);
            CHECK(r.error().pending == 80 * MiB);
            CHECK(r.error().arena.view() == "gpu/org");
        }
    }
    w.check_empty();
}

TEMPLATE_TEST_CASE(
    "tenants, scenario 6 (pytorch #159674): a larger block replaces a smaller one under the limit",
    "[scenario][tenancy]", tenant_of<best_fit_pool>, tenant_of<caching_pool>, tenant_of<remap_pool>) {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .max = 80 * MiB});
        TestType a(org, w.between, {.name = "a"});
        void* const p = a.allocate(s0, 60 * MiB);
        a.deallocate(s0, p, 60 * MiB);
        void* const q = a.allocate(s0, 70 * MiB);
        CHECK(w.gpu.limits().charged <= 80 * MiB);
        a.deallocate(s0, q, 70 * MiB);
    }
    w.check_empty();
}

TEMPLATE_TEST_CASE("tenants, scenario 7 (pytorch #175015): a second stream's uses do not make a tenant grow",
                   "[scenario][tenancy]", tenant_of<best_fit_pool>, tenant_of<caching_pool>,
                   tenant_of<remap_pool>) {
    shared_device w;
    {
        TestType a(w.gpu, w.between, {.name = "a", .max = 300 * MiB});
        const stream_handle s1 = w.device.create_stream();
        std::size_t most = 0;
        for (int i = 0; i < 100; ++i) {
            void* const p = a.allocate(s0, 10 * MiB);
            a.record_use(p, s1);
            w.device.launch(s1, 1us);
            a.deallocate(s0, p, 10 * MiB);
            w.device.advance(10us);
            most = std::max(most, a.limits().charged);
        }
        a.trim(0);
        // One segment as large as the pool buys them, or two blocks.
        CHECK(most <= 256 * MiB);
        CHECK(a.usage().blocks.current == 0);
        CHECK(a.limits().charged == 0);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario 11 (pytorch #58466, #107667): what the driver sees of a tenant never passes its max, "
    "rounding included",
    "[scenario][tenancy]") {
    shared_device w;
    {
        tenant_of<async_pool> pooled(w.gpu, w.between, {.name = "pooled", .max = 100 * MiB});
        while (const auto r = pooled.try_allocate(s0, 7 * MiB + 1)) (void)*r;
        CHECK(w.device.reserved() <= 100 * MiB);
        const std::size_t pools = w.device.reserved();
        tenant_of<remap_pool> mapped(w.gpu, w.between, {.name = "mapped", .max = 101 * MiB - 1});
        while (const auto r = mapped.try_allocate(s0, 3 * MiB + 1)) (void)*r;
        CHECK(w.device.reserved() - pools <= 101 * MiB - 1);
        CHECK(mapped.limits().charged == w.device.reserved() - pools);
        pooled.release_all(s0);
        mapped.release_all(s0);
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario 12 (pytorch #18626): of four tenants the one that asks too much is the only one that "
    "fails",
    "[scenario][tenancy]") {
    shared_device w(100 * MiB);
    {
        std::vector<std::unique_ptr<best_fit_tenant>> tenants;
        for (int i = 0; i < 4; ++i)
            tenants.push_back(std::make_unique<best_fit_tenant>(
                w.gpu, w.between, arena_options{.name = std::to_string(i), .min = 24 * MiB, .max = 25 * MiB},
                fine));
        CHECK_FALSE(tenants[0]->try_allocate(s0, 30 * MiB));
        std::vector<void*> blocks;
        for (auto& t : tenants) blocks.push_back(t->allocate(s0, 24 * MiB));
        CHECK_FALSE(tenants[0]->try_allocate(s0, 30 * MiB));
        for (std::size_t i = 0; i < 4; ++i) tenants[i]->deallocate(s0, blocks[i], 24 * MiB);
        for (const tenant_picture& t : w.gpu.picture()) CHECK((t.reading.refused > 0) == (t.name == "0"));
    }
    w.check_empty();
}

TEST_CASE(
    "tenants, scenario 34 (pytorch #29554, #121932): the text of an error names the level and what decides",
    "[scenario][tenancy]") {
    shared_device w;
    {
        arena_group org(w.gpu, {.name = "org", .min = 20 * MiB, .max = 100 * MiB});
        best_fit_tenant a(org, w.between, {.name = "a"}, fine);
        void* const p = a.allocate(s0, 60 * MiB);
        const auto r = a.try_allocate(s0, 50 * MiB);
        REQUIRE_FALSE(r);
        CHECK(r.error().min == 20 * MiB);
        CHECK(r.error().used == 60 * MiB);
        const std::string text = r.error().text();
        for (const char* part : {"\"gpu/org\"", "max 100 MiB", "used 60 MiB", "min 20 MiB", "ancestor_limit",
                                 "largest free block", "pending", "50 MiB"}) {
            CAPTURE(part, text);
            CHECK(text.find(part) != std::string::npos);
        }
        CHECK(a.limits().failures[static_cast<std::size_t>(failure_cause::ancestor_limit)] == 1);
        a.deallocate(s0, p, 60 * MiB);
    }
    w.check_empty();
}
