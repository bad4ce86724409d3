// What torch says of events and host waits, in the books of the devices; and what that makes of record_stream.

#include "told_waits.hpp"

#include "pool_ids.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"

#include <cstdint>
#include <thread>

using namespace tenure;
using namespace tenure::test;

namespace {

/// Torch on the simulated device: does what it is asked to, and tells, in torch's order.
struct telling_world : torch_world {
    using torch_world::torch_world;
    ~telling_world() { tenure::torch::host_wait_note<sim::device>::drop(); }

    void record(event_handle e, stream_handle s) {
        REQUIRE(gpu().record(e, s) == status::ok);
        ear.recorded(e, s);
    }
    void wait(stream_handle s, event_handle e) {
        REQUIRE(gpu().wait(s, e) == status::ok);
        ear.waited(s, e);
    }
    [[nodiscard]] event_handle event() {
        const event_handle e = *gpu().create_event();
        ear.fresh(e);
        return e;
    }
    [[nodiscard]] std::uint64_t id(stream_handle s) { return gpu().describe(s)->id; }
    [[nodiscard]] stream_waits& book() { return gpu().waits(); }
    /// Returns: whether `later` is known to stand behind what `earlier` held at `freed`.
    [[nodiscard]] bool behind(stream_handle later, stream_handle earlier, stream_waits::stamp freed) {
        return book().before(id(later), id(earlier)) > freed;
    }
    [[nodiscard]] bool has_passed(stream_handle s, stream_waits::stamp freed) {
        return book().passed(id(s)) > freed;
    }
    /// Effects: the book is in use.
    void first_word() { record(event(), gpu().create_stream()); }

    tenure::torch::told_waits<sim_world> ear{world, *a};
};

/// A block of the current stream's, freed while `side` uses it.
struct used_block {
    explicit used_block(telling_world& w) : main(w.gpu().create_stream()), side(w.gpu().create_stream()) {
        w.first_word();
        w.world.stream = main;
        c10::DataPtr d = w.a->allocate(4_MiB);
        w.gpu().hold(side);
        w.a->record_stream(d, side);
        d.clear();
    }
    stream_handle main, side;
};

} // namespace

TEST_CASE("a wait is told to the book of the current device", "[torch][waits]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle a = gpu.create_stream();
    const stream_handle b = gpu.create_stream();
    CHECK_FALSE(w.book().told());
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    const event_handle e = w.event();
    w.record(e, a);
    CHECK_FALSE(w.behind(b, a, freed));
    w.wait(b, e);
    CHECK(w.behind(b, a, freed));
    CHECK_FALSE(w.behind(a, b, freed));
    CHECK_FALSE(w.behind(b, a, w.book().freed())); // it came later
}

TEST_CASE("of an event that is destroyed nothing is known", "[torch][waits]") {
    telling_world w;
    const stream_handle a = w.gpu().create_stream();
    const stream_handle b = w.gpu().create_stream();
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    const event_handle e = w.event();
    w.record(e, a);
    w.ear.fresh(e);
    w.wait(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
}

TEST_CASE("an event recorded in a capture is not believed before it is another event",
          "[torch][waits][capture]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle a = gpu.create_stream();
    const stream_handle b = gpu.create_stream();
    const event_handle e = w.event();
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    w.record(e, a);
    REQUIRE(gpu.begin_capture(a) != 0);
    w.ear.recorded(e, a);
    w.ear.waited(a, e); // says nothing of a capturing stream
    (void)gpu.end_capture(a);
    w.ear.waited(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
    w.record(e, a); // a replay may record it again by now
    w.wait(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
    w.ear.fresh(e);
    w.record(e, a);
    w.wait(b, e);
    CHECK(w.behind(b, a, freed));
}

TEST_CASE("where a stream cannot be described nothing is said of it", "[torch][waits][fault]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle a = gpu.create_stream();
    const stream_handle b = gpu.create_stream();
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    const event_handle e = w.event();
    const event_handle other = w.event();
    w.record(e, a);
    gpu.fail_call(sim::call::describe, 1, status::failed);
    w.wait(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
    gpu.fail_call(sim::call::describe, 1, status::failed);
    w.record(e, a);
    w.wait(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
    w.record(other, a);
    w.wait(b, other);
    CHECK(w.behind(b, a, freed));
}

TEST_CASE("an event is known in one book only", "[torch][waits]") {
    telling_world w;
    w.a->init(2);
    sim::device& second = w.a->heap_of(1).upstream();
    const stream_handle a = w.gpu().create_stream();
    const stream_handle b = w.gpu().create_stream();
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    const event_handle e = w.event();
    w.record(e, a);
    w.world.device = 1;
    w.ear.recorded(e, second.create_stream());
    CHECK(second.waits().told());
    w.world.device = 0;
    w.ear.waited(b, e);
    CHECK_FALSE(w.behind(b, a, freed));
}

TEST_CASE("a device without a heap is not told, and gets none", "[torch][waits]") {
    telling_world w;
    w.a->init(2);
    const stream_handle s = w.gpu().create_stream();
    const event_handle e = w.event();
    w.world.device = 1;
    w.ear.recorded(e, s);
    w.ear.waited(s, e);
    w.ear.host_waits(s);
    w.ear.host_waits(e);
    w.ear.host_waits();
    CHECK(w.a->heap_if_any(1) == nullptr);
    CHECK_FALSE(w.book().told());
}

TEST_CASE("what the host waits for on a stream is known at the thread's next call", "[torch][waits]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    w.first_word();
    gpu.hold(side);
    const stream_waits::stamp freed = w.book().freed();
    w.ear.host_waits(side);
    CHECK_FALSE(w.has_passed(side, freed));
    SECTION("if it did wait") {
        gpu.finish(side);
        REQUIRE(gpu.synchronize(side) == status::ok);
        CHECK_FALSE(w.has_passed(side, freed));
        SECTION("an allocation") {
            w.look();
        }
        SECTION("a free") {
            w.world.stream = side;
            CHECK_THROWS_AS(w.a->raw_delete(&w), c10::Error);
        }
        SECTION("another wait") {
            w.ear.host_waits(gpu.create_stream());
        }
        CHECK(w.has_passed(side, freed));
    }
    SECTION("not if its call failed") {
        w.look();
        CHECK_FALSE(w.has_passed(side, freed));
        gpu.finish(side);
        w.look();
        CHECK_FALSE(w.has_passed(side, freed)); // it was asked once
    }
}

TEST_CASE("host waits for a stream cost what one event costs", "[torch][waits]") {
    telling_world w;
    const stream_handle side = w.gpu().create_stream();
    w.ear.host_waits(side); // nothing to be known
    CHECK(w.gpu().calls(sim::call::create_event) == 0);
    w.first_word();
    const auto made = w.gpu().calls(sim::call::create_event);
    for (int i = 0; i < 5; ++i) w.ear.host_waits(side);
    CHECK(w.gpu().calls(sim::call::create_event) == made + 1);
    REQUIRE(w.gpu().begin_capture(side) != 0);
    const auto recorded = w.gpu().calls(sim::call::record);
    w.ear.host_waits(side);
    CHECK(w.gpu().calls(sim::call::record) == recorded);
    CHECK(w.gpu().end_capture(side));
}

TEST_CASE("what the host waits for by event or device is known at once", "[torch][waits]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    w.first_word();
    const stream_waits::stamp freed = w.book().freed();
    const event_handle e = w.event();
    gpu.launch(side, sim::nanoseconds{1'000'000});
    w.record(e, side);
    const bool fails = GENERATE(false, true);
    const auto fail = [&](sim::call c) {
        if (fails) gpu.fail_call(c, 1, status::capture_violation);
    };
    SECTION("an event, whichever device is current") {
        w.a->init(2);
        w.world.device = GENERATE(0, 1);
        fail(sim::call::synchronize_event);
        w.ear.host_waits(e);
    }
    SECTION("the device") {
        fail(sim::call::synchronize_device);
        w.ear.host_waits();
    }
    CHECK(w.has_passed(side, freed) == !fails);
}

TEST_CASE("a block that another stream uses is free as soon as its own stream stands behind",
          "[torch][waits][streams]") {
    telling_world w;
    auto& gpu = w.gpu();
    const used_block b(w);
    w.look();
    CHECK(now(w.stats().active) == 1);
    const event_handle e = w.event();
    SECTION("which needs no question") {
        w.record(e, b.side);
        w.wait(b.main, e);
        const auto asked = gpu.calls(sim::call::query);
        w.look();
        CHECK(now(w.stats().active) == 0);
        CHECK(gpu.calls(sim::call::query) == asked);
    }
    SECTION("or when the host has seen it pass") {
        gpu.finish(b.side);
        w.ear.host_waits();
        const auto asked = gpu.calls(sim::call::query);
        w.look();
        CHECK(now(w.stats().active) == 0);
        CHECK(gpu.calls(sim::call::query) == asked);
    }
    SECTION("not if another stream does") {
        w.record(e, b.side);
        w.wait(gpu.create_stream(), e);
        w.look();
        CHECK(now(w.stats().active) == 1);
        gpu.finish(b.side);
        w.look();
        CHECK(now(w.stats().active) == 0);
    }
    SECTION("not if it is being captured by then") {
        w.record(e, b.side);
        w.wait(b.main, e);
        REQUIRE(gpu.begin_capture(b.main) != 0);
        w.world.stream = nullptr;
        w.look();
        CHECK(now(w.stats().active) == 1);
        CHECK(gpu.end_capture(b.main));
        gpu.finish(b.side);
        w.look();
        CHECK(now(w.stats().active) == 0);
    }
    CHECK(w.a->validate());
    gpu.finish(b.side);
    CHECK(gpu.violations().empty());
}

TEST_CASE("a word before the free says nothing about it", "[torch][waits][streams]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle main = gpu.create_stream();
    const stream_handle side = gpu.create_stream();
    const event_handle e = w.event();
    w.record(e, side);
    w.wait(main, e);
    w.world.stream = main;
    c10::DataPtr d = w.a->allocate(4_MiB);
    gpu.hold(side);
    w.a->record_stream(d, side);
    d.clear();
    w.wait(main, e);
    w.look();
    CHECK(now(w.stats().active) == 1);
    gpu.finish(side);
    w.look();
    CHECK(now(w.stats().active) == 0);
}

TEST_CASE("a block of a private pool waits until the work has passed", "[torch][waits][streams]") {
    telling_world w;
    auto& gpu = w.gpu();
    const stream_handle main = gpu.create_stream();
    const stream_handle side = gpu.create_stream();
    w.first_word();
    w.world.stream = main;
    w.a->beginAllocateToPool(0, user_pool, always);
    c10::DataPtr d = w.a->allocate(4_MiB);
    w.a->endAllocateToPool(0, user_pool);
    gpu.hold(side);
    w.a->record_stream(d, side);
    d.clear();
    const event_handle e = w.event();
    w.record(e, side);
    w.wait(main, e);
    w.look();
    CHECK(now(w.stats().active) == 1);
    gpu.finish(side);
    w.ear.host_waits();
    w.look();
    CHECK(now(w.stats().active) == 0);
    CHECK(w.a->validate());
}

TEST_CASE("a thread that has waited may free tensors when its own notes are gone", "[torch][waits]") {
    using note = tenure::torch::host_wait_note<sim::device>;
    sim::device device;
    struct older {
        ~older() {
            note::settle(); // a tensor that this thread kept
            stream_waits book;
            note::keep(*gpu, default_stream, book.about_to_wait_for(1));
            note::settle();
        }
        sim::device* gpu = nullptr;
    };
    std::thread([&] {
        thread_local older last;
        last.gpu = &device;
        stream_waits::enter();
        device.waits().ordered(1, 2);
        note::keep(device, default_stream, device.waits().about_to_wait_for(1));
    }).join();
    CHECK(device.live_events() == 0);
    CHECK(device.waits().passed(1) == 0);
}
