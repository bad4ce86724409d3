#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using sim_hub = hub<sim::device>;
using tags = std::set<std::uint64_t>;

static_assert(device<sim_hub> && filling_device<sim_hub> && pool_device<sim_hub> && vmm_device<sim_hub>);
static_assert(tenant_device<sim_hub> && !tenant_device<sim::device>);

constexpr std::uint64_t alices = 1;
constexpr std::uint64_t bobs = 2;

struct hub_world {
    explicit hub_world(hub_options options = {}, std::size_t capacity = 1_GiB)
        : device({.capacity = capacity, .cost = sim::costs::zero()}), between(device, options) {}
    ~hub_world() {
        CHECK(between.validate());
        CHECK(device.violations() == std::vector<std::string>{});
    }

    sim::device device;
    sim_hub between;
    meter alice{"alice", no_limit};
    meter bob{"bob", no_limit};
};

/// A physical handle at an address, as a tenant takes and gives it.
struct shown {
    shown(hub_world& w, meter& m, std::size_t n) : world(w), bytes(n) {
        handle = *w.between.create_memory(n, m);
        at = *w.between.reserve_address(n, 0);
        REQUIRE(w.between.map(at, handle) == status::ok);
        REQUIRE(w.between.set_access(at, n) == status::ok);
    }
    void give_back() {
        REQUIRE(world.between.unmap(at, bytes) == status::ok);
        REQUIRE(world.between.release_memory(handle) == status::ok);
        REQUIRE(world.between.free_address(at, bytes) == status::ok);
    }
    hub_world& world;
    std::size_t bytes;
    memory_handle handle = 0;
    void* at = nullptr;
};

} // namespace

TEST_CASE("a segment that comes back to its tenant keeps its bytes and costs no driver call",
          "[tenancy][hub]") {
    hub_world w;
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.write(p, 4_MiB, alices);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    CHECK(w.device.reserved() == 4_MiB);
    CHECK(w.between.read().shelved == 4_MiB);
    const auto calls = w.device.calls(sim::call::allocate);
    void* const q = *w.between.allocate(4_MiB, w.alice);
    CHECK(w.device.calls(sim::call::allocate) == calls);
    CHECK(w.device.calls(sim::call::fill_zero) == 0);
    CHECK(w.device.read(q, 4_MiB) == tags{alices});
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);
}

TEST_CASE("a segment that crosses to another tenant is zero", "[tenancy][hub]") {
    hub_world w;
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.write(p, 4_MiB, alices);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    void* const q = *w.between.allocate(4_MiB, w.bob);
    CHECK(q == p); // it did cross
    CHECK(w.device.read(q, 4_MiB) == tags{});
    CHECK(w.between.read().scrubbed == 4_MiB);
    CHECK(w.between.read().crossed == 4_MiB);
    CHECK(w.bob.read().scrubbed == 4_MiB);
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);
}

TEST_CASE("without scrubbing a tenant would read another's bytes", "[tenancy][hub]") {
    hub_world w({.wipe = scrub::none}); // what the other tests would show if wiping did nothing
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.write(p, 4_MiB, alices);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    void* const q = *w.between.allocate(4_MiB, w.bob);
    CHECK(w.device.read(q, 4_MiB) == tags{alices});
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);
}

TEST_CASE("scrub::on_free wipes at once, and not again", "[tenancy][hub]") {
    hub_world w({.wipe = scrub::on_free});
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.write(p, 4_MiB, alices);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    CHECK(w.device.read(p, 4_MiB) == tags{});
    void* const q = *w.between.allocate(4_MiB, w.bob);
    CHECK(q == p);
    CHECK(w.device.calls(sim::call::fill_zero) == 1);
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);

    shown a(w, w.alice, 2_MiB);
    w.device.write(a.at, 2_MiB, alices);
    a.give_back();
    const auto fills = w.device.calls(sim::call::fill_zero);
    shown b(w, w.bob, 2_MiB);
    CHECK(b.handle == a.handle);
    CHECK(w.device.read(b.at, 2_MiB) == tags{});
    CHECK(w.device.calls(sim::call::fill_zero) == fills);
    b.give_back();
}

TEST_CASE("handles side by side that cross are wiped in one fill, before the tenant has access",
          "[tenancy][hub][vmm]") {
    hub_world w;
    std::vector<shown> before;
    for (int i = 0; i < 4; ++i) {
        before.emplace_back(w, w.alice, 2_MiB);
        w.device.write(before.back().at, 2_MiB, alices);
    }
    for (shown& s : before) s.give_back();
    CHECK(w.between.read().shelved == 8_MiB);
    void* const at = *w.between.reserve_address(8_MiB, 0);
    std::vector<memory_handle> handles;
    for (std::size_t i = 0; i < 4; ++i) {
        handles.push_back(*w.between.create_memory(2_MiB, w.bob));
        CHECK(w.between.map(static_cast<char*>(at) + i * 2_MiB, handles.back()) == status::ok);
    }
    CHECK(w.device.calls(sim::call::fill_zero) == 0);
    CHECK(w.between.set_access(at, 8_MiB) == status::ok);
    CHECK(w.device.calls(sim::call::fill_zero) == 1);
    CHECK(w.device.read(at, 8_MiB) == tags{});
    CHECK(w.bob.read().scrubbed == 8_MiB);
    CHECK(w.between.unmap(at, 8_MiB) == status::ok);
    for (const memory_handle h : handles) CHECK(w.between.release_memory(h) == status::ok);
    CHECK(w.between.free_address(at, 8_MiB) == status::ok);
}

TEST_CASE("memory that was never accessible is never wiped", "[tenancy][hub][vmm]") {
    hub_world w;
    const memory_handle h = *w.between.create_memory(2_MiB, w.alice);
    CHECK(w.between.release_memory(h) == status::ok);
    shown b(w, w.bob, 2_MiB);
    CHECK(b.handle == h);
    CHECK(w.device.calls(sim::call::fill_zero) == 0);
    w.device.write(b.at, 2_MiB, bobs);
    b.give_back();
    shown c(w, w.alice, 2_MiB); // bob's, wiped
    CHECK(w.device.calls(sim::call::fill_zero) == 1);
    c.give_back();
}

TEST_CASE("a handle is shelved by the last of its release and its unmappings", "[tenancy][hub][vmm]") {
    hub_world w;
    shown a(w, w.alice, 2_MiB);
    CHECK(w.between.release_memory(a.handle) == status::ok);
    CHECK(w.between.read().shelved == 0);
    CHECK(w.between.release_memory(a.handle) == status::invalid_value);
    CHECK(w.between.unmap(a.at, 2_MiB) == status::ok);
    CHECK(w.between.read().shelved == 2_MiB);
    CHECK(w.between.free_address(a.at, 2_MiB) == status::ok);
    CHECK(w.between.release_memory(a.handle) == status::invalid_value); // not twice
    CHECK(w.between.release_memory(12345) == status::invalid_value);
    CHECK(w.between.trim(0) == 2_MiB);
}

TEST_CASE("own memory is taken first, then unwritten, then another's", "[tenancy][hub]") {
    hub_world w;
    shown a(w, w.alice, 2_MiB);
    shown b(w, w.bob, 2_MiB);
    const memory_handle fresh = *w.between.create_memory(2_MiB, w.bob);
    b.give_back();
    a.give_back();
    CHECK(w.between.release_memory(fresh) == status::ok);
    const memory_handle first = *w.between.create_memory(2_MiB, w.alice);
    const memory_handle second = *w.between.create_memory(2_MiB, w.alice);
    const memory_handle third = *w.between.create_memory(2_MiB, w.alice);
    CHECK(first == a.handle);
    CHECK(second == fresh);
    CHECK(third == b.handle);
    for (const memory_handle h : {first, second, third}) CHECK(w.between.release_memory(h) == status::ok);
}

TEST_CASE("a full driver is given the shelf before anybody is refused", "[tenancy][hub]") {
    hub_world w({}, 64_MiB);
    std::vector<void*> small;
    for (int i = 0; i < 16; ++i) small.push_back(*w.between.allocate(2_MiB, w.alice));
    shown h(w, w.alice, 30_MiB);
    for (void* const p : small) CHECK(w.between.deallocate(p, 2_MiB) == status::ok);
    h.give_back();
    CHECK(w.device.reserved() == 62_MiB);
    const result<void*, status> large = w.between.allocate(64_MiB, w.bob);
    REQUIRE(large);
    CHECK(w.between.read().shelved == 0);
    CHECK_FALSE(w.between.allocate(2_MiB, w.bob));
    CHECK(w.between.deallocate(*large, 64_MiB) == status::ok);
    const result<pool_handle, status> pool = w.between.create_pool({});
    REQUIRE(pool);
    const result<void*, status> pooled = w.between.allocate_from(*pool, 50_MiB, default_stream);
    REQUIRE(pooled);
    CHECK(w.between.deallocate_to(*pool, *pooled, default_stream) == status::ok);
    CHECK(w.between.destroy_pool(*pool) == status::ok);
}

TEST_CASE("trim gives the shelf to the driver, and so does its limit", "[tenancy][hub]") {
    hub_world w({.max_shelved = 6_MiB});
    std::vector<void*> pieces;
    for (int i = 0; i < 5; ++i) pieces.push_back(*w.between.allocate(2_MiB, w.alice));
    for (void* const p : pieces) CHECK(w.between.deallocate(p, 2_MiB) == status::ok);
    CHECK(w.between.read().shelved == 6_MiB);
    CHECK(w.device.reserved() == 6_MiB);
    CHECK(w.between.memory()->free == 1_GiB);
    CHECK(w.between.trim(3_MiB) == 4_MiB);
    CHECK(w.between.trim(0) == 2_MiB);
    CHECK(w.device.reserved() == 0);
}

TEST_CASE("where wiping fails, nothing crosses", "[tenancy][hub]") {
    hub_world w;
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.write(p, 4_MiB, alices);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    w.device.fail_call(sim::call::fill_zero, 1, status::failed);
    void* const q = *w.between.allocate(4_MiB, w.bob); // from the driver
    CHECK(q != p);
    CHECK(w.device.read(q, 4_MiB) == tags{});
    CHECK(w.between.read().shelved == 4_MiB);
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);

    shown a(w, w.alice, 2_MiB);
    w.device.write(a.at, 2_MiB, alices);
    a.give_back();
    const memory_handle h = *w.between.create_memory(2_MiB, w.bob);
    void* const at = *w.between.reserve_address(2_MiB, 0);
    CHECK(w.between.map(at, h) == status::ok);
    w.device.fail_call(sim::call::fill_zero, 1, status::failed);
    CHECK(w.between.set_access(at, 2_MiB) == status::failed);
    CHECK(w.between.unmap(at, 2_MiB) == status::ok);
    CHECK(w.between.release_memory(h) == status::ok);
    CHECK(w.between.free_address(at, 2_MiB) == status::ok);
    shown b(w, w.bob, 2_MiB); // the same piece; it is still remembered as alice's
    CHECK(b.handle == h);
    CHECK(w.device.read(b.at, 2_MiB) == tags{});
    b.give_back();
}

TEST_CASE("giving a segment back waits for the work on it, so that nothing writes after the wipe",
          "[tenancy][hub]") {
    hub_world w;
    const stream_handle s = w.device.create_stream();
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.block_allocated(p, 4_MiB, s);
    w.device.launch(s, std::chrono::milliseconds(5));
    w.device.write(p, 4_MiB, alices);
    w.device.block_freed(p, s);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    CHECK(w.device.waited_time() >= std::chrono::milliseconds(5));
    void* const q = *w.between.allocate(4_MiB, w.bob);
    CHECK(q == p);
    w.device.block_allocated_sync(q, 4_MiB); // the host has seen the wipe, too
    w.device.block_freed_sync(q);
    CHECK(w.between.deallocate(q, 4_MiB) == status::ok);
}

TEST_CASE("a device too full to wait on has the memory back at once", "[tenancy][hub]") {
    hub_world w;
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.fail_call(sim::call::synchronize_device, 1, status::out_of_memory);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    CHECK(w.device.reserved() == 0);
    CHECK(w.between.read().to_driver == 4_MiB);
}

TEST_CASE("a device that does not take memory back leaves it where it was", "[tenancy][hub]") {
    hub_world w;
    void* const p = *w.between.allocate(4_MiB, w.alice);
    w.device.fail_call(sim::call::synchronize_device, 1, status::failed);
    CHECK(w.between.deallocate(p, 4_MiB) == status::failed);
    CHECK(w.between.deallocate(p, 4_MiB) == status::ok);
    CHECK(w.between.deallocate(p, 4_MiB) != status::ok); // not twice
    w.device.fail_call(sim::call::deallocate, 1, status::failed);
    CHECK(w.between.trim(0) == 0);
    CHECK(w.between.read().shelved == 4_MiB);
    CHECK(w.between.trim(0) == 4_MiB);
}

TEMPLATE_TEST_CASE("no tenant reads what another wrote, under each policy", "[tenancy][hub][arena]",
                   (arena<best_fit_pool, sim_hub>), (arena<buddy_pool, sim_hub>), (arena<slab_pool, sim_hub>),
                   (arena<caching_pool, sim_hub>), (arena<async_pool, sim_hub>), (arena<remap_pool, sim_hub>),
                   (arena<device_pool, sim_hub>)) {
    const scrub how = GENERATE(scrub::on_transfer, scrub::on_free);
    hub_world w({.wipe = how}, 256_MiB);
    {
        arena_group gpu({.name = "gpu", .max = 256_MiB});
        TestType alice(gpu, w.between, {.name = "alice"});
        TestType bob(gpu, w.between, {.name = "bob"});
        const stream_handle s = w.device.create_stream();
        for (int round = 0; round < 20; ++round) {
            TestType& giver = round % 2 == 0 ? alice : bob;
            TestType& taker = round % 2 == 0 ? bob : alice;
            const std::uint64_t tag = round % 2 == 0 ? alices : bobs;
            std::vector<void*> blocks;
            const std::size_t n = (static_cast<std::size_t>(round) % 5 + 1) * 4_MiB;
            for (int i = 0; i < 4; ++i) {
                void* const p = giver.allocate(s, n);
                const tags found = w.device.read(p, n);
                CHECK(found.count(3 - tag) == 0);
                w.device.write(p, n, tag);
                blocks.push_back(p);
            }
            for (void* const p : blocks) giver.deallocate(s, p, n);
            CHECK(w.device.synchronize(s) == status::ok);
            giver.trim(0);
            void* const q = taker.allocate(s, n);
            CHECK(w.device.read(q, n).count(tag) == 0);
            w.device.write(q, n, 3 - tag);
            taker.deallocate(s, q, n);
            CHECK(w.device.synchronize(s) == status::ok);
        }
        alice.trim(0);
        bob.trim(0);
        CHECK(gpu.limits().charged == 0);
    }
    w.between.trim(0);
    CHECK(w.device.reserved() == 0);
}
