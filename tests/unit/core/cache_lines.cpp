#include <tenure/core/cache_lines.hpp>
#include <tenure/device.hpp>
#include <tenure/tenancy.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <set>
#include <string>
#include <utility>

using namespace tenure;

namespace {

std::uint64_t line(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) / own_lines;
}

} // namespace

TEST_CASE("own lines: an array begins a pair of lines, whatever its size", "[core][lines]") {
    for (std::size_t n = 1; n < 300; n += 7) {
        CAPTURE(n);
        own_lines_vector<char> bytes(n);
        own_lines_vector<std::string> strings(n, "a text that is too long to lie in the string itself");
        CHECK(reinterpret_cast<std::uintptr_t>(bytes.data()) % own_lines == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(strings.data()) % own_lines == 0);
        strings.resize(2 * n); // moves what is there
        CHECK(reinterpret_cast<std::uintptr_t>(strings.data()) % own_lines == 0);
        CHECK(strings[n - 1].size() > 20);
    }
}

TEST_CASE("own lines: small arrays and entries of a map lie in lines of their own", "[core][lines]") {
    std::set<std::uint64_t> lines;
    own_lines_vector<own_lines_vector<char>> arrays;
    own_lines_map<std::uint64_t, std::uint32_t> map;
    for (std::uint32_t i = 0; i < 64; ++i) {
        arrays.emplace_back(1 + i);
        map.emplace(i, i);
    }
    for (const auto& a : arrays) lines.insert(line(a.data()));
    for (const auto& entry : map) lines.insert(line(&entry));
    CHECK(lines.size() == 2 * 64);
}

TEST_CASE("own lines: arrays change hands without a copy", "[core][lines]") {
    own_lines_vector<int> a{1, 2, 3};
    const int* const where = a.data();
    own_lines_vector<int> b = std::move(a);
    CHECK(b.data() == where);
    own_lines_vector<int> c;
    c = std::move(b);
    CHECK(c.data() == where);
}

TEST_CASE("own lines: what does not fit the address space is refused", "[core][lines]") {
    own_lines_allocator<std::uint64_t> memory;
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    CHECK_THROWS_AS(memory.allocate(most / 8), std::bad_array_new_length);
    CHECK_THROWS_AS(memory.allocate(most / 8 + 1), std::bad_array_new_length);
    CHECK_THROWS_AS(memory.allocate(most), std::bad_array_new_length);
}

TEST_CASE("own lines: tenants' meters and hubs that lie side by side share no line", "[core][lines]") {
    sim::device device;
    meter tenants[2] = {{"a", 1}, {"b", 1}};
    CHECK(line(&tenants[1]) - line(&tenants[0]) == sizeof(meter) / own_lines);
    CHECK(sizeof(meter) % own_lines == 0);
    CHECK(sizeof(hub<sim::device>) % own_lines == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(&tenants[0]) % own_lines == 0);
}
