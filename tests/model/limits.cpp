// The property of an arena: whatever is asked, by however many threads, what the device sees of it never
// passes the limit, and everything comes back.

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

template <template <class> class Policy>
using arena_of = arena<Policy, sim::device>;

struct program_result {
    std::size_t granted = 0;
    std::size_t refused = 0;
};

/// A random program on streams of its own: allocations of all sizes, frees in random order, uses on a second
/// stream, work of random length, now and then a trim.
template <class Arena>
program_result run_program(Arena& a, sim::device& dev, std::uint64_t seed, int steps) {
    std::mt19937_64 rng(seed);
    const stream_handle s = dev.create_stream();
    const stream_handle side = dev.create_stream();
    std::vector<std::pair<void*, std::size_t>> live;
    program_result result;
    for (int i = 0; i < steps; ++i) {
        if (live.empty() || test::chance(rng, 55)) {
            const std::size_t n = test::log_uniform(rng, 1, 24_MiB);
            const std::size_t alignment = std::size_t{1} << test::below(rng, 22);
            if (auto r = a.try_allocate(s, n, alignment)) {
                live.emplace_back(*r, n);
                ++result.granted;
            } else {
                ++result.refused;
            }
        } else {
            const std::size_t k = test::below(rng, live.size());
            if (test::chance(rng, 10)) {
                dev.launch(side, std::chrono::microseconds(test::below(rng, 2000)));
                a.record_use(live[k].first, side);
            }
            a.deallocate(s, live[k].first, live[k].second);
            live[k] = live.back();
            live.pop_back();
        }
        if (test::chance(rng, 5)) dev.launch(s, std::chrono::microseconds(test::below(rng, 500)));
        if (test::chance(rng, 10)) dev.advance(std::chrono::microseconds(test::below(rng, 200)));
        if (test::chance(rng, 1)) a.trim(test::log_uniform(rng, 1, 64_MiB));
    }
    for (auto [p, n] : live) a.deallocate(s, p, n);
    (void)dev.synchronize(s); // a driver pool gives back only what the host has seen complete
    dev.destroy_stream(s);
    dev.destroy_stream(side);
    return result;
}

} // namespace

TEMPLATE_TEST_CASE("reserved never passes a random limit, with 8 threads", "[model][limits][threads]",
                   arena_of<best_fit_pool>, arena_of<exact_best_fit_pool>, arena_of<buddy_pool>,
                   arena_of<slab_pool>, arena_of<caching_pool>, arena_of<async_pool>,
                   arena_of<slab_and_caching>) {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    constexpr int threads = 8;
    constexpr int steps = 250;

    std::size_t peak = 0;
    {
        sim::device dev({.capacity = 64_GiB});
        TestType unlimited(dev, {.name = "unlimited"});
        std::vector<std::thread> workers;
        for (int t = 0; t < threads; ++t)
            workers.emplace_back([&, seed = rng()] { run_program(unlimited, dev, seed, steps); });
        for (auto& w : workers) w.join();
        peak = dev.reserved_peak();
    }

    for (int round = 0; round < 12; ++round) {
        const std::size_t limit = round == 0 ? 1 : test::log_uniform(rng, 1_MiB, 2 * peak) | 1;
        CAPTURE(limit);
        sim::device dev({.capacity = 64_GiB});
        {
            TestType a(dev, {.name = "limited", .max = limit});
            std::atomic<bool> done{false};
            std::atomic<bool> passed{false};
            std::thread watcher([&] {
                while (!done) {
                    const meter_reading now = a.limits();
                    if (now.charged > now.max || dev.reserved() > limit) passed = true;
                    std::this_thread::yield();
                }
            });
            std::vector<std::thread> workers;
            for (int t = 0; t < threads; ++t)
                workers.emplace_back([&, seed = rng()] { run_program(a, dev, seed, steps); });
            for (auto& w : workers) w.join();
            done = true;
            watcher.join();

            CHECK_FALSE(passed);
            CHECK(dev.reserved_peak() <= limit);
            CHECK(a.limits().peak <= limit);
            CHECK(a.validate());
            const usage_counters u = a.usage();
            CHECK(u.requested.current == 0);
            CHECK(u.blocks.current == 0);
            dev.advance(std::chrono::hours(1));
            a.trim(0);
            const usage_counters after = a.usage();
            CHECK(after.allocated.current == 0);
            CHECK(after.pending == 0);
            CHECK(after.reserved.current == 0);
            CHECK(a.limits().charged == 0);
        }
        CHECK(dev.reserved() == 0);
        CHECK(dev.live_events() == 0);
        CHECK(dev.violations().empty());
    }
}

TEST_CASE("a limit that moves while threads allocate is never passed by a charge granted after it",
          "[model][limits][threads]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    sim::device dev({.capacity = 64_GiB});
    arena_of<best_fit_pool> a(dev, {.name = "moving", .max = 512_MiB});
    std::atomic<bool> done{false};
    std::thread mover([&, seed = rng()] {
        std::mt19937_64 r(seed);
        while (!done) {
            a.set_max(test::log_uniform(r, 1_MiB, 512_MiB));
            std::this_thread::yield();
        }
    });
    std::vector<std::thread> workers;
    for (int t = 0; t < 4; ++t) workers.emplace_back([&, seed = rng()] { run_program(a, dev, seed, 400); });
    for (auto& w : workers) w.join();
    done = true;
    mover.join();
    CHECK(dev.reserved_peak() <= 512_MiB);
    dev.advance(std::chrono::hours(1));
    a.trim(0);
    CHECK(a.limits().charged == 0);
    CHECK(dev.reserved() == 0);
}
