/// Magazines and threads. Run under ThreadSanitizer too.

#include "support/catch.hpp"
#include "support/gate.hpp"
#include "support/random.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

using namespace tenure;
using tenure::test::gate;
using namespace tenure::literals;

namespace {

template <device D>
using fronted_pool = magazines<best_fit_pool<D>>;
using fronted = fronted_pool<sim::device>;
using tenant = arena<fronted_pool, sim::device>;

sim::device_options quiet_device(std::size_t capacity = 141_GiB) {
    return {.capacity = capacity, .cost = sim::costs::zero(), .check_overlap = false};
}

template <class F>
void on_threads(unsigned n, F f) {
    std::vector<std::thread> all;
    for (unsigned t = 0; t < n; ++t) all.emplace_back([t, &f] { f(t); });
    for (std::thread& t : all) t.join();
}

template <class R>
void warm(R& r, stream_handle s, std::size_t n) {
    for (int i = 0; i < 4; ++i) {
        void* const p = r.allocate(s, n);
        r.deallocate(s, p, n);
    }
}

/// Effects: the calling thread has parked about that many bytes.
template <class R>
void park(R& r, stream_handle s, std::size_t n, std::size_t bytes) {
    warm(r, s, n);
    std::vector<void*> blocks;
    for (std::size_t b = 0; b < bytes; b += n) blocks.push_back(r.allocate(s, n));
    for (void* p : blocks) r.deallocate(s, p, n);
}

} // namespace

TEST_CASE("eight idle threads' parked memory never makes a ninth run out", "[front][threads]") {
    constexpr std::size_t max = 256_MiB;
    for (const bool own_streams : {false, true}) {
        CAPTURE(own_streams);
        sim::device d(quiet_device());
        tenant a(d, {.name = "a", .max = max}, {.pool = {.segment_bytes = 32_MiB}});
        std::array<stream_handle, 9> streams{};
        if (own_streams)
            for (stream_handle& s : streams) s = d.create_stream();
        gate done;
        std::mutex turn;
        std::atomic<unsigned> ready{0};
        std::atomic<bool> stop{false};
        std::atomic<bool> over{false};
        park(a, default_stream, 1_MiB, 220_MiB); // the pool is full grown: no thread makes it ask the others
        a.trim(no_limit);
        std::thread watch([&] {
            while (!stop)
                if (const meter_reading r = a.limits(); r.charged > r.max) over = true;
        });
        std::vector<std::thread> idle;
        for (unsigned t = 0; t < 8; ++t)
            idle.emplace_back([&, t] {
                {
                    const std::lock_guard lock(turn);
                    park(a, streams[t], 1_MiB, 20_MiB);
                }
                ++ready;
                done.wait();
                warm(a, streams[t], 1_MiB); // and is none the worse for it
            });
        while (ready != 8) std::this_thread::yield();
        for (const stream_handle s : streams) REQUIRE(d.synchronize(s) == status::ok);
        CHECK(a.policy().pool().usage().allocated.current >= (own_streams ? 1 : 8) * 16_MiB); // parked
        CHECK(a.usage().allocated.current == 0);
        for (const std::size_t n : {max, max / 2, 30_MiB}) {
            const allocate_result r = a.try_allocate(streams[8], n);
            REQUIRE(r);
            CHECK(a.limits().charged <= max);
            a.deallocate(streams[8], *r, n);
        }
        done.open();
        for (std::thread& t : idle) t.join();
        stop = true;
        watch.join();
        CHECK_FALSE(over);
        CHECK(a.limits().peak <= max);
        CHECK(a.validate());
        a.trim(0);
        CHECK(a.limits().charged == 0);
    }
}

TEST_CASE("threads that race at the limit with memory parked everywhere all get their due",
          "[front][threads]") {
    // Each takes what it is about to hold out of a common account first, which has exactly as many blocks as fit below the
    // limit; they are of one size that tiles the segments. So none may ever fail, though magazines and depot have room
    // for several times as much.
    CAPTURE(test::seed());
    constexpr std::size_t max = 4_MiB;
    constexpr std::size_t size = 64_KiB;
    constexpr std::size_t most = 20;
    static_assert(most < magazine::most_blocks && 8 * most > max / size);
    sim::device d(quiet_device());
    tenant a(d, {.name = "a", .max = max}, {.pool = {.segment_bytes = 2_MiB}});
    std::atomic<std::size_t> left{max / size};
    std::atomic<unsigned> failed{0};
    on_threads(8, [&](unsigned t) {
        std::mt19937_64 rng(test::seed() + t);
        std::vector<void*> live;
        for (int i = 0; i < 400; ++i) {
            const std::size_t n = 1 + test::below(rng, most);
            std::size_t have = left;
            while (have < n || !left.compare_exchange_weak(have, have - n)) {
                std::this_thread::yield();
                have = left;
            }
            for (std::size_t k = 0; k < n; ++k) {
                if (const allocate_result r = a.try_allocate(default_stream, size))
                    live.push_back(*r);
                else
                    ++failed;
                if (test::chance(rng, 12)) std::this_thread::yield();
            }
            std::this_thread::yield();
            for (void* const p : live) a.deallocate(default_stream, p, size);
            live.clear();
            left += n;
        }
    });
    CHECK(failed == 0);
    CHECK(a.limits().peak <= max);
    CHECK(a.policy().pool().usage().blocks.total_in > 2 * max / size); // what was parked went round
    CHECK(a.usage().requested.current == 0);
    CHECK(a.validate());
}

TEST_CASE("a thread that ends hands back what it kept", "[front][threads]") {
    sim::device d(quiet_device());
    fronted f(d);
    std::array<void*, 8> live{};
    std::thread([&] {
        park(f, default_stream, 4096, 64_KiB);
        for (void*& p : live) p = f.allocate(default_stream, 4096);
        CHECK(f.pool().usage().blocks.current > live.size());
    }).join();
    CHECK(f.pool().usage().blocks.current == live.size());
    CHECK(f.usage().blocks.current == live.size());
    CHECK(f.usage().requested.current == live.size() * 4096);
    warm(f, default_stream, 4096);
    for (void* p : live) { // of a thread that is gone
        CHECK(f.owns(p));
        CHECK(f.try_deallocate(default_stream, p, 4096));
        CHECK_FALSE(f.try_deallocate(default_stream, p, 4096));
    }
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.validate());
}

TEST_CASE("a thread may outlive the front ends that it has used", "[front][threads]") {
    sim::device d(quiet_device());
    auto f = std::make_unique<fronted>(d);
    gate used, destroyed;
    std::thread t([&] {
        park(*f, default_stream, 4096, 64_KiB);
        used.open();
        destroyed.wait();
        fronted other(d); // its entries meet those of the dead one
        warm(other, default_stream, 4096);
    });
    used.wait();
    f.reset();
    CHECK(d.reserved() == 0);
    destroyed.open();
    t.join();
    CHECK(d.reserved() == 0);
}

TEST_CASE("thread-local objects may free blocks when their thread ends", "[front][threads]") {
    struct keeper {
        fronted* f = nullptr;
        void* p = nullptr;
        ~keeper() {
            if (p == nullptr) return;
            f->deallocate(default_stream, p, 4096);
            void* const q = f->allocate(default_stream, 4096); // and allocate
            f->deallocate(default_stream, q, 4096);
        }
    };
    sim::device d(quiet_device());
    fronted f(d);
    std::thread([&] {
        static thread_local keeper k; // made before the thread's racks, destroyed after them
        k.f = &f;
        warm(f, default_stream, 4096);
        k.p = f.allocate(default_stream, 4096);
    }).join();
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.pool().usage().blocks.current == 0);
    CHECK(f.validate());
}

TEST_CASE("blocks may be freed by another thread, and serve there", "[front][threads]") {
    sim::device d(quiet_device());
    fronted f(d);
    const stream_handle s = d.create_stream();
    std::mutex mutex;
    std::vector<void*> post;
    std::atomic<bool> stop{false};
    std::thread consumer([&] {
        for (;;) {
            const bool last = stop;
            std::vector<void*> got;
            {
                const std::lock_guard lock(mutex);
                got.swap(post);
            }
            for (void* p : got) f.deallocate(s, p, 4096);
            if (last) break;
        }
    });
    for (int i = 0; i < 20'000; ++i) {
        void* const p = f.allocate(s, 4096);
        const std::lock_guard lock(mutex);
        post.push_back(p);
    }
    stop = true;
    consumer.join();
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.usage().requested.current == 0);
    CHECK(f.validate());
    f.trim(0);
    CHECK(d.reserved() == 0);
}

TEST_CASE("eight threads at full speed while others take everything back", "[front][threads]") {
    CAPTURE(test::seed());
    sim::device d(quiet_device());
    fronted f(d, pool_options{}, {.check = stream_check::announced});
    std::array<stream_handle, 8> own{};
    for (stream_handle& s : own) s = d.create_stream();
    const stream_handle shared = d.create_stream();
    std::atomic<bool> stop{false};
    std::atomic<unsigned> wrong{0};
    std::thread visitor([&] {
        for (unsigned i = 0; !stop; ++i) {
            if (i % 3 == 0) f.trim(no_limit); // takes all back, gives nothing away
            if (i % 3 == 1 && !f.validate()) ++wrong;
            if (i % 3 == 2) {
                const usage_counters u = f.usage();
                if (u.requested.current > u.allocated.current || u.allocated.current > u.reserved.current)
                    ++wrong;
            }
            if (i % 16 == 15) f.forget(own[i / 16 % own.size()]);
            std::this_thread::yield();
        }
    });
    std::mutex mutex;
    std::vector<std::pair<void*, std::size_t>> post; // blocks of the shared stream
    on_threads(8, [&](unsigned t) {
        std::mt19937_64 rng(test::seed() + t);
        constexpr std::array<std::size_t, 5> sizes{100, 512, 4000, 64_KiB, 1_MiB};
        std::vector<std::pair<void*, std::size_t>> mine;
        for (int i = 0; i < 4000; ++i) {
            const std::size_t n = sizes[test::below(rng, sizes.size())];
            mine.emplace_back(f.allocate(own[t], n), n);
            if (mine.size() > 8 || test::chance(rng, 40)) {
                const std::size_t which = test::below(rng, mine.size());
                if (!f.try_deallocate(own[t], mine[which].first, mine[which].second)) ++wrong;
                mine[which] = mine.back();
                mine.pop_back();
            }
            if (!test::chance(rng, 10)) continue;
            void* const p = f.allocate(shared, n);
            std::pair<void*, std::size_t> other{p, n};
            {
                const std::lock_guard lock(mutex);
                post.push_back(other);
                std::swap(post[test::below(rng, post.size())], post.back());
                other = post.back();
                post.pop_back();
            }
            if (!f.try_deallocate(shared, other.first, other.second)) ++wrong;
        }
        for (const auto& [p, n] : mine)
            if (!f.try_deallocate(own[t], p, n)) ++wrong;
    });
    stop = true;
    visitor.join();
    CHECK(wrong == 0);
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.usage().requested.current == 0);
    CHECK(f.validate());
    f.trim(0);
    CHECK(d.reserved() == 0);
}

TEST_CASE("of threads that free one block of another's magazine, one succeeds", "[front][threads]") {
    sim::device d(quiet_device());
    fronted f(d);
    warm(f, default_stream, 4096);
    for (int round = 0; round < 50; ++round) {
        void* const p = f.allocate(default_stream, 4096);
        std::atomic<unsigned> freed_by{0};
        std::atomic<unsigned> warmed{0};
        on_threads(6, [&](unsigned) {
            warm(f, default_stream, 4096);
            ++warmed;
            while (warmed != 6)
                std::this_thread::yield(); // or one could get the block that another has freed
            if (f.try_deallocate(default_stream, p, 4096)) ++freed_by;
        });
        CHECK(freed_by == 1);
    }
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.validate());
}

TEST_CASE("a section keeps owner and visitor apart", "[front][threads]") {
    owner_section section;
    std::uint64_t both = 0; // not atomic: whoever is inside has it alone
    std::uint64_t entered = 0;
    std::uint64_t visited = 0;
    std::atomic<bool> stop{false};
    std::thread owner([&] {
        while (!stop)
            if (section.try_enter()) {
                ++both;
                ++entered;
                section.leave();
            }
    });
    for (int i = 0; i < 2000; ++i) {
        section.stop();
        asymmetric_fence::heavy();
        section.wait();
        ++both;
        ++visited;
        section.resume();
    }
    stop = true;
    owner.join();
    CHECK(both == entered + visited);
    section.ask_for_visit();
    CHECK_FALSE(section.try_enter());
    CHECK(section.accept_visit());
    CHECK_FALSE(section.accept_visit());
    CHECK(section.try_enter());
    section.leave();
    section.retire();
    CHECK_FALSE(section.try_enter());
    CHECK(section.is_retired());
}
