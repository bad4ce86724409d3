#include "support/catch.hpp"

#include <tenure/device/stream_waits.hpp>

#include <cstdint>
#include <thread>

using namespace tenure;

namespace {

event_handle event(std::uintptr_t n) {
    return reinterpret_cast<event_handle>(n);
}

template <class F>
void on_another_thread(F&& f) {
    std::thread(std::forward<F>(f)).join();
}

/// A book in which a word was said, so that frees count.
struct opened_book : stream_waits {
    opened_book() {
        enter();
        forget(event(99));
        recorded(event(99), 99);
        forget(event(99));
    }
};

} // namespace

TEST_CASE("frees have no stamp before the first word", "[device][stream_waits]") {
    stream_waits book;
    CHECK(!book.told());
    CHECK(book.changes() == 0);
    CHECK(book.freed() == stream_waits::never);
    book.recorded(event(1), 1);
    CHECK(book.told());
    CHECK(book.changes() != 0);
    CHECK(book.freed() < stream_waits::never);
}

TEST_CASE("a stream stands behind what was freed before the record that it waits for",
          "[device][stream_waits]") {
    opened_book book;
    const auto before = book.freed();
    book.recorded(event(1), 1);
    const auto after = book.freed();
    CHECK(book.before(2, 1) == 0);
    book.waited(2, event(1));
    CHECK(book.before(2, 1) > before);
    CHECK(book.before(2, 1) <= after);
    CHECK(book.before(1, 2) == 0);
    CHECK(book.before(3, 1) == 0);
    CHECK(book.recorded_up_to(1) > before);
    CHECK(book.recorded_up_to(1) <= after);
    CHECK(book.recorded_up_to(2) == 0);
}

TEST_CASE("who stands behind a stream stands behind what that one stood behind", "[device][stream_waits]") {
    opened_book book;
    const auto first = book.freed();
    book.ordered(1, 2);
    const auto second = book.freed();
    book.recorded(event(1), 2);
    book.ordered(1, 2); // learned after the record
    const auto third = book.freed();
    book.waited(3, event(1));
    CHECK(book.before(3, 1) > first);
    CHECK(book.before(3, 1) <= second);
    CHECK(book.before(3, 2) > second);
    CHECK(book.before(3, 2) <= third);
}

TEST_CASE("an event stands for its last record, and for nothing once it is forgotten",
          "[device][stream_waits]") {
    opened_book book;
    book.recorded(event(1), 1);
    const auto between = book.freed();
    book.recorded(event(1), 1);
    book.waited(2, event(1));
    CHECK(book.before(2, 1) > between);
    book.recorded(event(1), 4);
    book.waited(3, event(1));
    CHECK(book.before(3, 1) == 0);
    book.forget(event(1));
    book.waited(5, event(1));
    CHECK(book.before(5, 4) == 0);
}

TEST_CASE("a record comes after no free that its thread did not know of", "[device][stream_waits]") {
    opened_book book;
    const auto mine = book.freed();
    stream_waits::stamp theirs = 0;
    on_another_thread([&] { theirs = book.freed(); }); // on the same stream, perhaps after the record
    book.recorded(event(1), 1);
    book.waited(2, event(1));
    CHECK(book.before(2, 1) > mine);
    CHECK(book.before(2, 1) <= theirs);
    stream_waits::enter();
    book.recorded(event(1), 1);
    book.waited(2, event(1));
    CHECK(book.before(2, 1) > theirs);
}

TEST_CASE("a record comes after no wait that its thread did not know of", "[device][stream_waits]") {
    opened_book book;
    const auto free = book.freed();
    book.recorded(event(1), 1);
    on_another_thread([&] { // perhaps after the record on 2
        stream_waits::enter();
        book.waited(2, event(1));
    });
    book.recorded(event(2), 2);
    book.waited(3, event(2));
    CHECK(book.before(2, 1) > free);
    CHECK(book.before(3, 1) == 0);
    book.recorded(event(2), 2);
    book.waited(3, event(2));
    CHECK(book.before(3, 1) > free);
}

TEST_CASE("an event that another thread may have recorded again since the wait is not believed",
          "[device][stream_waits]") {
    opened_book book;
    const auto first = book.freed();
    book.recorded(event(1), 1);
    // This thread makes stream 3 wait for the event. Before it says so:
    stream_waits::stamp second = 0;
    on_another_thread([&] {
        second = book.freed();
        book.recorded(event(1), 1);
    });
    book.waited(3, event(1));
    book.has_waited(book.about_to_wait(event(2)));
    CHECK(book.before(3, 1) == 0);
    book.waited(3, event(1)); // it knows of the second record now
    CHECK(book.before(3, 1) > second);
    CHECK(second > first);
}

TEST_CASE("a thread that never called before a record knows of no free", "[device][stream_waits]") {
    opened_book book;
    (void)book.freed();
    on_another_thread([&] { book.recorded(event(1), 1); });
    stream_waits::enter();
    book.waited(2, event(1));
    CHECK(book.before(2, 1) == 0);
}

TEST_CASE("the host has seen pass what was freed before it began to wait", "[device][stream_waits]") {
    opened_book book;
    SECTION("a stream") {
        const auto before = book.freed();
        const auto wait = book.about_to_wait_for(1);
        const auto after = book.freed();
        CHECK(book.passed(1) == 0);
        book.has_waited(wait);
        CHECK(book.passed(1) > before);
        CHECK(book.passed(1) <= after);
        CHECK(book.passed(2) == 0);
    }
    SECTION("an event, and what its stream stood behind") {
        const auto other = book.freed();
        book.ordered(2, 1);
        const auto before = book.freed();
        book.recorded(event(1), 1);
        const auto after = book.freed();
        const auto wait = book.about_to_wait(event(1));
        book.recorded(event(1), 3); // does not change what was waited for
        book.has_waited(wait);
        CHECK(book.passed(1) > before);
        CHECK(book.passed(1) <= after);
        CHECK(book.passed(2) > other);
        CHECK(book.passed(2) <= before);
        CHECK(book.passed(3) == 0);
    }
    SECTION("the device, streams among them that nothing was said of") {
        const auto before = book.freed();
        const auto wait = book.about_to_wait_for_all();
        const auto after = book.freed();
        book.has_waited(wait);
        for (const std::uint64_t s : {1u, 2u, 77u}) {
            CHECK(book.passed(s) > before);
            CHECK(book.passed(s) <= after);
        }
    }
    SECTION("an event that nothing is known of") {
        book.has_waited(book.about_to_wait(event(7)));
        CHECK(book.passed(1) == 0);
    }
}

TEST_CASE("a full book loses what it knew and goes on", "[device][stream_waits]") {
    opened_book book;
    SECTION("streams") {
        const auto free = book.freed();
        book.ordered(1, 2);
        for (std::uint64_t s = 1000; s < 1000 + 2048; ++s) book.ordered(s, s + 1);
        CHECK(book.before(2, 1) == 0);
        const auto later = book.freed();
        book.ordered(1, 2);
        CHECK(book.before(2, 1) > later);
        CHECK(free < later);
    }
    SECTION("events") {
        (void)book.freed();
        book.recorded(event(1), 1);
        for (std::uintptr_t e = 1000; e < 1000 + 70'000; ++e) book.recorded(event(e), 2);
        book.waited(3, event(1));
        CHECK(book.before(3, 1) == 0);
        const auto later = book.freed();
        book.recorded(event(1), 1);
        book.waited(3, event(1));
        CHECK(book.before(3, 1) > later);
    }
}
