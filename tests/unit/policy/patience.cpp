#include <support/catch.hpp>
#include <support/checked_resource.hpp>

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/patience.hpp>
#include <tenure/policy/remap_pool.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <stdexcept>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

using pool_type = remap_pool<sim::device>;

constexpr remap_options exact(std::size_t patience_us) {
    return {.least_handle_bytes = 8_MiB,
            .most_handle_bytes = 8_MiB,
            .handles_per_request = 0,
            .purchases_per_pool = 0,
            .slack_divisor = 0,
            .patience_us = patience_us};
}

/// A busy stream has freed 64 MiB, and another one wants as much.
struct world {
    sim::device device;
    std::optional<pool_type> pool;
    test::checked_resource<pool_type> checked;
    stream_handle busy = device.create_stream();
    stream_handle other = device.create_stream();

    explicit world(std::size_t patience_us, const sim::costs& cost = sim::costs::h200())
        : device({.cost = cost}), pool(std::in_place, device, exact(patience_us)), checked(*pool, device) {}

    void free_behind(std::chrono::nanoseconds work) {
        void* const p = checked.allocate(busy, 64_MiB);
        device.launch(busy, work);
        checked.deallocate(busy, p, 64_MiB);
    }
    /// Returns: how long it took.
    std::chrono::nanoseconds take() {
        const auto before = device.now();
        void* const p = checked.allocate(other, 64_MiB);
        const auto took = device.now() - before;
        checked.deallocate(other, p, 64_MiB);
        return took;
    }
    [[nodiscard]] std::size_t held() const { return pool->usage().reserved.current; }
    void finish() const {
        CHECK(checked.violations().empty());
        CHECK(pool->validate());
    }
};

} // namespace

TEST_CASE("patience: never longer than buying took, nor than at once", "[policy][patience]") {
    patience p(2ms);
    CHECK(p.any());
    CHECK(p.left() == 0ns);
    p.has_bought(500us);
    CHECK(p.left() == 500us);
    p.has_bought(5ms);
    CHECK(p.left() == 2ms);
    p.has_waited(5ms);
    CHECK(p.left() == 500us);
    p.has_waited(600us); // a wait may end late
    CHECK(p.left() == 0ns);
    CHECK_FALSE(patience(0ns).any());
}

TEST_CASE("patience: what another stream has freed is waited for rather than bought", "[policy][patience]") {
    world w(2000);
    w.free_behind(200us);
    REQUIRE(w.held() == 64_MiB);
    const auto took = w.take();
    CHECK(took >= 150us);
    CHECK(took < 250us);
    CHECK(w.held() == 64_MiB);
    w.finish();
}

TEST_CASE("patience: without it memory is bought at once", "[policy][patience]") {
    world w(0);
    w.free_behind(200us);
    (void)w.take();
    CHECK(w.held() == 128_MiB);
    w.finish();
}

TEST_CASE("patience: what does not pass in time is bought in the end", "[policy][patience]") {
    SECTION("at once") {
        world w(100);
        w.free_behind(5ms);
        const auto bought = w.device.driver_time();
        const auto took = w.take();
        CHECK(took >= 100us);
        CHECK(took < 100us + 2 * bought);
        CHECK(w.held() == 128_MiB);
        w.finish();
    }
    SECTION("and in all no longer is waited than buying took") {
        world w(60'000'000);
        w.free_behind(100s);
        const auto bought = w.device.driver_time();
        const auto first = w.take();
        CHECK(w.held() == 128_MiB);
        CHECK(first < 3 * bought);
        CHECK(first > bought);
        w.finish();
    }
}

TEST_CASE("patience: a clock that stands still while it is asked ends the wait, too", "[policy][patience]") {
    sim::costs cost = sim::costs::h200();
    cost.fixed[sim::index(sim::call::query)] = cost.passed = 0ns;
    world w(100, cost);
    w.device.hold(w.busy);
    w.free_behind(1us);
    (void)w.take();
    CHECK(w.held() == 128_MiB);
    w.device.finish(w.busy);
    w.finish();
}

TEST_CASE("patience: nobody waits for memory that would not do", "[policy][patience]") {
    world w(2000);
    w.free_behind(500us);
    const auto before = w.device.calls(sim::call::query);
    void* const p = w.checked.allocate(w.other, 80_MiB);
    CHECK(w.device.calls(sim::call::query) - before < 10);
    CHECK(w.held() == 144_MiB);
    w.checked.deallocate(w.other, p, 80_MiB);
    w.finish();
}

TEST_CASE("patience: who has no stream does not wait", "[policy][patience]") {
    world w(2000);
    w.free_behind(500us);
    const auto before = w.device.now();
    void* const p = w.pool->allocate_sync(64_MiB, 512);
    CHECK(w.device.now() - before < 500us);
    CHECK(w.held() == 128_MiB);
    w.pool->deallocate_sync(p, 64_MiB, 512);
    w.finish();
}

TEST_CASE("patience: more than a minute is refused", "[policy][patience]") {
    sim::device device;
    CHECK_NOTHROW(pool_type(device, exact(60'000'000)));
    CHECK_THROWS_AS(pool_type(device, exact(60'000'001)), std::invalid_argument);
}
