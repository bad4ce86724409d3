// Pools that are told which streams wait for which: random programs, in which the simulated device knows what really comes
// before what and nothing is handed out too early; also when several threads work on the same streams, so that frees fall
// between a record and the word about it.

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/policy/slab_pool.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t streams = 4;

/// Assertions of the test framework are for one thread only.
void must(status s) {
    if (s != status::ok) throw std::runtime_error(to_string(s));
}

/// A device, its streams (the default one among them), and events that all threads record and wait for.
struct common_world {
    explicit common_world(const sim::costs& cost = sim::costs::zero())
        : device({.capacity = 64_GiB, .cost = cost}) {}

    sim::device device;
    std::array<stream_handle, streams> stream{default_stream, device.create_stream(), device.create_stream(),
                                              device.create_stream()};

    [[nodiscard]] std::uint64_t id(stream_handle s) { return device.describe(s)->id; }
};

/// What one thread of the program does. Events are its own: two threads that use one event at once would have to agree.
template <class Pool>
class program {
  public:
    program(common_world& world, Pool& pool, std::uint64_t seed)
        : world_(world), device_(world.device), pool_(pool), rng_(seed) {
        for (event_handle& e : events_) e = *device_.create_event();
    }
    ~program() {
        for (const event_handle e : events_) {
            device_.waits().forget(e);
            (void)device_.destroy_event(e);
        }
    }
    program(const program&) = delete;
    program& operator=(const program&) = delete;

    void step() {
        const std::uint64_t dice = test::below(rng_, 100);
        if (dice < 34 && blocks_.size() < 40)
            allocate();
        else if (dice < 62)
            free_one();
        else if (dice < 70)
            device_.launch(any_stream(), std::chrono::microseconds(test::below(rng_, 400)));
        else if (dice < 78)
            record();
        else if (dice < 86)
            wait();
        else if (dice < 92)
            use_elsewhere();
        else if (dice < 95)
            host_waits();
        else if (dice < 96)
            device_.waits().forget(any_event());
        else
            device_.advance(std::chrono::microseconds(test::below(rng_, 200)));
    }
    void finish() {
        while (!blocks_.empty()) free_one();
    }

  private:
    struct block {
        void* p;
        std::size_t bytes;
        stream_handle stream;
    };

    stream_handle any_stream() { return world_.stream[test::below(rng_, streams)]; }
    event_handle any_event() { return events_[test::below(rng_, events_.size())]; }

    void allocate() {
        const block b{nullptr, test::log_uniform(rng_, 512, 8_MiB), any_stream()};
        void* const p = pool_.allocate(b.stream, b.bytes);
        device_.block_allocated(p, b.bytes, b.stream);
        blocks_.push_back({p, b.bytes, b.stream});
    }
    /// On its own stream, or on another one that comes after it; the program does not say so.
    void free_one() {
        if (blocks_.empty()) return;
        const std::size_t i = test::below(rng_, blocks_.size());
        const block b = blocks_[i];
        blocks_[i] = blocks_.back();
        blocks_.pop_back();
        const stream_handle s = test::chance(rng_, 80) ? b.stream : any_stream();
        if (s != b.stream) order_silently(b.stream, s);
        device_.block_freed(b.p, s);
        pool_.deallocate(s, b.p, b.bytes);
    }
    void use_elsewhere() {
        if (blocks_.empty()) return;
        const block& b = blocks_[test::below(rng_, blocks_.size())];
        const stream_handle s = any_stream();
        if (s == b.stream) return;
        order_silently(b.stream, s);
        pool_.record_use(b.p, s);
        device_.block_used(b.p, s);
    }
    void record() {
        const stream_handle s = any_stream();
        const event_handle e = any_event();
        must(device_.record(e, s));
        pause();
        if (test::chance(rng_, 90))
            device_.waits().recorded(e, world_.id(s));
        else
            device_.waits().forget(e);
    }
    void wait() {
        const stream_handle s = any_stream();
        const event_handle e = any_event();
        must(device_.wait(s, e));
        pause();
        if (test::chance(rng_, 90)) device_.waits().waited(world_.id(s), e);
    }
    void host_waits() {
        const stream_handle s = any_stream();
        const event_handle e = any_event();
        stream_waits::host_wait w;
        switch (test::below(rng_, 3)) {
        case 0:
            w = device_.waits().about_to_wait_for(world_.id(s));
            must(device_.synchronize(s));
            break;
        case 1:
            w = device_.waits().about_to_wait(e);
            must(device_.synchronize(e));
            break;
        default: w = device_.waits().about_to_wait_for_all(); must(device_.synchronize());
        }
        if (test::chance(rng_, 30)) free_one(); // what comes between has not been waited for
        device_.waits().has_waited(w);
    }
    /// What a thread does and what it says are two steps: others act between them.
    void pause() {
        if (test::chance(rng_, 50))
            std::this_thread::sleep_for(std::chrono::microseconds(test::below(rng_, 100)));
    }
    void order_silently(stream_handle earlier, stream_handle later) {
        const event_handle e = *device_.create_event();
        must(device_.record(e, earlier));
        must(device_.wait(later, e));
        must(device_.destroy_event(e));
    }

    common_world& world_;
    sim::device& device_;
    Pool& pool_;
    std::mt19937_64 rng_;
    std::array<event_handle, 5> events_{};
    std::vector<block> blocks_;
};

/// A pool that waits for other streams before it buys.
struct patient_pool : remap_pool<sim::device> {
    explicit patient_pool(sim::device& device) : remap_pool<sim::device>(device, remap_options{}.tight()) {}
};

template <class Pool>
void run_programs(const sim::costs& cost) {
    CAPTURE(test::seed());
    for (std::uint64_t round = 0; round < 8; ++round) {
        common_world world(cost);
        {
            Pool pool(world.device);
            program<Pool> p(world, pool, test::seed() + round);
            for (int i = 0; i < 3000; ++i) p.step();
            CHECK(pool.validate());
            p.finish();
            REQUIRE(world.device.synchronize() == status::ok);
        }
        REQUIRE(world.device.violations() == std::vector<std::string>{});
    }
}

} // namespace

TEMPLATE_TEST_CASE("nothing is handed out too early where pools are told what waits for what",
                   "[policy][streams][stream_waits]", remap_pool<sim::device>, best_fit_pool<sim::device>,
                   buddy_pool<sim::device>, slab_pool<sim::device>, caching_pool<sim::device>) {
    run_programs<TestType>(sim::costs::zero());
}

TEST_CASE("nothing is handed out too early where a pool waits a while before it buys",
          "[policy][streams][stream_waits][patience]") {
    run_programs<patient_pool>(sim::costs::h200());
}

TEMPLATE_TEST_CASE("nothing is handed out too early where threads share streams and say what waits for what",
                   "[policy][streams][stream_waits][threads]", remap_pool<sim::device>,
                   best_fit_pool<sim::device>) {
    CAPTURE(test::seed());
    common_world world;
    {
        TestType pool(world.device);
        std::atomic<int> failures{0};
        std::vector<std::thread> threads;
        for (std::uint64_t t = 0; t < 4; ++t) {
            threads.emplace_back([&, t] {
                try {
                    program<TestType> p(world, pool, test::seed() + t);
                    for (int i = 0; i < 2500; ++i) p.step();
                    p.finish();
                } catch (...) {
                    ++failures;
                }
            });
        }
        for (std::thread& t : threads) t.join();
        CHECK(failures == 0);
        CHECK(pool.validate());
        REQUIRE(world.device.synchronize() == status::ok);
    }
    REQUIRE(world.device.violations() == std::vector<std::string>{});
}

TEST_CASE("what a slab leaves of other streams' slots is no older than they are",
          "[policy][slab][streams][stream_waits]") {
    common_world world;
    sim::device& device = world.device;
    slab_pool pool(device, {.mark_bytes = no_limit}); // a range of four slots
    const stream_handle a = world.stream[1], b = world.stream[2], c = world.stream[3];
    const event_handle e = *device.create_event();
    const auto take = [&](stream_handle s, std::size_t n) {
        void* const p = pool.allocate(s, n);
        device.block_allocated(p, n, s);
        return p;
    };
    const auto give = [&](stream_handle s, void* p, std::size_t n) {
        device.block_freed(p, s);
        pool.deallocate(s, p, n);
    };
    const auto follow = [&](stream_handle earlier, stream_handle later) {
        must(device.record(e, earlier));
        device.waits().recorded(e, world.id(earlier));
        must(device.wait(later, e));
        device.waits().waited(world.id(later), e);
    };
    follow(c, a);
    for (const stream_handle s : {a, b, c}) give(s, take(s, 512), 512);
    std::array<void*, 3> own{take(b, 4_MiB), take(b, 4_MiB), take(b, 4_MiB)};
    void* const last = take(a, 4_MiB);
    for (void* const p : own) give(b, p, 4_MiB);
    follow(b, c);
    device.launch(a, 1s);
    give(a, last, 4_MiB);
    follow(a, b);
    void* const x = take(b, 8_MiB); // of b's slots; what is left has a's among them
    void* const y = take(c, 8_MiB);
    CHECK(device.violations() == std::vector<std::string>{});
    give(b, x, 8_MiB);
    give(c, y, 8_MiB);
    must(device.destroy_event(e));
}

TEST_CASE("a captured block that another stream used goes to others only when that use has passed",
          "[policy][caching][capture][stream_waits]") {
    common_world world;
    sim::device& device = world.device;
    caching_pool pool(device);
    const stream_handle own = world.stream[1], user = world.stream[2], other = world.stream[3];
    const std::uint64_t own_id = world.id(own);
    const event_handle e = *device.create_event();
    device.waits().ordered(world.id(other), own_id);
    pool.deallocate(own, pool.allocate(own, 512), 512);
    const std::uint64_t capture = device.begin_capture(own);
    void* const p = pool.allocate(own, 20_MiB);
    device.block_allocated(p, 20_MiB, own);
    pool.record_use(p, user);
    device.block_used(p, user);
    device.launch(user, 1s);
    device.block_freed(p, own);
    pool.deallocate(own, p, 20_MiB);
    device.end_capture(own);
    must(device.record(e, user));
    device.waits().recorded(e, world.id(user));
    must(device.wait(own, e));
    device.waits().waited(own_id, e);
    pool.deallocate(own, pool.allocate(own, 512), 512);
    pool.release_captured(capture);
    void* const q = pool.allocate(other, 20_MiB);
    CHECK(q != p);
    pool.deallocate(other, q, 20_MiB);
    must(device.synchronize());
    must(device.destroy_event(e));
}
