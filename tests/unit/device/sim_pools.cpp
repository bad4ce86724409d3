// The simulated device's driver pools.

#include <tenure/device.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <vector>

using namespace std::chrono_literals;
using namespace tenure::literals;
using tenure::status;
using tenure::to_address;
using tenure::sim::costs;

namespace {

struct world {
    tenure::sim::device d{{.capacity = 1_GiB, .cost = costs::zero()}};
    tenure::stream_handle a = d.create_stream();
    tenure::stream_handle b = d.create_stream();
    tenure::pool_handle make(tenure::pool_properties p = {}) { return d.create_pool(p).value(); }
    void order(tenure::stream_handle before, tenure::stream_handle after) {
        const auto e = d.create_event();
        REQUIRE(e);
        REQUIRE(d.record(*e, before) == status::ok);
        REQUIRE(d.wait(after, *e) == status::ok);
        REQUIRE(d.destroy_event(*e) == status::ok);
    }
    std::size_t reserved_by(tenure::pool_handle pool) { return d.memory_of(pool)->reserved; }
};

} // namespace

TEST_CASE("sim pools: memory comes in steps of 32 MiB", "[device][sim][pool]") {
    world w;
    const auto pool = w.make();
    CHECK(w.d.pool_step() == 32_MiB);
    CHECK(w.d.reserved() == 0);
    REQUIRE(w.d.allocate_from(pool, 1, w.a));
    CHECK(w.reserved_by(pool) == 32_MiB);
    CHECK(w.d.memory_of(pool)->used == 512);
    REQUIRE(w.d.allocate_from(pool, 33_MiB, w.a));
    CHECK(w.reserved_by(pool) == 96_MiB);
    CHECK(w.d.reserved() == 96_MiB);
    REQUIRE(w.d.allocate_from(pool, 31_MiB, w.a)); // fits in both, and in either nothing has to grow
    CHECK(w.reserved_by(pool) == 96_MiB);
}

TEST_CASE("sim pools: the limit is rounded up to the step", "[device][sim][pool]") {
    world w;
    SECTION("1 B gives 32 MiB") {
        const auto pool = w.make({.max_bytes = 1});
        CHECK(w.d.allocate_from(pool, 32_MiB, w.a));
        CHECK(w.d.allocate_from(pool, 1, w.a).error() == status::out_of_memory);
    }
    SECTION("33 MiB gives 64") {
        const auto pool = w.make({.max_bytes = 33_MiB});
        CHECK(w.d.allocate_from(pool, 64_MiB, w.a));
        CHECK(w.d.allocate_from(pool, 1, w.a).error() == status::out_of_memory);
    }
    SECTION("without a limit the device's capacity is one") {
        const auto pool = w.make();
        CHECK(w.d.allocate_from(pool, 1_GiB, w.a));
        CHECK(w.d.allocate_from(pool, 1, w.a).error() == status::out_of_memory);
        CHECK(w.d.allocate(1).error() == status::out_of_memory);
    }
}

TEST_CASE("sim pools: the same stream reuses at once", "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
    REQUIRE(p);
    w.d.launch(w.a, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    CHECK(w.d.memory_of(pool)->used == 0);
    const auto q = w.d.allocate_from(pool, 32_MiB, w.a);
    REQUIRE(q);
    CHECK(*q == *p);
}

TEST_CASE("sim pools: another stream reuses what it stands after, or what has passed",
          "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
    REQUIRE(p);
    w.d.launch(w.a, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    CHECK(w.d.allocate_from(pool, 1, w.b).error() == status::out_of_memory);
    SECTION("an event") {
        w.order(w.a, w.b);
    }
    SECTION("an event through a third stream") {
        const auto c = w.d.create_stream();
        w.order(w.a, c);
        w.order(c, w.b);
    }
    SECTION("time") {
        w.d.advance(1ms);
    }
    CHECK(w.d.allocate_from(pool, 32_MiB, w.b));
}

TEST_CASE("sim pools: an event from before the free orders nothing", "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
    REQUIRE(p);
    w.d.launch(w.a, 1ms);
    w.order(w.a, w.b);
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    CHECK(w.d.allocate_from(pool, 1, w.b).error() == status::out_of_memory);
}

TEST_CASE("sim pools: the rest of a block reused across streams is no more settled than the block",
          "[device][sim][pool]") {
    world w;
    const auto c = w.d.create_stream();
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 16_MiB, w.a);
    const auto q = w.d.allocate_from(pool, 16_MiB, w.a);
    REQUIRE((p && q));
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok); // passed at once: settled when asked for
    w.d.launch(w.a, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *q, w.a) == status::ok);
    w.order(w.a, w.b);
    REQUIRE(w.d.allocate_from(pool, 20_MiB, w.b)); // from both
    CHECK(w.d.allocate_from(pool, 1_MiB, c).error() == status::out_of_memory);
    CHECK(w.d.allocate_from(pool, 1_MiB, w.b));
}

TEST_CASE("sim pools: the smallest free block that fits is taken", "[device][sim][pool]") {
    world w;
    const auto pool = w.make();
    std::vector<void*> blocks;
    for (const std::size_t n : {4_MiB, 512_B, 1_MiB, 512_B, 2_MiB, 512_B})
        blocks.push_back(w.d.allocate_from(pool, n, w.a).value());
    for (const std::size_t i : {0u, 2u, 4u}) REQUIRE(w.d.deallocate_to(pool, blocks[i], w.a) == status::ok);
    CHECK(*w.d.allocate_from(pool, 1_MiB - 100, w.a) == blocks[2]);
    CHECK(*w.d.allocate_from(pool, 1_MiB + 1, w.a) == blocks[4]);
    CHECK(*w.d.allocate_from(pool, 3_MiB, w.a) == blocks[0]);
}

TEST_CASE("sim pools: a fragmented pool at its limit fails with free bytes", "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 128_MiB});
    std::vector<void*> blocks;
    for (int i = 0; i < 32; ++i) blocks.push_back(w.d.allocate_from(pool, 4_MiB, w.a).value());
    for (std::size_t i = 0; i < 32; i += 2) REQUIRE(w.d.deallocate_to(pool, blocks[i], w.a) == status::ok);
    REQUIRE(w.d.synchronize(w.a) == status::ok);
    const auto m = w.d.memory_of(pool);
    CHECK(m->reserved - m->used == 64_MiB);
    CHECK(w.d.allocate_from(pool, 8_MiB, w.a).error() == status::out_of_memory);
    CHECK(w.d.allocate_from(pool, 4_MiB, w.a));
}

TEST_CASE("sim pools: neighbours freed on different streams serve a stream that may use both",
          "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 16_MiB, w.a);
    const auto q = w.d.allocate_from(pool, 16_MiB, w.b);
    REQUIRE((p && q));
    w.d.launch(w.a, 1ms);
    w.d.launch(w.b, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    REQUIRE(w.d.deallocate_to(pool, *q, w.b) == status::ok);
    CHECK(w.d.allocate_from(pool, 32_MiB, w.b).error() == status::out_of_memory);
    w.order(w.a, w.b);
    CHECK(w.d.allocate_from(pool, 32_MiB, w.b));
}

TEST_CASE("sim pools: trimming gives back what the host has seen complete", "[device][sim][pool]") {
    world w;
    const auto pool = w.make();
    const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
    const auto q = w.d.allocate_from(pool, 32_MiB, w.a);
    const auto r = w.d.allocate_from(pool, 1_MiB, w.a);
    REQUIRE((p && q && r));
    w.d.launch(w.a, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    REQUIRE(w.d.deallocate_to(pool, *q, w.a) == status::ok);
    w.d.advance(1s); // over, but nobody has looked
    REQUIRE(w.d.trim_pool(pool, 0) == status::ok);
    CHECK(w.reserved_by(pool) == 96_MiB);
    REQUIRE(w.d.synchronize(w.a) == status::ok);
    CHECK(w.reserved_by(pool) == 96_MiB); // no release threshold
    REQUIRE(w.d.trim_pool(pool, 50_MiB) == status::ok);
    CHECK(w.reserved_by(pool) == 64_MiB);
    REQUIRE(w.d.trim_pool(pool, 0) == status::ok);
    CHECK(w.reserved_by(pool) == 32_MiB); // one block still lives there
    CHECK(w.d.reserved() == 32_MiB);
}

TEST_CASE("sim pools: a release threshold acts when the host synchronises", "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.release_threshold = 0});
    const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
    const auto e = w.d.create_event();
    REQUIRE((p && e));
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    REQUIRE(w.d.record(*e, w.a) == status::ok);
    CHECK(w.d.query(*e) == status::ok);
    CHECK(w.reserved_by(pool) == 32_MiB);
    SECTION("an event") {
        CHECK(w.d.synchronize(*e) == status::ok);
    }
    SECTION("a stream") {
        CHECK(w.d.synchronize(w.a) == status::ok);
    }
    SECTION("the device") {
        CHECK(w.d.deallocate(w.d.allocate(1).value(), 1) == status::ok);
    }
    CHECK(w.reserved_by(pool) == 0);
    CHECK(w.d.reserved() == 0);
}

TEST_CASE("sim pools: wrong pointers are invalid", "[device][sim][pool]") {
    world w;
    const auto pool = w.make();
    const auto other = w.make();
    const auto p = w.d.allocate_from(pool, 1_MiB, w.a);
    REQUIRE(p);
    CHECK(w.d.deallocate_to(pool, static_cast<char*>(*p) + 512, w.a) == status::invalid_value);
    CHECK(w.d.deallocate_to(other, *p, w.a) == status::invalid_value);
    CHECK(w.d.deallocate(*p, 1_MiB) == status::invalid_value);
    CHECK(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    CHECK(w.d.deallocate_to(pool, *p, w.a) == status::invalid_value);
    CHECK(w.d.deallocate_to(pool, nullptr, w.a) == status::ok);
    CHECK(*w.d.allocate_from(pool, 0, w.a) == nullptr);
    CHECK(w.d.memory_of(pool)->used == 0);
}

TEST_CASE("sim pools: a destroyed pool's memory goes with its last block", "[device][sim][pool]") {
    world w;
    const auto pool = w.make();
    const auto p = w.d.allocate_from(pool, 1_MiB, w.a);
    const auto q = w.d.allocate_from(pool, 1_MiB, w.a);
    REQUIRE((p && q));
    REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
    REQUIRE(w.d.destroy_pool(pool) == status::ok);
    CHECK(w.d.live_pools() == 0);
    CHECK(w.d.reserved() == 32_MiB);
    CHECK(w.d.memory_of(pool).error() == status::invalid_value);
    CHECK(w.d.allocate_from(pool, 1, w.a).error() == status::invalid_value);
    CHECK(w.d.destroy_pool(pool) == status::invalid_value);
    w.d.launch(w.a, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *q, w.a) == status::ok);
    CHECK(w.d.reserved() == 32_MiB);
    REQUIRE(w.d.synchronize(w.a) == status::ok);
    CHECK(w.d.reserved() == 0);
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim pools: a stream's handle says nothing about who freed", "[device][sim][pool]") {
    world w;
    const auto pool = w.make({.max_bytes = 32_MiB});
    const auto p = w.d.allocate_from(pool, 32_MiB, w.b);
    REQUIRE(p);
    w.d.launch(w.b, 1ms);
    REQUIRE(w.d.deallocate_to(pool, *p, w.b) == status::ok);
    w.d.destroy_stream(w.b);
    const auto c = w.d.create_stream();
    REQUIRE(c == w.b);
    CHECK(w.d.allocate_from(pool, 1, c).error() == status::out_of_memory);
    w.d.advance(1ms);
    CHECK(w.d.allocate_from(pool, 1, c));
}

TEST_CASE("sim pools: growing is what costs", "[device][sim][pool]") {
    tenure::sim::device d;
    const auto pool = d.create_pool({});
    REQUIRE(pool);
    auto before = d.driver_time();
    const auto p = d.allocate_from(*pool, 1_MiB, nullptr);
    REQUIRE(p);
    CHECK(d.driver_time() - before > tenure::sim::costs::h200().grow_pool(1_MiB));
    REQUIRE(d.deallocate_to(*pool, *p, nullptr) == status::ok);
    before = d.driver_time();
    REQUIRE(d.allocate_from(*pool, 1_MiB, nullptr));
    CHECK(d.driver_time() - before < 2us);
}

TEST_CASE("sim pools: memory changes streams only in the ways that were asked for", "[device][sim][pool]") {
    for (const bool follows : {false, true})
        for (const bool looks : {false, true}) {
            CAPTURE(follows, looks);
            world w;
            const auto pool =
                w.make({.max_bytes = 32_MiB, .reuse_follows_events = follows, .reuse_when_passed = looks});
            const auto p = w.d.allocate_from(pool, 32_MiB, w.a);
            const auto e = w.d.create_event();
            REQUIRE((p && e));
            w.d.launch(w.a, 1ms);
            REQUIRE(w.d.deallocate_to(pool, *p, w.a) == status::ok);
            REQUIRE(w.d.record(*e, w.a) == status::ok);
            CHECK_FALSE(w.d.allocate_from(pool, 32_MiB, w.b)); // neither ordered nor over
            SECTION("ordered, and not over") {
                REQUIRE(w.d.wait(w.b, *e) == status::ok);
                CHECK(w.d.allocate_from(pool, 32_MiB, w.b).has_value() == follows);
            }
            SECTION("over, and not ordered") {
                w.d.advance(2ms);
                CHECK(w.d.allocate_from(pool, 32_MiB, w.b).has_value() == looks);
            }
            SECTION("the same stream has it at once") {
                CHECK(w.d.allocate_from(pool, 32_MiB, w.a).has_value());
            }
        }
}

TEST_CASE("sim pools: a simulated device has no peers", "[device][sim][pool]") {
    world w;
    CHECK(w.d.create_pool({.peers = 2}).error() == status::not_supported);
}
