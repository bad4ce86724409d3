/// What an operator sees: rows, JSON, Prometheus text, and the published page.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/tenancy/accounts.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/arenas_text.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/capacity.hpp>
#include <tenure/tenancy/environment.hpp>
#include <tenure/tenancy/publisher.hpp>

#include "support/catch.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace tenure;
using tenure::test::scratch_folder;
namespace fs = std::filesystem;

namespace {

using job_type = arena<caching_pool, sim::device>;

struct machine {
    sim::device device{{.cost = sim::costs::zero()}};
    arena_group gpu{{.name = "gpu", .max = 8_GiB}};
    arena_group org{gpu, {.name = "org", .min = 1_GiB, .max = 4_GiB}};
    job_type alice{org, device, {.name = "alice", .max = 1_GiB}};
    job_type bob{gpu, device, {.name = "bob"}};
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Tenants that take a view's time between two others.
class many_others {
  public:
    explicit many_others(arenas_view& view) {
        for (int i = 0; i < 50; ++i) {
            groups_.push_back(std::make_unique<arena_group>(group_options{.name = "other"}));
            seen_.push_back(view.add(*groups_.back()));
        }
    }

  private:
    std::vector<std::unique_ptr<arena_group>> groups_;
    std::vector<arenas_view::seen> seen_;
};

/// A page of numbers that must all be the same.
std::vector<arena_row> all_of(std::uint64_t n) {
    arena_row r{.id = 1, .kind = row_kind::arena, .path = "x"};
    r.values.fill(n);
    return std::vector<arena_row>(16, r);
}

} // namespace

TEST_CASE("a view shows each tenant once, in tree order, with what its pool knows", "[tenancy][view]") {
    machine m;
    arenas_view view;
    CHECK(view.read().empty());
    const auto see_alice = view.add(m.alice); // before what is above it
    const auto see_gpu = view.add(m.gpu);
    std::optional<arenas_view::seen> see_bob(view.add(m.bob));
    void* const p = m.alice.allocate(default_stream, 1000);
    REQUIRE_FALSE(m.alice.try_allocate(default_stream, 2_GiB));

    const std::vector<arena_row> rows = view.read();
    REQUIRE(rows.size() == 4);
    CHECK(rows[0].path == "gpu");
    CHECK(rows[1].path == "gpu/org");
    CHECK(rows[2].path == "gpu/org/alice");
    CHECK(rows[3].path == "gpu/bob");
    CHECK(rows[0].parent == 0);
    CHECK(rows[2].parent == rows[1].id);
    CHECK(rows[2].depth == 2);
    CHECK(rows[3].depth == 1);
    CHECK(rows[1].kind == row_kind::group);
    CHECK(rows[2].kind == row_kind::arena);

    using f = arena_field;
    const std::size_t held = m.alice.usage().reserved.current;
    CHECK(rows[2][f::used] == held);
    CHECK(rows[2][f::reserved] == held);
    CHECK(rows[2][f::requested] == 1000);
    CHECK(rows[2][f::blocks] == 1);
    CHECK(rows[2][f::max] == 1_GiB);
    CHECK(rows[2][f::failed_arena_limit] == 1);
    CHECK(rows[1][f::requested] == arena_row::none); // a group has no pool
    CHECK(rows[1][f::min] == 1_GiB);
    CHECK(rows[0][f::charged] == 1_GiB); // the guarantee
    CHECK(rows[0][f::used] == held);
    CHECK(rows[3][f::max] == arena_row::none);
    CHECK(rows[3][f::reserved] == 0);

    see_bob.reset();
    CHECK(view.read()[3][f::reserved] == arena_row::none); // now seen through the group alone
    m.alice.deallocate(default_stream, p, 1000);
}

TEST_CASE("what stands in a tree is shown as of one instant, in whatever order it was added",
          "[tenancy][view][threads]") {
    machine m;
    arenas_view view;
    const auto see_alice = view.add(m.alice); // before what is above it
    const many_others between(view);
    const auto see_gpu = view.add(m.gpu);
    std::atomic<bool> stop{false};
    std::thread tenant([&] {
        while (!stop) {
            void* const p = m.alice.allocate(default_stream, 100_MiB);
            m.alice.deallocate(default_stream, p, 100_MiB);
            (void)m.alice.trim(0);
        }
    });
    std::size_t wrong = 0;
    std::size_t seen_used = 0;
    for (int i = 0; i < 2000; ++i) {
        const std::vector<arena_row> rows = view.read();
        const auto at = [&](const char* path) {
            return *std::find_if(rows.begin(), rows.end(),
                                 [&](const arena_row& r) { return r.path == path; });
        };
        if (at("gpu")[arena_field::used] != at("gpu/org/alice")[arena_field::used]) ++wrong;
        if (at("gpu")[arena_field::used] != 0) ++seen_used;
    }
    stop = true;
    tenant.join();
    CHECK(wrong == 0);
    CHECK(seen_used > 0);
}

TEST_CASE("tenants that change places while they are looked at are all shown", "[tenancy][view][threads]") {
    arena_group root({.name = "root"});
    arena_group a(root, {.name = "a"});
    arena_group b(root, {.name = "b"});
    arenas_view view;
    const auto see_a = view.add(a);
    const many_others between(view);
    const auto see_b = view.add(b);
    std::atomic<bool> stop{false};
    std::atomic<bool> moved{true};
    std::thread mover([&] {
        const auto move = [&](arena_group& who, arena_group& to) {
            if (who.set_parent(to.node()) != status::ok) moved = false;
        };
        while (!stop) {
            move(b, a);
            move(b, root);
            move(a, b);
            move(a, root);
        }
    });
    std::size_t wrong = 0;
    for (int i = 0; i < 2000; ++i) {
        const std::vector<arena_row> rows = view.read();
        const auto is_wrong = [](const arena_row& r) {
            return r.depth > 1 || (r.parent == 0) != (r.depth == 0);
        };
        if (rows.size() != 52 || std::any_of(rows.begin(), rows.end(), is_wrong)) ++wrong;
    }
    stop = true;
    mover.join();
    CHECK(moved);
    CHECK(wrong == 0);
}

TEST_CASE("JSON and Prometheus text spell every column, and absent values as such", "[tenancy][view]") {
    arena_row r{.id = 7, .parent = 3, .depth = 1, .kind = row_kind::arena, .path = "a\"b\\c\n"};
    r.values.fill(5);
    r[arena_field::max] = arena_row::none;
    r[arena_field::waited] = 1'500'000'000;
    const process_identity me{.pid = 42, .started = 9, .program = "worker"};
    const std::vector<arena_row> rows{r};
    const std::string json = to_json(rows, me, 11);
    CHECK(contains(json, R"("schema":"tenure-arenas","version":1,"time_ns":11)"));
    CHECK(contains(json, R"("pid":42,"started":9,"program":"worker")"));
    CHECK(contains(json, R"("id":7,"parent":3,"depth":1,"kind":"arena","path":"a\"b\\c\u000a")"));
    CHECK(contains(json, R"("max":null)"));
    CHECK(contains(json, R"("used":5)"));
    const std::string prometheus = to_prometheus(rows, me);
    CHECK(contains(prometheus, "# TYPE tenure_arena_used_bytes gauge\n"));
    CHECK(contains(prometheus, R"(tenure_arena_used_bytes{arena="a\"b\\c\n",kind="arena",id="7",pid="42"} 5)"
                               "\n"));
    CHECK(contains(prometheus, "# TYPE tenure_arena_charges_total counter\n"));
    CHECK(contains(
        prometheus,
        R"(tenure_arena_waited_seconds_total{arena="a\"b\\c\n",kind="arena",id="7",pid="42"} 1.500000000)"));
    CHECK_FALSE(contains(prometheus, "tenure_arena_max_bytes{"));
    for (const arena_column& c : arena_columns) {
        CHECK(contains(json, std::string("\"") + c.name + "\":"));
        CHECK(contains(prometheus, std::string("# HELP tenure_arena_") + c.name));
    }
}

TEST_CASE("accounts are rows below the arena whose pool they share", "[tenancy][view][account]") {
    using f = arena_field;
    machine m;
    accounts<job_type> book{m.alice, {.name = "users", .max = 100_MiB}};
    account org{book, {.name = "org", .max = 50_MiB}};
    account alice{org, {.name = "alice", .max = 8_MiB}};
    account bob{org, {.name = "bob"}};
    arenas_view view;
    const auto see_alice = view.add(alice); // before what is above it
    const auto see_book = view.add(book);
    std::optional<arenas_view::seen> see_gpu(view.add(m.gpu));
    const auto twice = view.add(alice);
    void* const p = alice.allocate(default_stream, 1_MiB);
    void* const q = bob.allocate(default_stream, 1000);
    REQUIRE_FALSE(alice.try_allocate(default_stream, 9_MiB));

    std::vector<arena_row> rows = view.read();
    REQUIRE(rows.size() == 6); // gpu, org, alice, the book, the account, bob
    const arena_row& all = rows[3];
    CHECK(rows[2].path == "gpu/org/alice");
    CHECK(all.path == "gpu/org/alice/users");
    CHECK(all.kind == row_kind::accounts);
    CHECK(all.parent == rows[2].id);
    CHECK(all.depth == 3);
    CHECK(all[f::used] == 1_MiB + 1024);
    CHECK(all[f::charged] == all[f::used] + all[f::stocked]);
    CHECK(all[f::stocked] == book.reading().stocked);
    CHECK(all[f::max] == 100_MiB);
    CHECK(all[f::accounts] == 3);
    CHECK(all[f::refused] == 1);
    CHECK(all[f::at_max] == 0);
    CHECK(all[f::own] == arena_row::none);
    const arena_row& one = rows[4];
    CHECK(one.path == "gpu/org/alice/users/org/alice");
    CHECK(one.kind == row_kind::account);
    CHECK(one.parent == all.id); // org is not shown
    CHECK(one[f::used] == 1_MiB);
    CHECK(one[f::blocks] == 1);
    CHECK(one[f::at_max] == 1);
    CHECK(one[f::accounts] == arena_row::none);
    CHECK(rows[5].path == "gpu/bob");
    const std::uint64_t id = one.id;

    const auto see_org = view.add(org); // between the two
    rows = view.read();
    REQUIRE(rows.size() == 7);
    CHECK(rows[4].path == "gpu/org/alice/users/org");
    CHECK(rows[4][f::used] == 1_MiB + 1024);
    CHECK(rows[5].id == id);
    CHECK(rows[5].parent == rows[4].id);
    CHECK(rows[5].depth == 5);

    see_gpu.reset();
    CHECK(view.read().front().path == "gpu/org/alice/users");
    CHECK(view.read().front().parent == 0);
    CHECK(contains(to_json(view.read(), {}),
                   R"("kind":"accounts","path":"gpu/org/alice/users","used":1049600)"));
    CHECK(contains(to_prometheus(view.read(), {}),
                   R"(tenure_arena_used_bytes{arena="gpu/org/alice/users/org/alice",kind="account")"));
    alice.deallocate(default_stream, p, 1_MiB);
    bob.deallocate(default_stream, q, 1000);
}

TEST_CASE("who looks at accounts stops nobody, and sees no more stocked than charged",
          "[tenancy][view][account][threads]") {
    machine m;
    accounts<job_type> book{m.alice};
    account one{book, {.name = "one"}};
    account two{book, {.name = "two"}};
    arenas_view view;
    const auto see = view.add(book);
    const auto see_one = view.add(one);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
        threads.emplace_back([&] {
            while (!stop)
                for (auto* const a : {&one, &two}) {
                    void* const p = a->allocate(default_stream, 64_KiB);
                    a->deallocate(default_stream, p, 64_KiB);
                }
        });
    for (int i = 0; i < 2000; ++i)
        for (const arena_row& r : view.read()) {
            REQUIRE(r[arena_field::stocked] <= r[arena_field::charged]);
            REQUIRE(r[arena_field::used] <= 1_GiB);
            REQUIRE((r[arena_field::blocks] == arena_row::none || r[arena_field::blocks] <= 4));
        }
    stop = true;
    for (std::thread& t : threads) t.join();
    CHECK(view.read()[0][arena_field::used] == 0);
    CHECK(view.read()[1][arena_field::blocks] == 0);
}

TEST_CASE("a device shows what others use of it, and what has vanished", "[tenancy][view][capacity]") {
    using f = device_field;
    sim::device device({.capacity = 16_GiB, .cost = sim::costs::zero()});
    capacity_watch card(sources_of(device), 512_MiB);
    arena_group root({.name = "gpu", .max = card.capacity()});
    job_type job(root, device, {.name = "job"});
    arenas_view view;
    CHECK(view.read_devices().empty());
    std::optional<arenas_view::seen> see(view.add("0", card, [&] { return root.limits().used; }));
    void* const p = job.allocate(default_stream, 4_GiB);
    const result<void*, status> other = device.allocate(10_GiB); // somebody else's
    REQUIRE(other);
    const std::vector<device_row> rows = view.read_devices();
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].name == "0");
    CHECK(rows[0][f::held] == 4_GiB);
    CHECK(rows[0][f::free] == 2_GiB);
    CHECK(rows[0][f::external] == 10_GiB);
    CHECK(rows[0][f::most_external] == 10_GiB);
    CHECK(rows[0][f::vanished] == 10_GiB);
    CHECK(rows[0][f::capacity] == 6_GiB - 512_MiB);
    CHECK(rows[0][f::limit] == 16_GiB);
    CHECK(rows[0][f::headroom] == 512_MiB);
    CHECK(rows[0][f::processes] == arena_row::none);

    const std::string json = to_json({}, {}, 1, 0, arena_columns.size(), rows);
    CHECK(contains(json, R"("devices":[{"name":"0","capacity":5905580032,"held":4294967296,)"));
    CHECK(contains(json, R"("processes":null,"limited_by":"device"}],"more":0)"));
    const std::string prometheus = to_prometheus({}, {.pid = 7}, rows);
    CHECK(contains(prometheus, "tenure_device_external_bytes{device=\"0\",pid=\"7\"} 10737418240\n"));
    CHECK(contains(prometheus, "tenure_device_limited_by{device=\"0\",pid=\"7\"} 0\n"));
    CHECK_FALSE(contains(to_prometheus({}, {.pid = 7}), "tenure_device"));

    const scratch_folder here;
    {
        page_writer page(here.path.string(), 3);
        page.write(view.read(), 7, rows);
        CHECK(read_page(page.file()).devices == rows);
        std::vector<device_row> many(page_layout::most_devices + 1, rows[0]);
        many[0].name = std::string(100, 'n');
        page.write(all_of(5), 8, many);
        const page_picture shown = read_page(page.file());
        CHECK(shown.rows.size() == 3);
        CHECK(shown.rows[2] == all_of(5)[0]);
        CHECK(shown.devices.size() == page_layout::most_devices);
        CHECK(shown.devices[0].name == std::string(page_layout::device_name_bytes, 'n'));
        CHECK(shown.devices.back() == rows[0]);
    }
    {
        const publisher shown(view, {.when = publish::always, .folder = here.path.string()});
        CHECK(read_page(shown.file()).devices == rows);
    }
    see.reset();
    CHECK(view.read_devices().empty());
    REQUIRE(device.deallocate(*other, 10_GiB) == status::ok);
    job.deallocate(default_stream, p, 4_GiB);
}

TEST_CASE("a page shows what was written to it", "[tenancy][page]") {
    const scratch_folder here;
    machine m;
    arenas_view view;
    const auto see = view.add(m.gpu);
    const auto see_alice = view.add(m.alice);
    const std::vector<arena_row> rows = view.read();
    {
        page_writer page(here.path.string(), 8);
        CHECK(read_page(page.file()).time_ns == 0);
        page.write(rows, 17);
        const page_picture p = read_page(page.file());
        CHECK(p.rows == rows);
        CHECK(p.total_rows == rows.size());
        CHECK(p.time_ns == 17);
        CHECK(p.process.pid == static_cast<std::uint64_t>(::getpid()));
        CHECK(p.process.started == process_start(p.process.pid));
        CHECK(p.process.started != 0);
        CHECK_FALSE(p.process.program.empty());
        CHECK(p.pid_namespace == pid_namespace());
        CHECK((fs::status(page.file()).permissions() & fs::perms::all) ==
              (fs::perms::owner_read | fs::perms::owner_write));

        // One page a process.
        CHECK_THROWS_AS(page_writer(here.path.string()), std::system_error);
        CHECK(read_page(page.file()).rows == rows);

        // More than there is room for.
        page.write(all_of(1), 18);
        CHECK(read_page(page.file()).rows.size() == 8);
        CHECK(read_page(page.file()).total_rows == 16);
    }
    CHECK(here.empty());
}

TEST_CASE("a file that is no page is refused", "[tenancy][page]") {
    const scratch_folder here;
    const std::string path = (here.path / "tenure-1-1").string();
    CHECK_THROWS_AS(read_page(path), std::system_error);
    for (const std::size_t bytes : {0u, 100u, 4096u}) {
        std::ofstream(path, std::ios::binary) << std::string(bytes, 'x');
        CHECK_THROWS_AS(read_page(path), std::runtime_error);
    }
    CHECK(parse_page_name("tenure-12-345") == page_key{12, 345});
    for (const char* other :
         {"tenure-", "tenure-1", "tenure-1-", "tenure-1-2x", "x", "tenure--1-2", "tenure-a-1"})
        CHECK_FALSE(parse_page_name(other).has_value());
}

TEST_CASE("a reader never sees half of a write", "[tenancy][page][threads]") {
    const scratch_folder here;
    page_writer page(here.path.string(), 16);
    page.write(all_of(0), 0);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
        for (std::uint64_t n = 1; !stop; ++n) {
            page.write(all_of(n), n);
            // Far more often than a publisher does; without a pause no reader gets a whole picture.
            std::this_thread::sleep_for(std::chrono::microseconds{50});
        }
    });
    unsigned torn = 0;
    unsigned read = 0;
    std::string refused;
    for (int i = 0; i < 300; ++i) {
        try {
            const page_picture p = read_page(page.file());
            ++read;
            for (const arena_row& r : p.rows)
                for (const std::uint64_t v : r.values)
                    if (v != p.time_ns) ++torn;
        } catch (const page_is_busy&) { // the writer was put to sleep in the middle
        } catch (const std::exception& e) {
            refused = e.what();
        }
    }
    stop = true;
    writer.join();
    CHECK(torn == 0);
    CHECK(read >= 250);
    CHECK(refused.empty());
}

TEST_CASE("a publisher does nothing unless it is asked", "[tenancy][page]") {
    const scratch_folder here;
    machine m;
    arenas_view view;
    ::unsetenv("TENURE_PUBLISH");
    {
        const publisher off(view, {.folder = here.path.string()});
        CHECK(off.file().empty());
        CHECK(here.empty());
    }
    ::setenv("TENURE_PUBLISH", "yes", 1);
    CHECK_THROWS_AS(publisher(view, {.folder = here.path.string()}), std::invalid_argument);
    ::setenv("TENURE_PUBLISH", "1", 1);
    {
        const auto see = view.add(m.alice);
        const publisher on(view, {.interval = std::chrono::milliseconds{1}, .folder = here.path.string()});
        REQUIRE_FALSE(on.file().empty());
        void* const p = m.alice.allocate(default_stream, 1000);
        std::uint64_t seen = 0;
        for (int i = 0; i < 5000 && seen != 1000; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
            seen = read_page(on.file()).rows.at(0)[arena_field::requested];
        }
        CHECK(seen == 1000);
        m.alice.deallocate(default_stream, p, 1000);
    }
    ::unsetenv("TENURE_PUBLISH");
    CHECK(here.empty());
    const publisher nowhere(view, {.when = publish::always, .folder = "/nonexistent"});
    CHECK(nowhere.file().empty()); // said on stderr
}

TEST_CASE("a program says at its end which lines of TENURE_ARENAS were nobody's", "[tenancy][environment]") {
    const scratch_folder here;
    const std::string said = (here.path / "stderr").string();
    // Returns: what a program that makes a group "gpu" says at its end.
    const auto told = [&](const std::string& arenas) {
        std::cout.flush();
        std::fflush(stdout); // what is there already is the parent's to write
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            if (std::freopen(said.c_str(), "w", stderr) == nullptr) ::_exit(1);
            ::setenv("TENURE_ARENAS", arenas.c_str(), 1);
            environment::instance().read_again();
            { const arena_group gpu({.name = "gpu"}); }
            std::exit(0);
        }
        int status = 1;
        REQUIRE(::waitpid(child, &status, 0) == child);
        CHECK(status == 0);
        std::ifstream in(said);
        std::string line;
        std::getline(in, line);
        return line;
    };
    CHECK(told("gpu max=1GiB; gpu/workr max=1MiB; gqu max=2") ==
          "tenure: TENURE_ARENAS: no arena or group here is \"gpu/workr\" (line 1), \"gqu\" (line 1)");
    CHECK(told("gpu max=1GiB").empty());
    // Several programs share a file.
    const std::string file = (here.path / "arenas.conf").string();
    std::ofstream(file) << "gpu max=1GiB\ngpu/other max=1MiB\n";
    CHECK(told(file).empty());
    std::ofstream(file) << "# names\ngqu max=1GiB\n";
    CHECK(told(file) == "tenure: TENURE_ARENAS: no arena or group here is \"gqu\" (line 2)");
}

TEST_CASE("what the environment says holds for a program that does not ask it", "[tenancy][environment]") {
    const scratch_folder pages;
    ::setenv("TENURE_ARENAS",
             "gpu max=6GiB; gpu/org min=2GiB; gpu/org/* max=512MiB; gpu/bob max=none weight=7; cpu max=1", 1);
    ::setenv("TENURE_PUBLISH", "1", 1);
    ::setenv("TENURE_PUBLISH_DIR", pages.path.c_str(), 1);
    environment::instance().read_again();
    {
        machine m; // with limits of its own
        CHECK(m.gpu.limits().max == 6_GiB);
        CHECK(m.gpu.name() == "gpu");
        CHECK(m.org.limits().min == 2_GiB);
        CHECK(m.org.limits().max == 4_GiB); // nothing was said of that
        CHECK(m.alice.limits().max == 512_MiB);
        CHECK(m.bob.limits().weight == 7);
        CHECK(environment::instance().unused() ==
              "TENURE_ARENAS: no arena or group here is \"cpu\" (line 1)");
        CHECK_FALSE(m.alice.try_allocate(default_stream, 600_MiB));
        const std::string file = environment::instance().page();
        REQUIRE_FALSE(file.empty());
        std::vector<std::string> paths;
        for (int tries = 0; tries < 500 && paths.size() != 4; ++tries) {
            paths.clear();
            std::this_thread::sleep_for(std::chrono::milliseconds{10});
            for (const arena_row& r : read_page(file).rows) paths.push_back(r.path);
        }
        CHECK(paths == std::vector<std::string>{"gpu", "gpu/org", "gpu/org/alice", "gpu/bob"});
        {
            // So does a book of accounts; what the program chooses to show, too.
            accounts<job_type> book{m.bob};
            account one{book, {.name = "one"}};
            capacity_watch card(sources_of(m.device));
            const auto shown_one = environment::instance().show(one);
            const auto shown_card =
                environment::instance().show("0", card, [&] { return m.gpu.limits().used; });
            page_picture p;
            for (int tries = 0; tries < 500 && (p.rows.size() != 6 || p.devices.empty()); ++tries) {
                std::this_thread::sleep_for(std::chrono::milliseconds{10});
                p = read_page(file);
            }
            REQUIRE(p.rows.size() == 6);
            CHECK(p.rows[4].path == "gpu/bob/accounts");
            CHECK(p.rows[5].path == "gpu/bob/accounts/one");
            REQUIRE(p.devices.size() == 1);
            CHECK(p.devices[0][device_field::limit] == m.device.memory()->total);
        }
        const arenas_view view;
        const publisher second(view); // all is shown already
        CHECK(second.file().empty());
        CHECK(fs::exists(file));
    }
    CHECK(environment::instance().page().empty());
    CHECK(pages.empty()); // with the last arena the page goes
    ::setenv("TENURE_ARENAS", "gpu max=6QiB", 1);
    CHECK_THROWS_AS(environment::instance().read_again(), arena_config_error);
    ::setenv("TENURE_ARENAS", "", 1);
    ::setenv("TENURE_PUBLISH", "yes", 1);
    CHECK_THROWS_AS(environment::instance().read_again(), std::invalid_argument);
    for (const char* const variable : {"TENURE_ARENAS", "TENURE_PUBLISH", "TENURE_PUBLISH_DIR"})
        ::unsetenv(variable);
    environment::instance().read_again();
    const arena_group after({.name = "gpu", .max = 1_GiB});
    CHECK(after.limits().max == 1_GiB);
    CHECK(environment::instance().unused().empty());
}
