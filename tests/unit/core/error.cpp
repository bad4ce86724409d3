#include "support/catch.hpp"

#include <tenure/core/error.hpp>

#include <cstring>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

using namespace tenure;

namespace {

std::vector<misuse_kind> seen;
void remember(const misuse& m) noexcept {
    seen.push_back(m.kind);
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

allocation_failure example() {
    allocation_failure f;
    f.requested = 1000;
    f.rounded = 1024;
    f.cause = failure_cause::arena_limit;
    f.driver_status = status::over_limit;
    f.arena = short_text("jobs/train");
    f.used = 3_MiB;
    f.min = 1_MiB;
    f.max = 4_MiB;
    f.free_bytes = 512;
    f.largest_free = 256;
    f.pending = 2_KiB;
    return f;
}

} // namespace

TEST_CASE("short_text keeps what fits and cuts the rest", "[core][error]") {
    CHECK(short_text().empty());
    CHECK(short_text(std::string_view{}).empty());
    CHECK(short_text("a/b").view() == "a/b");
    const std::string fits(95, 'x'), longer(96, 'x');
    CHECK(short_text(fits).view() == fits);
    CHECK(short_text(longer).view() == fits);
}

TEST_CASE("a failure's text names every figure", "[core][error]") {
    const std::string text = example().text();
    CHECK(text.rfind("out of memory", 0) == 0);
    for (const char* part : {"1000 B", "rounded 1024 B", "arena_limit", "over_limit", "\"jobs/train\"",
                             "used 3 MiB", "max 4 MiB", "min 1 MiB", "512 B", "256 B", "2 KiB"}) {
        CAPTURE(part, text);
        CHECK(contains(text, part));
    }
}

TEST_CASE("a failure's text leaves out what is not known", "[core][error]") {
    const std::string text = allocation_failure{}.text();
    CHECK_FALSE(contains(text, "arena \""));
    CHECK_FALSE(contains(text, "max"));
    CHECK_FALSE(contains(text, "device said"));
}

TEST_CASE("only memory reasons read as out of memory", "[core][error]") {
    for (int i = 0; i <= static_cast<int>(failure_cause::driver); ++i) {
        allocation_failure f;
        f.cause = static_cast<failure_cause>(i);
        const bool memory = f.cause != failure_cause::invalid_alignment && f.cause != failure_cause::driver;
        CAPTURE(to_string(f.cause));
        CHECK((f.text().rfind("out of memory", 0) == 0) == memory);
    }
}

TEST_CASE("throw_failure chooses the exception by the cause", "[core][error]") {
    allocation_failure f = example();
    CHECK_THROWS_AS(throw_failure(f), out_of_memory);
    CHECK_THROWS_AS(throw_failure(f), std::bad_alloc);
    f.cause = failure_cause::invalid_alignment;
    CHECK_THROWS_AS(throw_failure(f), invalid_alignment);
    CHECK_THROWS_AS(throw_failure(f), std::invalid_argument);
    f.cause = failure_cause::driver;
    f.driver_status = status::failed;
    try {
        throw_failure(f);
        FAIL("nothing was thrown");
    } catch (const driver_error& e) {
        CHECK(e.code() == status::failed);
        CHECK(contains(e.what(), "failed"));
    }
}

TEST_CASE("out_of_memory carries the failure and is copied without throwing", "[core][error]") {
    STATIC_REQUIRE(std::is_nothrow_copy_constructible_v<out_of_memory>);
    const out_of_memory e(example());
    const out_of_memory copy = e; // NOLINT: the copy is the point
    CHECK(copy.failure().requested == 1000);
    CHECK(copy.failure().arena.view() == "jobs/train");
    CHECK(contains(copy.what(), "jobs/train"));
}

TEST_CASE("the longest failure text is cut, not overrun", "[core][error]") {
    allocation_failure f = example();
    f.arena = short_text(std::string(95, 'n'));
    f.requested = f.rounded = f.used = f.min = f.free_bytes = f.largest_free = f.pending = no_limit - 1;
    f.max = no_limit - 1;
    const out_of_memory e(f);
    CHECK(std::strlen(e.what()) < 640);
    CHECK(contains(e.what(), "nnn"));
}

TEST_CASE("a misuse's text names what is known", "[core][error]") {
    misuse m;
    m.kind = misuse_kind::size_mismatch;
    m.bytes = 100;
    m.expected = 200;
    m.owner = short_text("mine");
    m.real_owner = short_text("theirs");
    m.driver_status = status::invalid_value;
    const std::string text = m.text();
    for (const char* part : {"size_mismatch", "100 bytes", "allocated as 200 bytes", "\"mine\"", "\"theirs\"",
                             "invalid_value"}) {
        CAPTURE(part, text);
        CHECK(contains(text, part));
    }
    misuse live;
    live.kind = misuse_kind::live_at_destruction;
    live.expected = 3;
    CHECK(contains(live.text(), "3 blocks still live"));
}

TEST_CASE("misuse goes to the handler that is set, and back to the default", "[core][error]") {
    seen.clear();
    const misuse_handler before = set_misuse_handler(&remember);
    misuse m;
    m.kind = misuse_kind::double_free;
    report_misuse(m);
    CHECK(set_misuse_handler(nullptr) == &remember);
    CHECK(seen == std::vector<misuse_kind>{misuse_kind::double_free});
    CHECK(set_misuse_handler(before) != &remember);
}

TEST_CASE("every value of the error enumerations has a name of its own", "[core][error]") {
    std::set<std::string> names;
    for (int i = 0; i <= static_cast<int>(failure_cause::driver); ++i)
        names.insert(to_string(static_cast<failure_cause>(i)));
    CHECK(names.size() == static_cast<std::size_t>(failure_cause::driver) + 1);
    names.clear();
    for (int i = 0; i <= static_cast<int>(misuse_kind::driver); ++i)
        names.insert(to_string(static_cast<misuse_kind>(i)));
    CHECK(names.size() == static_cast<std::size_t>(misuse_kind::driver) + 1);
    names.clear();
    for (int i = 0; i <= static_cast<int>(status::failed); ++i)
        names.insert(to_string(static_cast<status>(i)));
    CHECK(names.size() == static_cast<std::size_t>(status::failed) + 1);
    CHECK(names.count("unknown") == 0);
}
