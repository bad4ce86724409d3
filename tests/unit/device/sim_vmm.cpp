// The simulated device's virtual memory.

#include <tenure/device.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstdint>

using namespace tenure::literals;
using tenure::memory_handle;
using tenure::status;
using tenure::to_address;
using tenure::sim::costs;

namespace {

struct world {
    tenure::sim::device d{{.capacity = 64_MiB, .cost = costs::zero()}};
    char* window = static_cast<char*>(d.reserve_address(64_MiB, 0).value());
    memory_handle make(std::size_t n) { return d.create_memory(n).value(); }
};

} // namespace

TEST_CASE("sim vmm: addresses are free, memory counts", "[device][sim][vmm]") {
    tenure::sim::device d({.capacity = 64_MiB, .cost = costs::zero()});
    const auto huge = d.reserve_address(16_TiB, 1_GiB);
    REQUIRE(huge);
    CHECK(to_address(*huge) % 1_GiB == 0);
    CHECK(d.reserved() == 0);
    const auto h = d.create_memory(60_MiB);
    REQUIRE(h);
    CHECK(*h != 0);
    CHECK(d.reserved() == 60_MiB);
    CHECK(d.create_memory(6_MiB).error() == status::out_of_memory);
    CHECK(d.allocate(6_MiB).error() == status::out_of_memory);
    CHECK(d.release_memory(*h) == status::ok);
    CHECK(d.release_memory(*h) == status::invalid_value);
    CHECK(d.reserved() == 0);
    CHECK(d.free_address(*huge, 16_TiB) == status::ok);
    CHECK(d.free_address(*huge, 16_TiB) == status::invalid_value);
}

TEST_CASE("sim vmm: sizes and addresses are whole", "[device][sim][vmm]") {
    world w;
    CHECK(w.d.create_memory(0).error() == status::invalid_value);
    CHECK(w.d.create_memory(3_MiB).error() == status::invalid_value);
    CHECK(w.d.reserve_address(0, 0).error() == status::invalid_value);
    CHECK(w.d.reserve_address(1_MiB, 0).error() == status::invalid_value);
    CHECK(w.d.reserve_address(2_MiB, 3_MiB).error() == status::invalid_value);
    const auto h = w.make(4_MiB);
    CHECK(w.d.map(w.window + 1_MiB, h) == status::invalid_value);
    CHECK(w.d.map(w.window + 62_MiB, h) == status::invalid_value); // beyond the reservation
    CHECK(w.d.map(w.window - 2_MiB, h) == status::invalid_value);
    CHECK(w.d.map(w.window, h + 100) == status::invalid_value);
    CHECK(w.d.map(w.window, h) == status::ok);
    CHECK(w.d.map(w.window + 2_MiB, w.make(2_MiB)) == status::invalid_value); // something is there
    CHECK(w.d.free_address(w.window, 64_MiB) == status::invalid_value);       // something is mapped
    CHECK(w.d.unmap(w.window, 4_MiB) == status::ok);
    CHECK(w.d.free_address(w.window, 32_MiB) == status::invalid_value); // only a part
    CHECK(w.d.free_address(w.window, 64_MiB) == status::ok);
}

TEST_CASE("sim vmm: access and unmap cover whole mappings without gaps", "[device][sim][vmm]") {
    world w;
    REQUIRE(w.d.map(w.window, w.make(4_MiB)) == status::ok);
    REQUIRE(w.d.map(w.window + 4_MiB, w.make(2_MiB)) == status::ok);
    REQUIRE(w.d.map(w.window + 8_MiB, w.make(2_MiB)) == status::ok);
    CHECK(w.d.set_access(w.window, 2_MiB) == status::invalid_value);
    CHECK(w.d.set_access(w.window, 10_MiB) == status::invalid_value);
    CHECK(w.d.set_access(w.window + 6_MiB, 4_MiB) == status::invalid_value);
    CHECK(w.d.set_access(w.window, 6_MiB) == status::ok);
    CHECK(w.d.unmap(w.window, 2_MiB) == status::invalid_value);
    CHECK(w.d.unmap(w.window + 2_MiB, 4_MiB) == status::invalid_value);
    CHECK(w.d.unmap(w.window, 10_MiB) == status::invalid_value);
    CHECK(w.d.unmap(w.window, 6_MiB) == status::ok);
    CHECK(w.d.unmap(w.window, 6_MiB) == status::invalid_value);
    CHECK(w.d.unmap(w.window + 8_MiB, 2_MiB) == status::ok);
}

TEST_CASE("sim vmm: memory lives while it is held or shown", "[device][sim][vmm]") {
    world w;
    const auto h = w.make(4_MiB);
    REQUIRE(w.d.map(w.window, h) == status::ok);
    REQUIRE(w.d.map(w.window + 8_MiB, h) == status::ok);
    SECTION("released before it is unmapped") {
        CHECK(w.d.release_memory(h) == status::ok);
        CHECK(w.d.map(w.window + 16_MiB, h) == status::invalid_value);
        CHECK(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.d.reserved() == 4_MiB);
        CHECK(w.d.unmap(w.window + 8_MiB, 4_MiB) == status::ok);
    }
    SECTION("released after") {
        CHECK(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.d.unmap(w.window + 8_MiB, 4_MiB) == status::ok);
        CHECK(w.d.reserved() == 4_MiB);
        CHECK(w.d.release_memory(h) == status::ok);
    }
    CHECK(w.d.reserved() == 0);
}

TEST_CASE("sim vmm: allowed during a capture, and waits for nothing", "[device][sim][vmm]") {
    world w;
    const auto s = w.d.create_stream();
    const auto t = w.d.create_stream();
    w.d.hold(t);
    REQUIRE(w.d.begin_capture(s) != 0);
    const auto h = w.make(2_MiB);
    CHECK(w.d.map(w.window, h) == status::ok);
    CHECK(w.d.set_access(w.window, 2_MiB) == status::ok);
    CHECK(w.d.unmap(w.window, 2_MiB) == status::ok);
    CHECK(w.d.release_memory(h) == status::ok);
    CHECK(w.d.end_capture(s));
    CHECK(w.d.violations().empty());
}
