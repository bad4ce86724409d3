/// \file
/// Planted errors are caught: policies that reuse memory across streams too early fail a replay, and a sound one does
/// not, on the same traces.
///
///     planted sim            on the simulated device
///     planted gpu            on a GPU, by --verify; exits with 77 where there is none
///     planted compare ...    the command `tenure`, with the two policies beside its own

#include "planted_pools.hpp"

#include "cli/compare.hpp"
#include "cli/device_choice.hpp"
#include "cli/policy_of.hpp"
#include "cli/pool_option_table.hpp"
#include "cli/scratch_file.hpp"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>

namespace {

using namespace tenure;
using namespace tenure::cli;

struct scene {
    const char* name;
    const char* policy; ///< which must fail
    const char* events;
};

/// In each, the second block gets the memory of the first while work on the first still waits to run. Sizes are odd, so
/// that no alignment helps; work is 5 ms long, which no host needs for a few calls.
constexpr scene scenes[] = {
    {"freed on a busy stream, reused by another", "hasty",
     "0,a,1,67108877,1\n"
     "1,k,,5000,1\n"
     "2,f,1,67108877,1\n"
     "2,c,1,67108877,1\n"
     "3,a,2,67108877,2\n"
     "4,f,2,67108877,2\n"},
    {"used by a busy stream, reused by its own", "forgetful",
     "0,a,1,33333333,0\n"
     "1,k,,5000,1\n"
     "2,u,1,,1\n"
     "3,f,1,33333333,0\n"
     "4,a,2,33333333,0\n"
     "5,f,2,33333333,0\n"},
    {"reused before its completion", "forgetful",
     "0,a,1,5000001,0\n"
     "1,f,1,5000001,0\n"
     "2,a,2,5000001,0\n"
     "3,c,1,5000001,0\n"
     "4,f,2,5000001,0\n"},
};

int failures = 0;

void expect(bool good, const scene& s, const std::string& what) {
    std::printf("%s: %s: %s\n", good ? "PASS" : "FAIL", s.name, what.c_str());
    if (!good) ++failures;
}

compare_options options_for(const std::string& trace, const std::string& policy) {
    compare_options o;
    o.traces = {trace};
    o.policies = policy;
    o.repeat = 1;
    o.quiet = true;
    return o;
}

void on_sim(const scene& s, const std::string& trace) {
    expect(compare(options_for(trace, "best_fit")) == all_completed, s, "best_fit passes");
    std::string found;
    try {
        (void)compare(options_for(trace, s.policy));
    } catch (const replay_error& e) {
        found = e.what();
    }
    expect(!found.empty(), s, std::string(s.policy) + " is caught: " + found);
}

void on_gpu(const scene& s, const std::string& trace, const std::string& json) {
    compare_options o = options_for(trace, "best_fit");
    o.device = "cuda";
    o.verify = true;
    expect(compare(o) == all_completed, s, "best_fit passes");

    o.policies = s.policy;
    o.json = json;
    expect(compare(o) == internal_failure, s, std::string(s.policy) + " ends with exit code 1");
    std::ifstream file(json);
    const nlohmann::json wrong = nlohmann::json::parse(file).at(0).at("gpu").at("verified").at("mismatches");
    bool named = false; // the first block has the second one's content
    for (const nlohmann::json& m : wrong) named = named || (m.at("block") == 0 && m.at("owner") == 1);
    expect(named, s, "the mismatch names both blocks");
}

} // namespace

int main(int argc, char** argv) {
    add_family(family_of<test::hasty_pool>("hasty", "PLANTED ERROR: takes every stream for one",
                                           pool_option_table()));
    add_family(family_of<test::forgetful_pool>("forgetful", "PLANTED ERROR: deaf to record_use",
                                               pool_option_table()));
    const std::string_view what = argc == 2 ? argv[1] : "";
    if (what != "sim" && what != "gpu") return run(argc, argv);

    if (what == "gpu") {
        try {
            (void)open_gpu(parse_device("cuda"));
        } catch (const usage_error& e) {
            std::printf("skipped: %s\n", e.what());
            return 77;
        }
    }
    for (const scene& s : scenes) {
        const test::scratch_file trace(std::string("t_us,op,id,bytes,stream\n") + s.events);
        if (what == "gpu")
            on_gpu(s, trace.path(), trace.folder() + "/out.json");
        else
            on_sim(s, trace.path());
    }
    std::printf("planted %s: %s\n", argv[1], failures == 0 ? "passed" : "FAILED");
    return failures == 0 ? 0 : 1;
}
