// Allocation programs that broke other allocators, distilled from public bug reports; each test is named
// after its report and states the outcome that is right. Sizes in MiB unless a unit is given. On a GPU they run as they are,
// but for what only a clock of one's own can tell: that something took no time.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/world_device.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

using test::world_device;
using test::world_is_simulated;

constexpr std::size_t MiB = 1_MiB;
constexpr stream_handle s0 = default_stream;

template <template <class> class Policy>
using arena_of = arena<Policy, world_device>;

/// Returns: what the world's clock says; true where it has none.
template <class World>
bool before(World& w, std::chrono::nanoseconds t) {
    if constexpr (requires { w.now(); })
        return w.now() < t;
    else
        return true;
}
template <class World>
bool not_before(World& w, std::chrono::nanoseconds t) {
    if constexpr (requires { w.now(); })
        return w.now() >= t;
    else
        return true;
}

/// A block that tells the overlap check what is done with it.
template <class R>
struct user {
    world_device& dev;
    R& r;

    void* take(stream_handle s, std::size_t n) {
        void* p = r.allocate(s, n);
        dev.block_allocated(p, n, s);
        return p;
    }
    void use(void* p, stream_handle s) {
        r.record_use(p, s);
        dev.block_used(p, s);
    }
    void give(stream_handle s, void* p, std::size_t n) {
        dev.block_freed(p, s);
        r.deallocate(s, p, n);
    }
};
template <class R>
user(world_device&, R&) -> user<R>;

} // namespace

TEMPLATE_TEST_CASE("scenario 1 (pytorch #35901): a fragmented arena says so, with its largest block",
                   "[scenario]", arena_of<best_fit_pool>, arena_of<exact_best_fit_pool>) {
    world_device dev;
    TestType a(dev, {.name = "a", .max = 1000 * MiB});
    void* big = a.allocate(s0, 600 * MiB);
    a.deallocate(s0, big, 600 * MiB);
    std::vector<void*> small;
    for (int i = 0; i < 30; ++i) small.push_back(a.allocate(s0, 16 * MiB));
    for (int i = 0; i < 30; ++i)
        if (i % 8 != 7) a.deallocate(s0, small[static_cast<std::size_t>(i)], 16 * MiB);
    const auto r = a.try_allocate(s0, 600 * MiB);
    if (!r) { // no remapping here: the honest answer
        CHECK(r.error().cause == failure_cause::fragmentation);
        CHECK(r.error().largest_free > 0);
        CHECK(r.error().largest_free < 600 * MiB);
        CHECK(r.error().text().find("fragmentation") != std::string::npos);
    } else {
        a.deallocate(s0, *r, 600 * MiB);
    }
    for (int i = 7; i < 30; i += 8) a.deallocate(s0, small[static_cast<std::size_t>(i)], 16 * MiB);
    void* again = a.allocate(s0, 600 * MiB); // and with the four gone it fits
    a.deallocate(s0, again, 600 * MiB);
}

TEMPLATE_TEST_CASE(
    "scenario 2 (vllm PR 41268): freeing the large and keeping the small does not pile up the large",
    "[scenario]", arena_of<best_fit_pool>, arena_of<exact_best_fit_pool>) {
    world_device dev;
    // Without remapping it takes segments in which several blocks fit.
    TestType a(dev, {.name = "a", .max = (8 * 270 + 2 * 530) * MiB}, {.segment_bytes = 1024 * MiB});
    std::vector<void*> kept;
    for (int i = 0; i < 8; ++i) {
        void* large = a.allocate(s0, 530 * MiB);
        a.deallocate(s0, large, 530 * MiB);
        kept.push_back(a.allocate(s0, 270 * MiB));
    }
    CHECK(dev.reserved_peak() < 8 * 530 * MiB);
    for (void* p : kept) a.deallocate(s0, p, 270 * MiB);
}

TEMPLATE_TEST_CASE("scenario 3 (vllm 52950): sixteen streams in turn do not reserve sixteen times",
                   "[scenario]", best_fit_pool<world_device>, exact_best_fit_pool<world_device>,
                   buddy_pool<world_device>, async_pool<world_device>) {
    world_device dev;
    {
        TestType pool(dev);
        user u{dev, pool};
        for (int i = 0; i < 16; ++i) {
            const stream_handle s = dev.create_stream();
            void* a = u.take(s, 64 * MiB);
            void* b = u.take(s, 64 * MiB);
            dev.launch(s, 1ms);
            u.give(s, a, 64 * MiB);
            u.give(s, b, 64 * MiB);
            dev.destroy_stream(s); // its handle goes to the next one
            dev.advance(10ms);     // its work passes
        }
        CHECK(dev.reserved_peak() <= 4 * 64 * MiB);
        CHECK(dev.violations().empty());
    }
    CHECK(dev.reserved() == 0);
}

TEMPLATE_TEST_CASE("scenario 4 (Megatron-LM PR 6885): another stream's memory is reused once it has drained",
                   "[scenario]", best_fit_pool<world_device>, exact_best_fit_pool<world_device>,
                   buddy_pool<world_device>, async_pool<world_device>) {
    world_device dev;
    {
        TestType pool(dev);
        user u{dev, pool};
        const stream_handle s1 = dev.create_stream();
        std::vector<void*> blocks;
        for (int i = 0; i < 10; ++i) blocks.push_back(u.take(s1, 100 * MiB));
        dev.launch(s1, 5ms);
        for (void* p : blocks) u.give(s1, p, 100 * MiB);
        dev.advance(1s);
        const std::size_t held = dev.reserved();
        for (void*& p : blocks) p = u.take(s0, 100 * MiB);
        CHECK(dev.reserved() == held);
        for (void* p : blocks) u.give(s0, p, 100 * MiB);
        CHECK(dev.violations().empty());
        dev.destroy_stream(s1);
    }
    CHECK(dev.reserved() == 0);
}

TEST_CASE("scenario 5 (pytorch #189504): memory that only waits is not out of memory", "[scenario]") {
    const auto program = [](auto& a, world_device& dev) {
        const stream_handle s1 = dev.create_stream();
        user u{dev, a};
        void* x = u.take(s0, 80 * MiB);
        dev.launch(s1, 25ms);
        u.use(x, s1);
        u.give(s0, x, 80 * MiB);
        auto again = a.try_allocate(s0, 80 * MiB);
        dev.destroy_stream(s1);
        return again;
    };
    SECTION("waiting allowed: it waits and succeeds") {
        world_device dev;
        arena_of<best_fit_pool> a(dev, {.name = "a", .max = 100 * MiB}, {.synchronize_on_oom = true});
        const auto r = program(a, dev);
        REQUIRE(r);
        dev.block_allocated(*r, 80 * MiB, s0);
        CHECK(not_before(dev, 25ms));
        CHECK(dev.violations().empty());
        dev.block_freed(*r, s0);
        a.deallocate(s0, *r, 80 * MiB);
    }
    SECTION("waiting not allowed: the error says stream_pending, at once") {
        world_device dev;
        arena_of<best_fit_pool> a(dev, {.name = "a", .max = 100 * MiB});
        const auto r = program(a, dev);
        REQUIRE_FALSE(r);
        CHECK(r.error().cause == failure_cause::stream_pending);
        CHECK(r.error().pending >= 80 * MiB);
        CHECK(before(dev, 25ms));
        dev.advance(30ms);
        void* later = a.allocate(s0, 80 * MiB);
        a.deallocate(s0, later, 80 * MiB);
    }
    SECTION("the caching pool too, which waits as PyTorch does, and then searches again") {
        world_device dev;
        arena_of<caching_pool> a(dev, {.name = "a", .max = 100 * MiB});
        const auto r = program(a, dev);
        REQUIRE(r);
        a.deallocate(s0, *r, 80 * MiB);
    }
}

TEST_CASE("scenario 10 (pytorch #82073): room for a large block costs few driver calls, not a flush",
          "[scenario]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 1000 * MiB}, {.segment_bytes = 10 * MiB});
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(a.allocate(s0, 10 * MiB));
    for (int i = 0; i < 90; ++i) a.deallocate(s0, blocks[static_cast<std::size_t>(i)], 10 * MiB);
    const std::uint64_t frees = dev.calls(sim::call::deallocate);
    void* p = a.allocate(s0, 30 * MiB);
    CHECK(dev.calls(sim::call::deallocate) - frees <= 3);
    a.deallocate(s0, p, 30 * MiB);
    for (int i = 90; i < 100; ++i) a.deallocate(s0, blocks[static_cast<std::size_t>(i)], 10 * MiB);
}

TEMPLATE_TEST_CASE(
    "scenario 11 (pytorch #58466, #107667): what the driver sees of an arena never passes its limit",
    "[scenario]", arena_of<best_fit_pool>, arena_of<buddy_pool>, arena_of<slab_pool>, arena_of<caching_pool>,
    arena_of<async_pool>) {
    world_device dev;
    for (const std::size_t max : {100 * MiB, 100 * MiB + 1, 99 * MiB - 1}) {
        TestType a(dev, {.name = "a", .max = max});
        std::vector<std::pair<void*, std::size_t>> live;
        for (std::size_t n : {1 * MiB - 1, 3 * MiB + 7, 20 * MiB, 7 * MiB, 33 * MiB, 512_KiB, 50 * MiB, 1_B})
            if (auto r = a.try_allocate(s0, n)) live.emplace_back(*r, n);
        CHECK(dev.reserved() <= max);
        CHECK(a.limits().peak <= max);
        for (auto [p, n] : live) a.deallocate(s0, p, n);
        CHECK(dev.synchronize(s0) == status::ok); // a driver pool gives back what the host has seen complete
        a.trim(0);
        CHECK(dev.reserved() == 0);
    }
    CHECK(dev.reserved_peak() <= 100 * MiB + 1);
}

TEST_CASE("scenario 12 (pytorch #18626): the tenant that asks too much is the only one that fails",
          "[scenario]") {
    world_device dev({.capacity = 100 * MiB});
    std::vector<std::unique_ptr<arena_of<best_fit_pool>>> tenants;
    for (int i = 0; i < 4; ++i)
        tenants.push_back(std::make_unique<arena_of<best_fit_pool>>(
            dev, arena_options{.name = "tenant " + std::to_string(i), .max = 25 * MiB}));
    CHECK_FALSE(tenants[2]->try_allocate(s0, 30 * MiB));
    std::vector<void*> blocks;
    for (auto& t : tenants) blocks.push_back(t->allocate(s0, 20 * MiB));
    for (std::size_t i = 0; i < 4; ++i) tenants[i]->deallocate(s0, blocks[i], 20 * MiB);
}

TEST_CASE("scenario 13 (pytorch #106660): a GC threshold without a limit works", "[scenario]") {
    world_device dev({.capacity = 1000 * MiB});
    caching_options options = caching_options::pytorch();
    options.garbage_collection_threshold = 0.5;
    caching_pool<world_device> pool(dev, options);
    // Distinct sizes cannot reuse each other's segments: without collection the cache would grow to the
    // capacity.
    for (std::size_t n = 20; n < 60; ++n) {
        void* p = pool.allocate(s0, n * 2 * MiB);
        pool.deallocate(s0, p, n * 2 * MiB);
    }
    CHECK(dev.reserved_peak() <= 700 * MiB);
}

TEST_CASE("scenario 14 (pytorch #133280): what fails upstream arrives as the right exception", "[scenario]") {
    world_device dev;
    best_fit_pool<world_device> pool(dev);
    dev.fail_call(sim::call::allocate, 1, status::out_of_memory, 100);
    CHECK_THROWS_AS(pool.allocate(s0, 1), out_of_memory);
    CHECK_THROWS_AS(pool.allocate(s0, 1), std::bad_alloc);
    dev.clear_faults();
    dev.fail_call(sim::call::allocate, 1, status::failed, 100);
    CHECK_THROWS_AS(pool.allocate(s0, 1), driver_error);
    dev.clear_faults();
    CHECK_THROWS_AS(pool.allocate(s0, 1, 48), invalid_alignment);
    void* p = pool.allocate(s0, 1);
    pool.deallocate(s0, p, 1);
}

TEMPLATE_TEST_CASE(
    "scenario 25 (pytorch #110194): sizes 1..700 with interleaved lives do not grow without bound",
    "[scenario]", best_fit_pool<world_device>, buddy_pool<world_device>, caching_pool<world_device>,
    async_pool<world_device>) {
    world_device dev;
    TestType pool(dev);
    std::vector<std::pair<void*, std::size_t>> live;
    const auto pass = [&] {
        for (std::size_t n = 1; n <= 700; ++n) {
            const std::size_t bytes = n * 64_KiB;
            live.emplace_back(pool.allocate(s0, bytes), bytes);
            if (live.size() > 8) {
                pool.deallocate(s0, live.front().first, live.front().second);
                live.erase(live.begin());
            }
        }
    };
    pass();
    pass();
    const std::size_t warm = dev.reserved_peak();
    for (int i = 0; i < 10; ++i) pass();
    CHECK(dev.reserved_peak() <= warm + warm / 4);
    for (auto [p, n] : live) pool.deallocate(s0, p, n);
}

TEMPLATE_TEST_CASE("scenario 34 (pytorch #29554, #121932): the text of an error names what decides",
                   "[scenario]", arena_of<best_fit_pool>, arena_of<buddy_pool>, arena_of<slab_pool>,
                   arena_of<caching_pool>, arena_of<async_pool>) {
    world_device dev;
    TestType a(dev, {.name = "team/alice", .max = 256 * MiB});
    const auto r = a.try_allocate(s0, 300 * MiB);
    REQUIRE_FALSE(r);
    const std::string text = r.error().text();
    CAPTURE(text);
    for (const char* part :
         {"out of memory", "team/alice", "256 MiB", "300 MiB", "largest free block", "pending"})
        CHECK(text.find(part) != std::string::npos);
}

TEST_CASE("scenario 37 (orion #5, onnxruntime #12920): one stream a request shares one cache", "[scenario]") {
    world_device dev;
    {
        best_fit_pool<world_device> pool(dev, {.segment_bytes = 32 * MiB});
        user u{dev, pool};
        for (int request = 0; request < 2000; ++request) {
            const stream_handle s = dev.create_stream();
            void* p = u.take(s, 8 * MiB);
            dev.launch(s, 50us);
            u.give(s, p, 8 * MiB);
            dev.destroy_stream(s);
            dev.advance(100us);
        }
        CHECK(dev.reserved_peak() <= 64 * MiB);
        CHECK(dev.violations().empty());
    }
    CHECK(dev.live_events() == 0);
}

TEST_CASE("scenario R1 (rmm #1245): the whole ladder is climbed before an error", "[scenario]") {
    // Cached blocks, completed frees of another stream and an empty segment: none of the three is enough
    // alone.
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 96 * MiB}, {.segment_bytes = 32 * MiB});
    const stream_handle s1 = dev.create_stream();
    void* x = a.allocate(s0, 30 * MiB);
    void* y = a.allocate(s1, 30 * MiB);
    void* z = a.allocate(s0, 30 * MiB);
    dev.launch(s1, 1ms);
    a.deallocate(s0, x, 30 * MiB);
    a.deallocate(s1, y, 30 * MiB);
    a.deallocate(s0, z, 30 * MiB);
    dev.advance(5ms);
    void* p = a.allocate(s0, 90 * MiB);
    a.deallocate(s0, p, 90 * MiB);
    dev.destroy_stream(s1);
}

TEST_CASE("scenario R2 (rmm #2510): an explicit pool keeps its memory across synchronisation", "[scenario]") {
    world_device dev;
    async_pool<world_device> pool(dev);
    void* p = pool.allocate(s0, 100 * MiB);
    pool.deallocate(s0, p, 100 * MiB);
    const std::size_t held = dev.reserved();
    CHECK(held >= 100 * MiB);
    CHECK(dev.synchronize(s0) == status::ok);
    CHECK(dev.reserved() == held);
    pool.trim(0);
    CHECK(dev.reserved() == 0);
}

TEMPLATE_TEST_CASE("scenario R4 (rmm #2156): memory of allocate_sync is valid on every stream", "[scenario]",
                   best_fit_pool<world_device>, buddy_pool<world_device>, slab_pool<world_device>,
                   caching_pool<world_device>, async_pool<world_device>) {
    world_device dev;
    TestType pool(dev);
    user u{dev, pool};
    const stream_handle busy = dev.create_stream();
    void* p = u.take(busy, 4 * MiB);
    dev.launch(busy, 50ms);
    u.give(busy, p, 4 * MiB);
    void* q = pool.allocate_sync(4 * MiB, 256);
    dev.block_allocated_sync(q, 4 * MiB); // a violation if any work on it could still be under way
    CHECK(dev.violations().empty());
    dev.block_freed_sync(q);
    pool.deallocate_sync(q, 4 * MiB, 256);
    dev.destroy_stream(busy);
}

TEST_CASE("scenario R9 (nccl #1137): no hidden wait unless it was allowed", "[scenario]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 100 * MiB});
    const stream_handle collective = dev.create_stream();
    user u{dev, a};
    void* x = u.take(s0, 80 * MiB);
    dev.hold(collective); // waits for this very thread
    u.use(x, collective);
    u.give(s0, x, 80 * MiB);
    CHECK_FALSE(a.try_allocate(s0, 80 * MiB));
    CHECK(dev.calls(sim::call::synchronize_event) == 0);
    CHECK(dev.calls(sim::call::synchronize_stream) == 0);
    dev.finish(collective);
    dev.advance(1s); // and what stood behind it passes
    void* p = a.allocate(s0, 80 * MiB);
    a.deallocate(s0, p, 80 * MiB);
    dev.destroy_stream(collective);
}

TEMPLATE_TEST_CASE("scenario R10 (nccl #1234): a capture survives another thread's allocations", "[scenario]",
                   best_fit_pool<world_device>, buddy_pool<world_device>, slab_pool<world_device>,
                   caching_pool<world_device>, async_pool<world_device>) {
    world_device dev;
    TestType pool(dev);
    const stream_handle capturing = dev.create_stream();
    dev.begin_capture(capturing);
    std::thread other([&] {
        const stream_handle s = dev.create_stream();
        std::vector<void*> blocks;
        for (int i = 0; i < 20; ++i)
            blocks.push_back(pool.allocate(s, (1 + static_cast<std::size_t>(i)) * MiB));
        for (int i = 0; i < 20; ++i)
            pool.deallocate(s, blocks[static_cast<std::size_t>(i)], (1 + static_cast<std::size_t>(i)) * MiB);
        dev.destroy_stream(s);
    });
    other.join();
    CHECK(dev.end_capture(capturing));
    dev.destroy_stream(capturing);
}

TEST_CASE("scenario L1 (HAMi-core PR 273): many threads racing at the limit never pass it",
          "[scenario][threads]") {
    world_device dev;
    constexpr std::size_t max = 64 * MiB + 12345;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = max}, {.segment_bytes = 2 * MiB});
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t)
        threads.emplace_back([&, t] {
            const stream_handle s = dev.create_stream();
            for (int i = 0; i < 200; ++i) {
                const std::size_t n = (1 + static_cast<std::size_t>((t * 7 + i) % 11)) * MiB;
                if (auto r = a.try_allocate(s, n)) a.deallocate(s, *r, n);
            }
            dev.destroy_stream(s);
        });
    for (auto& t : threads) t.join();
    CHECK(dev.reserved_peak() <= max);
    CHECK(a.limits().peak <= max);
    a.trim(0);
    CHECK(a.limits().charged == 0);
}

TEST_CASE("scenario L2, L3 (HAMi-core #257, #321; HAMi #1181): foreign and repeated frees are typed and "
          "count nothing",
          "[scenario]") {
    world_device dev;
    test::misuse_log log;
    best_fit_pool<world_device> pool(dev);
    void* p = pool.allocate(s0, 1 * MiB);
    pool.deallocate(s0, to_pointer(0x123400), 1 * MiB);
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::foreign_pointer);
    pool.deallocate(s0, p, 1 * MiB);
    const usage_counters once = pool.usage();
    for (int i = 0; i < 3; ++i) pool.deallocate(s0, p, 1 * MiB);
    REQUIRE(log.size() == 4);
    CHECK(log[3].kind == misuse_kind::double_free);
    CHECK(pool.usage() == once);
    CHECK(once.requested.current == 0);
}

TEST_CASE("scenario L5 (Umpire SizeLimiter): a charge whose memory never came is given back", "[scenario]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 100 * MiB});
    dev.fail_call(sim::call::allocate, 1, status::out_of_memory, 1000);
    const auto r = a.try_allocate(s0, 60 * MiB);
    dev.clear_faults();
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    CHECK(a.limits().charged == 0);
    void* p = a.allocate(s0, 90 * MiB); // the whole limit is still there
    a.deallocate(s0, p, 90 * MiB);
}

TEST_CASE("scenario L7 (cudf-spark #6768): idle memory behind completed frees is found", "[scenario]") {
    world_device dev({.capacity = 32 * 1024 * MiB});
    best_fit_pool<world_device> pool(dev);
    const stream_handle s1 = dev.create_stream();
    std::vector<void*> blocks;
    for (int i = 0; i < 25; ++i) blocks.push_back(pool.allocate(s1, 1024 * MiB));
    dev.launch(s1, 10ms);
    for (void* p : blocks) pool.deallocate(s1, p, 1024 * MiB);
    dev.advance(20ms);
    for (int i = 0; i < 3; ++i) {
        void* p = pool.allocate(s0, 2600 * MiB + 512_KiB);
        pool.deallocate(s0, p, 2600 * MiB + 512_KiB);
    }
    dev.destroy_stream(s1);
}

TEST_CASE("scenario L9 (Triton server #1765): an exhausted pool never takes other memory silently",
          "[scenario]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 50 * MiB});
    void* p = a.allocate(s0, 50 * MiB);
    CHECK_FALSE(a.try_allocate(s0, 1));
    CHECK(dev.reserved() == 50 * MiB);
    a.deallocate(s0, p, 50 * MiB);
}

TEST_CASE(
    "scenario 28 (pytorch PR 118550): sixteen threads of 64 KiB pairs are served from what one pass reserved",
    "[scenario][threads]") {
    // How fast is for the benchmarks; that nothing is reserved or asked of the driver once warm is for here.
    world_device dev;
    {
        best_fit_pool<world_device> pool(dev);
        std::vector<stream_handle> streams;
        for (int t = 0; t < 16; ++t) streams.push_back(dev.create_stream());
        const auto pass = [&](int pairs) {
            std::vector<std::thread> threads;
            for (const stream_handle s : streams)
                threads.emplace_back([&pool, s, pairs] {
                    for (int i = 0; i < pairs; ++i) pool.deallocate(s, pool.allocate(s, 64_KiB), 64_KiB);
                });
            for (std::thread& t : threads) t.join();
        };
        pass(10);
        const std::uint64_t bought = dev.calls(sim::call::allocate);
        pass(500);
        CHECK(dev.calls(sim::call::allocate) == bought);
        for (const stream_handle s : streams) dev.destroy_stream(s);
    }
    CHECK(dev.reserved() == 0);
}

TEST_CASE("scenario 35 (mlcommons PR 522): the driver calls of a step are counted, and none when warm",
          "[scenario]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "tight", .max = 512 * MiB});
    const auto step = [&] {
        std::vector<std::pair<void*, std::size_t>> live;
        for (std::size_t n = 1; n <= 12; ++n) live.emplace_back(a.allocate(s0, n * 5 * MiB), n * 5 * MiB);
        for (auto [p, n] : live) a.deallocate(s0, p, n);
    };
    step();
    CHECK(dev.total_calls() > 0);
    const std::uint64_t warm = dev.total_calls();
    for (int i = 0; i < 10; ++i) step();
    CHECK(dev.total_calls() == warm);
}

TEST_CASE("scenario R3 (rmm #2366): a static pool destroyed at exit is silent", "[scenario]") {
    static world_device dev;
    static best_fit_pool<world_device> pool(dev); // destroyed after main, before the device it stands on
    void* p = pool.allocate(s0, 1 * MiB);
    pool.deallocate(s0, p, 1 * MiB);
    CHECK(pool.usage().blocks.current == 0);
}

TEMPLATE_TEST_CASE("scenario R6 (pytorch PR 186809): memory that a captured graph keeps is counted",
                   "[scenario]", best_fit_pool<world_device>, buddy_pool<world_device>,
                   caching_pool<world_device>) {
    world_device dev;
    TestType pool(dev);
    const stream_handle s = dev.create_stream();
    const std::uint64_t capture = dev.begin_capture(s);
    void* p = pool.allocate(s, 4 * MiB);
    pool.deallocate(s, p, 4 * MiB);
    CHECK(dev.end_capture(s));
    CHECK(pool.usage().captured >= 4 * MiB);
    CHECK(pool.usage().reserved.current >= 4 * MiB);
    pool.release_captured(capture);
    CHECK(pool.usage().captured == 0);
    CHECK(pool.usage().allocated.current == 0);
    dev.destroy_stream(s);
}

TEMPLATE_TEST_CASE(
    "scenario R7 (vllm PR 43020): memory goes back to the device only when the work on it is over",
    "[scenario]", best_fit_pool<world_device>, buddy_pool<world_device>, slab_pool<world_device>,
    caching_pool<world_device>) {
    world_device dev;
    TestType pool(dev);
    user u{dev, pool};
    const stream_handle s1 = dev.create_stream();
    void* p = u.take(s0, 32 * MiB);
    dev.launch(s1, 25ms);
    u.use(p, s1);
    u.give(s0, p, 32 * MiB);
    pool.trim(0); // at once: the device is asked to wait, or nothing is given back
    CHECK(dev.violations().empty());
    dev.destroy_stream(s1);
}

TEMPLATE_TEST_CASE(
    "scenario R13 (cuda-samples #293), L10 (JAX #4310): a limit in bytes holds however much is free",
    "[scenario]", arena_of<best_fit_pool>, arena_of<caching_pool>, arena_of<async_pool>) {
    // The device never runs out, and how much of it is free when a tenant starts changes nothing for him.
    for (const std::size_t taken_before :
         {std::size_t{0}, std::size_t{world_is_simulated ? 100 : 10} << 30}) {
        world_device dev({.capacity = std::size_t{1} << 40});
        void* other = taken_before != 0 ? *dev.allocate(taken_before) : nullptr;
        TestType a(dev, {.name = "a", .max = 128 * MiB});
        std::size_t granted = 0;
        std::vector<void*> blocks;
        while (auto r = a.try_allocate(s0, 16 * MiB)) {
            blocks.push_back(*r);
            granted += 16 * MiB;
        }
        CHECK(granted == 128 * MiB);
        for (void* p : blocks) a.deallocate(s0, p, 16 * MiB);
        if (other != nullptr) CHECK(dev.deallocate(other, taken_before) == status::ok);
    }
}

TEST_CASE("scenario L6 (RMM limiter): a huge request racing small ones refuses none of them",
          "[scenario][threads]") {
    world_device dev;
    arena_of<best_fit_pool> a(dev, {.name = "a", .max = 64 * MiB}, {.segment_bytes = 2 * MiB});
    std::atomic<bool> done{false};
    std::atomic<int> refused{0};
    std::thread greedy([&] {
        while (!done) {
            if (a.try_allocate(s0, 65 * MiB)) ++refused;
            if (a.try_allocate(s0, no_limit - 4096)) ++refused;
        }
    });
    std::vector<std::thread> innocents;
    for (int t = 0; t < 4; ++t)
        innocents.emplace_back([&] {
            const stream_handle s = dev.create_stream();
            for (int i = 0; i < 500; ++i) {
                if (auto r = a.try_allocate(s, 1 * MiB))
                    a.deallocate(s, *r, 1 * MiB);
                else
                    ++refused;
            }
            dev.destroy_stream(s);
        });
    for (std::thread& t : innocents) t.join();
    done = true;
    greedy.join();
    CHECK(refused == 0);
}
