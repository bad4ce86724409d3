#include "support/catch.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/layout/best_fit.hpp>
#include <tenure/ordering/stream_order.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t whole_range = 64_MiB;
using order_type = stream_order<sim::device>;

/// A range of memory whose blocks are freed into lanes.
struct order_world {
    explicit order_world(std::size_t mark_bytes = no_limit, std::size_t bytes = whole_range)
        : order(device, events, mark_bytes) {
        blocks.add({1_GiB, bytes}, order_type::settled);
    }

    [[nodiscard]] order_type::lane_id lane(stream_handle s) { return order.lane_of(device.describe(s)->id); }

    /// Effects: a block that was taken from anywhere is freed on the lane.
    void free_on(order_type::lane_id l, std::size_t n) {
        const layout::domain any[] = {order_type::settled};
        const layout::block_id id = blocks.allocate(n, 512, any);
        REQUIRE(id != layout::no_block);
        blocks.deallocate(id, order.open(l));
        order.freed(l, n);
    }

    /// Returns: free bytes that the lane may use.
    [[nodiscard]] std::size_t usable(order_type::lane_id l) const {
        std::size_t n = 0;
        const auto list = order.usable(l);
        for (const layout::domain d : list.view()) n += blocks.free_bytes(d);
        return n;
    }

    sim::device device{{.cost = sim::costs::zero()}};
    event_cache<sim::device> events{device};
    order_type order;
    layout::best_fit blocks;
};

} // namespace

TEST_CASE("memory freed on a stream is its own until a mark has passed", "[ordering][stream_order]") {
    order_world w(1_MiB);
    const stream_handle s = w.device.create_stream();
    const stream_handle t = w.device.create_stream();
    const auto ls = w.lane(s);
    const auto lt = w.lane(t);
    CHECK(ls != lt);
    CHECK(w.lane(s) == ls);
    w.device.launch(s, 1ms);
    w.free_on(ls, 4_MiB);
    CHECK(w.usable(ls) == 64_MiB);
    CHECK(w.usable(lt) == 60_MiB);
    CHECK(w.usable(order_type::no_lane) == 60_MiB);
    CHECK(w.order.bytes_of_others(lt, w.blocks) == 4_MiB);
    CHECK(w.order.bytes_of_others(ls, w.blocks) == 0);
    w.order.mark_if_due(ls, s, w.blocks);
    CHECK(w.usable(ls) == 64_MiB); // marked, still its own
    CHECK_FALSE(w.order.poll(w.blocks));
    CHECK(w.usable(lt) == 60_MiB);
    w.device.advance(1ms);
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(lt) == 64_MiB);
    CHECK(w.blocks.validate());
}

TEST_CASE("no event is recorded before there is much, or somebody has asked", "[ordering][stream_order]") {
    order_world w(1_MiB);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.free_on(l, 512_KiB);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 0);
    CHECK_FALSE(w.order.ask_others(order_type::no_lane, w.blocks)); // nobody vouches for s here
    CHECK(w.device.calls(sim::call::record) == 0);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 1);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 1);
    w.free_on(l, 512_KiB);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 1);
    w.free_on(l, 512_KiB);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 2);
}

TEST_CASE("the default stream is marked when others ask, not before", "[ordering][stream_order]") {
    order_world w(1_MiB);
    const auto l = w.lane(default_stream);
    w.free_on(l, 32_MiB);
    w.order.mark_if_due(l, default_stream, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 0);
    CHECK_FALSE(w.order.ask_others(l, w.blocks));
    CHECK(w.order.ask_others(order_type::no_lane, w.blocks));
    CHECK(w.device.calls(sim::call::record) == 1);
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
}

TEST_CASE("a fifth mark joins the fourth, and settles no earlier than its event",
          "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    (void)w.lane(w.device.create_stream()); // somebody who might ask
    for (int i = 0; i < 6; ++i) {
        w.device.launch(s, 1ms);
        w.free_on(l, 1_MiB);
        w.order.mark_if_due(l, s, w.blocks);
    }
    CHECK(w.usable(l) == 64_MiB);
    for (int i = 1; i <= 6; ++i) {
        w.device.advance(1ms);
        w.order.poll(w.blocks);
        const std::size_t passed = i <= 3 ? static_cast<std::size_t>(i) : i < 6 ? 3 : 6;
        CHECK(w.usable(order_type::no_lane) == 58_MiB + passed * 1_MiB);
    }
    CHECK(w.blocks.validate());
}

TEST_CASE("a stream that keeps up is asked once a look, whatever its marks", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    (void)w.lane(w.device.create_stream()); // somebody who might ask
    const auto free_three = [&] {
        for (int i = 0; i < 3; ++i) {
            w.device.launch(s, 1ms);
            w.free_on(l, 1_MiB);
            w.order.mark_if_due(l, s, w.blocks);
        }
    };
    const auto queries_of_a_look = [&] {
        const auto before = w.device.calls(sim::call::query);
        (void)w.order.poll(w.blocks);
        return w.device.calls(sim::call::query) - before;
    };
    free_three();
    CHECK(queries_of_a_look() == 1); // the oldest has not passed
    w.device.advance(3ms);
    CHECK(queries_of_a_look() == 3); // one by one; all have
    for (int round = 0; round < 3; ++round) {
        free_three();
        w.device.advance(3ms);
        CHECK(queries_of_a_look() == 1); // the newest
        CHECK(w.usable(order_type::no_lane) == 64_MiB);
    }
    free_three();
    w.device.advance(2ms);
    CHECK(queries_of_a_look() == 3); // the newest has not passed, the two before it have
    CHECK(w.usable(order_type::no_lane) == 63_MiB);
    w.device.advance(1ms);
    CHECK(queries_of_a_look() == 1);
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
    CHECK(w.blocks.validate());
}

TEST_CASE("the only lane keeps what is marked in one piece", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.device.launch(s, 1ms);
    for (int i = 0; i < 3; ++i) {
        w.free_on(l, 1_MiB);
        w.order.mark_if_due(l, s, w.blocks);
        CHECK(w.order.usable(l).view().size() == 3); // open, one generation, settled
    }
    CHECK_FALSE(w.order.gather(l, s, w.blocks)); // nothing since the last mark
    w.free_on(l, 1_KiB);
    CHECK(w.order.gather(l, s, w.blocks));
    CHECK(w.blocks.free_bytes(w.order.open(l)) == 0);
    CHECK(w.usable(l) == 64_MiB);
    CHECK_FALSE(w.order.poll(w.blocks)); // the newest event counts
    w.device.advance(1ms);
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
    CHECK(w.blocks.validate());
}

TEST_CASE("a mark whose memory the lane has used again makes room for the next one",
          "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.device.hold(s);
    w.free_on(l, 1_MiB);
    w.order.mark_if_due(l, s, w.blocks);
    for (int i = 0; i < 10; ++i) {
        const auto usable = w.order.usable(l);
        const layout::block_id id = w.blocks.allocate(1_MiB, 512, usable.view().first(2)); // the lane's own
        REQUIRE(id != layout::no_block);
        w.blocks.deallocate(id, w.order.open(l));
        w.order.freed(l, 1_MiB);
        w.order.mark_if_due(l, s, w.blocks);
    }
    CHECK(w.device.live_events() <= 2);
}

TEST_CASE("the default stream is marked where others look for as much as it holds",
          "[ordering][stream_order]") {
    order_world w(1_MiB);
    const auto l = w.lane(default_stream);
    w.free_on(l, 8_MiB);
    w.order.mark_if_due(l, default_stream, w.blocks); // it is known to be permanent from here on
    w.order.mark_others(l, 8_MiB, w.blocks);          // itself: no
    w.order.mark_others(order_type::no_lane, 9_MiB, w.blocks);
    CHECK(w.device.calls(sim::call::record) == 0);
    w.order.mark_others(order_type::no_lane, 8_MiB, w.blocks);
    w.order.mark_others(order_type::no_lane, 8_MiB, w.blocks); // nothing since
    CHECK(w.device.calls(sim::call::record) == 1);
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
}

TEST_CASE("a driver that refuses to mark changes nothing, and is asked again", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.free_on(l, 1_MiB);
    for (const sim::call c : {sim::call::create_event, sim::call::record}) {
        w.device.fail_call(c, 1, status::failed);
        w.order.mark_if_due(l, s, w.blocks);
        CHECK(w.usable(l) == 64_MiB);
        CHECK_FALSE(w.order.poll(w.blocks));
    }
    w.order.mark_if_due(l, s, w.blocks);
    w.device.fail_call(sim::call::query, 1, status::failed);
    CHECK_FALSE(w.order.poll(w.blocks));
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
}

TEST_CASE("synchronize waits for marks, except those that never pass", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const stream_handle stuck = w.device.create_stream();
    w.device.launch(s, 1s);
    w.device.hold(stuck);
    for (const stream_handle x : {s, stuck}) {
        w.free_on(w.lane(x), 1_MiB);
        w.order.mark_if_due(w.lane(x), x, w.blocks);
    }
    CHECK(w.order.synchronize(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 63_MiB);
    CHECK_FALSE(w.order.synchronize(w.blocks));
    w.device.finish(stuck);
    CHECK(w.order.synchronize(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
}

TEST_CASE("a new stream with a dead one's handle inherits nothing", "[ordering][stream_order]") {
    order_world w;
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.device.launch(s, 1s);
    w.free_on(l, 1_MiB);
    w.device.destroy_stream(s);
    const stream_handle again = w.device.create_stream();
    REQUIRE(again == s);
    CHECK(w.lane(again) != l);
    CHECK(w.usable(w.lane(again)) == 63_MiB);
    CHECK(w.device.violations() == std::vector<std::string>{});
}

TEST_CASE("once all work has passed, everything is settled, what was lost too", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    w.device.launch(s, 1s);
    w.free_on(l, 1_MiB);
    w.order.mark_if_due(l, s, w.blocks);
    w.free_on(l, 1_MiB);
    w.free_on(order_type::no_lane, 1_MiB);
    CHECK(w.usable(order_type::no_lane) == 61_MiB);
    w.device.advance(1s);
    w.order.all_passed(w.blocks);
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
    CHECK(w.order.stream_of(order_type::settled) == 0);
    CHECK_FALSE(w.order.poll(w.blocks));
    CHECK(w.device.live_events() == 1); // back in the cache
    w.free_on(l, 1_MiB);                // the lane goes on
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.order.poll(w.blocks));
}

TEST_CASE("lanes are forgotten only by tidy, and only when they hold nothing", "[ordering][stream_order]") {
    order_world w;
    const auto full = w.order.lane_of(1000);
    w.free_on(full, 1_MiB);
    std::vector<order_type::lane_id> lanes;
    for (std::uint64_t id = 1; id <= 200; ++id) lanes.push_back(w.order.lane_of(id));
    for (std::uint64_t id = 1; id <= 200; ++id) CHECK(w.order.lane_of(id) == lanes[id - 1]);
    w.order.tidy(w.blocks);
    CHECK(w.order.lane_of(1000) == full);
    CHECK(w.usable(full) == 64_MiB);
    CHECK(w.order.stream_of(w.order.open(full)) == 1000);
}

TEST_CASE("when all domains are taken memory is lost, until tidy finds domains that are not used any more",
          "[ordering][stream_order]") {
    order_world w;
    std::uint64_t id = 0;
    while (w.order.lane_of(++id) != order_type::no_lane) {
        REQUIRE(id < 70'000);
        if (id % 2 == 0) w.free_on(w.order.lane_of(id), 512);
    }
    CHECK(w.order.open(order_type::no_lane) == order_type::lost);
    CHECK(w.order.lane_of(id) == order_type::no_lane);
    w.order.tidy(w.blocks);
    CHECK(w.order.lane_of(id) != order_type::no_lane);
    for (std::uint64_t full = 2; full < id; full += 2000)
        CHECK(w.order.stream_of(w.order.open(w.order.lane_of(full))) == full);
}

TEST_CASE("a mark that joins another needs no domain", "[ordering][stream_order]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream();
    const auto l = w.lane(s);
    (void)w.lane(w.device.create_stream());
    for (std::size_t i = 0; i < order_type::max_generations; ++i) {
        w.device.launch(s, 1ms);
        w.free_on(l, 1_MiB);
        w.order.mark_if_due(l, s, w.blocks);
    }
    for (std::uint64_t id = 1000; w.order.lane_of(id) != order_type::no_lane; ++id) REQUIRE(id < 70'000);
    w.free_on(l, 1_MiB);
    REQUIRE(w.blocks.free_bytes(w.order.open(l)) == 1_MiB);
    w.order.mark_if_due(l, s, w.blocks);
    CHECK(w.blocks.free_bytes(w.order.open(l)) == 0);
    w.device.advance(1s);
    CHECK(w.order.poll(w.blocks));
    CHECK(w.usable(order_type::no_lane) == 64_MiB);
}

TEST_CASE("what many lanes leave unmarked is bounded together", "[ordering][stream_order]") {
    order_world w(1_MiB);
    for (int i = 0; i < 2000; ++i) {
        w.order.tidy(w.blocks);
        const stream_handle s = w.device.create_stream();
        const auto l = w.lane(s);
        w.free_on(l, 16_KiB);
        w.order.mark_if_due(l, s, w.blocks);
        w.device.destroy_stream(s);
        w.order.poll(w.blocks);
    }
    // 2000 * 16 KiB = 31 MiB were freed; 1 MiB * (1 + ln 64) = 5.2 MiB
    CHECK(w.blocks.free_bytes() - w.usable(order_type::no_lane) <= 6_MiB);
}

namespace {

template <class World>
std::uint64_t calls(const World& w, sim::call kind) {
    return w.device.call_counts()[static_cast<std::size_t>(kind)];
}

/// Two streams and a book in which a word was said, so that frees count.
struct told_world : order_world {
    explicit told_world(std::size_t mark_bytes = no_limit) : order_world(mark_bytes) {
        device.waits().has_waited(device.waits().about_to_wait_for(id(s)));
        a = lane(s);
        b = lane(t);
    }

    [[nodiscard]] std::uint64_t id(stream_handle x) { return device.describe(x)->id; }
    void follow(stream_handle earlier, stream_handle later) {
        device.waits().ordered(id(earlier), id(later));
    }
    void free_in_call(order_type::lane_id l, stream_handle x, std::size_t n) {
        order.part_recorded(l, x, blocks);
        free_on(l, n);
    }
    /// Returns: free bytes of others than the settled ones that the lane may use.
    [[nodiscard]] std::size_t lent(order_type::lane_id l) {
        order.learn(l, blocks);
        return usable(l) - blocks.free_bytes(order_type::settled);
    }

    stream_handle s = device.create_stream(), t = device.create_stream();
    order_type::lane_id a = 0, b = 0;
};

} // namespace

TEST_CASE("a stream takes what another freed before a point that it stands behind, and no more",
          "[ordering][stream_order][stream_waits]") {
    told_world w;
    w.free_in_call(w.a, w.s, 1_MiB);
    CHECK(w.lent(w.b) == 0);
    w.follow(w.s, w.t);
    CHECK(w.lent(w.b) == 1_MiB);
    w.free_in_call(w.a, w.s, 2_MiB);
    CHECK(w.lent(w.b) == 1_MiB);
    CHECK(w.lent(w.a) == 3_MiB);
    w.follow(w.s, w.t);
    CHECK(w.lent(w.b) == 3_MiB);
    CHECK(calls(w, sim::call::query) == 0);
}

TEST_CASE(
    "what was freed before anything was said, or by a call that names no stream, is lent with what follows",
    "[ordering][stream_order][stream_waits]") {
    told_world w;
    w.free_in_call(w.a, w.s, 1_MiB);
    w.follow(w.s, w.t);
    w.free_on(w.a, 2_MiB); // no event may be recorded: all of it counts as freed now
    CHECK(w.lent(w.b) == 0);
    w.follow(w.s, w.t);
    CHECK(w.lent(w.b) == 3_MiB);
}

TEST_CASE("many points in a row keep the newest frees apart", "[ordering][stream_order][stream_waits]") {
    told_world w;
    std::size_t before = 0;
    for (int i = 0; i < 20; ++i) {
        w.free_in_call(w.a, w.s, 512);
        CHECK(w.lent(w.b) == before);
        w.follow(w.s, w.t);
        before += 512;
        CHECK(w.lent(w.b) == before);
    }
    CHECK(w.device.live_events() <= order_type::max_generations);
}

TEST_CASE("marks that were joined while there was one stream are as late as the newest of them",
          "[ordering][stream_order][stream_waits]") {
    order_world w(512);
    const stream_handle s = w.device.create_stream(), t = w.device.create_stream();
    const auto id = [&](stream_handle x) { return w.device.describe(x)->id; };
    stream_waits& book = w.device.waits();
    book.ordered(id(t), id(s));
    const auto a = w.lane(s);
    w.free_on(a, 1_KiB);
    w.order.mark_if_due(a, s, w.blocks);
    book.ordered(id(s), id(t));
    w.free_on(a, 2_KiB);
    w.order.mark_if_due(a, s, w.blocks);
    const auto b = w.lane(t);
    w.order.learn(b, w.blocks);
    CHECK(w.usable(b) == whole_range - 3_KiB);
    book.ordered(id(s), id(t));
    w.order.learn(b, w.blocks);
    CHECK(w.usable(b) == whole_range);
}

TEST_CASE("what the host has waited for is settled without a question",
          "[ordering][stream_order][stream_waits]") {
    told_world w(1_MiB);
    w.device.launch(w.s, 1s);
    w.free_in_call(w.a, w.s, 1_MiB);
    w.order.mark_if_due(w.a, w.s, w.blocks);
    w.free_on(w.a, 1_KiB);
    w.free_on(w.b, 2_KiB);
    const auto wait = w.device.waits().about_to_wait_for(w.id(w.s));
    w.free_on(w.a, 4_KiB); // after the host began to wait: with what is open
    w.device.waits().has_waited(wait);
    CHECK(w.order.learn(order_type::no_lane, w.blocks));
    CHECK(w.blocks.free_bytes(order_type::settled) == whole_range - 1_KiB - 2_KiB - 4_KiB);
    CHECK_FALSE(w.order.learn(order_type::no_lane, w.blocks));
    w.device.waits().has_waited(w.device.waits().about_to_wait_for_all());
    CHECK(w.order.learn(order_type::no_lane, w.blocks));
    CHECK(w.blocks.free_bytes(order_type::settled) == whole_range);
    CHECK(calls(w, sim::call::query) == 0);
}

TEST_CASE("a lane that took a forgotten one's place lends nothing by what was said of that",
          "[ordering][stream_order][stream_waits]") {
    told_world w;
    w.free_in_call(w.a, w.s, 1_MiB);
    w.follow(w.s, w.t);
    REQUIRE(w.lent(w.b) == 1_MiB);
    w.device.waits().has_waited(w.device.waits().about_to_wait_for_all());
    REQUIRE(w.lent(w.b) == 0); // settled: the lanes hold nothing
    std::vector<order_type::lane_id> fresh;
    for (int i = 0; i < 80; ++i) { // enough to sweep
        w.order.tidy(w.blocks);
        fresh.push_back(w.lane(w.device.create_stream()));
    }
    w.b = w.lane(w.t);
    for (const order_type::lane_id l : fresh)
        if (l != w.b) w.free_on(l, 512);
    CHECK(w.lent(w.b) == 0);
}

TEST_CASE("others that one stands behind are not asked for marks", "[ordering][stream_order][stream_waits]") {
    told_world w;
    const auto d = w.lane(default_stream);
    w.free_on(d, 1_MiB);
    w.follow(default_stream, w.t);
    CHECK(w.lent(w.b) == 1_MiB);
    w.order.mark_others(w.b, 512, w.blocks);
    CHECK_FALSE(w.order.ask_others(w.b, w.blocks));
    CHECK(calls(w, sim::call::record) == 0);
    CHECK(w.order.bytes_of_others(w.b, w.blocks) == 0);
    CHECK(w.order.bytes_of_others(w.a, w.blocks) == 1_MiB);
}
