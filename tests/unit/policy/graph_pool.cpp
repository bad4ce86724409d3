#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/graph_pool.hpp>
#include <tenure/policy/remap_pool.hpp>

#include <cstdint>
#include <optional>

using namespace tenure;
using namespace tenure::literals;

TEMPLATE_TEST_CASE("a graph's memory is nobody else's while a copy of its handle lives",
                   "[policy][graph_pool]", remap_pool<sim::device>, caching_pool<sim::device>) {
    sim::device device({.capacity = 1_GiB, .cost = sim::costs::zero()});
    TestType pool(device);
    const stream_handle s = device.create_stream();
    std::optional<graph_pool> memory(std::in_place, pool, device);

    CHECK(memory->keep(s).error() == status::invalid_value); // no capture yet
    REQUIRE(device.begin_capture(s) != 0);
    void* const p = pool.allocate(s, 8_MiB);
    REQUIRE(memory->keep(s));
    REQUIRE(memory->keep(s)); // once is enough
    pool.deallocate(s, p, 8_MiB);
    REQUIRE(device.end_capture(s));
    CHECK(memory->size() == 1);

    std::optional<graph_pool> copy = memory;
    memory.reset();
    CHECK(pool.usage().captured >= 8_MiB);
    CHECK(pool.trim(0) == pool.trim(0)); // nothing of it can go
    CHECK(pool.usage().captured >= 8_MiB);
    copy.reset();
    CHECK(pool.usage().captured == 0);
    pool.trim(0);
    CHECK(pool.usage().reserved.current == 0);
    CHECK(device.violations().empty());
}

TEMPLATE_TEST_CASE("two handles that keep one capture release it once, with the last of them",
                   "[policy][graph_pool]", remap_pool<sim::device>, caching_pool<sim::device>) {
    sim::device device({.capacity = 1_GiB, .cost = sim::costs::zero()});
    TestType pool(device);
    TestType other_pool(device);
    const stream_handle s = device.create_stream();
    std::optional<graph_pool> first(std::in_place, pool, device);
    std::optional<graph_pool> second(std::in_place, pool, device);
    std::optional<graph_pool> other(std::in_place, other_pool, device); // a capture may use two pools

    REQUIRE(device.begin_capture(s) != 0);
    void* const p = pool.allocate(s, 8_MiB);
    void* const q = other_pool.allocate(s, 8_MiB);
    REQUIRE(first->keep(s));
    REQUIRE(second->keep(s));
    REQUIRE(other->keep(s));
    pool.deallocate(s, p, 8_MiB);
    other_pool.deallocate(s, q, 8_MiB);
    REQUIRE(device.end_capture(s));

    first.reset();
    CHECK(pool.usage().captured >= 8_MiB);
    other.reset();
    CHECK(other_pool.usage().captured == 0);
    CHECK(pool.usage().captured >= 8_MiB);
    second.reset();
    CHECK(pool.usage().captured == 0);
    CHECK(device.violations().empty());
}
