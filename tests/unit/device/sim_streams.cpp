// The simulated device's streams, events and virtual time.

#include <tenure/device.hpp>

#include "support/catch.hpp"

#include <chrono>
#include <set>

using namespace std::chrono_literals;
using namespace tenure::literals;
using tenure::default_stream;
using tenure::status;
using tenure::sim::costs;

namespace {

struct world {
    tenure::sim::device d{{.capacity = 1_GiB, .cost = costs::zero()}};
    tenure::event_handle event() { return d.create_event().value(); }
    tenure::event_handle recorded(tenure::stream_handle s) {
        const auto e = event();
        REQUIRE(d.record(e, s) == status::ok);
        return e;
    }
};

} // namespace

TEST_CASE("sim streams: work takes virtual time", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.launch(s, 10us);
    const auto e = w.recorded(s);
    w.d.launch(s, 5us);
    const auto f = w.recorded(s);
    CHECK(w.d.query(e) == status::not_ready);
    w.d.advance(9999ns);
    CHECK(w.d.query(e) == status::not_ready);
    w.d.advance(1ns);
    CHECK(w.d.query(e) == status::ok);
    CHECK(w.d.query(f) == status::not_ready);
    CHECK(w.d.synchronize(f) == status::ok);
    CHECK(w.d.now() == 15us);
    CHECK(w.d.waited_time() == 5us);
    CHECK(w.d.driver_time() == 0us);
}

TEST_CASE("sim streams: an idle stream begins its work now", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.advance(100us);
    w.d.launch(s, 1us);
    CHECK(w.d.synchronize(s) == status::ok);
    CHECK(w.d.now() == 101us);
}

TEST_CASE("sim streams: an event marks the work before it, and is moved by recording again",
          "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    const auto e = w.event();
    CHECK(w.d.query(e) == status::ok); // never recorded
    CHECK(w.d.synchronize(e) == status::ok);
    CHECK(w.d.wait(s, e) == status::ok);
    w.d.launch(s, 1us);
    CHECK(w.d.query(e) == status::ok);
    REQUIRE(w.d.record(e, s) == status::ok);
    CHECK(w.d.query(e) == status::not_ready);
    w.d.advance(1us);
    CHECK(w.d.query(e) == status::ok);
    w.d.launch(s, 1us);
    CHECK(w.d.query(e) == status::ok);
    REQUIRE(w.d.record(e, s) == status::ok);
    CHECK(w.d.query(e) == status::not_ready);
}

TEST_CASE("sim streams: a wait delays later work of the other stream only", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    w.d.launch(a, 10us);
    const auto e = w.recorded(a);
    const auto before = w.recorded(b);
    REQUIRE(w.d.wait(b, e) == status::ok);
    w.d.launch(b, 1us);
    CHECK(w.d.query(before) == status::ok);
    CHECK(w.d.synchronize(b) == status::ok);
    CHECK(w.d.now() == 11us);
}

TEST_CASE("sim streams: the default stream waits for nobody", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.launch(s, 10us);
    CHECK(w.d.query(w.recorded(default_stream)) == status::ok);
    w.d.launch(default_stream, 1us);
    CHECK(w.d.synchronize(default_stream) == status::ok);
    CHECK(w.d.now() == 1us);
    CHECK(w.d.describe(default_stream)->id != 0);
    CHECK(w.d.permanent(default_stream));
    CHECK_FALSE(w.d.permanent(s));
    CHECK(w.d.total_calls() == 4); // `permanent`, and `describe` of a permanent stream, are none
}

TEST_CASE("sim streams: held work ends when told to, and all behind it then", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    w.d.launch(a, 5us);
    w.d.hold(a);
    w.d.launch(a, 2us);
    const auto e = w.recorded(a);
    REQUIRE(w.d.wait(b, e) == status::ok);
    w.d.launch(b, 3us);
    w.d.advance(1ms);
    CHECK(w.d.query(e) == status::not_ready);
    CHECK(w.d.synchronize(a) == status::would_deadlock);
    CHECK(w.d.synchronize(b) == status::would_deadlock);
    CHECK(w.d.synchronize(e) == status::would_deadlock);
    CHECK(w.d.now() == 1ms);
    w.d.finish(a);
    CHECK(w.d.query(e) == status::not_ready);
    CHECK(w.d.synchronize(b) == status::ok);
    CHECK(w.d.now() == 1ms + 5us);
    CHECK(w.d.query(e) == status::ok);
}

TEST_CASE("sim streams: held work that is finished early still waits its turn", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.launch(s, 100us);
    w.d.hold(s);
    w.d.finish(s);
    CHECK(w.d.synchronize(s) == status::ok);
    CHECK(w.d.now() == 100us);
}

TEST_CASE("sim streams: held work can be finished piece by piece, the oldest first", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.hold(s);
    const auto first = w.recorded(s);
    w.d.hold(s);
    const auto second = w.recorded(s);
    w.d.finish_oldest(s);
    CHECK(w.d.query(first) == status::ok);
    CHECK(w.d.query(second) == status::not_ready);
    CHECK(w.d.synchronize(s) == status::would_deadlock);
    w.d.hold(s);
    const auto third = w.recorded(s);
    w.d.finish_oldest(s);
    CHECK(w.d.query(second) == status::ok);
    CHECK(w.d.query(third) == status::not_ready);
    w.d.finish(s);
    CHECK(w.d.query(third) == status::ok);
    w.d.finish_oldest(s); // there is none
    CHECK(w.d.synchronize(s) == status::ok);
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim streams: a query of what has passed may cost more", "[device][sim]") {
    costs cost = costs::zero();
    cost.fixed[index(tenure::sim::call::query)] = 10ns;
    cost.passed = 5ns;
    tenure::sim::device d({.cost = cost});
    const auto s = d.create_stream();
    const auto e = d.create_event().value();
    d.hold(s);
    REQUIRE(d.record(e, s) == status::ok);
    CHECK(d.query(e) == status::not_ready);
    CHECK(d.driver_time() == 10ns);
    d.finish(s);
    CHECK(d.query(e) == status::ok);
    CHECK(d.driver_time() == 25ns);
    CHECK(d.destroy_event(e) == status::ok);
}

TEST_CASE("sim streams: freeing memory waits for the whole device", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    const auto p = w.d.allocate(2_MiB);
    REQUIRE(p);
    w.d.launch(s, 25ms);
    w.d.destroy_stream(s);
    REQUIRE(w.d.deallocate(*p, 2_MiB) == status::ok);
    CHECK(w.d.now() == 25ms);
}

TEST_CASE("sim streams: freeing memory under held work would hang", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    const auto p = w.d.allocate(2_MiB);
    REQUIRE(p);
    w.d.hold(s);
    CHECK(w.d.deallocate(*p, 2_MiB) == status::would_deadlock);
    CHECK(w.d.reserved() == 2_MiB);
    w.d.finish(s);
    CHECK(w.d.deallocate(*p, 2_MiB) == status::ok);
}

TEST_CASE("sim streams: handles are recycled at once, identities never", "[device][sim]") {
    world w;
    std::set<std::uint64_t> ids{w.d.describe(default_stream)->id};
    auto s = w.d.create_stream();
    for (int i = 0; i < 20; ++i) {
        CHECK(ids.insert(w.d.describe(s)->id).second);
        w.d.destroy_stream(s);
        const auto next = w.d.create_stream();
        CHECK(next == s);
        s = next;
    }
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim streams: a destroyed stream's work runs to its end", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    w.d.launch(s, 10us);
    w.d.hold(s);
    const auto e = w.recorded(s);
    w.d.destroy_stream(s);
    w.d.advance(1ms);
    CHECK(w.d.query(e) == status::not_ready);
    const auto next = w.d.create_stream();
    REQUIRE(next == s);
    CHECK(w.d.query(w.recorded(next)) == status::ok);
    w.d.finish(s);
    CHECK(w.d.query(e) == status::ok);
}

TEST_CASE("sim streams: a dead handle is invalid and a violation", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    const auto e = w.event();
    const auto pool = w.d.create_pool({});
    REQUIRE(pool);
    const auto p = w.d.allocate_from(*pool, 512, s);
    REQUIRE(p);
    w.d.destroy_stream(s);
    SECTION("describe") {
        CHECK(w.d.describe(s).error() == status::invalid_value);
    }
    SECTION("record") {
        CHECK(w.d.record(e, s) == status::invalid_value);
    }
    SECTION("wait") {
        CHECK(w.d.wait(s, e) == status::invalid_value);
    }
    SECTION("synchronize") {
        CHECK(w.d.synchronize(s) == status::invalid_value);
    }
    SECTION("allocate_from") {
        CHECK(w.d.allocate_from(*pool, 512, s).error() == status::invalid_value);
    }
    SECTION("deallocate_to") {
        CHECK(w.d.deallocate_to(*pool, *p, s) == status::invalid_value);
    }
    SECTION("launch") {
        w.d.launch(s, 1us);
    }
    SECTION("hold") {
        w.d.hold(s);
    }
    SECTION("destroy twice") {
        w.d.destroy_stream(s);
    }
    SECTION("destroy the default stream") {
        w.d.destroy_stream(default_stream);
    }
    CHECK(w.d.violations().size() == 1);
}

TEST_CASE("sim events: a destroyed event is invalid and a violation", "[device][sim]") {
    world w;
    const auto e = w.event();
    CHECK(w.d.live_events() == 1);
    REQUIRE(w.d.destroy_event(e) == status::ok);
    CHECK(w.d.live_events() == 0);
    CHECK(w.d.query(e) == status::invalid_value);
    CHECK(w.d.record(e, default_stream) == status::invalid_value);
    CHECK(w.d.destroy_event(e) == status::invalid_value);
    CHECK(w.d.synchronize(e) == status::invalid_value);
    CHECK(w.d.wait(default_stream, e) == status::invalid_value);
    CHECK(w.d.violations().size() == 5);
}

// --- captures ---

TEST_CASE("sim capture: a capture is described, does not run, and ends", "[device][sim]") {
    world w;
    const auto s = w.d.create_stream();
    const auto id = w.d.begin_capture(s);
    CHECK(id != 0);
    CHECK(w.d.describe(s)->capture == id);
    CHECK(w.d.describe(s)->capturing());
    w.d.launch(s, 1ms);
    CHECK(w.d.end_capture(s));
    CHECK_FALSE(w.d.describe(s)->capturing());
    CHECK(w.d.synchronize(s) == status::ok);
    CHECK(w.d.now() == 0us);
    const auto again = w.d.begin_capture(s);
    CHECK(again != id);
    CHECK(w.d.end_capture(s));
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim capture: a launched graph takes as long as what was captured", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const auto id = w.d.begin_capture(a);
    w.d.launch(a, 1ms);
    REQUIRE(w.d.wait(b, w.recorded(a)) == status::ok);
    w.d.launch(b, 5ms);
    w.d.launch(a, 1ms);
    REQUIRE(w.d.wait(a, w.recorded(b)) == status::ok);
    w.d.launch(a, 1ms);
    REQUIRE(w.d.end_capture(a));
    w.d.replay(id, b);
    CHECK(w.d.synchronize(b) == status::ok);
    CHECK(w.d.now() == 7ms);
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim capture: waiting for a captured event joins the capture", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const auto id = w.d.begin_capture(a);
    w.d.launch(a, 1us);
    REQUIRE(w.d.wait(b, w.recorded(a)) == status::ok);
    CHECK(w.d.describe(b)->capture == id);
    w.d.launch(b, 1us);
    SECTION("joined back") {
        REQUIRE(w.d.wait(a, w.recorded(b)) == status::ok);
        CHECK(w.d.end_capture(a));
    }
    SECTION("left dangling") {
        CHECK_FALSE(w.d.end_capture(a));
    }
    CHECK_FALSE(w.d.describe(b)->capturing());
}

TEST_CASE("sim capture: what other streams do does not disturb it", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const auto pool = w.d.create_pool({});
    REQUIRE(pool);
    REQUIRE(w.d.begin_capture(a, tenure::sim::capture_mode::global) != 0);
    CHECK(w.d.allocate(2_MiB));
    CHECK(w.d.memory());
    w.d.launch(b, 1us);
    const auto e = w.recorded(b);
    CHECK(w.d.query(e) == status::not_ready);
    CHECK(w.d.synchronize(e) == status::ok);
    CHECK(w.d.synchronize(b) == status::ok);
    const auto p = w.d.allocate_from(*pool, 512, b);
    REQUIRE(p);
    CHECK(w.d.deallocate_to(*pool, *p, b) == status::ok);
    CHECK(w.d.trim_pool(*pool, 0) == status::ok);
    CHECK(w.d.memory_of(*pool));
    CHECK(w.d.destroy_pool(*pool) == status::ok);
    CHECK(w.d.create_pool({}));
    CHECK(w.d.end_capture(a));
    CHECK(w.d.violations().empty());
}

TEST_CASE("sim capture: what is being captured can be neither asked nor waited for", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const auto outside = w.recorded(b);
    REQUIRE(w.d.begin_capture(a) != 0);
    const auto e = w.recorded(a);
    SECTION("query") {
        CHECK(w.d.query(e) == status::capture_violation);
    }
    SECTION("synchronize the event") {
        CHECK(w.d.synchronize(e) == status::capture_violation);
    }
    SECTION("synchronize the stream") {
        CHECK(w.d.synchronize(a) == status::capture_violation);
    }
    SECTION("wait for an event from outside") {
        CHECK(w.d.wait(a, outside) == status::capture_violation);
    }
    SECTION("make the default stream wait") {
        CHECK(w.d.wait(default_stream, e) == status::capture_violation);
    }
    CHECK(w.d.describe(a)->capturing());
    CHECK(w.d.record(e, a) == status::capture_violation); // an invalid capture takes nothing more
    CHECK_FALSE(w.d.end_capture(a));
    CHECK(w.d.record(e, a) == status::ok);
    CHECK(w.d.query(e) == status::ok);
}

TEST_CASE("sim capture: two captures cannot be joined", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    REQUIRE(w.d.begin_capture(a) != 0);
    REQUIRE(w.d.begin_capture(b) != 0);
    CHECK(w.d.wait(b, w.recorded(a)) == status::capture_violation);
    CHECK_FALSE(w.d.end_capture(a));
    CHECK_FALSE(w.d.end_capture(b));
}

TEST_CASE("sim capture: a free during captures waits for enqueued work and spoils none", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const auto c = w.d.create_stream();
    const auto p = w.d.allocate(2_MiB);
    REQUIRE(p);
    REQUIRE(w.d.begin_capture(a) != 0);
    REQUIRE(w.d.begin_capture(b) != 0);
    w.d.launch(a, 5ms); // captured: it does not run
    w.d.launch(c, 2ms);
    const auto start = w.d.now();
    CHECK(w.d.deallocate(*p, 2_MiB) == status::ok);
    CHECK(w.d.now() - start >= 2ms);
    CHECK(w.d.now() - start < 5ms);
    CHECK(w.d.reserved() == 0);
    CHECK(w.d.end_capture(a));
    CHECK(w.d.end_capture(b));
}

TEST_CASE("sim capture: an event of an ended capture stays captured until recorded again", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    REQUIRE(w.d.begin_capture(a) != 0);
    const auto e = w.recorded(a);
    REQUIRE(w.d.end_capture(a));
    CHECK(w.d.query(e) == status::capture_violation);
    CHECK(w.d.wait(a, e) == status::capture_violation);
    REQUIRE(w.d.record(e, a) == status::ok);
    CHECK(w.d.query(e) == status::ok);
}

TEST_CASE("sim capture: pools refuse capturing streams and leave the capture valid", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto pool = w.d.create_pool({});
    REQUIRE(pool);
    const auto p = w.d.allocate_from(*pool, 512, a);
    REQUIRE(p);
    REQUIRE(w.d.begin_capture(a) != 0);
    CHECK(w.d.allocate_from(*pool, 512, a).error() == status::capture_violation);
    CHECK(w.d.deallocate_to(*pool, *p, a) == status::capture_violation);
    CHECK(w.d.memory_of(*pool)->used == 512);
    CHECK(w.d.end_capture(a));
}

TEST_CASE("sim capture: mistakes of the program are violations", "[device][sim]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    SECTION("the default stream cannot be captured") {
        CHECK(w.d.begin_capture(default_stream) == 0);
    }
    SECTION("nor a stream twice") {
        REQUIRE(w.d.begin_capture(a) != 0);
        CHECK(w.d.begin_capture(a) == 0);
    }
    SECTION("nothing to end") {
        CHECK_FALSE(w.d.end_capture(a));
    }
    SECTION("ended where it did not begin") {
        REQUIRE(w.d.begin_capture(a) != 0);
        REQUIRE(w.d.wait(b, w.recorded(a)) == status::ok);
        CHECK_FALSE(w.d.end_capture(b));
    }
    SECTION("held work") {
        REQUIRE(w.d.begin_capture(a) != 0);
        w.d.hold(a);
    }
    SECTION("a stream destroyed while captured") {
        REQUIRE(w.d.begin_capture(a) != 0);
        w.d.destroy_stream(a);
    }
    SECTION("no graph to launch") {
        w.d.replay(99, a);
    }
    CHECK(w.d.violations().size() == 1);
}

TEST_CASE("sim capture: a capturing stream hides its identity", "[device][sim][capture]") {
    world w;
    const auto a = w.d.create_stream();
    const auto b = w.d.create_stream();
    const std::uint64_t own = w.d.describe(a)->id;
    REQUIRE(w.d.begin_capture(a) != 0);
    REQUIRE(w.d.begin_capture(b) != 0);
    const std::uint64_t made_up = w.d.describe(a)->id;
    CHECK(made_up != own);
    CHECK(made_up != w.d.describe(b)->id);
    CHECK(made_up == w.d.describe(a)->id);
    REQUIRE(w.d.end_capture(a));
    REQUIRE(w.d.end_capture(b));
    CHECK(w.d.describe(a)->id == own);
    // It is good for one capture: the handle gives it to whatever stream has it in the next.
    w.d.destroy_stream(a);
    REQUIRE(w.d.create_stream() == a);
    CHECK(w.d.describe(a)->id != own);
    REQUIRE(w.d.begin_capture(a) != 0);
    CHECK(w.d.describe(a)->id == made_up);
    REQUIRE(w.d.end_capture(a));
    CHECK(w.d.violations().empty());
}
