#include "support/catch.hpp"

#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>

#include <memory>
#include <string>
#include <type_traits>

using namespace tenure;

TEST_CASE("a result holds a value or an error", "[core][result]") {
    const result<int, status> good = 7;
    CHECK(good.has_value());
    CHECK(static_cast<bool>(good));
    CHECK(*good == 7);
    CHECK(good.value() == 7);

    const result<int, status> bad = status::out_of_memory;
    CHECK_FALSE(bad.has_value());
    CHECK_FALSE(static_cast<bool>(bad));
    CHECK(bad.error() == status::out_of_memory);
}

TEST_CASE("a null pointer is a value", "[core][result]") {
    const result<void*, status> r = static_cast<void*>(nullptr);
    REQUIRE(r.has_value());
    CHECK(*r == nullptr);
}

TEST_CASE("a result's value can be changed and moved from", "[core][result]") {
    result<std::string, status> r = std::string("one");
    r.value() += " two";
    CHECK(r->size() == 7);
    result<std::unique_ptr<int>, status> owner = std::make_unique<int>(3);
    const std::unique_ptr<int> taken = std::move(*owner);
    CHECK(*taken == 3);
}

TEST_CASE("a result is assigned across its two states", "[core][result]") {
    result<int, status> r = 1;
    r = status::failed;
    CHECK(r.error() == status::failed);
    r = 2;
    CHECK(*r == 2);
}

TEST_CASE("a result is nothrow where its parts are, and usable in constants", "[core][result]") {
    STATIC_REQUIRE(std::is_nothrow_constructible_v<result<int, status>, int>);
    STATIC_REQUIRE(std::is_nothrow_constructible_v<result<int, status>, status>);
    STATIC_REQUIRE_FALSE(std::is_convertible_v<result<int, status>, bool>);
    constexpr result<int, status> r = 5;
    STATIC_REQUIRE(r.has_value());
    STATIC_REQUIRE(r.value() == 5);
}
