/// What is in a thread's hands, between a magazine, the depot and the pool, at the moment at which another's request is
/// refused. The pool behind stops where a test wants it to.

#include "support/catch.hpp"
#include "support/gate.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/front.hpp>
#include <tenure/policy.hpp>

#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using tenure::test::gate;
using namespace tenure::literals;

namespace {

/// Each function is called once, by whoever comes there first.
class stopping_pool : public best_fit_pool<sim::device> {
    using base = best_fit_pool<sim::device>;

  public:
    using base::base;

    std::function<void()> at_release; ///< blocks are about to arrive
    std::function<void()> at_request; ///< before it is looked at
    std::function<void()> at_refusal; ///< before the caller hears of it

    void release_batch(std::span<void* const> blocks) noexcept {
        once(at_release);
        base::release_batch(blocks);
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        once(at_request);
        allocate_result r = base::try_allocate(stream, bytes, alignment);
        if (!r) once(at_refusal);
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        once(at_request);
        try {
            return base::allocate_sync(bytes, alignment);
        } catch (const out_of_memory&) {
            once(at_refusal);
            throw;
        }
    }

  private:
    void once(std::function<void()>& f) noexcept {
        std::function<void()> call;
        {
            const std::lock_guard lock(mutex_);
            call = std::exchange(f, nullptr);
        }
        if (call) call();
    }
    std::mutex mutex_; ///< guards the functions, which are called outside of it
};

using fronted = magazines<stopping_pool>;

constexpr std::size_t all = 4_MiB; ///< that the device has
constexpr std::size_t block = 64_KiB;

sim::device_options small_device() {
    return {.capacity = all, .cost = sim::costs::zero(), .check_overlap = false};
}

std::vector<void*> take(fronted& f, int n) {
    std::vector<void*> blocks;
    for (int i = 0; i < n; ++i) blocks.push_back(f.allocate(default_stream, block));
    return blocks;
}

void give(fronted& f, const std::vector<void*>& blocks) {
    for (void* const p : blocks) f.deallocate(default_stream, p, block);
}

/// A thread that takes back all that is parked, and stops with the first blocks in hand until it may go on.
class collector {
  public:
    explicit collector(fronted& f) : front_(&f) {}
    ~collector() {
        may_go_on_.open();
        if (thread_.joinable()) thread_.join();
    }
    collector(const collector&) = delete;
    collector& operator=(const collector&) = delete;

    void set_out() {
        front_->pool().at_release = [this] {
            holding_.open();
            may_go_on_.wait();
            for (int i = 0; i < 20; ++i)
                std::this_thread::yield(); // who only asks again has been refused again
        };
        thread_ = std::thread([this] { front_->trim(no_limit); });
        holding_.wait();
    }
    void go_on() { may_go_on_.open(); }
    void arrive() {
        go_on();
        thread_.join();
    }

  private:
    fronted* front_;
    gate holding_, may_go_on_;
    std::thread thread_;
};

enum class way { allocate, allocate_sync };

/// Returns: whether all of the device's memory is had.
bool takes_all(fronted& f, way how) {
    if (how == way::allocate) {
        const allocate_result r = f.try_allocate(default_stream, all);
        if (r) f.deallocate(default_stream, *r, all);
        return static_cast<bool>(r);
    }
    try {
        void* const p = f.allocate_sync(all);
        f.deallocate_sync(p, all);
        return true;
    } catch (const out_of_memory&) {
        return false;
    }
}

pool_options one_segment() {
    return {.segment_bytes = all};
}

} // namespace

TEST_CASE("what had set out before a request, and arrives while it is being refused, serves it",
          "[front][threads][moving]") {
    for (const way how : {way::allocate, way::allocate_sync}) {
        CAPTURE(static_cast<int>(how));
        sim::device d(small_device());
        fronted f(d, one_segment());
        std::thread([&] { give(f, take(f, 40)); }).join(); // a bundle is left between the threads
        REQUIRE(f.pool().usage().blocks.current == magazine::half);
        collector other(f);
        other.set_out(); // with the bundle, and holding no lock
        f.pool().at_refusal = [&] { other.arrive(); };
        CHECK(takes_all(f, how));
        CHECK(f.usage().failures == 0);
        CHECK(f.validate());
    }
}

TEST_CASE("what a visitor takes out of a rack while a request is being refused serves it",
          "[front][threads][moving]") {
    for (const way how : {way::allocate, way::allocate_sync}) {
        CAPTURE(static_cast<int>(how));
        sim::device d(small_device());
        fronted f(d, one_segment());
        gate ready, may_park, has_parked, may_end;
        std::thread keeper([&] {
            give(f, take(f, 20));
            f.trim(no_limit);
            const std::vector<void*> blocks = take(f, 10); // the magazine is there, and has room
            ready.open();
            may_park.wait();
            give(f, blocks);
            has_parked.open();
            may_end.wait();
        });
        ready.wait();
        collector other(f);
        f.pool().at_request = [&] {
            may_park.open();
            has_parked.wait();
            other.set_out(); // holds the list of racks
        };
        f.pool().at_refusal = [&] { other.arrive(); };
        CHECK(takes_all(f, how));
        CHECK(f.usage().failures == 0);
        may_end.open();
        keeper.join();
        CHECK(f.validate());
    }
}

TEST_CASE("a request that is refused waits for those who have its memory in hand",
          "[front][threads][moving]") {
    // Not for ever, so this may fail, but seldom.
    for (const way how : {way::allocate, way::allocate_sync}) {
        CAPTURE(static_cast<int>(how));
        constexpr int rounds = 20;
        int served = 0;
        for (int i = 0; i < rounds; ++i) {
            sim::device d(small_device());
            fronted f(d, one_segment());
            std::thread([&] { give(f, take(f, 40)); }).join();
            collector other(f);
            other.set_out();
            f.pool().at_refusal = [&] { other.go_on(); };
            served += takes_all(f, how) ? 1 : 0;
        }
        CHECK(served > rounds / 2);
    }
}

TEST_CASE("what is parked while a synchronous request is being refused serves it",
          "[front][threads][moving]") {
    sim::device d(small_device());
    fronted f(d, one_segment());
    gate ready, may_park, has_parked, may_end;
    std::thread keeper([&] {
        give(f, take(f, 20));
        const std::vector<void*> blocks = take(f, 10);
        ready.open();
        may_park.wait();
        give(f, blocks);
        has_parked.open();
        may_end.wait();
    });
    f.pool().at_refusal = [&] {
        may_park.open();
        has_parked.wait();
    };
    ready.wait();
    CHECK(takes_all(f, way::allocate_sync));
    may_end.open();
    keeper.join();
    CHECK(f.validate());
}

TEST_CASE("a request that is larger than the limit is not tried again", "[front][moving]") {
    sim::device d(small_device());
    fronted f(d, one_segment());
    give(f, take(f, 20));
    const std::vector<void*> blocks = take(f, 10);
    int again = 0;
    f.pool().at_refusal = [&] {
        give(f, blocks); // something to take back
        f.pool().at_request = [&] { ++again; };
    };
    CHECK_FALSE(f.try_allocate(default_stream, 2 * all));
    CHECK(again == 0);
    CHECK(f.usage().failures == 1);
    CHECK(f.validate());
}
