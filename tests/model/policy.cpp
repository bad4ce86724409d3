// Random programs for every policy against a simple oracle; see support/policy_oracle.hpp.

#include "support/catch.hpp"
#include "support/policy_oracle.hpp"
#include "support/policy_world.hpp"
#include "support/random.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

using namespace tenure;
using namespace tenure::test;

namespace {

/// Runs the program that belongs to `seed`, checking after every step.
inline void run_program(const policy_subject& subject, std::uint64_t program_seed, const program_options& o,
                        std::size_t capacity) {
    CAPTURE(program_seed, capacity);
    policy_world w(subject, {.capacity = capacity, .cost = sim::costs::zero()});
    misuse_log log;
    policy_runner runner(w, o);
    std::size_t number = 0;
    for (const step& s : make_program(program_seed, o)) {
        runner.run(s);
        CAPTURE(number, static_cast<int>(s.kind), s.bytes, s.alignment);
        REQUIRE(runner.disagreement() == "");
        REQUIRE(w.pool().validate());
        ++number;
    }
    REQUIRE(joined(w.pool().violations()) == "");
    runner.free_all();
    w.finish();
    CHECK(log.take().empty());
}

} // namespace

POLICY_TEST_CASE("random programs leave every policy in agreement with the oracle", "[model][policy]") {
    CAPTURE(seed());
    std::mt19937_64 rng(seed());
    for (int i = 0; i < 6; ++i) run_program(subject, rng(), {.steps = 300}, 141_GiB);
}

POLICY_TEST_CASE("random programs on a device that is too small", "[model][policy]") {
    CAPTURE(seed());
    std::mt19937_64 rng(seed());
    for (const std::size_t capacity : {96_MiB, 200_MiB, 512_MiB})
        for (int i = 0; i < 2; ++i) run_program(subject, rng(), {.steps = 300}, capacity);
}

POLICY_TEST_CASE("random programs with blocks of many GiB", "[model][policy]") {
    CAPTURE(seed());
    std::mt19937_64 rng(seed());
    for (int i = 0; i < 2; ++i)
        run_program(
            subject, rng(),
            {.steps = 200, .largest = 20_GiB, .largest_alignment = max_alignment, .padding = no_limit},
            300_GiB);
}

POLICY_TEST_CASE("random programs on many streams", "[model][policy]") {
    CAPTURE(seed());
    std::mt19937_64 rng(seed());
    for (int i = 0; i < 3; ++i)
        run_program(subject, rng(), {.steps = 300, .streams = 10, .largest = 8_MiB}, 4_GiB);
}
