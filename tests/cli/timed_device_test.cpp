#include "cli/timed_device.hpp"

#include "cli/replay.hpp"
#include "cli/sim_world.hpp"
#include "scratch_file.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy/arena.hpp>

#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace tenure;
using namespace tenure::cli;

using timed = timed_device<sim::device>;
static_assert(device<timed> && pool_device<timed> && vmm_device<timed>);

/// All of the device's concept and nothing else.
struct plain_device {
    result<void*, status> allocate(std::size_t n) noexcept { return d.allocate(n); }
    status deallocate(void* p, std::size_t n) noexcept { return d.deallocate(p, n); }
    [[nodiscard]] std::size_t allocation_granularity() const noexcept { return d.allocation_granularity(); }
    result<device_memory, status> memory() noexcept { return d.memory(); }
    result<stream_state, status> describe(stream_handle s) noexcept { return d.describe(s); }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return d.permanent(s); }
    result<event_handle, status> create_event() noexcept { return d.create_event(); }
    status destroy_event(event_handle e) noexcept { return d.destroy_event(e); }
    status record(event_handle e, stream_handle s) noexcept { return d.record(e, s); }
    status query(event_handle e) noexcept { return d.query(e); }
    status synchronize(event_handle e) noexcept { return d.synchronize(e); }
    status synchronize(stream_handle s) noexcept { return d.synchronize(s); }
    status wait(stream_handle s, event_handle e) noexcept { return d.wait(s, e); }
    void explain(allocation_failure& f) noexcept { d.explain(f); }
    sim::device d;
};
static_assert(device<timed_device<plain_device>>);
static_assert(!pool_device<timed_device<plain_device>> && !vmm_device<timed_device<plain_device>>);

/// Checks that the decorator counted, costed and added up what the device itself did.
void agrees(timed& watched, const sim::device& device) {
    CHECK(watched.reserved_peak() == device.reserved_peak());
    CHECK(watched.reserved() == device.reserved());
    CHECK(watched.live_events() == device.live_events());
    CHECK(watched.live_pools() == device.live_pools());
}

/// A random program on two streams.
template <class Pool>
void drive(Pool& pool, sim::device& device) {
    std::mt19937_64 rng(test::seed());
    const stream_handle streams[] = {device.create_stream(), device.create_stream()};
    std::vector<std::pair<void*, std::size_t>> live;
    for (int i = 0; i < 1500; ++i) {
        const std::size_t n = test::log_uniform(rng, 1, 100_MiB);
        const stream_handle s = streams[test::below(rng, 2)];
        if (const auto p = pool.try_allocate(s, n)) live.emplace_back(*p, n);
        if (live.size() > 12) {
            const std::size_t which = test::below(rng, live.size());
            pool.deallocate(streams[0], live[which].first, live[which].second);
            live[which] = live.back();
            live.pop_back();
        }
        device.advance(std::chrono::microseconds{50});
        if (test::chance(rng, 2)) (void)pool.trim(200_MiB);
    }
    for (const auto& [p, n] : live) pool.deallocate_sync(p, n, default_alignment);
}

template <class Pool>
void policy_is_seen_exactly() {
    CAPTURE(test::seed());
    sim::device device({.capacity = 4_GiB});
    timed watched(device);
    {
        Pool pool(watched);
        drive(pool, device);
        CHECK(pool.usage().reserved.current == watched.reserved());
        agrees(watched, device);
    }
    agrees(watched, device);
    CHECK(watched.reserved() == 0);

    const auto seen = watched.call_counts();
    const auto made = device.call_counts();
    for (std::size_t i = 0; i < seen.size(); ++i) {
        CAPTURE(sim::to_string(static_cast<sim::call>(i)));
        // What a pool holds is asked by the decorator itself, too.
        if (static_cast<sim::call>(i) == sim::call::memory_of)
            CHECK(seen[i] <= made[i]);
        else
            CHECK(seen[i] == made[i]);
    }
    std::uint64_t calls = 0;
    for (const std::uint64_t n : seen) calls += n;
    CHECK(watched.times().total().count == calls);
}

} // namespace

TEST_CASE("a timed device counts and adds up what policies do", "[cli][timed]") {
    SECTION("best_fit") {
        policy_is_seen_exactly<best_fit_pool<timed>>();
    }
    SECTION("caching") {
        policy_is_seen_exactly<caching_pool<timed>>();
    }
    SECTION("async") {
        policy_is_seen_exactly<async_pool<timed>>();
    }
    SECTION("in an arena") {
        policy_is_seen_exactly<arena<best_fit_pool, timed>>();
    }
}

TEST_CASE("the peak is pictured on a timed device as on the simulated one", "[cli][timed][footprint]") {
    // At the peak 20 MiB and 10 MiB live; in the 8 MiB before them nothing fits.
    const trace t = load_trace(test::scratch_file("t_us,op,id,bytes,stream\n"
                                                  "0,a,1,8388608,0\n1,a,2,20971520,0\n2,f,1,8388608,0\n"
                                                  "3,a,3,10485760,0\n4,f,2,20971520,0\n5,f,3,10485760,0\n")
                                   .path());
    const auto pools_on = [](auto& device) {
        using pool = best_fit_pool<std::remove_reference_t<decltype(device)>>;
        tenants<pool> all;
        all.push_back(std::make_unique<pool>(device));
        return all;
    };
    const replay_result whole =
        replay<best_fit_pool<sim::device>>(t, pools_on, {.repeat = 0, .footprint = true});
    REQUIRE(whole.course);
    REQUIRE(whole.course->pictured);
    CHECK(whole.course->peak_event == 3);

    sim::device device;
    timed watched(device, {.observe = false});
    sim_machine machine(device);
    sim_world world(machine, t.streams);
    footprint course = whole.course.value();
    course.pictured = false;
    course.peak_reserved = 0;
    course.at_peak = {};
    {
        const auto pools = pools_on(watched);
        onlooker look(course);
        look.look_at(watched, pools);
        play_state state;
        play<best_fit_pool<timed>>(t, pools, world, look, late_free::held, state);
        unwind<best_fit_pool<timed>>(t, pools, world, look, state);
    }
    world.clear();
    REQUIRE(course.pictured);
    const memory_picture& wanted = whole.course->at_peak;
    CHECK(course.peak_reserved == whole.course->peak_reserved);
    CHECK(course.at_peak.live == 30_MiB);
    CHECK(course.at_peak.free == wanted.free);
    CHECK(course.at_peak.free + course.at_peak.live == course.peak_reserved);
    CHECK(course.at_peak.unplaced == 0);
    REQUIRE(course.at_peak.runs.size() == wanted.runs.size());
    for (std::size_t i = 0; i < wanted.runs.size(); ++i) {
        CHECK(course.at_peak.runs[i].bytes == wanted.runs[i].bytes);
        CHECK(course.at_peak.runs[i].what == wanted.runs[i].what);
    }
}

TEST_CASE("a timed device models every call as the simulated one does", "[cli][timed]") {
    sim::device device;
    timed watched(device);
    const stream_handle s = device.create_stream();
    for (const std::size_t n : {2_MiB, 3_MiB, 20_MiB, 1_GiB}) {
        const auto p = watched.allocate(n);
        REQUIRE(p);
        CHECK(watched.deallocate(*p, n) == status::ok);
    }
    CHECK_FALSE(watched.allocate(1_TiB));
    const auto e = watched.create_event();
    REQUIRE(e);
    CHECK(watched.record(*e, s) == status::ok);
    CHECK(watched.wait(s, *e) == status::ok);
    device.hold(s);
    CHECK(watched.record(*e, s) == status::ok);
    CHECK(watched.query(*e) == status::not_ready);
    device.finish(s);
    CHECK(watched.query(*e) == status::ok);
    const auto queries = [&](call_case met) {
        const call_times times = watched.times();
        const auto row = times.rows().find({sim::call::query, 0, met});
        return row == times.rows().end() ? 0 : row->second.count;
    };
    CHECK(queries(call_case::plain) == 1);
    CHECK(queries(call_case::passed) == 1);
    CHECK(watched.synchronize(*e) == status::ok);
    CHECK(watched.synchronize(s) == status::ok);
    CHECK(watched.destroy_event(*e) == status::ok);
    CHECK(watched.memory());
    CHECK(watched.describe(s));
    CHECK(watched.describe(default_stream));

    // Two mappings of one handle, and one of another that outlives its release.
    const auto window = watched.reserve_address(64_MiB, 0);
    REQUIRE(window);
    const auto small = watched.create_memory(2_MiB);
    const auto large = watched.create_memory(20_MiB);
    REQUIRE((small && large));
    const auto at = [&](std::size_t offset) { return to_pointer(to_address(*window) + offset); };
    CHECK(watched.map(at(0), *small) == status::ok);
    CHECK(watched.map(at(2_MiB), *large) == status::ok);
    CHECK(watched.map(at(22_MiB), *small) == status::ok);
    CHECK(watched.set_access(at(0), 24_MiB) == status::ok);
    CHECK(watched.reserved() == 22_MiB);
    CHECK(watched.release_memory(*large) == status::ok);
    CHECK(watched.unmap(at(0), 2_MiB) == status::ok);
    CHECK(watched.reserved() == 22_MiB);
    agrees(watched, device);
    CHECK(watched.unmap(at(2_MiB), 22_MiB) == status::ok);
    CHECK(watched.reserved() == 2_MiB);
    CHECK(watched.release_memory(*small) == status::ok);
    CHECK(watched.free_address(*window, 64_MiB) == status::ok);
    agrees(watched, device);
    CHECK(watched.reserved() == 0);

    CHECK(watched.times().total().modelled == device.driver_time());
    CHECK(watched.times().total().real.count() > 0);
    CHECK(watched.call_counts() == device.call_counts());
}

TEST_CASE("a timed device that does not observe only counts", "[cli][timed]") {
    sim::device device;
    int waits = 0;
    timed watched(device, {.observe = false, .before_wait = [&] { ++waits; }});
    const auto p = watched.allocate(2_MiB);
    REQUIRE(p);
    CHECK(waits == 0);
    CHECK(watched.deallocate(*p, 2_MiB) == status::ok);
    CHECK(watched.synchronize(default_stream) == status::ok);
    CHECK(waits == 2);
    CHECK(watched.times().rows().empty());
    CHECK(watched.call_counts() == device.call_counts());
    CHECK(watched.reserved_peak() == 2_MiB);
}

TEST_CASE("times are classed by size and have a median", "[cli][timed]") {
    CHECK(call_times::size_class(0) == 0);
    CHECK(call_times::size_class(1) == 1);
    CHECK(call_times::size_class(2_MiB) == 2_MiB);
    CHECK(call_times::size_class(2_MiB + 1) == 4_MiB);
    call_times t;
    const call_class of{sim::call::allocate, 2_MiB, call_case::plain};
    for (const int us : {10, 10, 11, 500, 12}) {
        t.add(of, std::chrono::microseconds{us}, std::chrono::microseconds{20});
    }
    call_times sum = t;
    sum.add(t);
    const call_time& row = sum.rows().at(of);
    CHECK(row.count == 10);
    CHECK(row.modelled == std::chrono::microseconds{200});
    CHECK(row.times.median_ns() > 10'400);
    CHECK(row.times.median_ns() < 11'600);
    CHECK(time_histogram{}.median_ns() == 0);
}
