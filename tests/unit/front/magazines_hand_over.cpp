/// Magazines where one thread allocates and another frees.

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

template <device D>
using fronted_pool = magazines<best_fit_pool<D>>;
using fronted = fronted_pool<sim::device>;
using tenant = arena<fronted_pool, sim::device>;

constexpr std::size_t block = 64_KiB;

sim::device_options quiet_device() {
    return {.cost = sim::costs::zero(), .check_overlap = false};
}

/// A thread that does one thing after another while the caller waits, and keeps its magazines in between.
class companion {
  public:
    companion() : thread_([this] { work(); }) {}
    ~companion() {
        run([] {});
        stop_ = true;
        turn_ = 1;
        turn_.notify_all();
        thread_.join();
    }
    companion(const companion&) = delete;
    companion& operator=(const companion&) = delete;

    template <class F>
    void run(F f) {
        auto call = [](void* self) { (*static_cast<F*>(self))(); };
        call_ = call;
        argument_ = &f;
        turn_ = 1;
        turn_.notify_all();
        turn_.wait(1);
    }

  private:
    void work() {
        for (;;) {
            turn_.wait(0);
            if (stop_) return;
            call_(argument_);
            turn_ = 0;
            turn_.notify_all();
        }
    }
    std::atomic<int> turn_{0}; ///< 1: the companion's
    bool stop_ = false;
    void (*call_)(void*) = nullptr;
    void* argument_ = nullptr;
    std::thread thread_;
};

/// Effects: the calling thread allocates `n` blocks and the companion frees them.
template <class R>
void hand_over(R& r, companion& other, stream_handle s, int n) {
    std::vector<void*> blocks;
    for (int i = 0; i < n; ++i) blocks.push_back(r.allocate(s, block));
    other.run([&] {
        for (void* p : blocks) r.deallocate(s, p, block);
    });
}

std::size_t parked(fronted& f) {
    return f.pool().usage().allocated.current - f.usage().allocated.current;
}

} // namespace

TEST_CASE("what another thread frees comes back without the pool", "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d);
    companion other;
    for (const stream_handle s : {default_stream, d.create_stream()}) {
        for (int i = 0; i < 4; ++i) hand_over(f, other, s, 60);
        const std::size_t from_pool = f.pool().usage().blocks.total_in;
        for (int i = 0; i < 100; ++i) hand_over(f, other, s, 60);
        CHECK(f.pool().usage().blocks.total_in - from_pool < 100 * 60 / 4);
        CHECK(f.usage().blocks.current == 0);
        CHECK(f.usage().requested.current == 0);
        CHECK(f.usage().allocated.current == 0);
        CHECK(f.validate());
    }
    f.trim(0);
    CHECK(f.usage().reserved.current == 0);
    CHECK(d.reserved() == 0);
}

TEST_CASE("a stream that runs short takes back its own before it disturbs others",
          "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d, pool_options{.segment_bytes = 2_MiB});
    companion other;
    const stream_handle mine = d.create_stream(), others = d.create_stream();
    constexpr std::size_t kept = 10;
    const auto work_on_others = [&] {
        std::vector<void*> blocks;
        for (std::size_t i = 0; i < kept; ++i) blocks.push_back(f.allocate(others, block));
        for (void* const p : blocks) f.deallocate(others, p, block);
    };
    constexpr std::size_t handed_over = 25; // they stay in the other thread's magazine
    for (int i = 0; i < 4; ++i) {
        hand_over(f, other, mine, handed_over);
        other.run(work_on_others);
    }
    REQUIRE(parked(f) >= (handed_over + kept) * block);

    const usage_counters u = f.pool().usage();
    const std::size_t n = (u.reserved.current - u.allocated.current) / block + handed_over;
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < n; ++i) blocks.push_back(f.allocate(mine, block));
    CHECK(parked(f) >= kept * block);
    CHECK(f.usage().reserved.current == u.reserved.current);
    const std::size_t from_pool = f.pool().usage().blocks.total_in;
    other.run(work_on_others);
    CHECK(f.pool().usage().blocks.total_in == from_pool);

    // Before the pool buys, everybody is asked.
    while (parked(f) >= kept * block && blocks.size() < 1000) blocks.push_back(f.allocate(mine, block));
    CHECK(parked(f) < kept * block);
    for (void* const p : blocks) f.deallocate(mine, p, block);
    CHECK(f.validate());
}

TEST_CASE("streams that are gone do not fill the way between threads for ever",
          "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d, pool_options{}, {.max_parked_bytes = 16_MiB});
    companion other;
    std::vector<stream_handle> streams; // all at once, so that none gets another's handle
    for (int i = 0; i < 40; ++i) streams.push_back(d.create_stream());
    for (const stream_handle s : streams) {
        for (int i = 0; i < 3; ++i) hand_over(f, other, s, 60);
        d.destroy_stream(s);
    }
    const stream_handle s = default_stream;
    for (int i = 0; i < 20; ++i) hand_over(f, other, s, 60);
    const std::size_t from_pool = f.pool().usage().blocks.total_in;
    for (int i = 0; i < 100; ++i) hand_over(f, other, s, 60);
    CHECK(f.pool().usage().blocks.total_in - from_pool < 100 * 60 / 4);
    CHECK(f.validate());
}

TEST_CASE("who frees much of one size takes nothing from between other threads",
          "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d);
    companion other;
    const stream_handle s = d.create_stream();
    const auto free_many = [&] { // more than a shard of the depot holds, and little for the depot in all
        std::vector<void*> blocks;
        for (int i = 0; i < 3000; ++i) blocks.push_back(f.allocate(default_stream, 512));
        for (void* const p : blocks) f.deallocate(default_stream, p, 512);
    };
    free_many();
    for (int i = 0; i < 4; ++i) hand_over(f, other, s, 60);
    free_many();
    const std::size_t from_pool = f.pool().usage().blocks.total_in;
    hand_over(f, other, s, 60);
    CHECK(f.pool().usage().blocks.total_in == from_pool);
    CHECK(f.validate());
}

TEST_CASE("a second free is reported wherever the block is on its way",
          "[front][threads][hand_over][misuse]") {
    sim::device d(quiet_device());
    fronted f(d);
    companion other;
    test::misuse_log log;
    for (int i = 0; i < 4; ++i) hand_over(f, other, default_stream, 60);
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(f.allocate(default_stream, block));
    other.run([&] {
        for (void* p : blocks) f.deallocate(default_stream, p, block);
    });
    CHECK(log.take().empty());
    CHECK(parked(f) >= 30 * block); // in the other's magazine, and in the depot
    const auto free_again = [&] {
        for (void* p : blocks) {
            const deallocate_result r = f.try_deallocate(default_stream, p, block);
            REQUIRE_FALSE(r);
            CHECK(r.error().kind == misuse_kind::double_free);
            CHECK_FALSE(f.owns(p));
        }
    };
    free_again();
    other.run(free_again);
    f.release(blocks[0]);
    f.record_use(blocks[0], default_stream);
    CHECK(log.take().size() == 2);
    CHECK(f.usage().blocks.current == 0);
    CHECK(f.validate());
}

TEST_CASE("what lies between threads never makes a request fail", "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    tenant a(d, {.name = "a", .max = 64_MiB}, {.pool = {.segment_bytes = 16_MiB}});
    companion other;
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < 4; ++i) hand_over(a, other, default_stream, 300);
        CHECK(a.policy().pool().usage().allocated.current >= 30 * block);
        const allocate_result all = a.try_allocate(default_stream, 64_MiB);
        REQUIRE(all);
        CHECK(a.limits().charged <= 64_MiB);
        a.deallocate(default_stream, *all, 64_MiB);
    }
    CHECK(a.validate());
    a.trim(0);
    CHECK(a.limits().charged == 0);
}

TEST_CASE("forget takes back what is on its way on the stream", "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d, pool_options{}, {.check = stream_check::announced});
    companion other;
    const stream_handle s = d.create_stream();
    for (int i = 0; i < 4; ++i) hand_over(f, other, s, 100);
    CHECK(parked(f) != 0);
    f.forget(s);
    CHECK(parked(f) == 0);
    CHECK(f.validate());
}

TEST_CASE("forget takes back what threads have left that are gone", "[front][threads][hand_over]") {
    sim::device d(quiet_device());
    fronted f(d, pool_options{}, {.check = stream_check::announced});
    const stream_handle s = d.create_stream();
    std::thread([&] {
        std::vector<void*> blocks;
        for (int i = 0; i < 100; ++i) blocks.push_back(f.allocate(s, block));
        for (void* p : blocks) f.deallocate(s, p, block);
    }).join();
    CHECK(parked(f) != 0); // no rack of the stream is left
    f.forget(s);
    CHECK(parked(f) == 0);
    CHECK(f.validate());
}

TEST_CASE("what is on its way on a destroyed stream serves nobody who got its handle",
          "[front][streams][hand_over]") {
    sim::device d({.cost = sim::costs::zero()});
    fronted f(d);
    test::checked_resource<fronted> r(f, d);
    for (int round = 0; round < 4; ++round) {
        const stream_handle s = d.create_stream();
        for (int i = 0; i < 2; ++i) {
            std::vector<void*> blocks;
            for (int k = 0; k < 100; ++k) {
                blocks.push_back(r.allocate(s, block));
                r.use_own(blocks.back(), s, 1ms);
            }
            for (void* p : blocks) r.deallocate(s, p, block); // more than a magazine holds
        }
        d.destroy_stream(s); // its work goes on
        const stream_handle same = d.create_stream();
        REQUIRE(same == s);
        std::vector<void*> blocks;
        for (int k = 0; k < 100; ++k) {
            blocks.push_back(r.allocate(same, block));
            r.use_own(blocks.back(), same, 1us);
        }
        for (void* p : blocks) r.deallocate(same, p, block);
        d.destroy_stream(same);
    }
    CHECK(r.violations() == std::vector<std::string>{});
    CHECK(f.validate());
}
