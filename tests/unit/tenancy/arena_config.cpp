/// Configurations of arenas: what is read, and that every error says where and why.

#include <tenure/core/units.hpp>
#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/arena_group.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

using namespace tenure;

namespace {

/// Returns: what is said of a text that is wrong.
std::string complaint(const std::string& text) {
    try {
        (void)arena_config::parse(text, "conf");
    } catch (const arena_config_error& e) {
        return e.what();
    }
    return "";
}

bool begins(const std::string& text, const std::string& with) {
    return text.rfind(with, 0) == 0;
}

} // namespace

TEST_CASE("a configuration of arenas is read as it is written", "[tenancy][config]") {
    const arena_config c = arena_config::parse(R"(
# the whole card
gpu            max=64GiB
gpu/org        max=32GiB  min=8GiB	high=28GiB   # a tab is a space
gpu/org/alice  max=10GiB  weight=200  policy=remap ; gpu/org/* max=1024
gpu/*          max=none high=none
)");
    REQUIRE(c.entries().size() == 5);
    CHECK(c.entries()[0].path == "gpu");
    CHECK(c.entries()[0].limits.max == 64_GiB);
    CHECK(c.entries()[0].limits.high == no_limit);
    CHECK(c.entries()[0].limits.weight == 100);
    CHECK(c.entries()[1].limits.min == 8_GiB);
    CHECK(c.entries()[1].limits.high == 28_GiB);
    CHECK(c.entries()[2].limits.weight == 200);
    CHECK(c.entries()[2].policy == "remap");
    CHECK(c.entries()[2].name() == "alice");
    CHECK(c.entries()[2].parent() == "gpu/org");
    CHECK(c.entries()[3].limits.max == 1024);
    CHECK(c.entries()[4].limits.max == no_limit);

    REQUIRE(c.find("gpu/org/alice") != nullptr);
    CHECK(c.find("gpu/org/alice")->limits.max == 10_GiB);
    CHECK(c.find("gpu/org/bob")->limits.max == 1024);
    CHECK(c.find("gpu/other") == &c.entries()[4]);
    CHECK(c.find("gpu/org/alice/job") == nullptr);
    CHECK(c.find("cpu") == nullptr);
}

TEST_CASE("a configuration without entries is one", "[tenancy][config]") {
    for (const char* text : {"", "\n\n", "# nothing", ";;", "  \t\r\n;# x\n"}) {
        CAPTURE(text);
        CHECK(arena_config::parse(text).empty());
    }
}

TEST_CASE("a configuration tells which of its lines nobody has asked for", "[tenancy][config]") {
    const arena_config c = arena_config::parse(
        "gpu max=4GiB; gpu/alice max=1GiB; gpu/*  max=1MiB; gpu/workr max=2GiB; cpu max=1");
    const auto paths = [](const arena_config& of) {
        std::vector<std::string> all;
        for (const arena_entry* const e : of.unused()) all.push_back(e->path);
        return all;
    };
    CHECK(paths(c).size() == 5);
    arena_options o;
    CHECK(c.apply("gpu", o));
    CHECK(c.apply("gpu/alice", o));
    CHECK(paths(c) == std::vector<std::string>{"gpu/*", "gpu/workr", "cpu"});
    CHECK(c.apply("gpu/worker", o)); // by the *
    CHECK_FALSE(c.apply("other", o));
    CHECK(paths(c) == std::vector<std::string>{"gpu/workr", "cpu"});
    const arena_config copy = c;
    CHECK(paths(copy) == paths(c));
}

TEST_CASE("what is wrong in a configuration is told with its place", "[tenancy][config]") {
    struct example {
        const char* text;
        const char* said;
    };
    const example examples[] = {
        {"gpu max", "conf:1:5: \"max\": expected key=value"},
        {"gpu max=", "conf:1:9: invalid size \"\""},
        {"gpu max=8GB", "conf:1:9: invalid size \"8GB\": unknown unit"},
        {"\n gpu  max=1GiB max=2GiB", "conf:2:16: \"max\" is given twice"},
        {"gpu size=1", "conf:1:5: unknown key \"size\" (known: max min high weight policy)"},
        {"gpu weight=0", "conf:1:12: \"0\": a weight is a whole number from 1 to 10000"},
        {"gpu weight=1.5", "conf:1:12: \"1.5\""},
        {"gpu policy=", "conf:1:12: policy needs a name"},
        {"gpu min=none", "conf:1:9: min is a size"},
        {"gpu min=2GiB max=1GiB", "conf:1:1: \"gpu\": min is above max"},
        {"gpu max=1\n\ngpu max=2", "conf:3:1: \"gpu\" was given in line 1 already"},
        {"a max=1; b/c max=1", "conf:1:10: \"b\", above \"b/c\", needs an earlier line"},
        {"a//b max=1", "conf:1:3: a part of the path \"a//b\" is empty"},
        {"/a max=1", "conf:1:1: a part of the path"},
        {"a/ max=1", "conf:1:3: a part of the path"},
        {"*/a max=1", "conf:1:1: * can only be the last part of a path"},
        {"max=1GiB", "conf:1:1: \"max=1GiB\" is no name"},
        {"a max=3GiB\na/b min=2GiB\na/c min=2GiB", "conf:3:1: the min of those below \"a\" are 4 GiB"},
        {"a\x01b max=1", "conf:1:1: a control character in a name"},
        {"# c\na max=1; a/b max=x # d", "conf:2:18: invalid size \"x\""},
    };
    for (const example& e : examples) {
        CAPTURE(e.text);
        CAPTURE(complaint(e.text));
        CHECK(begins(complaint(e.text), e.said));
    }
    std::string deep = "a";
    std::string text = "a max=1";
    for (std::size_t i = 0; i < max_tenancy_depth; ++i) {
        deep += "/a";
        text += "\n" + deep;
    }
    CHECK(complaint(text).find("is deeper than") != std::string::npos);
}

TEST_CASE("any text is read or refused with a place in it", "[tenancy][config]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    const std::string letters = "ab/*=;# \t\n01GiBmaxnhgwey";
    for (int i = 0; i < 3000; ++i) {
        std::string text;
        for (std::size_t n = test::below(rng, 40); n != 0; --n)
            text += letters[test::below(rng, letters.size())];
        try {
            const arena_config c = arena_config::parse(text);
            for (const arena_entry& e : c.entries()) CHECK_FALSE(e.path.empty());
        } catch (const arena_config_error& e) {
            CHECK(e.line() >= 1);
            CHECK(e.column() >= 1);
            CHECK(e.line() <= 41);
            CHECK(e.column() <= 42);
        }
    }
}

TEST_CASE("a configuration comes from the environment, as text or as a file", "[tenancy][config]") {
    const char* const variable = "TENURE_ARENAS_TEST";
    ::unsetenv(variable);
    CHECK(arena_config::from_environment(variable).empty());
    ::setenv(variable, "gpu max=1GiB; gpu/a max=1MiB", 1);
    CHECK(arena_config::from_environment(variable).entries().size() == 2);
    ::setenv(variable, "gpu max=1GB", 1);
    CHECK_THROWS_AS(arena_config::from_environment(variable), arena_config_error);
    ::setenv(variable, "/nonexistent/arenas.conf", 1);
    CHECK_THROWS_AS(arena_config::from_environment(variable), std::runtime_error);

    const auto file =
        std::filesystem::temp_directory_path() / ("tenure_arenas_" + std::to_string(::getpid()) + ".conf");
    std::ofstream(file) << "gpu max=2GiB\ngpu/a max=oops\n";
    ::setenv(variable, file.c_str(), 1);
    try {
        (void)arena_config::from_environment(variable);
        FAIL("a wrong file was read");
    } catch (const arena_config_error& e) {
        CHECK(begins(e.what(), file.string() + ":2:11: "));
    }
    const auto loaded = [&](const std::string& text) {
        std::ofstream(file) << text;
        return arena_config::load(file.string());
    };
    CHECK(loaded("\xef\xbb\xbfgpu max=2GiB\n").find("gpu") !=
          nullptr); // an editor's mark is no part of a name
    CHECK(loaded("# nothing yet\n").empty());
    const auto refusal = [&](const std::string& path) {
        try {
            (void)arena_config::load(path);
        } catch (const std::runtime_error& e) {
            return std::string(e.what());
        }
        return std::string();
    };
    std::ofstream(file) << "";
    CHECK(refusal(file.string()) == file.string() + ": is empty");
    CHECK(begins(refusal("/tmp"), "/tmp: "));
    std::filesystem::remove(file);
    ::unsetenv(variable);
}

TEST_CASE("configured limits become an arena's or a group's options", "[tenancy][config]") {
    const arena_config c = arena_config::parse("gpu max=4GiB min=1GiB; gpu/* max=1GiB high=512MiB weight=7");
    group_options gpu;
    REQUIRE(c.apply("gpu", gpu));
    CHECK(gpu.name == "gpu");
    CHECK(gpu.min == 1_GiB);
    arena_options job;
    REQUIRE(c.apply("gpu/job", job));
    CHECK(job.name == "job");
    CHECK(job.max == 1_GiB);
    CHECK(job.high == 512_MiB);
    CHECK(job.weight == 7);
    arena_options other{.max = 3};
    CHECK_FALSE(c.apply("else", other));
    CHECK(other.max == 3);
    const arena_group group(gpu);
    CHECK(group.limits().max == 4_GiB);
}
