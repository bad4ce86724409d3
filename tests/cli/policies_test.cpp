#include "cli/policies.hpp"

#include "support/catch.hpp"

#include <string>
#include <vector>

namespace {

using namespace tenure::cli;

std::vector<std::string> names(const std::string& list) {
    std::vector<std::string> specs;
    for (const named_policy& p : parse_policies(list)) specs.push_back(p.spec);
    return specs;
}

std::string complaint(const std::string& list) {
    try {
        parse_policies(list);
        return "";
    } catch (const usage_error& e) {
        return e.what();
    }
}

bool contains(const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
    return text.find(part) != std::string::npos;
}

using list = std::vector<std::string>;

} // namespace

TEST_CASE("policies are named, listed and all", "[cli][policies]") {
    CHECK(names("all") == list{"best_fit", "buddy", "slab", "caching", "async", "remap", "binned"});
    CHECK(names("slab,best_fit") == list{"slab", "best_fit"});
    CHECK(names("buddy,all").size() == 8);
    CHECK(names("caching:max_split=128MiB:gc_threshold=0.6") ==
          list{"caching:max_split=128MiB:gc_threshold=0.6"});
    CHECK(names("caching:roundup_power2_divisions=[256:1,>:4]:max_split=64MiB,slab").size() == 2);
    CHECK(names("binned:threshold=2MiB:small.segment_bytes=4MiB:large.gc_threshold=0.5").size() == 1);
    CHECK(names("best_fit:release_on_oom=off:synchronize_on_oom=on").size() == 1);
}

TEST_CASE("an unknown policy is answered with the known ones", "[cli][policies]") {
    for (const char* wrong : {"worst_fit", "", "best_fit,", "Best_fit", " slab", "worst_fit:x=1"}) {
        const std::string text = complaint(wrong);
        CHECK(contains(text, "unknown policy"));
        CHECK(contains(text, "best_fit buddy slab caching async remap binned"));
    }
}

TEST_CASE("an unknown option is answered with the known ones", "[cli][policies]") {
    CHECK(contains(complaint("best_fit:segments=1"),
                   "segment_bytes mark_bytes release_on_oom synchronize_on_oom"));
    CHECK(contains(complaint("caching:x=1"), "max_split"));
    CHECK(contains(complaint("caching:x"), "max_split"));
    CHECK(contains(complaint("async:x=1"), "max_bytes"));
    CHECK(contains(complaint("binned:x=1"), "small.segment_bytes"));
}

TEST_CASE("a value that does not fit names the option", "[cli][policies]") {
    CHECK(contains(complaint("caching:max_split=big"), "max_split"));
    CHECK(contains(complaint("caching:max_split="), "max_split"));
    CHECK(contains(complaint("caching:max_split"), "max_split"));
    CHECK(contains(complaint("caching:"), "option=value"));
    CHECK(contains(complaint("caching:gc_threshold=1.5"), "gc_threshold"));
    CHECK(contains(complaint("caching:gc_threshold=nan"), "gc_threshold"));
    CHECK(contains(complaint("caching:roundup_power2_divisions=[256:3]"), "roundup_power2_divisions"));
    CHECK(contains(complaint("slab:release_on_oom=maybe"), "release_on_oom"));
    CHECK(contains(complaint("caching:max_split=1MiB"), "max_split")); // less than a large segment
    CHECK(contains(complaint("binned:large.max_split=1MiB"), "max_split"));
}

TEST_CASE("the help names every policy and every option", "[cli][policies]") {
    const std::string help = policies_help();
    for (const policy_family& f : families()) CHECK(contains(help, f.name));
    CHECK(contains(help, "large.roundup_power2_divisions"));
    CHECK(contains(help, "max_split=BYTES"));
}
