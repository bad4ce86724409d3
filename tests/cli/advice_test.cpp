/// `advise`: the best policy, and what it is compared with.

#include "cli/advice.hpp"

#include "support/catch.hpp"

#include <string>

using namespace tenure;
using namespace tenure::cli;

namespace {

constexpr std::uint64_t mib = 1 << 20;

comparison_row row(const char* trace, const char* policy, std::uint64_t reserved_mib, double driver_us = 10) {
    comparison_row r;
    r.trace = trace;
    r.policy = policy;
    r.device = "sim";
    r.needed.live = 100 * mib;
    r.result.live_peak = 100 * mib;
    r.result.reserved_peak = reserved_mib * mib;
    r.result.driver_us = driver_us;
    return r;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("the best policy holds least", "[cli][advice]") {
    const comparison rows{row("a", "slab", 300), row("a", "remap", 110, 90), row("a", "caching", 200, 1)};
    const auto all = advise(rows);
    REQUIRE(all.size() == 1);
    CHECK(all[0].best == &rows[1]);
    CHECK(all[0].baseline == 200 * mib);
    CHECK(all[0].saved() == static_cast<std::int64_t>(90 * mib));
    CHECK(all[0].text() ==
          "a: remap holds least, 110 MiB for 100 MiB live at the peak, and saves 90 MiB (45%) of the 200 MiB "
          "that PyTorch's scheme (caching) holds.");
    CHECK(to_answer(rows) == all[0].text() + "\n");
}

TEST_CASE("within a percent the cheaper policy is best", "[cli][advice]") {
    const comparison rows{row("a", "x", 1000, 50), row("a", "y", 1009, 20), row("a", "z", 1011, 1)};
    CHECK(advise(rows)[0].best == &rows[1]);
}

TEST_CASE("a policy that refuses somebody is no answer", "[cli][advice]") {
    comparison rows{row("a", "x", 100), row("a", "y", 200)};
    rows[0].result.oom_count = 1;
    CHECK(advise(rows)[0].best == &rows[1]);
    rows[1].result.oom_count = 1;
    CHECK(advise(rows)[0].best == nullptr);
    CHECK_FALSE(advise(rows)[0].saved().has_value());
    CHECK(contains(to_answer(rows), "no policy carried it out"));
}

TEST_CASE("what was recorded is the first to be compared with", "[cli][advice]") {
    comparison rows{row("a", "remap", 110), row("a", "caching", 200)};
    for (comparison_row& r : rows) r.peer = peers{300 * mib, 250 * mib, std::nullopt, 150 * mib};
    CHECK(advise(rows)[0].baseline == 150 * mib);
    for (comparison_row& r : rows) r.peer->recorded.reset();
    CHECK(advise(rows)[0].baseline == 300 * mib);
    for (comparison_row& r : rows) r.peer->native.reset();
    CHECK(advise(rows)[0].baseline == 200 * mib);
    rows[1].policy = "caching:max_split=128MiB";
    CHECK_FALSE(advise(rows)[0].baseline.has_value());
    CHECK(contains(advise(rows)[0].text(), "does not say"));
}

TEST_CASE("nothing is saved where the baseline holds less", "[cli][advice]") {
    comparison rows{row("a", "remap", 110)};
    rows[0].peer = peers{105 * mib, std::nullopt, std::nullopt};
    CHECK(advise(rows)[0].saved() == -static_cast<std::int64_t>(5 * mib));
    CHECK(contains(advise(rows)[0].text(), "no less than the 105 MiB"));
}

TEST_CASE("two programs of one name stay two", "[cli][advice]") {
    const comparison rows{row("a", "x", 300), row("a", "y", 200), row("a", "x", 150), row("a", "y", 400),
                          row("b", "x", 1)};
    const auto all = advise(rows);
    REQUIRE(all.size() == 3);
    CHECK(all[0].best == &rows[1]);
    CHECK(all[1].best == &rows[2]);
    CHECK(contains(to_answer(rows), "x holds least for 2 of 3 traces"));
}
