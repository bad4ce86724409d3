/// `tenure top` and `tenure report`, and the schema of what they write.

#include "cli/errors.hpp"
#include "cli/report.hpp"
#include "cli/timeline.hpp"
#include "cli/top.hpp"

#include <tenure/core/units.hpp>
#include <tenure/tenancy/arenas_text.hpp>
#include <tenure/tenancy/published_page.hpp>

#include "schema_check.hpp"
#include "support/catch.hpp"
#include "support/scratch_folder.hpp"
#include "widest.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace tenure;
using tenure::test::scratch_folder;
using tenure::test::widest;
using namespace tenure::cli;
namespace fs = std::filesystem;

namespace {

std::vector<arena_row> two_rows() {
    arena_row gpu{.id = 1, .path = "gpu"};
    gpu.values.fill(0);
    gpu[arena_field::used] = 3_GiB;
    gpu[arena_field::max] = 8_GiB;
    for (const auto f : {arena_field::requested, arena_field::allocated, arena_field::reserved,
                         arena_field::pending, arena_field::blocks})
        gpu[f] = arena_row::none;
    arena_row job{.id = 2, .parent = 1, .depth = 1, .kind = row_kind::arena, .path = "gpu/<job>"};
    job.values.fill(7);
    job[arena_field::own] = 3_GiB;
    job[arena_field::used] = 3_GiB;
    job[arena_field::max] = arena_row::none;
    return {gpu, job};
}

nlohmann::json schema() {
    std::ifstream in(fs::path(TENURE_TRACES_DIR) / "../../docs/schema/arenas-1.json");
    return nlohmann::json::parse(in);
}

/// Effects: calls `what` in a child whose stdout is `file`; empty: a pipe that nobody reads. Returns: its exit code, as the
/// program makes it; 128 and the signal that ended it.
template <class What>
int with_stdout(const std::string& file, What what) {
    std::cout.flush();
    std::fflush(stdout); // what is there already is the parent's to write
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(20);
        ::signal(SIGPIPE, SIG_IGN);
        std::array<int, 2> ends{-1, -1};
        if (file.empty() && ::pipe(ends.data()) != 0) ::_exit(99);
        if (file.empty()) ::close(ends[0]);
        if (!file.empty()) ends[1] = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (::dup2(ends[1], STDOUT_FILENO) < 0) ::_exit(99);
        try {
            ::_exit(what());
        } catch (const usage_error&) {
            ::_exit(bad_usage);
        }
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("JSON of arenas is what its schema says", "[cli][top]") {
    const nlohmann::json rules = schema();
    const auto json = [](const std::vector<arena_row>& rows) {
        return nlohmann::json::parse(to_json(rows, {.pid = 7, .started = 9, .program = "a \"b\""}, 5));
    };
    CHECK(test::schema_errors(rules, json(two_rows())) == "");
    CHECK(test::schema_errors(rules, json({})) == "");
    const auto with_device = [](const device_row& d) {
        const std::vector<device_row> devices{d};
        return nlohmann::json::parse(to_json(two_rows(), {.pid = 7}, 5, 0, arena_columns.size(), devices));
    };
    device_row card{.name = "0"};
    CHECK(test::schema_errors(rules, with_device(card)) == "");
    card.values.fill(arena_row::none); // as of a page whose writer knows none of them
    CHECK(test::schema_errors(rules, with_device(card)) == "");
    const nlohmann::json& of_device = rules["properties"]["devices"]["items"]["properties"];
    CHECK(of_device.size() == device_columns.size() + 1);
    CHECK(rules["properties"]["devices"]["items"]["required"].size() == of_device.size());
    for (const arena_column& c : device_columns) {
        CAPTURE(c.name);
        REQUIRE(of_device.contains(c.name));
        if (c.name != std::string("limited_by")) CHECK(contains(of_device[c.name]["description"], c.help));
    }
    arena_row book{.id = 3, .parent = 2, .depth = 2, .kind = row_kind::accounts, .path = "gpu/<job>/users"};
    book.values.fill(arena_row::none);
    book[arena_field::used] = book[arena_field::charged] = book[arena_field::peak] = 5;
    CHECK(test::schema_errors(rules, json({book})) == "");

    // Every column of the table is in the schema, and nothing else.
    const nlohmann::json& columns = rules["properties"]["arenas"]["items"]["properties"];
    CHECK(columns.size() == arena_columns.size() + 5);
    CHECK(rules["properties"]["arenas"]["items"]["required"].size() == columns.size());
    CHECK(json(two_rows())["arenas"][0].size() == columns.size());
    for (const arena_column& c : arena_columns) {
        CAPTURE(c.name);
        REQUIRE(columns.contains(c.name));
        CHECK(contains(columns[c.name]["description"], c.help));
    }

    // So are all other members; who checks what a later one writes finds nothing wrong with those that it does not know.
    const auto names = [](const nlohmann::json& object) {
        std::vector<std::string> all;
        for (const auto& [name, unused] : object.items()) all.push_back(name);
        return all;
    };
    nlohmann::json later = json(two_rows());
    CHECK(names(later) == names(rules["properties"]));
    CHECK(names(later["process"]) == names(rules["properties"]["process"]["properties"]));
    later["most"] = 1;
    later["process"]["user"] = 1;
    later["arenas"][0]["colour"] = 1;
    CHECK(test::schema_errors(rules, later) == "");

    // The check does find things.
    nlohmann::json wrong = json(two_rows());
    wrong["arenas"][0].erase("used");
    CHECK(contains(test::schema_errors(rules, wrong), "$.arenas[0]: no \"used\""));
    wrong = json(two_rows());
    wrong["arenas"][1]["used"] = nullptr;
    wrong["version"] = 2;
    wrong["arenas"][1]["kind"] = "tenant";
    wrong["process"]["pid"] = -1;
    const std::string said = test::schema_errors(rules, wrong);
    for (const char* part : {"$.arenas[1].used: not of type", "$.version: not 1", "$.arenas[1].kind: none of",
                             "$.process.pid: below 0"})
        CHECK(contains(said, part));
}

TEST_CASE("top shows live pages and takes those of dead processes away", "[cli][top]") {
    const scratch_folder here;
    page_writer mine(here.path.string());
    mine.write(two_rows(), 1'000'000'000);
    (void)here.file("tenure-x", "not a page");
    (void)here.file("something", "else");
    const std::string pretender =
        here.file(page_name({mine.process().pid, mine.process().started + 1}), "not a page either");

    // A process that dies without taking its page away.
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        auto* const page = new page_writer(here.path.string()); // never destroyed
        page->write(two_rows(), 1);
        ::_exit(fs::exists(page->file()) ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    const auto count = [&] {
        std::size_t n = 0;
        for (const auto& e : fs::directory_iterator(here.path)) n += e.is_regular_file() ? 1 : 0;
        return n;
    };
    CHECK(count() == 5);

    CHECK(read_pages(here.path.string(), 999999999).pages.empty());
    const std::vector<page_picture> pages = read_pages(here.path.string(), 0).pages;
    REQUIRE(pages.size() == 1);
    CHECK(pages[0].process.pid == static_cast<std::uint64_t>(::getpid()));
    CHECK(pages[0].rows == two_rows());
    CHECK(count() == 4);          // the dead process's is gone
    CHECK(fs::exists(pretender)); // what is no page is not ours to take away
    CHECK(read_pages(here.path.string(), pages[0].process.pid).pages.size() == 1);
    CHECK_THROWS_AS(read_pages("/nonexistent", 0), usage_error);
    CHECK_THROWS_AS(top({.pid = 999999999, .once = true, .folder = here.path.string()}), usage_error);
}

TEST_CASE("a record lasts as long as its process, though that sleeps in the middle of a write",
          "[cli][top]") {
    const scratch_folder here;
    const std::string folder = here.path.string();
    const pid_t process = ::fork();
    REQUIRE(process >= 0);
    if (process == 0) {
        page_writer page(folder);
        page.write(two_rows(), 1'000'000'000);
        std::this_thread::sleep_for(std::chrono::milliseconds{300});
        const int file = ::open(page.file().c_str(), O_WRONLY);
        const auto set = [&](std::uint64_t sequence) {
            (void)!::pwrite(file, &sequence, 8, page_layout::at_sequence * 8);
        };
        set(3);
        std::this_thread::sleep_for(std::chrono::milliseconds{600}); // longer than a reader waits
        set(2);
        page.write(two_rows(), 2'000'000'000);
        std::this_thread::sleep_for(std::chrono::milliseconds{400});
        ::unlink(page.file().c_str());
        ::_exit(0);
    }
    for (int i = 0; i < 1000 && read_pages(folder, 0).pages.empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    const std::string record = (here.path / "record").string();
    const auto pid = static_cast<std::uint64_t>(process);
    CHECK(with_stdout(record, [&] {
              return top({.pid = pid, .json = true, .interval = 0.02, .folder = folder});
          }) == all_completed);
    int status = 0;
    REQUIRE(::waitpid(process, &status, 0) == process);
    std::ifstream in(record);
    std::string line;
    std::vector<std::uint64_t> times;
    while (std::getline(in, line)) times.push_back(nlohmann::json::parse(line)["time_ns"]);
    CHECK(times == std::vector<std::uint64_t>{1'000'000'000, 2'000'000'000}); // each picture once
}

TEST_CASE("top that cannot write says so, and ends well when nobody reads", "[cli][top]") {
    const scratch_folder here;
    page_writer mine(here.path.string());
    mine.write(two_rows(), 1'000'000'000);
    for (const bool json : {false, true}) {
        const top_options once{.once = true, .json = json, .folder = here.path.string()};
        CHECK(with_stdout("/dev/full", [&] { return top(once); }) == bad_usage);
        CHECK(with_stdout("/dev/null", [&] { return top(once); }) == all_completed);
        const top_options always{.json = json, .interval = 0.01, .folder = here.path.string()};
        CHECK(with_stdout("", [&] { return top(always); }) == all_completed);
    }
    // A process that is asleep in a write from the start is not one that does not publish.
    const std::uint64_t odd = 3;
    const int file = ::open(mine.file().c_str(), O_WRONLY);
    CHECK(::pwrite(file, &odd, 8, page_layout::at_sequence * 8) == 8);
    ::close(file);
    std::string said;
    try {
        (void)top({.pid = mine.process().pid, .once = true, .folder = here.path.string()});
    } catch (const usage_error& e) {
        said = e.what();
    }
    CHECK(contains(said, "stopped in the middle of a write"));
}

TEST_CASE("the table of top shows the tree, limits and rates", "[cli][top]") {
    page_picture before;
    before.process = {42, 1, "wor\x1bker"};
    before.time_ns = 1'000'000'000;
    before.rows = two_rows();
    before.total_rows = 5;
    const std::string first = to_text(before, std::nullopt);
    CHECK(contains(first, "wor?ker (pid 42)\n"));
    CHECK(contains(first, "\ngpu "));
    CHECK(contains(first, "\n  <job> "));
    CHECK(contains(first, "3 GiB"));
    CHECK(contains(first, "8 GiB"));
    CHECK(contains(first, "and 3 more"));
    arena_row book{.id = 3, .parent = 2, .depth = 2, .kind = row_kind::accounts, .path = "gpu/<job>/users"};
    book.values.fill(arena_row::none);
    book[arena_field::used] = book[arena_field::charged] = book[arena_field::peak] = 5_MiB;
    book[arena_field::accounts] = 1000;
    book[arena_field::refused] = 42;
    before.rows.push_back(book);
    before.devices.resize(1);
    before.devices[0].name = "0\x1b";
    before.devices[0][device_field::capacity] = 70_GiB;
    before.devices[0][device_field::external] = 9_GiB;
    const std::string more = to_text(before, std::nullopt);
    CHECK(contains(more, "\n    users (1000) "));
    CHECK(contains(more, "  42\n"));
    CHECK(contains(more, "device 0?: capacity 70 GiB, held 0 B, free 0 B, external 9 GiB"));
    CHECK_FALSE(contains(more, "gone"));
    before.devices[0][device_field::vanished] = 2_GiB;
    CHECK(contains(to_text(before, std::nullopt), ", 2 GiB of the capacity of the start gone\n"));
    page_picture now = before;
    now.time_ns += 500'000'000;
    now.rows[1][arena_field::charges] += 10;
    CHECK(contains(to_text(now, before), " 20.0 "));

    // Nothing that a terminal obeys, whoever chose the name: also an escape of two bytes, and one that is no UTF-8.
    now.process.program = "a\x7f\xc2\x9b"
                          "2J\x9b\xc3";
    now.rows[0].path = "caf\xc3\xa9";
    const std::string text = to_text(now, std::nullopt);
    CHECK(contains(text, "a??2J?? (pid 42)\n"));
    CHECK(contains(text, "\ncaf\xc3\xa9 "));
    // Columns stand under each other, whatever a character's bytes.
    const auto column_of = [&](const std::string& what) {
        const std::size_t at = text.find(what);
        const std::string before_it = text.substr(text.rfind('\n', at) + 1, at - text.rfind('\n', at) - 1);
        return std::count_if(before_it.begin(), before_it.end(), [](char c) { return (c & 0xc0) != 0x80; });
    };
    CHECK(column_of("8 GiB") + 5 == column_of("MAX") + 3);
}

TEST_CASE("top keeps to the width and the height of its terminal", "[cli][top]") {
    page_picture page;
    page.process = {42, 1, "worker"};
    page.rows = two_rows();
    page.rows[1].path = "gpu/" + std::string(60, 'n');
    CHECK(contains(to_text(page, std::nullopt), std::string(60, 'n')));
    const std::string narrow = to_text(page, std::nullopt, 0, 60);
    INFO(narrow);
    CHECK(widest(narrow) <= 60);
    CHECK(contains(narrow, "nnn...  "));
    CHECK(contains(narrow, "8 GiB"));
    CHECK(contains(narrow, "\nno room for CHARGES/s, HIGH"));
    CHECK_FALSE(contains(narrow, "HIGH  "));
    CHECK(widest(to_text(page, std::nullopt, 0, 200)) > 60);

    // The same at a terminal, which is asked at each look.
    const scratch_folder here;
    page_writer mine(here.path.string());
    std::vector<arena_row> many = two_rows();
    for (std::uint64_t id = 3; id < 20; ++id) {
        many.push_back(many[1]);
        many.back().id = id;
    }
    mine.write(many, 1'000'000'000);
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0) {
        WARN("no terminals here");
        return;
    }
    REQUIRE((::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0));
    const winsize size{.ws_row = 10, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(terminal, TIOCSWINSZ, &size) == 0);
    const std::string name = ::ptsname(terminal);
    const int held = ::open(name.c_str(), O_RDWR | O_NOCTTY); // what is written stays until it is read
    const top_options options{.pid = mine.process().pid, .interval = 0.05, .folder = here.path.string()};
    CHECK(with_stdout(name, [&] {
              std::thread end(
                  [&] { // once there is something to see; few screens, as nobody reads them meanwhile
                      pollfd shown{terminal, POLLIN, 0};
                      (void)::poll(&shown, 1, 60'000);
                      ::unlink(mine.file().c_str());
                  });
              const int code = top(options);
              end.join();
              return code;
          }) == all_completed);
    std::string seen(4096, '\0');
    const ssize_t got = ::read(terminal, seen.data(), seen.size());
    REQUIRE(got > 0);
    seen.resize(static_cast<std::size_t>(got));
    ::close(held);
    ::close(terminal);
    INFO(seen);
    const std::string clear = "\033[H\033[J";
    const std::size_t begin = seen.rfind(clear) + clear.size();
    const std::string screen = seen.substr(begin);
    CHECK(std::count(screen.begin(), screen.end(), '\n') == 9);
    CHECK(contains(screen, " lines more"));
    CHECK(widest(screen) <= 61); // and the terminal's own \r
}

TEST_CASE("top says how old a picture is that is not of now", "[cli][top]") {
    page_picture p;
    p.process = {42, 1, "x"};
    p.time_ns = 10'000'000'000;
    CHECK(contains(to_text(p, std::nullopt, 11'500'000'000), "x (pid 42)\n"));
    CHECK(contains(to_text(p, std::nullopt, 22'500'000'000), "x (pid 42), as it was 12 s ago\n"));
    p.time_ns = 0;
    CHECK(contains(to_text(p, std::nullopt, 22'500'000'000), "has shown nothing yet"));
}

TEST_CASE("a trace becomes a timeline with all peaks of the sum", "[cli][report]") {
    const scratch_folder here;
    std::string text = "t_us,op,id,bytes,stream,arena\n0,m,0,4096,0,alice\n";
    // A peak that lasts one event among a hundred thousand.
    std::uint64_t t = 0;
    for (int i = 0; i < 50000; ++i) {
        const std::string id = std::to_string(i);
        const std::string bytes = i == 31234 ? "1000000" : "1000";
        text +=
            std::to_string(++t) + ",a," + id + ',' + bytes + ",0," + (i % 2 == 0 ? "alice" : "bob") + '\n';
        text +=
            std::to_string(++t) + ",f," + id + ',' + bytes + ",0," + (i % 2 == 0 ? "alice" : "bob") + '\n';
    }
    const timeline line = load_timeline(here.file("run.csv", text));
    REQUIRE(line.arenas.size() == 2);
    CHECK(line.arenas[0].name == "alice");
    CHECK(line.time_s.size() <= timeline::most_points + 1);
    CHECK(line.time_s.size() >= timeline::most_points / 2);
    std::uint64_t most = 0;
    for (const std::uint64_t v : line.arenas[0].held) most = std::max(most, v);
    CHECK(most == 1000448); // rounded to 512
    CHECK(line.arenas[0].limit.back() == 4096);
    CHECK(line.arenas[1].limit.back() == timeline::no_value);
    for (std::size_t i = 1; i < line.time_s.size(); ++i) REQUIRE(line.time_s[i] >= line.time_s[i - 1]);
    CHECK_THROWS_AS(load_timeline(here.file("bad.csv", "nothing\n")), input_error);
}

TEST_CASE("an arena's most held is its own, whatever the others held then", "[cli][report]") {
    const scratch_folder here;
    // In each span alice has her peak when the sum is lower than at bob's.
    std::string text = "t_us,op,id,bytes,stream,arena\n";
    for (int i = 0; i < 4000; ++i) {
        const std::string a = std::to_string(2 * i);
        const std::string b = std::to_string(2 * i + 1);
        const std::string t = std::to_string(i);
        text += t + ",a," + a + ",10240,0,alice\n" + t + ",f," + a + ",10240,0,alice\n";
        text += t + ",a," + b + ",51200,0,bob\n" + t + ",f," + b + ",51200,0,bob\n";
    }
    text += "4000,m,0,8192,0,alice\n4000,m,0,4096,0,alice\n";
    const timeline line = load_timeline(here.file("run.csv", text));
    REQUIRE(line.arenas.size() == 2);
    CHECK(line.arenas[0].peak == 10240);
    CHECK(line.arenas[1].peak == 51200);
    CHECK(line.arenas[0].last_limit == 4096);
    CHECK(contains(to_html(line), "</span>alice</td><td>10 KiB</td><td>4 KiB</td>"));
}

TEST_CASE("a long record of top is cut into spans, and no peak of the sum is lost", "[cli][report]") {
    const scratch_folder here;
    std::string text;
    for (std::uint64_t i = 1; i <= 20000; ++i) {
        std::vector<arena_row> rows = two_rows();
        rows[1][arena_field::own] = i == 12345 ? 77_GiB : 1_GiB;
        text += to_json(rows, {.pid = 7, .program = "x"}, i * 100'000'000, i == 3 ? 44 : 0) + '\n';
    }
    const timeline line = load_timeline(here.file("run.jsonl", text));
    CHECK(line.time_s.size() <= timeline::most_points + 1);
    CHECK(line.time_s.size() >= timeline::most_points / 2);
    for (std::size_t i = 1; i < line.time_s.size(); ++i) REQUIRE(line.time_s[i] > line.time_s[i - 1]);
    REQUIRE(line.arenas.size() == 1);
    const std::vector<std::uint64_t>& held = line.arenas[0].held;
    REQUIRE(held.size() == line.time_s.size());
    CHECK(line.arenas[0].limit.size() == held.size());
    CHECK(line.groups[0].held.size() == held.size());
    CHECK(std::count(held.begin(), held.end(), 77_GiB) == 1);
    CHECK(line.arenas[0].peak == 77_GiB);
    CHECK(line.more == 44);
    CHECK(contains(to_html(line), "up to 44 more"));
}

TEST_CASE("no two of many arenas look alike in the report", "[cli][report]") {
    timeline t;
    t.time_s = {0, 1};
    for (int i = 0; i < 30; ++i)
        t.arenas.push_back({.name = "a" + std::to_string(i), .held = {1, 1}, .limit = {2, 2}});
    const std::string html = to_html(t);
    const auto collect = [&](const std::string& begin, const char* end, std::size_t from, std::size_t to) {
        std::set<std::string> found;
        for (std::size_t at = html.find(begin, from); at < to; at = html.find(begin, at + 1))
            found.insert(html.substr(at, html.find(end, at) - at));
        return found;
    };
    CHECK(collect("<span class=\"key\"", "><", 0, html.size()).size() == 30);
    CHECK(collect(" fill=\"#", "><title>", 0, html.find("</svg>")).size() == 30);
}

TEST_CASE("arenas of one name have a series each; one that is made again goes on with its own",
          "[cli][report]") {
    const scratch_folder here;
    const auto arena_of = [](std::uint64_t id, std::uint64_t own) {
        arena_row r{.id = id, .kind = row_kind::arena, .path = "arena"};
        r.values.fill(0);
        r[arena_field::own] = own;
        return r;
    };
    std::string text;
    std::uint64_t time = 0;
    const auto add = [&](const std::vector<arena_row>& rows) {
        text += to_json(rows, {.pid = 7}, ++time * 1'000'000'000) + '\n';
    };
    add({arena_of(1, 1_GiB), arena_of(2, 1_MiB)});
    add({arena_of(2, 2_MiB)});                     // the first has gone
    add({arena_of(2, 3_MiB), arena_of(3, 5_GiB)}); // and is made again
    add({});
    const timeline line = load_timeline(here.file("run.jsonl", text));
    REQUIRE(line.arenas.size() == 2);
    CHECK(line.arenas[0].name == "arena");
    CHECK(line.arenas[0].held == std::vector<std::uint64_t>{1_GiB, 0, 5_GiB, 0});
    CHECK(line.arenas[1].name == "arena #2");
    CHECK(line.arenas[1].held == std::vector<std::uint64_t>{1_MiB, 2_MiB, 3_MiB, 0});
}

TEST_CASE("a record that was cut is drawn up to there, and one with numbers that are none is not",
          "[cli][report]") {
    const scratch_folder here;
    const std::string good = to_json(two_rows(), {.pid = 7}, 1'000'000'000) + '\n';
    const std::string next = to_json(two_rows(), {.pid = 7}, 2'000'000'000);
    for (const std::size_t n : {std::size_t{1}, next.size() / 2, next.size() - 1}) {
        const timeline line = load_timeline(here.file("cut", good + next.substr(0, n)));
        CHECK(line.time_s.size() == 1);
        CHECK(contains(line.warning, "cut:2: the last line is cut"));
    }
    CHECK(load_timeline(here.file("whole", good + next)).time_s.size() == 2);
    CHECK(load_timeline(here.file("whole", good + next)).warning.empty());
    CHECK_THROWS_AS(load_timeline(here.file("inside", good + next.substr(0, 9) + '\n' + good)), input_error);
    CHECK_THROWS_AS(load_timeline(here.file("only", next.substr(0, 9))), input_error);
    // A picture of which nobody knows when it was.
    CHECK(load_timeline(here.file("early", to_json({}, {.pid = 7}, 0) + '\n' + good)).time_s.size() == 1);

    for (const char* value : {"-5", "1.5", "\"x\"", "18446744073709551616"}) {
        std::string bad = good;
        const std::string was = "\"max\":8589934592";
        bad.replace(bad.find(was), was.size(), std::string("\"max\":") + value);
        CAPTURE(value);
        CHECK_THROWS_AS(load_timeline(here.file("bad", bad)), input_error);
    }
}

TEST_CASE("a record of top becomes a page of HTML that needs nothing else", "[cli][report]") {
    const scratch_folder here;
    std::string text;
    for (std::uint64_t i = 1; i <= 20; ++i) {
        std::vector<arena_row> rows = two_rows();
        rows[1][arena_field::own] = i * 100_MiB;
        if (i > 10) rows[1][arena_field::max] = 1_GiB;
        text += to_json(rows, {.pid = 7, .program = "x"}, i * 100'000'000) + '\n';
    }
    const std::string run = here.file("run.jsonl", text);
    const timeline line = load_timeline(run);
    REQUIRE(line.arenas.size() == 1);
    REQUIRE(line.groups.size() == 1);
    CHECK(line.time_s.size() == 20);
    CHECK(line.arenas[0].held.back() == 2000_MiB);
    CHECK(line.arenas[0].limit.front() == timeline::no_value);
    CHECK(line.arenas[0].limit.back() == 1_GiB);
    CHECK(line.groups[0].limit.back() == 8_GiB);

    const std::string out = (here.path / "page.html").string();
    CHECK(report({.run = run, .output = out}) == all_completed);
    std::ifstream in(out);
    const std::string html{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    CHECK(html.rfind("<!DOCTYPE html>", 0) == 0);
    CHECK(contains(html, "gpu/&lt;job&gt;"));
    CHECK_FALSE(contains(html, "<job>"));
    CHECK(contains(html, "class=\"limit\""));
    for (const char* outside : {"http:", "https:", "<script", "<link", "url(", "nan", "inf", " src="}) {
        CAPTURE(outside);
        CHECK_FALSE(contains(html, outside));
    }

    CHECK_THROWS_AS(load_timeline(here.file("a", "{}\n")), input_error);
    CHECK_THROWS_AS(load_timeline(here.file("b", text + "{broken\n")), input_error);
    CHECK_THROWS_AS(load_timeline(here.file("c", text + text)), input_error); // time goes backwards
    CHECK_THROWS_AS(
        load_timeline(here.file("d", to_json({}, {.pid = 1}, 1) + '\n' + to_json({}, {.pid = 2}, 2))),
        input_error);
}
