#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using sim_hub = hub<sim::device>;
using tenant = arena<best_fit_pool, sim_hub>;
constexpr pool_options fine{.segment_bytes = 2_MiB};

struct transfer_world {
    ~transfer_world() {
        between.trim(0);
        CHECK(gpu.limits().charged == 0);
        CHECK(device.reserved() == 0);
        CHECK(device.violations() == std::vector<std::string>{});
    }
    sim::device device{{.capacity = 1_GiB, .cost = sim::costs::zero()}};
    sim_hub between{device};
    arena_group gpu{{.name = "gpu", .max = 100_MiB}};
};

} // namespace

TEMPLATE_TEST_CASE("a block that fills its segment moves with it, paid for by its new owner",
                   "[tenancy][transfer]", (arena<best_fit_pool, sim_hub>), (arena<buddy_pool, sim_hub>)) {
    transfer_world w;
    test::misuse_log log;
    {
        TestType a(w.gpu, w.between, {.name = "a"}, fine);
        TestType b(w.gpu, w.between, {.name = "b"}, fine);
        const stream_handle s = w.device.create_stream();
        void* const p = a.allocate(s, 64_MiB); // twice as much would not fit
        w.device.block_allocated(p, 64_MiB, s);
        w.device.write(p, 64_MiB, 7);
        CHECK(a.transfer(p, b));
        CHECK(a.limits().own == 0);
        CHECK(b.limits().own == 64_MiB);
        CHECK(w.gpu.limits().charged == 64_MiB);
        CHECK_FALSE(a.owns(p));
        CHECK(b.owns(p));
        CHECK(a.validate());
        CHECK(b.validate());
        CHECK(a.usage().allocated.current == 0);
        CHECK(b.usage().requested.current == 64_MiB);
        CHECK(w.device.read(p, 64_MiB) == std::set<std::uint64_t>{7}); // what is in it goes along
        a.deallocate(s, p, 64_MiB);
        REQUIRE(log.size() == 1);
        CHECK(log[0].kind == misuse_kind::wrong_arena);
        w.device.block_freed(p, s);
        b.deallocate(s, p, 64_MiB);
        void* const again = b.allocate(s, 64_MiB); // b's memory like any other
        CHECK(again == p);
        b.deallocate(s, again, 64_MiB);
        CHECK(w.device.synchronize(s) == status::ok);
        b.trim(0);
        void* const q = a.allocate(s, 64_MiB); // from the shelf: b has written it last
        CHECK(w.device.read(q, 64_MiB).empty());
        a.deallocate(s, q, 64_MiB);
        CHECK(w.device.synchronize(s) == status::ok);
    }
}

TEST_CASE("a block that cannot move says why, and nothing has changed", "[tenancy][transfer]") {
    transfer_world w;
    tenant a(w.gpu, w.between, {.name = "a"}, fine);
    tenant small(w.gpu, w.between, {.name = "small", .max = 10_MiB}, fine);
    arena<remap_pool, sim_hub> mapped(w.gpu, w.between, {.name = "mapped"});
    void* const p = a.allocate(default_stream, 20_MiB);
    void* const part = a.allocate(default_stream, 1_MiB);
    const auto refused = [&](void* q, auto& to, move_refusal why) {
        const auto r = a.transfer(q, to);
        REQUIRE_FALSE(r);
        CAPTURE(to_string(r.error()), to_string(why));
        CHECK(r.error() == why);
        CHECK(a.limits().own == 22_MiB);
        CHECK(small.limits().own == 0);
        CHECK(w.gpu.limits().charged == 22_MiB);
        CHECK(a.owns(p));
        CHECK(a.validate());
    };
    refused(p, small, move_refusal::over_limit);
    CHECK(small.node().last_refusal()->path.view() == "gpu/small");
    refused(p, mapped, move_refusal::not_supported);
    refused(part, small, move_refusal::shares_memory);
    refused(static_cast<char*>(p) + 512, small, move_refusal::not_live);
    const stream_handle s = w.device.create_stream();
    a.record_use(p, s);
    refused(p, small, move_refusal::in_use);
    a.deallocate(default_stream, p, 20_MiB);
    a.deallocate(default_stream, part, 1_MiB);
}

TEST_CASE("a block moves between two trees of one device", "[tenancy][transfer]") {
    transfer_world w;
    arena_group other({.name = "other", .max = 30_MiB});
    tenant a(w.gpu, w.between, {.name = "a"}, fine);
    tenant b(other, w.between, {.name = "b"}, fine);
    void* const p = a.allocate(default_stream, 20_MiB);
    void* const q = a.allocate(default_stream, 20_MiB);
    CHECK(a.transfer(p, b));
    CHECK(other.limits().charged == 20_MiB);
    CHECK(w.gpu.limits().charged == 20_MiB);
    const auto r = a.transfer(q, b);
    REQUIRE_FALSE(r);
    CHECK(r.error() == move_refusal::over_limit);
    CHECK(b.release_all(default_stream) == 1);
    a.deallocate(default_stream, q, 20_MiB);
}

TEST_CASE("an arena gives nothing to itself", "[tenancy][transfer]") {
    transfer_world w;
    tenant a(w.gpu, w.between, {.name = "a"}, fine);
    void* const p = a.allocate(default_stream, 20_MiB);
    CHECK(a.transfer(p, a).error() == move_refusal::not_supported);
    CHECK(a.owns(p));
    CHECK(a.validate());
    CHECK(a.limits().own == 20_MiB);
    a.deallocate(default_stream, p, 20_MiB);
}

TEST_CASE("what the old owner had left around the block does not go along", "[tenancy][transfer]") {
    const scrub how = GENERATE(scrub::on_transfer, scrub::on_free, scrub::none);
    sim::device device{{.capacity = 1_GiB, .cost = sim::costs::zero()}};
    hub<sim::device> between(device, {.wipe = how});
    arena_group gpu({.name = "gpu", .max = 100_MiB});
    arena<buddy_pool, sim_hub> a(gpu, between, {.name = "a"}, fine);
    arena<buddy_pool, sim_hub> b(gpu, between, {.name = "b"}, fine);
    const stream_handle s = device.create_stream();
    void* const before = a.allocate(s, 64_MiB);
    device.block_allocated(before, 64_MiB, s);
    device.write(before, 64_MiB, 7);
    device.launch(s, std::chrono::milliseconds{5}); // may still write there
    device.block_freed(before, s);
    a.deallocate(s, before, 64_MiB);
    void* const p = a.allocate(s, 33_MiB + 100); // rounded up to all of the segment
    REQUIRE(p == before);
    device.block_allocated(p, 33_MiB + 100, s);
    device.write(p, 33_MiB + 100, 8);
    REQUIRE(a.transfer(p, b));
    CHECK(device.read(p, 33_MiB + 100) == std::set<std::uint64_t>{8});
    device.block_freed(p, s);
    b.deallocate(s, p, 33_MiB + 100);
    void* const all = b.allocate(s, 64_MiB);
    REQUIRE(all == p);
    if (how == scrub::none)
        CHECK(device.read(all, 64_MiB) == std::set<std::uint64_t>{7, 8}); // or the check could not see it
    else
        CHECK(device.read(all, 64_MiB) == std::set<std::uint64_t>{8});
    b.deallocate(s, all, 64_MiB);
    CHECK(device.violations() == std::vector<std::string>{});
}

TEST_CASE("where the rest of a segment cannot be wiped its block stays", "[tenancy][transfer]") {
    transfer_world w;
    arena<buddy_pool, sim_hub> a(w.gpu, w.between, {.name = "a"}, fine);
    arena<buddy_pool, sim_hub> b(w.gpu, w.between, {.name = "b"}, fine);
    void* const p = a.allocate(default_stream, 20_MiB);
    w.device.fail_call(sim::call::fill_zero, 1, status::failed);
    CHECK(a.transfer(p, b).error() == move_refusal::device);
    CHECK(a.owns(p));
    CHECK(a.limits().own == 32_MiB);
    CHECK(b.limits().own == 0);
    CHECK(a.validate());
    CHECK(b.validate());
    CHECK(a.transfer(p, b));
    b.deallocate(default_stream, p, 20_MiB);
}

TEST_CASE("a block at a stricter alignment than the device's moves with its whole segment",
          "[tenancy][transfer]") {
    transfer_world w;
    tenant a(w.gpu, w.between, {.name = "a"}, fine);
    tenant b(w.gpu, w.between, {.name = "b"}, fine);
    const stream_handle s = w.device.create_stream();
    void* const first =
        w.between.allocate(2_MiB).value(); // so that the next address is no multiple of 16 MiB
    void* const p = a.allocate(s, 32_MiB, 16_MiB);
    REQUIRE(a.limits().own == 48_MiB); // the device aligns less: the pool took more and chose a base in it
    w.device.write(p, 32_MiB, 1);
    REQUIRE(a.transfer(p, b));
    CHECK(b.limits().own == 48_MiB);
    w.device.write(p, 32_MiB, 2); // b's secret
    b.deallocate(s, p, 32_MiB, 16_MiB);
    CHECK(w.device.synchronize(s) == status::ok);
    b.trim(0);
    void* const again = a.allocate(s, 32_MiB, 16_MiB);
    CHECK(w.device.read(again, 32_MiB).empty());
    a.deallocate(s, again, 32_MiB, 16_MiB);
    CHECK(w.device.synchronize(s) == status::ok);
    a.trim(0);
    CHECK(w.between.deallocate(first, 2_MiB) == status::ok);
}
