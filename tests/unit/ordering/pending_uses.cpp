#include "support/catch.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/ordering/pending_uses.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

using namespace tenure;
using namespace std::chrono_literals;

namespace {

struct uses_world {
    using pending = pending_uses<sim::device>;

    sim::device device{{.cost = sim::costs::zero()}};
    event_cache<sim::device> events{device};
    pending uses{device, events};
    std::vector<layout::block_id> completed;
    std::vector<pending::free_outcome> outcomes;

    stream_handle stream() { return device.create_stream(); }
    void use(layout::block_id b, stream_handle s) {
        const stream_state state = *device.describe(s);
        uses.add(b, s, state.id, state.capturing());
    }
    bool poll() {
        return uses.poll([this](layout::block_id b, const pending::free_outcome& o) {
            completed.push_back(b);
            outcomes.push_back(o);
        });
    }
    bool synchronize() {
        return uses.synchronize([this](layout::block_id b, const pending::free_outcome& o) {
            completed.push_back(b);
            outcomes.push_back(o);
        });
    }
};

using ids = std::vector<layout::block_id>;

template <class World>
std::uint64_t calls(const World& w, sim::call kind) {
    return w.device.call_counts()[static_cast<std::size_t>(kind)];
}

} // namespace

TEST_CASE("a block is complete once, when the last of its streams has passed", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    const stream_handle b = w.stream();
    w.use(7, a);
    w.use(7, b);
    w.use(7, a); // the second time does nothing
    CHECK(w.uses.any(7));
    w.device.launch(a, 1ms);
    w.device.launch(b, 3ms);
    const auto outcome = w.uses.begin_free(7, 0);
    CHECK(outcome.pending);
    CHECK_FALSE(outcome.lost);
    CHECK(w.device.calls(sim::call::record) == 2);
    CHECK_FALSE(w.uses.any(7));
    w.device.launch(a, 1s); // later work does not matter
    CHECK_FALSE(w.poll());
    w.device.advance(2ms);
    CHECK_FALSE(w.poll());
    CHECK(w.uses.pending() == 1);
    w.device.advance(1ms);
    CHECK(w.poll());
    CHECK(w.completed == ids{7});
    CHECK_FALSE(w.poll());
    CHECK(w.uses.pending() == 0);
}

TEST_CASE("each stream with something unfinished is asked once a poll", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    w.device.launch(a, 1s);
    for (layout::block_id b = 0; b < 100; ++b) {
        w.use(b, a);
        REQUIRE(w.uses.begin_free(b, 0).pending);
    }
    const std::uint64_t before = w.device.calls(sim::call::query);
    CHECK_FALSE(w.poll());
    CHECK(w.device.calls(sim::call::query) == before + 1);
    w.device.advance(1s);
    CHECK(w.poll());
    CHECK(w.completed.size() == 100);
}

TEST_CASE("uses can be forgotten, all of them or one stream's", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    const stream_handle b = w.stream();
    const std::uint64_t id_a = w.device.describe(a)->id;
    w.use(3, a);
    w.use(3, b);
    w.uses.forget(3, id_a);
    w.uses.forget(3, id_a);
    CHECK(w.uses.any(3));
    REQUIRE(w.uses.begin_free(3, 0).pending);
    CHECK(w.device.calls(sim::call::record) == 1);
    CHECK(w.poll());
    w.use(3, a);
    w.uses.forget(3, id_a);
    CHECK_FALSE(w.uses.any(3));
    w.use(3, a);
    w.use(3, b);
    w.uses.forget(3);
    CHECK_FALSE(w.uses.any(3));
    w.uses.forget(1000);
    w.uses.forget(1000, id_a);
}

TEST_CASE("events outlive the streams they were recorded on", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    w.use(1, a);
    w.device.launch(a, 1ms);
    REQUIRE(w.uses.begin_free(1, 0).pending);
    w.device.destroy_stream(a);
    const stream_handle again = w.stream();
    CHECK(again == a); // the handle is another stream's now
    w.device.launch(again, 1s);
    w.device.advance(1ms);
    CHECK(w.poll());
    CHECK(w.device.violations() == std::vector<std::string>{});
}

TEST_CASE("a handle that names another stream by now is not waited for: the order is lost",
          "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    w.use(1, a);
    w.device.destroy_stream(a);
    REQUIRE(w.stream() == a);
    const auto outcome = w.uses.begin_free(1, 0);
    CHECK(outcome.lost);
    CHECK_FALSE(outcome.pending);
    CHECK(w.device.calls(sim::call::record) == 0);
}

TEST_CASE("a stream that is capturing is reported, not recorded on", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    const stream_handle b = w.stream();
    w.use(1, a);
    w.use(1, b);
    const std::uint64_t capture = w.device.begin_capture(a);
    w.device.launch(b, 1ms);
    const auto outcome = w.uses.begin_free(1, 0);
    CHECK(outcome.capture == capture);
    CHECK(outcome.pending);
    CHECK(w.device.calls(sim::call::record) == 1);
    w.device.advance(1ms);
    CHECK(w.poll());
    REQUIRE(w.outcomes.size() == 1);
    CHECK(w.outcomes[0].capture == capture);
    CHECK_FALSE(w.outcomes[0].lost);
    CHECK(w.device.end_capture(a));
}

TEST_CASE("a mark that the driver refuses is replaced by waiting; where that fails, the order is lost",
          "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    const stream_handle b = w.stream();
    w.device.launch(a, 1ms);
    w.use(1, a);
    w.device.fail_call(sim::call::record, 1, status::failed);
    auto outcome = w.uses.begin_free(1, 0);
    CHECK_FALSE(outcome.pending);
    CHECK_FALSE(outcome.lost);
    CHECK(w.device.now() >= 1ms);

    w.use(2, a);
    w.use(2, b);
    w.device.launch(a, 1ms);
    w.device.launch(b, 1ms);
    w.device.fail_call(sim::call::record, 1, status::failed);
    w.device.fail_call(sim::call::synchronize_stream, 1, status::failed);
    outcome = w.uses.begin_free(2, 0);
    CHECK(outcome.pending);
    w.device.advance(1s);
    CHECK(w.poll());
    REQUIRE(w.outcomes.size() == 1);
    CHECK(w.outcomes[0].lost);

    w.use(2, a); // the id is a new block's: nothing of the old one sticks to it
    REQUIRE(w.uses.begin_free(2, 0).pending);
    CHECK(w.poll());
    CHECK_FALSE(w.outcomes[1].lost);
}

TEST_CASE("a query that fails completes nothing, and the next one goes on", "[ordering][pending_uses]") {
    uses_world w;
    w.use(1, w.stream());
    REQUIRE(w.uses.begin_free(1, 0).pending);
    w.device.fail_call(sim::call::query, 1, status::failed);
    CHECK_FALSE(w.poll());
    CHECK(w.poll());
}

TEST_CASE("synchronize waits for what can be waited for", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    const stream_handle stuck = w.stream();
    w.device.launch(a, 1s);
    w.device.hold(stuck);
    w.use(1, a);
    w.use(2, stuck);
    REQUIRE(w.uses.begin_free(1, 0).pending);
    REQUIRE(w.uses.begin_free(2, 0).pending);
    CHECK(w.synchronize());
    CHECK(w.completed == ids{1});
    CHECK(w.uses.pending() == 1);
    w.device.finish(stuck);
    CHECK(w.synchronize());
    CHECK(w.completed == ids{1, 2});
}

TEST_CASE("events of blocks that still wait are destroyed with the rest", "[ordering][pending_uses]") {
    sim::device device;
    {
        event_cache<sim::device> events(device);
        pending_uses<sim::device> uses(device, events);
        const stream_handle s = device.create_stream();
        device.hold(s);
        uses.add(1, s, device.describe(s)->id);
        REQUIRE(uses.begin_free(1, 0).pending);
        uses.add(2, s, device.describe(s)->id);
    }
    CHECK(device.live_events() == 0);
}

TEST_CASE("a use named in a capture is waited for after it, too", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle a = w.stream();
    REQUIRE(w.device.begin_capture(a) != 0);
    w.use(1, a);
    w.use(1, a); // the second time does nothing
    REQUIRE(w.device.end_capture(a));
    w.device.launch(a, 1ms);
    const auto outcome = w.uses.begin_free(1, 0);
    CHECK(outcome.pending);
    CHECK_FALSE(outcome.lost);
    CHECK(outcome.capture == 0);
    CHECK(w.device.calls(sim::call::record) == 1);
    CHECK_FALSE(w.poll());
    w.device.advance(2ms);
    CHECK(w.poll());
    CHECK(w.completed == ids{1});
}

TEST_CASE("one question tells of all that a stream has passed", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle s = w.stream();
    for (layout::block_id b = 0; b < 20; ++b) {
        w.use(b, s);
        w.device.launch(s, 1ms);
        CHECK(w.uses.begin_free(b, 0).pending);
    }
    const auto queries = [&w] { return w.device.calls(sim::call::query); };
    auto before = queries();
    CHECK_FALSE(w.poll());
    CHECK(queries() - before == 1);
    w.device.advance(5ms);
    before = queries();
    CHECK(w.poll());
    CHECK(w.completed == ids{0, 1, 2, 3, 4});
    CHECK(queries() - before == 7); // the newest, five that have passed, and the first that has not
    w.device.advance(100ms);
    before = queries();
    CHECK(w.poll());
    CHECK(queries() - before == 2);
    CHECK(w.completed.size() == 20);
    CHECK(w.uses.pending() == 0);
}

TEST_CASE("a stream that keeps up is asked once a poll, whatever waits for it", "[ordering][pending_uses]") {
    uses_world w;
    const stream_handle s = w.stream();
    const auto free_three = [&](layout::block_id first) {
        for (layout::block_id b = first; b < first + 3; ++b) {
            w.use(b, s);
            w.device.launch(s, 1ms);
            CHECK(w.uses.begin_free(b, 0).pending);
        }
    };
    const auto queries_of_a_poll = [&w] {
        const auto before = w.device.calls(sim::call::query);
        (void)w.poll();
        return w.device.calls(sim::call::query) - before;
    };
    free_three(0);
    w.device.advance(3ms);
    CHECK(queries_of_a_poll() == 2); // the oldest, and the newest
    for (layout::block_id b = 3; b < 12; b += 3) {
        free_three(b);
        w.device.advance(3ms);
        CHECK(queries_of_a_poll() == 1);
        CHECK(w.uses.pending() == 0);
    }
    free_three(12);
    w.device.advance(2ms);
    CHECK(queries_of_a_poll() == 3); // the newest has not passed, the two before it have
    CHECK(w.uses.pending() == 1);
    w.device.advance(1ms);
    CHECK(queries_of_a_poll() == 1);
    CHECK(w.uses.pending() == 0);
    CHECK(w.completed.size() == 15);
}

TEST_CASE("a block is complete without a question once its stream stands behind those that used it",
          "[ordering][pending_uses][stream_waits]") {
    uses_world w;
    stream_waits& book = w.device.waits();
    const stream_handle owner = w.stream(), a = w.stream(), b = w.stream();
    const auto id = [&](stream_handle s) { return w.device.describe(s)->id; };
    const auto learn = [&] {
        return w.uses.learn([&](layout::block_id block, const auto&) { w.completed.push_back(block); });
    };
    book.ordered(id(a), id(owner)); // before the frees: says nothing about them
    w.device.launch(a, 1s);
    w.device.launch(b, 1s);
    w.use(1, a);
    w.use(1, b);
    w.use(2, a);
    REQUIRE(w.uses.begin_free(1, id(owner)).pending);
    REQUIRE(w.uses.begin_free(2, id(b)).pending); // goes back to another stream
    CHECK_FALSE(learn());
    book.ordered(id(a), id(owner));
    CHECK_FALSE(learn()); // b is still to come
    SECTION("told of the other stream as well") {
        book.ordered(id(b), id(owner));
        CHECK(learn());
        CHECK(w.completed == ids{1});
        book.ordered(id(a), id(b));
        CHECK(learn());
        CHECK(w.completed == ids{1, 2});
    }
    SECTION("the host has waited") {
        book.has_waited(book.about_to_wait_for_all());
        CHECK(learn());
        CHECK(w.completed == ids{2, 1});
    }
    CHECK(w.uses.pending() == 0);
    CHECK(calls(w, sim::call::query) == 0);
}
