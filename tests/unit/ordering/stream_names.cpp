#include "support/catch.hpp"

#include <tenure/device/sim_device.hpp>
#include <tenure/ordering/stream_names.hpp>

#include <cstdint>
#include <utility>
#include <vector>

using namespace tenure;

namespace {

struct names_world {
    sim::device device{{.cost = sim::costs::zero()}};
    stream_names names;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> renamed;

    std::uint64_t note(stream_handle s) {
        return names.note(s, *device.describe(s),
                          [this](std::uint64_t from, std::uint64_t to) { renamed.emplace_back(from, to); });
    }
};

using renames = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

} // namespace

TEST_CASE("a stream that was named before its capture keeps its identity in it", "[ordering][stream_names]") {
    names_world w;
    const stream_handle a = w.device.create_stream();
    const stream_handle b = w.device.create_stream();
    const std::uint64_t id_a = w.note(a);
    const std::uint64_t id_b = w.note(b);
    CHECK(id_a == w.device.describe(a)->id);
    CHECK(id_a != id_b);
    REQUIRE(w.device.begin_capture(a) != 0);
    REQUIRE(w.device.describe(a)->id != id_a);
    CHECK(w.note(a) == id_a);
    CHECK(w.note(b) == id_b);
    CHECK(w.note(a) == id_a);
    REQUIRE(w.device.end_capture(a));
    CHECK(w.note(a) == id_a);
    CHECK(w.renamed.empty());
}

TEST_CASE("a stream first met in a capture is renamed once it is known", "[ordering][stream_names]") {
    names_world w;
    const stream_handle a = w.device.create_stream();
    REQUIRE(w.device.begin_capture(a) != 0);
    const std::uint64_t made_up = w.note(a);
    CHECK(made_up == w.device.describe(a)->id);
    CHECK(w.note(a) == made_up);
    REQUIRE(w.device.end_capture(a));
    const std::uint64_t id = w.note(a);
    CHECK(id != made_up);
    CHECK(w.renamed == renames{{made_up, id}});
    CHECK(w.note(a) == id);
    CHECK(w.renamed.size() == 1);
}

TEST_CASE("a handle that names another stream by now gets its identity", "[ordering][stream_names]") {
    names_world w;
    const stream_handle a = w.device.create_stream();
    const std::uint64_t first = w.note(a);
    w.device.destroy_stream(a);
    REQUIRE(w.device.create_stream() == a);
    SECTION("at once outside of captures") {
        CHECK(w.note(a) != first);
        CHECK(w.note(a) == w.device.describe(a)->id);
    }
    SECTION("in a capture it is taken for the dead one until then") {
        REQUIRE(w.device.begin_capture(a) != 0);
        CHECK(w.note(a) == first);
        REQUIRE(w.device.end_capture(a));
        CHECK(w.note(a) == w.device.describe(a)->id);
    }
    CHECK(w.renamed.empty());
}

TEST_CASE("handles that stand for many streams are not remembered", "[ordering][stream_names]") {
    stream_names names;
    const auto shared = reinterpret_cast<stream_handle>(std::uintptr_t{2});
    const auto never = [](std::uint64_t, std::uint64_t) { FAIL("renamed"); };
    REQUIRE(is_shared_handle(shared));
    CHECK(names.note(shared, {7, 0}, never) == 7);
    CHECK(names.note(shared, {100, 9}, never) == 100);
    CHECK(names.note(shared, {101, 9}, never) == 101);
    CHECK(names.note(shared, {8, 0}, never) == 8);
    CHECK(names.note(default_stream, {1, 0}, never) == 1);
}
