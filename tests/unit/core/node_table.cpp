#include "support/catch.hpp"

#include <tenure/core/node_table.hpp>

#include <cstdint>
#include <new>
#include <set>

using namespace tenure;

namespace {
struct item {
    std::uint32_t value = 7;
    std::uint64_t more = 9;
};
} // namespace

TEST_CASE("node_table numbers nodes densely and reuses the last one first", "[core][node_table]") {
    node_table<item> t;
    CHECK(t.size() == 0);
    const node_index a = t.create(), b = t.create(), c = t.create();
    CHECK(std::set<node_index>{a, b, c} == std::set<node_index>{0, 1, 2});
    t.destroy(a);
    t.destroy(c);
    CHECK(t.size() == 1);
    CHECK(t.create() == c);
    CHECK(t.create() == a);
    CHECK(t.create() == 3);
    CHECK(t.extent() == 4);
    CHECK(t.validate());
}

TEST_CASE("a node has its default values, also the second time", "[core][node_table]") {
    node_table<item> t;
    const node_index a = t.create();
    t[a] = {1, 2};
    t.destroy(a);
    const node_index again = t.create();
    CHECK(again == a);
    CHECK(t[again].value == 7);
    CHECK(t[again].more == 9);
}

TEST_CASE("node_table keeps indices and contents when it grows", "[core][node_table]") {
    node_table<item> t;
    for (std::uint32_t i = 0; i < 1000; ++i) t[t.create()].value = i;
    for (std::uint32_t i = 0; i < 1000; ++i) REQUIRE(t[i].value == i);
}

TEST_CASE("reserved nodes come without the table moving", "[core][node_table]") {
    node_table<item> t;
    const node_index a = t.create();
    t.destroy(a);
    t.reserve(500);
    const item* const before = t.data();
    for (int i = 0; i < 500; ++i) (void)t.create();
    CHECK(t.data() == before);
    CHECK(t.size() == 500);
}

TEST_CASE("node_table refuses more nodes than it can name and stays as it was", "[core][node_table]") {
    node_table<item> t;
    const node_index a = t.create();
    CHECK_THROWS_AS(t.reserve(std::size_t{1} << 33), std::bad_alloc);
    CHECK(t.size() == 1);
    CHECK(t[a].value == 7);
    CHECK(t.validate());
}
