#include "cli/comparison.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace {

using namespace tenure::cli;
using tenure::test::scratch_file;

comparison_row row(const std::string& trace, const std::string& policy) {
    comparison_row r;
    r.trace = trace;
    r.policy = policy;
    r.device = "sim";
    r.events = 7;
    r.result.requested_peak = 1000;
    r.result.live_peak = 1024;
    r.result.reserved_peak = 2048;
    r.result.segments = 1;
    r.result.driver_calls = {{"allocate", 1}, {"deallocate", 2}};
    r.result.driver_us = 1500;
    r.result.ns_per_op = 12.5;
    r.needed = {1000, 1024};
    return r;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
    return n;
}

} // namespace

TEST_CASE("JSON of a comparison", "[cli][json]") {
    comparison rows{row("a", "slab"), row("b\xff\"", "buddy")};
    rows[1].limit = 4096;
    rows[1].result.oom_count = 3;
    rows[1].result.first_oom = refusal{5, 100, tenure::failure_cause::arena_limit, std::nullopt, 17};
    const auto all = nlohmann::json::parse(to_json(rows));
    REQUIRE(all.size() == 2);
    CHECK(all[0]["ratio"] == 2.0);
    CHECK(all[0]["limit"].is_null());
    CHECK(all[0]["first_oom"].is_null());
    CHECK(all[0]["completed"] == true);
    CHECK(all[0]["driver_calls"] == nlohmann::json({{"allocate", 1}, {"deallocate", 2}}));
    CHECK(all[1]["limit"] == 4096);
    CHECK(all[1]["completed"] == false);
    CHECK(
        all[1]["first_oom"] ==
        nlohmann::json(
            {{"event", 5}, {"requested", 100}, {"cause", "arena_limit"}, {"limit", nullptr}, {"used", 17}}));
    CHECK(to_json({}) == "[]\n");
}

TEST_CASE("the table aligns its columns", "[cli][table]") {
    const std::string text =
        to_table({row("a", "slab"), row("a", "caching:max_split=128MiB"), row("bbbbbbbb", "slab")});
    INFO(text);
    CHECK(count(text, "\n") == 5); // a head, three rows, and a blank line between the traces
    CHECK(count(text, "torch") == 0);
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
        const std::string line = text.substr(at, text.find('\n', at) - at);
        if (line.empty()) continue;
        if (end == 0) end = line.size();
        CHECK(line.size() == end); // the last column is right-aligned
    }
}

TEST_CASE("a table without room leaves out what says least, and tells", "[cli][table]") {
    comparison rows{row("a", "slab"), row("b", "slab")};
    rows[0].peer = peers{3072, std::nullopt, 1536};
    const std::string whole = to_table(rows);
    CHECK(to_table(rows, 1000) == whole);
    const std::string narrow = to_table(rows, 80);
    INFO(narrow);
    for (std::size_t at = 0; at < narrow.size() && narrow[at] != '\n'; at = narrow.find('\n', at) + 1)
        CHECK(narrow.find('\n', at) - at <= 80);
    CHECK(count(narrow, "\nFor want of width without: segments, driver calls, ") == 1);
    for (const char* always : {"reserved peak", "ratio", "refused"}) {
        CAPTURE(always);
        CHECK(narrow.find(always) < narrow.find('\n'));
    }
    // Without the columns behind the bar nothing is said of them.
    CHECK(count(whole, "The columns behind the bar") == 1);
    const std::string narrowest = to_table(rows, 50);
    CHECK(count(narrowest, "The columns behind the bar") == 0);
    CHECK(count(narrowest, "torch native") == 1);
    CHECK(count(narrowest, "| torch native") == 0);
}

TEST_CASE("the table compares with peers, known or not", "[cli][table]") {
    comparison rows{row("a", "slab"), row("b", "slab")};
    rows[0].peer = peers{3072, std::nullopt, 1536};
    const std::string text = to_table(rows);
    INFO(text);
    CHECK(count(text, "3 KiB 3.000") == 1);
    CHECK(count(text, "1.50 KiB 1.500") == 1);
    CHECK(count(text, " -") == 6);
}

namespace {

comparison_row gpu_row() {
    using std::chrono::microseconds;
    comparison_row r = row("a", "slab");
    r.device = "cuda:1";
    r.result.times.add({tenure::sim::call::allocate, std::uint64_t{2} << 20, call_case::plain},
                       microseconds{30}, microseconds{36});
    r.result.times.add({tenure::sim::call::allocate, std::uint64_t{2} << 20, call_case::plain},
                       microseconds{30}, microseconds{36});
    r.result.times.add({tenure::sim::call::record, 0, call_case::plain}, microseconds{1}, microseconds{0});
    return r;
}

mismatch overwritten() {
    mismatch m;
    m.block = 5;
    m.bytes = 4000;
    m.address = 0x7000;
    m.first_bad = 16;
    m.bad_words = 3;
    m.owner = 17;
    return m;
}

} // namespace

TEST_CASE("a row of a GPU shows its times beside the model's", "[cli][json][table]") {
    comparison rows{gpu_row(), gpu_row()};
    rows[1].result.verified = verification{};
    rows[1].result.verified->blocks = 7;
    auto all = nlohmann::json::parse(to_json(rows));
    CHECK(all[0]["gpu"]["modelled_us"] == 72.0);
    CHECK(all[0]["gpu"]["verified"].is_null());
    REQUIRE(all[0]["gpu"]["calls"].size() == 2);
    CHECK(all[0]["gpu"]["calls"][0]["call"] == "allocate");
    CHECK(all[0]["gpu"]["calls"][0]["bytes_up_to"] == 2 << 20);
    CHECK(all[0]["gpu"]["calls"][0]["count"] == 2);
    CHECK(all[0]["gpu"]["calls"][0]["mean_ns"] == 30000.0);
    CHECK(all[0]["gpu"]["calls"][0]["modelled_ns"] == 36000.0);
    CHECK(all[1]["gpu"]["verified"]["blocks"] == 7);
    CHECK(all[1]["gpu"]["verified"]["mismatches"].empty());
    CHECK_FALSE(nlohmann::json::parse(to_json({row("a", "slab")}))[0].contains("gpu"));

    CHECK(count(to_table(rows), "7 blocks") == 1);
    CHECK(count(to_table(rows), "modelled ms") == 1);
    CHECK(count(to_table({row("a", "slab")}), "modelled ms") == 0);
    CHECK(count(to_table({row("a", "slab")}), "verified") == 0);
    rows[1].result.verified->mismatches.push_back(overwritten());
    CHECK(count(to_table(rows), "1 WRONG") == 1);
    all = nlohmann::json::parse(to_json(rows));
    CHECK(all[1]["gpu"]["verified"]["mismatches"][0]["owner"] == 17);

    const std::string costs = to_cost_table(rows);
    INFO(costs);
    CHECK(count(costs, "2 MiB") == 1);
    CHECK(count(costs, "     4  ") == 1); // both rows together
    CHECK(count(costs, "36.00") == 1);
    CHECK(count(costs, "record") == 1);
    const std::string narrow = to_cost_table(rows, costs.find('\n') - 1);
    INFO(narrow);
    CHECK(narrow.find('\n') < costs.find('\n'));
    CHECK(count(costs, "median/modelled") == 1);
    CHECK(count(narrow, "\nFor want of width without: median/modelled. ") == 1);
    CHECK(count(narrow, "median/modelled") == 1);
}

TEST_CASE("a mismatch is told in one line", "[cli][verify]") {
    mismatch m = overwritten();
    CHECK(m.text() ==
          "block 5 (3.90 KiB at 0x7000) at its free: 3 words of 16 bytes differ, the first at byte 16; "
          "there lies the content of block 17");
    m.owner.reset();
    m.side_stream = true;
    CHECK(m.text() ==
          "block 5 (3.90 KiB at 0x7000) as another stream used it: 3 words of 16 bytes differ, the first at "
          "byte 16");
    verification v;
    CHECK(v.good());
    v.more = true;
    CHECK_FALSE(v.good());
}

TEST_CASE("peers are found beside the trace", "[cli][peers]") {
    const scratch_file file("workload,steps,native_reserved,expandable_reserved,mallocasync_reserved\n"
                            "one,3,10,20,30\n"
                            "two,3,,,30\n",
                            "peers.csv");
    const std::string trace = file.folder() + "/one.csv.gz";
    const auto one = find_peers(trace, "one");
    REQUIRE(one);
    CHECK(one->native == 10);
    CHECK(one->expandable == 20);
    CHECK(one->malloc_async == 30);
    CHECK_FALSE(find_peers(trace, "two")->native);
    CHECK_FALSE(find_peers(trace, "three"));
    CHECK_FALSE(find_peers("/nonexistent/one.csv", "one"));
    const auto complain = [&](const char* bytes) {
        std::ofstream(file.path(), std::ios::trunc) << bytes;
        try {
            find_peers(trace, "one");
            return std::string();
        } catch (const input_error& e) {
            return std::string(e.what()).substr(file.path().size());
        }
    };
    CHECK(complain("").empty()); // other programs have files of that name, too
    CHECK(complain("name,host,port\nx,y,z,too many\n").empty());
    CHECK(complain("workload,native_reserved\n") == ":1: missing column expandable_reserved");
    const std::string head = "workload,native_reserved,expandable_reserved,mallocasync_reserved\n";
    CHECK(complain((head + "one,1,2\n").c_str()).substr(0, 31) == ":2: expected 4 fields, found 3:");
    CHECK(complain((head + "one,1,2,x\n").c_str()).substr(0, 27) == ":2: mallocasync_reserved is");
}
