#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/device_pool.hpp>
#include <tenure/tenancy/arena.hpp>

using namespace tenure;
using namespace tenure::literals;

static_assert(resource<device_pool<sim::device>>);
static_assert(capture_resource<device_pool<sim::device>>);

TEST_CASE("the pool for device memory remaps where the device can, and caches where it cannot",
          "[policy][device_pool]") {
    const bool vmm = GENERATE(true, false);
    CAPTURE(vmm);
    sim::device device({.capacity = 1_GiB, .cost = sim::costs::zero(), .vmm = vmm});
    {
        device_pool<sim::device> pool(device);
        CHECK(pool.remaps() == vmm);
        const stream_handle s = device.create_stream();
        void* const p = pool.allocate(s, 30_MiB);
        CHECK(pool.owns(p));
        CHECK(pool.usage().requested.current == 30_MiB);
        CHECK((device.calls(sim::call::allocate) == 0) == vmm);
        pool.record_use(p, default_stream);
        CHECK(pool.snapshot().segments.size() == 1);
        CHECK(pool.validate());
        pool.deallocate(s, p, 30_MiB);
        (void)device.synchronize(s);
        pool.trim(0);
        CHECK(device.reserved() == 0);
    }
    arena<device_pool, sim::device> tenant(device, {.name = "tenant", .max = 64_MiB});
    void* const p = tenant.allocate(default_stream, 60_MiB);
    CHECK_FALSE(tenant.try_allocate(default_stream, 60_MiB));
    tenant.deallocate(default_stream, p, 60_MiB);
}

TEST_CASE("a remapping pool on a device without virtual memory says what to use", "[policy][remap]") {
    sim::device device({.vmm = false});
    try {
        remap_pool<sim::device> pool(device);
        FAIL("no error");
    } catch (const driver_error& e) {
        CHECK(e.code() == status::not_supported);
        CHECK(std::string(e.what()).find("caching_pool") != std::string::npos);
    }
}
