// The overlap check: it catches planted errors, each kind of them, and accepts what is rightly ordered.

#include <tenure/device.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <chrono>
#include <random>
#include <string>
#include <vector>

using namespace std::chrono_literals;
using namespace tenure::literals;
using tenure::default_stream;
using tenure::status;
using tenure::sim::costs;

namespace {

/// A device, two streams, and one segment with a block at its start that stream a has used and freed.
struct world {
    tenure::sim::device d{{.capacity = 1_GiB, .cost = costs::zero()}};
    tenure::stream_handle a = d.create_stream();
    tenure::stream_handle b = d.create_stream();
    char* segment = static_cast<char*>(d.allocate(8_MiB).value());

    tenure::event_handle recorded(tenure::stream_handle s) {
        const auto e = d.create_event().value();
        REQUIRE(d.record(e, s) == status::ok);
        return e;
    }
    void order(tenure::stream_handle before, tenure::stream_handle after) {
        REQUIRE(d.wait(after, recorded(before)) == status::ok);
    }
    void used_and_freed_on_a() {
        d.block_allocated(segment, 1_MiB, a);
        d.launch(a, 1ms);
        d.block_freed(segment, a);
    }
    void allocated_on(tenure::stream_handle s) { d.block_allocated(segment, 1_MiB, s); }
    std::size_t violations() const {
        const auto all = d.violations();
        for (const std::string& v : all) UNSCOPED_INFO(v);
        return all.size();
    }
};

} // namespace

// --- live blocks ---

TEST_CASE("sim overlap: two live blocks may not share a byte", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment + 1_MiB, 1_MiB, w.a);
    CHECK(w.violations() == 0);
    SECTION("the same place") {
        w.d.block_allocated(w.segment + 1_MiB, 1_MiB, w.a);
    }
    SECTION("its last byte") {
        w.d.block_allocated(w.segment + 2_MiB - 1, 512, w.a);
    }
    SECTION("its first byte") {
        w.d.block_allocated(w.segment, 1_MiB + 1, w.a);
    }
    SECTION("around it") {
        w.d.block_allocated(w.segment, 4_MiB, w.a);
    }
    SECTION("inside it") {
        w.d.block_allocated(w.segment + 1_MiB + 512, 512, w.a);
    }
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: neighbours share nothing", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment + 1_MiB, 1_MiB, w.a);
    w.d.block_allocated(w.segment, 1_MiB, w.b);
    w.d.block_allocated_sync(w.segment + 2_MiB, 1_MiB);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: blocks lie in device memory, and are freed once, at their start",
          "[device][sim][overlap]") {
    world w;
    SECTION("before it") {
        w.d.block_allocated(w.segment - 512, 1024, w.a);
    }
    SECTION("beyond its end") {
        w.d.block_allocated(w.segment + 8_MiB - 512, 1024, w.a);
    }
    SECTION("with a size that wraps") {
        w.d.block_allocated(w.segment, tenure::no_limit, w.a);
    }
    SECTION("never allocated") {
        w.d.block_freed(w.segment, w.a);
    }
    SECTION("freed twice") {
        w.used_and_freed_on_a();
        w.d.block_freed(w.segment, w.a);
    }
    SECTION("freed in the middle") {
        w.d.block_allocated(w.segment, 1_MiB, w.a);
        w.d.block_freed(w.segment + 512, w.a);
    }
    SECTION("used after its free") {
        w.used_and_freed_on_a();
        w.d.block_used(w.segment, w.a);
    }
    SECTION("allocated on a dead stream") {
        w.d.destroy_stream(w.b);
        w.allocated_on(w.b);
    }
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: null and empty blocks are nothing", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(nullptr, 512, w.a);
    w.d.block_allocated(w.segment, 0, w.a);
    w.d.block_freed(nullptr, w.a);
    w.d.block_freed_sync(nullptr);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: can be switched off", "[device][sim][overlap]") {
    tenure::sim::device d({.cost = costs::zero(), .check_overlap = false});
    d.block_freed(tenure::to_pointer(512), default_stream);
    CHECK(d.violations().empty());
}

// --- reuse ---

TEST_CASE("sim overlap: the same stream reuses at once", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    w.allocated_on(w.a);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: another stream without an order is caught", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    SECTION("at once") {}
    SECTION("even when the work has passed by luck") {
        w.d.advance(1s);
    }
    SECTION("even when somebody else has been ordered") {
        w.order(w.a, w.d.create_stream());
    }
    SECTION("even with an order the other way") {
        w.order(w.b, w.a);
    }
    SECTION("even after an unsuccessful query") {
        CHECK(w.d.query(w.recorded(w.a)) == status::not_ready);
    }
    SECTION("even after an unsuccessful wait of the host") {
        w.d.hold(w.a);
        CHECK(w.d.synchronize(w.a) == status::would_deadlock);
    }
    w.allocated_on(w.b);
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: every byte counts", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    SECTION("its last") {
        w.d.block_allocated(w.segment + 1_MiB - 1, 512, w.b);
    }
    SECTION("a part") {
        w.d.block_allocated(w.segment + 512, 512, w.b);
    }
    SECTION("more than it") {
        w.d.block_allocated(w.segment, 2_MiB, w.b);
    }
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: what is left of a freed block stays bound", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    w.d.block_allocated(w.segment + 512, 512, w.a);
    w.d.block_allocated(w.segment, 512, w.b);
    CHECK(w.violations() == 1);
    w.d.block_allocated(w.segment + 1024, 512, w.b);
    CHECK(w.violations() == 2);
}

TEST_CASE("sim overlap: an order of any kind is accepted", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    SECTION("an event that the stream waits for") {
        w.order(w.a, w.b);
    }
    SECTION("events by way of a third stream") {
        const auto c = w.d.create_stream();
        w.order(w.a, c);
        w.d.launch(c, 1ms);
        w.order(c, w.b);
    }
    SECTION("a query that said ok") {
        const auto e = w.recorded(w.a);
        w.d.advance(1ms);
        REQUIRE(w.d.query(e) == status::ok);
    }
    SECTION("a later query of another stream that stands after") {
        w.order(w.a, default_stream);
        const auto e = w.recorded(default_stream);
        w.d.advance(1ms);
        REQUIRE(w.d.query(e) == status::ok);
    }
    SECTION("the host waited for an event") {
        REQUIRE(w.d.synchronize(w.recorded(w.a)) == status::ok);
    }
    SECTION("the host waited for the stream") {
        REQUIRE(w.d.synchronize(w.a) == status::ok);
    }
    SECTION("the host waited for the device") {
        REQUIRE(w.d.deallocate(w.d.allocate(1).value(), 1) == status::ok);
    }
    w.allocated_on(w.b);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: an event from before the last use orders nothing", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    SECTION("waited for") {
        w.order(w.a, w.b);
        w.d.launch(w.a, 1ms);
    }
    SECTION("queried") {
        const auto e = w.recorded(w.a);
        w.d.launch(w.a, 1ms);
        REQUIRE(w.d.query(e) == status::ok);
    }
    SECTION("even when nothing was launched: the free is a use") {
        const auto e = w.recorded(w.a);
        REQUIRE(w.d.query(e) == status::ok);
    }
    w.d.block_freed(w.segment, w.a);
    w.allocated_on(w.b);
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: an event recorded again stands for the later record only for later waits",
          "[device][sim][overlap]") {
    world w;
    const auto e = w.recorded(w.a);
    REQUIRE(w.d.wait(w.b, e) == status::ok);
    w.used_and_freed_on_a();
    REQUIRE(w.d.record(e, w.a) == status::ok);
    SECTION("the wait came before") {
        w.allocated_on(w.b);
        CHECK(w.violations() == 1);
    }
    SECTION("the wait comes after") {
        REQUIRE(w.d.wait(w.b, e) == status::ok);
        w.allocated_on(w.b);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: an order passes through owners in between", "[device][sim][overlap]") {
    world w;
    const auto c = w.d.create_stream();
    w.used_and_freed_on_a();
    w.order(w.a, w.b);
    w.allocated_on(w.b);
    w.d.block_freed(w.segment, w.b);
    w.order(w.b, c);
    w.allocated_on(c);
    CHECK(w.violations() == 0);
}

// --- record_use ---

TEST_CASE("sim overlap: reuse before the work on another stream has passed is caught",
          "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    w.order(w.a, w.b);
    w.d.block_used(w.segment, w.b);
    w.d.launch(w.b, 1ms);
    w.d.block_freed(w.segment, w.a);
    SECTION("the block's own stream has no right of its own then") {
        w.allocated_on(w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("nor has the using stream, while the block's own runs on") {
        w.allocated_on(w.b);
        CHECK(w.violations() == 1);
    }
    SECTION("an event of the using stream sets it right") {
        w.order(w.b, w.a);
        w.allocated_on(w.a);
        CHECK(w.violations() == 0);
    }
    SECTION("a third stream needs both") {
        const auto c = w.d.create_stream();
        w.order(w.b, c);
        w.allocated_on(c);
        CHECK(w.violations() == 1);
    }
    SECTION("and may have both") {
        const auto c = w.d.create_stream();
        w.order(w.b, c);
        w.order(w.a, c);
        w.allocated_on(c);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: all that the using stream holds at the free counts", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    w.d.block_used(w.segment, w.b);
    const auto early = w.recorded(w.b);
    w.d.launch(w.b, 1ms);
    w.d.block_freed(w.segment, w.a);
    SECTION("an event from between is too early") {
        REQUIRE(w.d.wait(w.a, early) == status::ok);
        w.allocated_on(w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("work enqueued after the free does not count") {
        const auto late = w.recorded(w.b);
        w.d.launch(w.b, 1s);
        REQUIRE(w.d.synchronize(late) == status::ok);
        CHECK(w.d.now() == 1ms);
        w.allocated_on(w.a);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: a free on another stream leaves the own stream's last use behind",
          "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    SECTION("ordered by the program, as it must be") {
        w.order(w.a, w.b);
        w.d.launch(w.a, 1ms); // has nothing to do with the block
        w.d.block_freed(w.segment, w.b);
        w.allocated_on(w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("not ordered by anybody") {
        w.d.block_freed(w.segment, w.b);
        w.allocated_on(w.b);
        CHECK(w.violations() == 1);
    }
}

TEST_CASE("sim overlap: a wait that leaves held work out has not seen it", "[device][sim][overlap]") {
    world w;
    const auto c = w.d.create_stream();
    const auto free_something = [&] { REQUIRE(w.d.deallocate(w.d.allocate(1).value(), 1) == status::ok); };
    w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.b);
    w.d.block_freed(w.segment + 2_MiB, w.b); // before the hold
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    w.d.hold(w.b, false);
    w.d.block_used(w.segment, w.b);
    const auto e = w.recorded(w.b);
    w.d.block_freed(w.segment, w.a);
    SECTION("on the stream itself") {}
    SECTION("on a stream that stands after") {
        w.d.block_allocated(w.segment + 4_MiB, 1_MiB, c);
        REQUIRE(w.d.wait(c, e) == status::ok);
        w.d.block_freed(w.segment + 4_MiB, c);
        free_something();
        w.d.block_allocated(w.segment + 4_MiB, 1_MiB, default_stream);
        CHECK(w.violations() == 1);
        w.d.finish(w.b);
        free_something();
        w.d.block_allocated(w.segment, 1_MiB, w.a);
        CHECK(w.violations() == 1);
        return;
    }
    SECTION("on a stream that was destroyed since") {
        w.d.destroy_stream(w.b);
    }
    free_something();
    w.d.block_allocated(w.segment + 2_MiB, 1_MiB, c);
    CHECK(w.violations() == 0);
    w.allocated_on(w.a);
    CHECK(w.violations() == 1);
    w.d.block_freed(w.segment, w.a);
    w.d.finish(w.b);
    REQUIRE(w.d.synchronize(e) == status::ok);
    free_something();
    w.allocated_on(c);
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: such a wait has seen what came before the held work that is left",
          "[device][sim][overlap]") {
    world w;
    const auto free_something = [&] { REQUIRE(w.d.deallocate(w.d.allocate(1).value(), 1) == status::ok); };
    w.d.hold(w.b, false);
    w.d.block_allocated(w.segment, 1_MiB, w.b);
    w.d.block_freed(w.segment, w.b);
    w.d.hold(w.b, false);
    w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.b);
    w.d.block_freed(w.segment + 2_MiB, w.b);
    SECTION("nothing while the first is held") {
        free_something();
        w.d.block_allocated(w.segment, 1_MiB, w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("what lies before the second") {
        w.d.finish_oldest(w.b);
        free_something();
        w.d.block_allocated(w.segment, 1_MiB, w.a);
        CHECK(w.violations() == 0);
        w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.a);
        CHECK(w.violations() == 1);
    }
}

// --- host order ---

TEST_CASE("sim overlap: a block for every stream needs the host to have seen", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    SECTION("which it has not") {
        w.d.advance(1s);
        w.d.block_allocated_sync(w.segment, 1_MiB);
        CHECK(w.violations() == 1);
    }
    SECTION("which it has") {
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        w.d.block_allocated_sync(w.segment, 1_MiB);
        w.d.block_used(w.segment, w.b);
        CHECK(w.violations() == 0);
        w.d.block_freed(w.segment, w.a);
        w.allocated_on(w.a);
        CHECK(w.violations() == 1); // the use on b
    }
}

TEST_CASE("sim overlap: a free by the host promises that all is over", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    SECTION("which is caught when untrue") {
        w.d.block_freed_sync(w.segment);
        CHECK(w.violations() == 1);
    }
    SECTION("and lets every stream have the bytes when true") {
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        w.d.block_freed_sync(w.segment);
        w.allocated_on(w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("also for uses on other streams") {
        w.d.block_used(w.segment, w.b);
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        w.d.block_freed_sync(w.segment);
        CHECK(w.violations() == 1);
    }
}

// --- stream handles ---

TEST_CASE("sim overlap: a recycled handle is not the same stream", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    w.d.destroy_stream(w.a);
    const auto next = w.d.create_stream();
    REQUIRE(next == w.a);
    SECTION("taken for the same") {
        w.allocated_on(next);
        CHECK(w.violations() == 1);
    }
    SECTION("rightly waited for") {
        w.d.advance(1ms);
        REQUIRE(w.d.deallocate(w.d.allocate(1).value(), 1) == status::ok);
        w.allocated_on(next);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: an event outlives its stream", "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    const auto e = w.recorded(w.a);
    w.d.destroy_stream(w.a);
    REQUIRE(w.d.synchronize(e) == status::ok);
    w.allocated_on(w.b);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: a block freed after its stream was destroyed is bound to what is known",
          "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 1_MiB, w.a);
    w.d.launch(w.a, 1ms);
    const auto e = w.recorded(w.a);
    w.d.destroy_stream(w.a);
    SECTION("under the dead handle") {
        w.d.block_freed(w.segment, w.a);
    }
    SECTION("under the recycled handle") {
        const auto next = w.d.create_stream();
        REQUIRE(next == w.a);
        w.d.block_freed(w.segment, next);
        REQUIRE(w.d.synchronize(next) == status::ok);
    }
    SECTION("by the host, wrongly") {
        w.d.block_freed_sync(w.segment);
        CHECK(w.violations() == 1);
        return;
    }
    CHECK(w.violations() == 0);
    w.allocated_on(w.b);
    CHECK(w.violations() == 1);
    w.d.block_freed(w.segment, w.b);
    REQUIRE(w.d.synchronize(e) == status::ok);
    w.allocated_on(w.b);
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: thousands of short-lived streams are forgotten, their work is not",
          "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment, 512, w.a);
    w.d.block_freed(w.segment, w.a);
    w.d.destroy_stream(w.a);
    for (int i = 0; i < 20'000; ++i) {
        const auto s = w.d.create_stream();
        w.d.block_allocated(w.segment + 1_MiB + 512 * (i % 100), 512, s);
        w.d.launch(s, 1us);
        w.order(s, w.b);
        w.d.block_freed(w.segment + 1_MiB + 512 * (i % 100), s);
        w.d.block_allocated(w.segment + 2_MiB, 512, s);
        w.d.block_freed(w.segment + 2_MiB, s);
        if (i % 100 == 99) REQUIRE(w.d.synchronize(s) == status::ok);
        w.d.destroy_stream(s);
    }
    // Nobody ordered these streams, so nearly every reuse was a violation ...
    CHECK(w.d.violations().size() > 1000);
    // ... and the very first stream's block is still known.
    const auto last = [&] { return w.d.violations().back(); };
    const auto before = last();
    w.d.block_allocated(w.segment, 512, w.b);
    CHECK(last() != before);
}

// --- memory given back ---

TEST_CASE("sim overlap: memory under a live block may not be freed", "[device][sim][overlap]") {
    world w;
    w.d.block_allocated(w.segment + 4_MiB, 1_MiB, w.a);
    REQUIRE(w.d.deallocate(w.segment, 8_MiB) == status::ok);
    CHECK(w.violations() == 1);
}

TEST_CASE("sim overlap: freeing a segment under finished blocks is right, it waits",
          "[device][sim][overlap]") {
    world w;
    w.used_and_freed_on_a();
    REQUIRE(w.d.deallocate(w.segment, 8_MiB) == status::ok);
    CHECK(w.d.now() == 1ms);
    char* const again = static_cast<char*>(w.d.allocate(8_MiB).value());
    REQUIRE(again == w.segment);
    w.allocated_on(w.b);
    CHECK(w.violations() == 0);
}

TEST_CASE("sim overlap: a driver pool takes a block back only from its real end",
          "[device][sim][overlap][pool]") {
    world w;
    const auto pool = w.d.create_pool({.release_threshold = 0}).value();
    void* const p = w.d.allocate_from(pool, 1_MiB, w.a).value();
    w.d.block_allocated(p, 1_MiB, w.a);
    w.d.block_used(p, w.b);
    w.d.hold(w.b);
    SECTION("freed while another stream uses it") {
        w.d.block_freed(p, w.a);
        REQUIRE(w.d.deallocate_to(pool, p, w.a) == status::ok);
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        CHECK(w.violations() == 1);
    }
    SECTION("freed after that stream") {
        w.order(w.b, w.a);
        w.d.block_freed(p, w.a);
        REQUIRE(w.d.deallocate_to(pool, p, w.a) == status::ok);
        w.d.finish(w.b);
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        CHECK(w.d.reserved() == 8_MiB);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: what a driver pool hands to another stream is ordered",
          "[device][sim][overlap][pool]") {
    world w;
    const auto pool = w.d.create_pool({.max_bytes = 1}).value();
    void* const p = w.d.allocate_from(pool, 32_MiB, w.a).value();
    w.d.block_allocated(p, 32_MiB, w.a);
    w.d.launch(w.a, 1ms);
    w.d.block_freed(p, w.a);
    REQUIRE(w.d.deallocate_to(pool, p, w.a) == status::ok);
    w.d.advance(1ms); // the driver sees it, the program does not
    void* const q = w.d.allocate_from(pool, 16_MiB, w.b).value();
    w.d.block_allocated(q, 16_MiB, w.b);
    CHECK(w.violations() == 0);
}

// --- mapped memory ---

namespace {

struct mapped_world : world {
    char* window = static_cast<char*>(d.reserve_address(64_MiB, 0).value());
    tenure::memory_handle h = d.create_memory(4_MiB).value();
    void show(char* at) {
        REQUIRE(d.map(at, h) == status::ok);
        REQUIRE(d.set_access(at, 4_MiB) == status::ok);
    }
};

} // namespace

TEST_CASE("sim overlap: bytes are compared where they really are", "[device][sim][overlap][vmm]") {
    mapped_world w;
    w.show(w.window);
    w.show(w.window + 8_MiB);
    w.d.block_allocated(w.window + 1_MiB, 1_MiB, w.a);
    SECTION("the same bytes at another address") {
        w.d.block_allocated(w.window + 8_MiB + 512_KiB, 1_MiB, w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("other bytes at another address") {
        w.d.block_allocated(w.window + 8_MiB, 1_MiB, w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("freed bytes at another address, unordered") {
        w.d.block_freed(w.window + 1_MiB, w.a);
        w.d.block_allocated(w.window + 9_MiB, 1_MiB, w.b);
        CHECK(w.violations() == 1);
    }
    SECTION("freed bytes at another address, ordered") {
        w.d.block_freed(w.window + 1_MiB, w.a);
        w.order(w.a, w.b);
        w.d.block_allocated(w.window + 9_MiB, 1_MiB, w.b);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: a block may span mappings in any order, all of them accessible",
          "[device][sim][overlap][vmm]") {
    mapped_world w;
    const auto g = w.d.create_memory(2_MiB).value();
    REQUIRE(w.d.map(w.window + 4_MiB, g) == status::ok);
    w.show(w.window);
    w.d.block_allocated(w.window, 6_MiB, w.a);
    CHECK(w.violations() == 1); // no access behind the first handle
    REQUIRE(w.d.set_access(w.window + 4_MiB, 2_MiB) == status::ok);
    w.d.block_allocated(w.window, 6_MiB, w.a);
    CHECK(w.violations() == 1);
    REQUIRE(w.d.map(w.window + 16_MiB, g) == status::ok);
    REQUIRE(w.d.set_access(w.window + 16_MiB, 2_MiB) == status::ok);
    w.d.block_allocated(w.window + 16_MiB, 512, w.a);
    CHECK(w.violations() == 2); // the second handle's bytes are taken
}

TEST_CASE("sim overlap: nothing may be unmapped in use", "[device][sim][overlap][vmm]") {
    mapped_world w;
    w.show(w.window);
    w.d.block_allocated(w.window, 1_MiB, w.a);
    w.d.launch(w.a, 1ms);
    SECTION("a live block") {
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.violations() == 1);
    }
    SECTION("a free block under running work") {
        w.d.block_freed(w.window, w.a);
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.violations() == 1);
    }
    SECTION("under work that has passed by luck") {
        w.d.block_freed(w.window, w.a);
        w.d.advance(1s);
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.violations() == 1);
    }
    SECTION("a free block whose bytes have gone on to another address, and its work has not passed") {
        w.d.block_freed(w.window, w.a);
        w.show(w.window + 8_MiB);
        w.d.block_allocated(w.window + 8_MiB, 1_MiB, w.a);
        CHECK(w.violations() == 0);
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.violations() == 1);
    }
    SECTION("after the host has seen the end") {
        w.d.block_freed(w.window, w.a);
        w.show(w.window + 8_MiB);
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        w.d.block_allocated(w.window + 8_MiB, 1_MiB, w.b);
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        CHECK(w.violations() == 0);
    }
}

TEST_CASE("sim overlap: moving memory behind a new address keeps its past", "[device][sim][overlap][vmm]") {
    mapped_world w;
    w.show(w.window);
    w.d.block_allocated(w.window, 4_MiB, w.a);
    w.d.block_freed(w.window, w.a);
    SECTION("seen by the host: for everybody") {
        REQUIRE(w.d.synchronize(w.a) == status::ok);
        REQUIRE(w.d.unmap(w.window, 4_MiB) == status::ok);
        w.show(w.window + 32_MiB);
        w.d.block_allocated(w.window + 32_MiB, 4_MiB, w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("not seen: the new address is bound as the old was") {
        w.show(w.window + 32_MiB);
        w.d.block_allocated(w.window + 32_MiB, 4_MiB, w.b);
        CHECK(w.violations() == 1);
    }
}

// --- captures ---

TEST_CASE("sim overlap: branches of a capture are streams of their own", "[device][sim][overlap][capture]") {
    world w;
    REQUIRE(w.d.begin_capture(w.a) != 0);
    w.order(w.a, w.b);
    w.used_and_freed_on_a();
    SECTION("unordered branches") {
        w.allocated_on(w.b);
        CHECK(w.violations() == 1);
    }
    SECTION("ordered branches") {
        w.order(w.a, w.b);
        w.allocated_on(w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("the same branch") {
        w.allocated_on(w.a);
        CHECK(w.violations() == 0);
    }
    SECTION("a stream outside") {
        w.allocated_on(default_stream);
        CHECK(w.violations() == 1);
    }
}

TEST_CASE("sim overlap: a graph may run while its memory is its own", "[device][sim][overlap][capture]") {
    world w;
    w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.a); // an input, used by the graph
    const auto graph = w.d.begin_capture(w.a);
    w.d.block_used(w.segment + 2_MiB, w.a);
    w.used_and_freed_on_a();
    REQUIRE(w.d.end_capture(w.a));
    SECTION("again and again, anywhere") {
        w.d.replay(graph, w.a);
        w.d.replay(graph, w.a);
        w.order(w.a, w.b);
        w.d.replay(graph, w.b);
        CHECK(w.violations() == 0);
    }
    SECTION("its freed bytes belong to another block now") {
        w.allocated_on(w.b);
        CHECK(w.violations() == 0);
        w.d.replay(graph, w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("its freed bytes were lent, and are still being used") {
        w.d.block_allocated(w.segment, 1_MiB, w.b);
        w.d.block_freed(w.segment, w.b);
        w.d.replay(graph, w.a);
        CHECK(w.violations() == 1);
        w.d.replay(graph, w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("its input's bytes belong to another block now") {
        w.d.block_freed(w.segment + 2_MiB, w.a);
        w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.a);
        w.d.replay(graph, w.a);
        CHECK(w.violations() == 1);
    }
    SECTION("its memory has been given back") {
        w.d.block_freed(w.segment + 2_MiB, w.a);
        REQUIRE(w.d.deallocate(w.segment, 8_MiB) == status::ok);
        w.d.replay(graph, w.a);
        CHECK(w.violations() == 2); // both blocks
    }
    SECTION("what it used is in use until it has passed") {
        w.d.replay(graph, w.a);
        w.allocated_on(w.b);
        CHECK(w.violations() == 1);
    }
    SECTION("so is its input") {
        w.d.replay(
            graph,
            w.b); // a's earlier work is not ordered before, which is the program's own affair: it lives
        w.d.block_freed(w.segment + 2_MiB, w.a);
        const std::size_t before = w.violations();
        w.d.block_allocated(w.segment + 2_MiB, 1_MiB, w.a);
        CHECK(w.violations() == before + 1);
    }
}

TEST_CASE("sim overlap: a capture that became no graph binds nothing", "[device][sim][overlap][capture]") {
    world w;
    const auto id = w.d.begin_capture(w.a);
    w.used_and_freed_on_a();
    CHECK(w.d.synchronize(w.a) == status::capture_violation);
    CHECK_FALSE(w.d.end_capture(w.a));
    w.allocated_on(w.b);
    CHECK(w.violations() == 0);
    w.d.replay(id, w.a);
    CHECK(w.violations() == 1); // there is nothing to launch
}

// --- many ---

TEST_CASE("sim overlap: agrees with a plain oracle on random programs", "[device][sim][overlap]") {
    // The oracle keeps full vector clocks for a few streams and slots, with none of the pruning.
    constexpr std::size_t streams = 4, slots = 6;
    std::mt19937_64 rng(tenure::test::seed());
    CAPTURE(tenure::test::seed());
    const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(rng() % n); };
    std::size_t caught = 0, clean = 0;
    for (int program = 0; program < 200; ++program) {
        CAPTURE(program);
        world w;
        using clock = std::vector<std::size_t>; // position on each stream
        struct slot {
            bool live = false;
            std::size_t owner = 0;
            clock used = clock(streams, 0); // last use, 0: none
            clock ends = clock(streams, 0);
        };
        std::vector<tenure::stream_handle> handle;
        for (std::size_t s = 0; s < streams; ++s) handle.push_back(w.d.create_stream());
        std::vector<clock> of(streams, clock(streams, 0));
        clock host(streams, 0), marked(streams, 0);
        std::vector<slot> slot_at(slots);
        const auto e = w.recorded(handle[0]);
        const auto join = [](clock& a, const clock& b) {
            for (std::size_t i = 0; i < streams; ++i) a[i] = std::max(a[i], b[i]);
        };
        const auto work = [&](std::size_t s) {
            join(of[s], host);
            return ++of[s][s];
        };
        for (int step = 0; step < 60; ++step) {
            const std::size_t s = pick(streams), k = pick(slots);
            slot& x = slot_at[k];
            char* const p = w.segment + k * 1_MiB;
            const std::size_t before = w.d.violations().size();
            bool wrong = false;
            switch (pick(7)) {
            case 0:
                if (x.live) break;
                join(of[s], host);
                for (std::size_t t = 0; t < streams; ++t) wrong = wrong || of[s][t] < x.ends[t];
                x = {true, s, clock(streams, 0), clock(streams, 0)};
                x.used[s] = work(s);
                w.d.block_allocated(p, 1_MiB, handle[s]);
                break;
            case 1:
                if (!x.live) break;
                x.used[s] = work(s);
                w.d.block_used(p, handle[s]);
                break;
            case 2:
                if (!x.live) break;
                work(s);
                for (std::size_t t = 0; t < streams; ++t) {
                    if (x.used[t] != 0 || t == s) x.ends[t] = t == x.owner && t != s ? x.used[t] : of[t][t];
                }
                x.live = false;
                w.d.block_freed(p, handle[s]);
                break;
            case 3:
                join(of[s], host);
                marked = of[s];
                REQUIRE(w.d.record(e, handle[s]) == status::ok);
                break;
            case 4:
                join(of[s], marked);
                REQUIRE(w.d.wait(handle[s], e) == status::ok);
                break;
            case 5:
                join(host, marked);
                REQUIRE(w.d.synchronize(e) == status::ok);
                break;
            default:
                work(s);
                w.d.launch(handle[s], 1us);
                break;
            }
            CAPTURE(step);
            const bool found = w.d.violations().size() != before;
            REQUIRE(found == wrong);
            wrong ? ++caught : ++clean;
        }
    }
    CHECK(caught > 100);
    CHECK(clean > 1000);
}
