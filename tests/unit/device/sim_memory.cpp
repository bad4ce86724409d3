// The simulated device's memory, counters, costs and faults.

#include <tenure/device.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;
using namespace tenure::literals;
using tenure::status;
using tenure::to_address;
using tenure::sim::call;
using tenure::sim::costs;

namespace {

tenure::sim::device_options small() {
    return {.capacity = 64_MiB, .cost = costs::zero()};
}

} // namespace

TEST_CASE("sim memory: addresses are aligned, below 2^47 and disjoint", "[device][sim]") {
    tenure::sim::device d(small());
    std::uint64_t end = 0;
    for (int i = 0; i < 4; ++i) {
        const auto p = d.allocate(3_MiB);
        REQUIRE(p);
        CHECK(to_address(*p) % 2_MiB == 0);
        CHECK(to_address(*p) >= end);
        end = to_address(*p) + 4_MiB;
        CHECK(end <= std::uint64_t{1} << 47);
    }
    CHECK(d.live_allocations() == 4);
    CHECK(d.reserved() == 16_MiB);
}

TEST_CASE("sim memory: the capacity is a limit on rounded bytes", "[device][sim]") {
    tenure::sim::device d(small());
    const auto a = d.allocate(60_MiB + 1);
    REQUIRE(a);
    CHECK(d.reserved() == 62_MiB);
    CHECK(d.allocate(2_MiB + 1).error() == status::out_of_memory);
    const auto b = d.allocate(1);
    REQUIRE(b);
    CHECK(d.allocate(1).error() == status::out_of_memory);
    const auto m = d.memory();
    REQUIRE(m);
    CHECK(m->free == 0);
    CHECK(m->total == 64_MiB);
    CHECK(d.deallocate(*a, 60_MiB + 1) == status::ok);
    CHECK(d.deallocate(*b, 1) == status::ok);
    CHECK(d.reserved() == 0);
    CHECK(d.reserved_peak() == 64_MiB);
    CHECK(d.violations().empty());
}

TEST_CASE("sim memory: absurd sizes are refused, not wrapped", "[device][sim]") {
    tenure::sim::device d({.capacity = tenure::no_limit, .cost = costs::h200()});
    for (const std::size_t n : {tenure::no_limit, tenure::no_limit - 1, tenure::no_limit - 2_MiB + 1,
                                std::size_t{1} << 63, std::size_t{1} << 48}) {
        CAPTURE(n);
        CHECK(d.allocate(n).error() == status::out_of_memory);
        CHECK_FALSE(tenure::sim::device(small()).create_memory(n));
        const auto pool = d.create_pool({});
        REQUIRE(pool);
        CHECK(d.allocate_from(*pool, n, nullptr).error() == status::out_of_memory);
        CHECK(d.destroy_pool(*pool) == status::ok);
        CHECK_FALSE(d.reserve_address(n, 0));
    }
    CHECK(d.reserved() == 0);
}

TEST_CASE("sim memory: nothing is null, and null is free", "[device][sim]") {
    tenure::sim::device d(small());
    const auto p = d.allocate(0);
    REQUIRE(p);
    CHECK(*p == nullptr);
    CHECK(d.reserved() == 0);
    CHECK(d.live_allocations() == 0);
    CHECK(d.deallocate(nullptr, 0) == status::ok);
}

TEST_CASE("sim memory: foreign pointers and double frees are invalid", "[device][sim]") {
    tenure::sim::device d(small());
    const auto p = d.allocate(4_MiB);
    REQUIRE(p);
    CHECK(d.deallocate(static_cast<char*>(*p) + 512, 4_MiB) == status::invalid_value);
    CHECK(d.reserved() == 4_MiB);
    CHECK(d.deallocate(*p, 4_MiB) == status::ok);
    CHECK(d.deallocate(*p, 4_MiB) == status::invalid_value);
    CHECK(d.violations().empty());
}

TEST_CASE("sim memory: a free with another size is a violation", "[device][sim]") {
    tenure::sim::device d(small());
    const auto p = d.allocate(4_MiB);
    REQUIRE(p);
    CHECK(d.deallocate(*p, 8_MiB) == status::ok);
    CHECK(d.reserved() == 0);
    CHECK(d.violations().size() == 1);
}

TEST_CASE("sim memory: a freed address comes back at once", "[device][sim]") {
    tenure::sim::device d(small());
    const auto a = d.allocate(2_MiB);
    const auto b = d.allocate(2_MiB);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(to_address(*b) == to_address(*a) + 2_MiB);
    void* const first = *a;
    REQUIRE(d.deallocate(first, 2_MiB) == status::ok);
    const auto c = d.allocate(2_MiB);
    REQUIRE(c);
    CHECK(*c == first);
}

TEST_CASE("sim memory: explain says how full the device is", "[device][sim]") {
    tenure::sim::device d(small());
    REQUIRE(d.allocate(10_MiB));
    tenure::allocation_failure f;
    f.cause = tenure::failure_cause::fragmentation;
    d.explain(f);
    CHECK(f.used == 10_MiB);
    CHECK(f.max == 64_MiB);
    CHECK(f.cause == tenure::failure_cause::fragmentation);
    CHECK(d.total_calls() == 1);
}

TEST_CASE("sim faults: the nth call of a kind, counted from now", "[device][sim]") {
    tenure::sim::device d(small());
    REQUIRE(d.allocate(2_MiB));
    d.fail_call(call::allocate, 2, status::out_of_memory, 2);
    CHECK(d.memory());
    CHECK(d.allocate(2_MiB));
    CHECK(d.allocate(2_MiB).error() == status::out_of_memory);
    CHECK(d.allocate(2_MiB).error() == status::out_of_memory);
    CHECK(d.allocate(2_MiB));
    CHECK(d.calls(call::allocate) == 5);
    CHECK(d.reserved() == 6_MiB);
    d.fail_call(call::allocate, 1, status::failed);
    d.clear_faults();
    CHECK(d.allocate(2_MiB));
}

TEST_CASE("sim faults: any call", "[device][sim]") {
    tenure::sim::device d(small());
    d.fail_any_call(3, status::failed);
    CHECK(d.memory());
    CHECK(d.create_event());
    CHECK(d.allocate(1).error() == status::failed);
    CHECK(d.allocate(1));
    CHECK(d.total_calls() == 4);
}

TEST_CASE("sim faults: a failed free keeps the memory, every kind of call can fail", "[device][sim]") {
    tenure::sim::device d(small());
    const auto s = d.create_stream();
    const auto p = d.allocate(2_MiB);
    const auto e = d.create_event();
    const auto pool = d.create_pool({});
    REQUIRE((p && e && pool));
    const auto block = d.allocate_from(*pool, 512, s);
    const auto window = d.reserve_address(4_MiB, 0);
    const auto memory = d.create_memory(2_MiB);
    const auto other = d.create_memory(2_MiB);
    REQUIRE((block && window && memory && other));
    REQUIRE(d.map(*window, *memory) == status::ok);
    const std::size_t reserved = d.reserved();
    const auto before = d.call_counts();

    for (std::size_t k = 0; k < tenure::sim::call_kinds; ++k)
        d.fail_call(static_cast<call>(k), 1, status::failed);
    CHECK(d.allocate(2_MiB).error() == status::failed);
    CHECK(d.deallocate(*p, 2_MiB) == status::failed);
    CHECK(d.memory().error() == status::failed);
    CHECK(d.describe(s).error() == status::failed);
    CHECK(d.create_event().error() == status::failed);
    CHECK(d.destroy_event(*e) == status::failed);
    CHECK(d.record(*e, s) == status::failed);
    CHECK(d.query(*e) == status::failed);
    CHECK(d.synchronize(*e) == status::failed);
    CHECK(d.synchronize(s) == status::failed);
    CHECK(d.synchronize() == status::failed);
    CHECK(d.wait(s, *e) == status::failed);
    CHECK(d.create_pool({}).error() == status::failed);
    CHECK(d.destroy_pool(*pool) == status::failed);
    CHECK(d.allocate_from(*pool, 512, s).error() == status::failed);
    CHECK(d.deallocate_to(*pool, *block, s) == status::failed);
    CHECK(d.trim_pool(*pool, 0) == status::failed);
    CHECK(d.memory_of(*pool).error() == status::failed);
    CHECK(d.reserve_address(2_MiB, 0).error() == status::failed);
    CHECK(d.free_address(*window, 4_MiB) == status::failed);
    CHECK(d.create_memory(2_MiB).error() == status::failed);
    CHECK(d.release_memory(*memory) == status::failed);
    CHECK(d.map(static_cast<char*>(*window) + 2_MiB, *other) == status::failed);
    CHECK(d.set_access(*window, 2_MiB) == status::failed);
    CHECK(d.unmap(*window, 2_MiB) == status::failed);
    CHECK(d.own_stream().error() == status::failed);
    CHECK(d.fill_zero(*p, 2_MiB, s) == status::failed);

    for (std::size_t k = 0; k < tenure::sim::call_kinds; ++k) {
        CAPTURE(to_string(static_cast<call>(k)));
        CHECK(d.calls(static_cast<call>(k)) == before[k] + 1);
    }
    CHECK(d.reserved() == reserved);
    CHECK(d.live_allocations() == 1);
    CHECK(d.live_events() == 1);
    CHECK(d.live_pools() == 1);

    // Nothing was lost either: all of it can still be undone, once.
    CHECK(d.unmap(*window, 2_MiB) == status::ok);
    CHECK(d.release_memory(*memory) == status::ok);
    CHECK(d.release_memory(*other) == status::ok);
    CHECK(d.free_address(*window, 4_MiB) == status::ok);
    CHECK(d.deallocate_to(*pool, *block, s) == status::ok);
    CHECK(d.destroy_pool(*pool) == status::ok);
    CHECK(d.destroy_event(*e) == status::ok);
    CHECK(d.deallocate(*p, 2_MiB) == status::ok);
    CHECK(d.reserved() == 0);
    CHECK(d.live_pools() == 0);
    CHECK(d.live_events() == 0);
    CHECK(d.violations().empty());
}

TEST_CASE("sim costs: calls move the clock, failed ones too", "[device][sim]") {
    tenure::sim::device d;
    REQUIRE(d.allocate(2_MiB));
    CHECK(d.now() == 49us);
    d.fail_call(call::memory, 1, status::failed);
    CHECK_FALSE(d.memory());
    CHECK(d.now() == 56'300ns);
    CHECK(d.driver_time() == d.now());
    d.advance(1ms);
    d.advance_to(1us);
    CHECK(d.now() == 1ms + 56'300ns);
    CHECK(d.driver_time() == 56'300ns);
}

TEST_CASE("sim costs: sizes between measured points are interpolated", "[device][sim]") {
    const costs c = costs::h200();
    CHECK(c.allocate(1) == 49us);
    CHECK(c.allocate(32_MiB) == 49us);
    CHECK(c.allocate(1_GiB) == 100us);
    CHECK(c.allocate(80_MiB) == 54us); // half-way
    CHECK(c.allocate(2_GiB) > 130us);  // the last slope goes on
    CHECK(c.deallocate(1_GiB) == 440'800ns);
    CHECK(c.allocate(tenure::no_limit) <= 1h);
    CHECK(costs::zero().allocate(1_GiB) == 0ns);
    CHECK(costs::zero().fixed[index(call::record)] == 0ns);
}

TEST_CASE("sim costs: the model is within a quarter of what was measured", "[device][sim]") {
    struct row {
        std::size_t mib;
        double create, set_access, unmap, release, allocate, deallocate; // us
    };
    // Medians on an H200, driver 580; access and unmap are means of single calls and of one call over all handles.
    // `create` from 16 to 64 MiB, and `allocate` from 8 to 512 MiB, are those of policies while programs run.
    constexpr row measured[] = {
        {2, 13.1, 32.3, 20.4, 15.1, 53.0, 44.0},      {4, 14.4, 30.4, 19.8, 16.9, 51.7, 46.4},
        {8, 14.2, 29.0, 18.0, 13.1, 48.7, 35.4},      {16, 13.7, 27.9, 18.6, 17.3, 49.7, 41.8},
        {20, 14.2, 23.8, 15.9, 19.4, 52.5, 50.5},     {32, 14.2, 25.0, 18.3, 18.4, 52.5, 49.3},
        {64, 13.3, 28.3, 16.5, 27.7, 57.6, 61.1},     {128, 12.1, 27.0, 17.1, 46.5, 58.0, 154.5},
        {256, 19.9, 48.4, 24.4, 90.9, 80.0, 117.4},   {512, 16.5, 47.9, 24.3, 200.0, 84.3, 234.4},
        {1024, 24.3, 59.7, 27.8, 328.8, 97.3, 440.8}, {2048, 36.7, 103.8, 39.1, 810.6, 146.9, 912.2},
    };
    const costs c = costs::h200();
    for (const row& r : measured) {
        CAPTURE(r.mib);
        const auto off = [&r](const tenure::sim::cost_curve& curve, double us) {
            return static_cast<double>(curve(r.mib * 1_MiB).count()) / (us * 1000) - 1;
        };
        for (const double by : {off(c.create_memory, r.create), off(c.set_access, r.set_access),
                                off(c.unmap, r.unmap), off(c.release_memory, r.release),
                                off(c.allocate, r.allocate), off(c.deallocate, r.deallocate)}) {
            CHECK(by > -0.25);
            CHECK(by < 0.25);
        }
    }
    // A driver pool that takes memory while programs run: bytes that it takes, means of seven programs' medians.
    const std::pair<std::size_t, double> growth[] = {{32, 44.0},   {64, 87.0},   {128, 139.0},
                                                     {256, 343.0}, {512, 575.0}, {2048, 1400.0}};
    for (const auto& [mib, us] : growth) {
        CAPTURE(mib);
        const double modelled =
            static_cast<double>((c.grow_pool(mib * 1_MiB) + c.fixed[index(call::allocate_from)]).count());
        CHECK(modelled > 0.75 * us * 1000);
        CHECK(modelled < 1.25 * us * 1000);
    }
}

TEST_CASE("sim costs: mapped memory is paid for by the handle", "[device][sim]") {
    tenure::sim::device d;
    const auto window = d.reserve_address(32_MiB, 0);
    REQUIRE(window);
    tenure::memory_handle last = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        const auto h = d.create_memory(2_MiB);
        REQUIRE(h);
        last = *h;
        REQUIRE(d.map(static_cast<char*>(*window) + i * 2_MiB, *h) == status::ok);
    }
    auto before = d.driver_time();
    REQUIRE(d.set_access(*window, 8_MiB) == status::ok);
    CHECK(d.driver_time() - before == 4 * 28us);
    before = d.driver_time();
    REQUIRE(d.unmap(*window, 4_MiB) == status::ok);
    CHECK(d.driver_time() - before == 2 * 18'300ns);
    before = d.driver_time();
    REQUIRE(d.release_memory(last) == status::ok);
    CHECK(d.driver_time() - before == 16'300ns);
}

TEST_CASE("sim memory: many threads share one device", "[device][sim]") {
    tenure::sim::device d({.capacity = 1_GiB});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&d] {
            const auto s = d.create_stream();
            const auto e = d.create_event();
            for (int i = 0; i < 200; ++i) {
                const auto p = d.allocate(2_MiB);
                if (!p) continue;
                d.block_allocated(*p, 2_MiB, s);
                d.launch(s, 1us);
                (void)d.record(*e, s);
                (void)d.query(*e);
                d.block_freed(*p, s);
                (void)d.deallocate(*p, 2_MiB);
            }
            (void)d.destroy_event(*e);
            d.destroy_stream(s);
        });
    for (std::thread& t : threads) t.join();
    CHECK(d.calls(call::allocate) == 800);
    CHECK(d.reserved() == 0);
    CHECK(d.live_events() == 0);
    CHECK(d.violations().empty());
}
