#include "support/catch.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/ordering/event_cache.hpp>

#include <string>
#include <vector>

using namespace tenure;

TEST_CASE("an event that was released is used again", "[ordering][event_cache]") {
    sim::device device;
    {
        event_cache<sim::device> events(device);
        const auto a = events.acquire();
        const auto b = events.acquire();
        REQUIRE(a);
        REQUIRE(b);
        CHECK(*a != *b);
        events.release(*a);
        CHECK(*events.acquire() == *a);
        CHECK(device.live_events() == 2);
        events.release(*a);
        events.release(*b);
    }
    CHECK(device.live_events() == 0);
    CHECK(device.violations() == std::vector<std::string>{});
}

TEST_CASE("a mark stands for the work that the stream holds", "[ordering][event_cache]") {
    sim::device device({.cost = sim::costs::zero()});
    event_cache<sim::device> events(device);
    const stream_handle s = device.create_stream();
    device.launch(s, std::chrono::milliseconds(1));
    const auto e = events.mark(s);
    REQUIRE(e);
    CHECK(device.query(*e) == status::not_ready);
    device.advance(std::chrono::milliseconds(1));
    CHECK(device.query(*e) == status::ok);
    events.release(*e);
}

TEST_CASE("a driver that fails to create or record costs no event", "[ordering][event_cache]") {
    sim::device device;
    event_cache<sim::device> events(device);
    device.fail_call(sim::call::create_event, 1, status::failed);
    const auto none = events.mark(default_stream);
    REQUIRE_FALSE(none);
    CHECK(none.error() == status::failed);
    CHECK(device.live_events() == 0);
    device.fail_call(sim::call::record, 1, status::out_of_memory);
    const auto unrecorded = events.mark(default_stream);
    REQUIRE_FALSE(unrecorded);
    CHECK(unrecorded.error() == status::out_of_memory);
    CHECK(device.live_events() == 1); // kept for the next
    const auto e = events.mark(default_stream);
    REQUIRE(e);
    CHECK(device.live_events() == 1);
    events.release(*e);
}

TEST_CASE("an event that the driver does not destroy at first is destroyed in the end",
          "[ordering][event_cache]") {
    sim::device device;
    {
        event_cache<sim::device> events(device);
        events.release(*events.acquire());
        device.fail_call(sim::call::destroy_event, 1, status::failed);
    }
    CHECK(device.live_events() == 0);
}
