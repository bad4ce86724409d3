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
