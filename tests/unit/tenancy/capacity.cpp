/// What a process may have of a device, from sources made up for the test.

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/capacity.hpp>
#include <tenure/tenancy/process.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include <unistd.h>

using namespace tenure;

namespace {

capacity_sources card(std::size_t free, std::size_t total) {
    capacity_sources s;
    s.memory = [=]() -> result<device_memory, status> { return device_memory{free, total}; };
    return s;
}

/// A library that answers as the test wants.
struct fake_library {
    static inline int inits = 0;
    static inline int shutdowns = 0;
    static inline bool mig = false;
    static inline bool answers = true;
    static inline std::string asked;

    static nvml_api api() {
        inits = shutdowns = 0;
        mig = false;
        answers = true;
        nvml_api a;
        a.init = [] { return ++inits, 0; };
        a.shutdown = [] { return ++shutdowns, 0; };
        a.device_by_bus_id = [](const char* id, nvml_api::device* d) {
            asked = id;
            *d = &inits;
            return std::strcmp(id, "0000:3B:00.0") == 0 ? 0 : 6;
        };
        a.device_memory = [](nvml_api::device d, nvml_api::memory* m) {
            if (d != &inits || !answers) return 15;
            *m = {80_GiB, 50_GiB, 30_GiB};
            return 0;
        };
        a.mig_mode = [](nvml_api::device, unsigned* now, unsigned* pending) {
            *now = *pending = mig ? 1 : 0;
            return 0;
        };
        a.processes = [](nvml_api::device, unsigned* count, nvml_api::process* p) {
            p[0] = {static_cast<unsigned>(::getpid()), 3_GiB, 0, 0};
            p[1] = {1, ~0ull, 0, 0};
            *count = 2;
            return 0;
        };
        return a;
    }
};

} // namespace

TEST_CASE("the capacity is what is free and what is held, less the headroom", "[tenancy][capacity]") {
    const auto r = read_capacity(card(60_GiB, 80_GiB), 15_GiB, 1_GiB);
    REQUIRE(r);
    CHECK(r->limit == 80_GiB);
    CHECK(r->limited_by == capacity_limit::device);
    CHECK(r->capacity == 74_GiB);
    CHECK(r->external == 5_GiB);
    CHECK(r->held == 15_GiB);
    CHECK(read_capacity(card(100_MiB, 80_GiB), 0, 1_GiB)->capacity == 0);
    CHECK(read_capacity(card(80_GiB, 80_GiB), 0, 0)->external == 0);
    capacity_sources dead;
    dead.memory = [] { return result<device_memory, status>(status::device_lost); };
    CHECK(read_capacity(dead).error() == status::device_lost);
    CHECK_THROWS_AS(capacity_watch(dead), driver_error);
}

TEST_CASE("limits of MPS clients are read", "[tenancy][capacity]") {
    CHECK(parse_mps_limit("0=1G,1=512MB", 0) == 1_GiB);
    CHECK(parse_mps_limit("0=1G,1=512MB", 1) == 512_MiB);
    CHECK(parse_mps_limit("0=1G,1=512MB", 2) == std::nullopt);
    CHECK(parse_mps_limit("3=4096", 3) == 4096);
    CHECK(parse_mps_limit("3=4096b", 3) == 4096);
    CHECK(parse_mps_limit("0=2gb", 0) == 2_GiB);
    CHECK(parse_mps_limit("0=7k", 0) == 7_KiB);
    CHECK(parse_mps_limit("0=1T", 0) == 1_TiB);
    CHECK(parse_mps_limit("", 0) == std::nullopt);
    for (const char* wrong : {"1G", "0=", "0", "=1G", "0=1X", "0=1GiB", "0=1G,", ",", "0=1.5G", "-1=1G",
                              "0:1G", "0=99999999999T", "0=1BB"}) {
        CAPTURE(wrong);
        CHECK_THROWS_AS(parse_mps_limit(wrong, 0), std::invalid_argument);
    }
    capacity_sources s = card(60_GiB, 80_GiB);
    s.mps_limit = "0=10G";
    CHECK(read_capacity(s, 0, 1_GiB)->capacity == 9_GiB);
    CHECK(read_capacity(s, 0, 1_GiB)->limited_by == capacity_limit::mps);
    CHECK(read_capacity(s, 0, 1_GiB)->external == 20_GiB); // of the card
    s.device = 1;
    CHECK(read_capacity(s, 0, 1_GiB)->limited_by == capacity_limit::device);
    s.mps_limit = "nonsense";
    CHECK_THROWS_AS(read_capacity(s), std::invalid_argument);
}

TEST_CASE("the management library is asked where it is", "[tenancy][capacity]") {
    const nvml_api api = fake_library::api();
    {
        const auto library = nvml::open("0000:3B:00.0", api);
        REQUIRE(library);
        CHECK(fake_library::asked == "0000:3B:00.0");
        const auto r = library->read();
        REQUIRE(r);
        CHECK(r->total == 80_GiB);
        CHECK(r->free == 50_GiB);
        // The driver's pids are those of the first namespace; elsewhere that number is somebody else's.
        CHECK(r->by_process == (in_first_pid_namespace() ? std::optional<std::size_t>(3_GiB) : std::nullopt));
        CHECK(r->processes == 2);
        CHECK_FALSE(r->mig);

        capacity_sources s = card(60_GiB, 90_GiB);
        s.nvml = [&] { return library->read(); };
        CHECK(read_capacity(s, 0, 0)->limit == 80_GiB); // the less of the two
        CHECK(read_capacity(s, 0, 0)->free == 50_GiB);
        CHECK(read_capacity(s, 0, 0)->processes == 2);

        // A part of the card: the card's own figures say nothing about it.
        fake_library::mig = true;
        s = card(9_GiB, 10_GiB);
        s.nvml = [&] { return library->read(); };
        CHECK(read_capacity(s, 0, 0)->capacity == 9_GiB);
        CHECK(read_capacity(s, 0, 0)->limited_by == capacity_limit::mig);

        fake_library::answers = false;
        CHECK_FALSE(library->read());
        CHECK(read_capacity(s, 0, 0)->capacity == 9_GiB);
    }
    CHECK(fake_library::inits == 1);
    CHECK(fake_library::shutdowns == 1);
    CHECK(nvml::open("0000:00:00.0", api) == nullptr);
    CHECK(fake_library::shutdowns == 2);
    CHECK(nvml::open("0000:3B:00.0", nvml_api::load("libthere_is_no_such_library.so.1")) == nullptr);
    capacity_sources mig = card(9_GiB, 10_GiB);
    mig.visible_devices = "MIG-1234";
    CHECK(read_capacity(mig)->limited_by == capacity_limit::mig);
}

TEST_CASE("memory that vanishes makes requests fail with cause device, and leaves limits alone",
          "[tenancy][capacity]") {
    sim::device device({.capacity = 16_GiB, .cost = sim::costs::zero()});
    capacity_watch watch(sources_of(device), 512_MiB);
    CHECK(watch.capacity() == 16_GiB - 512_MiB);
    arena_group root({.name = "gpu", .max = watch.capacity()});
    arena<caching_pool, sim::device> job(root, device, {.name = "job", .min = 2_GiB, .max = 12_GiB});
    const auto held = [&] { return root.limits().used; };
    void* const first = job.allocate(default_stream, 4_GiB);
    CHECK(watch.look(held()).vanished == 0);
    CHECK(watch.look(held()).now.external == 0);

    // Somebody else takes what there was.
    const result<void*, status> other = device.allocate(10_GiB);
    REQUIRE(other);
    const capacity_history seen = watch.look(held());
    CHECK(seen.now.external == 10_GiB);
    CHECK(seen.vanished == 10_GiB);
    const allocate_result r = job.try_allocate(default_stream, 6_GiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    CHECK(job.limits().max == 12_GiB);
    CHECK(job.limits().min == 2_GiB);
    CHECK(root.limits().max == watch.capacity());

    REQUIRE(device.deallocate(*other, 10_GiB) == status::ok);
    void* const second = job.allocate(default_stream, 6_GiB);
    CHECK(watch.look(held()).vanished == 0);
    CHECK(watch.look(held()).most_external == 10_GiB);
    job.deallocate(default_stream, first, 4_GiB);
    job.deallocate(default_stream, second, 6_GiB);
}
