// How binned routes. The contract that it shares with every policy is tested in tests/contract.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/binned.hpp>
#include <tenure/policy/slab_and_caching.hpp>
#include <tenure/tenancy/arena.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <cstddef>

using namespace tenure;

namespace {

template <class Device>
using pair_of = binned<best_fit_pool<Device>, best_fit_pool<Device>>;
using pool_type = pair_of<sim::device>;
static_assert(resource<pool_type>);
static_assert(resource<slab_and_caching<sim::device>>);
static_assert(resource<arena<slab_and_caching, sim::device>>);

inline constexpr pool_type::options_type small_segments{
    .threshold = 64_KiB, .small = {.segment_bytes = 2_MiB}, .large = {.segment_bytes = 32_MiB}};

} // namespace

TEST_CASE("binned sends sizes up to the threshold to the small part", "[policy][binned]") {
    sim::device device{{.cost = sim::costs::zero()}};
    pool_type pool(device, small_segments);
    CHECK(pool.threshold() == 64_KiB);
    void* const at = pool.allocate(default_stream, 64_KiB);
    void* const above = pool.allocate(default_stream, 64_KiB + 1);
    CHECK(pool.small().owns(at));
    CHECK_FALSE(pool.large().owns(at));
    CHECK(pool.large().owns(above));
    CHECK_FALSE(pool.small().owns(above));
    CHECK(pool.usage().requested.current == 128_KiB + 1);
    CHECK(pool.usage().reserved.current == 2_MiB + 32_MiB);
    pool.deallocate(default_stream, at, 64_KiB);
    pool.deallocate(default_stream, above, 64_KiB + 1);
    CHECK(pool.usage().blocks.current == 0);
}

TEST_CASE("binned explains a free whose size points to the wrong part", "[policy][binned]") {
    sim::device device{{.cost = sim::costs::zero()}};
    pool_type pool(device, small_segments);
    void* const small = pool.allocate(default_stream, 1000);
    void* const large = pool.allocate(default_stream, 1_MiB);
    auto r = pool.try_deallocate(default_stream, small, 1_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::size_mismatch);
    CHECK(r.error().expected == 1000);
    r = pool.try_deallocate(default_stream, large, 1000);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::size_mismatch);
    CHECK(r.error().expected == 1_MiB);

    test::misuse_log log;
    pool.release(large);
    pool.release(large);
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::double_free);
    pool.deallocate_sync(small, 1000, default_alignment);
    CHECK(log.size() == 1);
}

TEST_CASE("binned takes from one part what the other needs", "[policy][binned]") {
    sim::device device{{.capacity = 64_MiB, .cost = sim::costs::zero()}};
    pool_type pool(device, small_segments);
    void* const large = pool.allocate(default_stream, 64_MiB);
    pool.deallocate(default_stream, large, 64_MiB); // cached: nothing of the device is left
    REQUIRE(device.reserved() == 64_MiB);
    void* const small = pool.allocate(default_stream, 1000);
    CHECK(pool.usage().failures == 0);
    CHECK(pool.small().owns(small));
    CHECK(pool.large().usage().reserved.current == 0);

    const allocate_result r = pool.try_allocate(default_stream, 64_MiB);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::device);
    CHECK(pool.usage().failures == 1);
    pool.deallocate(default_stream, small, 1000);
    void* const synchronous = pool.allocate_sync(64_MiB, 256); // the small part's cache goes
    pool.deallocate_sync(synchronous, 64_MiB, 256);
    CHECK(pool.validate());
}

TEST_CASE("binned trims the large part first", "[policy][binned]") {
    sim::device device{{.cost = sim::costs::zero()}};
    pool_type pool(device, small_segments);
    pool.deallocate(default_stream, pool.allocate(default_stream, 1000), 1000);
    pool.deallocate(default_stream, pool.allocate(default_stream, 1_MiB), 1_MiB);
    CHECK(pool.trim(2_MiB) == 32_MiB);
    CHECK(pool.small().usage().reserved.current == 2_MiB);
    CHECK(pool.trim(0) == 2_MiB);
    CHECK(device.reserved() == 0);
}
