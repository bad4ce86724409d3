/// Pages in a folder that anybody may write to: what their writer survives, and what their reader refuses.

#include <tenure/tenancy/arenas_text.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/page_reader.hpp>
#include <tenure/tenancy/published_page.hpp>
#include <tenure/tenancy/publisher.hpp>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace tenure;
using tenure::test::scratch_folder;
namespace fs = std::filesystem;

namespace {

std::vector<arena_row> some_rows(std::size_t n) {
    arena_row r{.id = 1, .kind = row_kind::arena, .path = "job"};
    r.values.fill(5);
    return std::vector<arena_row>(n, r);
}

page_key me() {
    const process_identity p = this_process();
    return {p.pid, p.started};
}

std::vector<std::uint64_t> words_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::vector<std::uint64_t> words(bytes.size() / 8);
    std::memcpy(words.data(), bytes.data(), words.size() * 8);
    return words;
}

void put_words(const std::string& file, const std::vector<std::uint64_t>& words) {
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(words.data()), static_cast<std::streamsize>(words.size() * 8));
}

/// Effects: runs `what` in a child that has ten seconds. Returns: its exit status; 128 and the signal that ended it.
template <class What>
int in_a_child(What what) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(10);
        ::_exit(what());
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Returns: whether this process may mount now, seen by nobody else.
bool have_mounts_of_my_own() {
    const std::string user = std::to_string(::geteuid());
    if (::unshare(CLONE_NEWNS) != 0) {
        if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
        if (!(std::ofstream("/proc/self/uid_map") << "0 " + user + " 1\n")) return false;
    }
    return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

/// Returns: why it refuses; empty: it does not.
template <class What>
std::string error_of(What what) {
    try {
        (void)what();
    } catch (const std::exception& e) {
        return e.what();
    }
    return {};
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// What a reader makes of a file: a picture, or an error of those it promises.
bool reads_or_refuses(const std::string& file) {
    try {
        const page_picture p = read_page(file);
        return p.rows.size() <= p.total_rows && p.columns <= arena_columns.size();
    } catch (const std::runtime_error&) { // also `std::system_error`
        return true;
    }
}

} // namespace

TEST_CASE("a file system without room is an error of the page, not the program's end", "[tenancy][page]") {
    const scratch_folder here;
    arenas_view view;
    constexpr int not_allowed = 77;
    const int full = in_a_child([&] {
        if (!have_mounts_of_my_own()) return not_allowed;
        if (::mount("none", here.path.c_str(), "tmpfs", 0, "size=16k") != 0) return not_allowed;
        const publisher shown(view, {.when = publish::always, .folder = here.path.string()});
        return shown.file().empty() && fs::is_empty(here.path) ? 0 : 1;
    });
    if (full == not_allowed) WARN("no small file system can be mounted here");
    CHECK((full == 0 || full == not_allowed));
    const int limited = in_a_child([&] {
        const rlimit little{4096, 4096};
        if (::setrlimit(RLIMIT_FSIZE, &little) != 0) return 2;
        const publisher shown(view, {.when = publish::always, .folder = here.path.string()});
        return shown.file().empty() && fs::is_empty(here.path) ? 0 : 1;
    });
    CHECK(limited == 0);
}

TEST_CASE("a page that the program left behind at exec is replaced; one that is in use is not",
          "[tenancy][page]") {
    const scratch_folder here;
    const std::string file = here.file(page_name(me()));
    put_words(file, {1, 2, 3}); // exec keeps pid and start, and closes what had the lock
    const page_writer page(here.path.string(), 4);
    CHECK(words_of(file).size() > 3);
    try {
        const page_writer second(here.path.string(), 4);
        FAIL("two writers of one page");
    } catch (const std::system_error& e) {
        CHECK(e.code() == std::errc::file_exists);
    }
    CHECK(fs::exists(file));
}

TEST_CASE("the memory of a page is there from the start", "[tenancy][page]") {
    const scratch_folder here;
    const page_writer page(here.path.string());
    struct stat s {};
    REQUIRE(::stat(page.file().c_str(), &s) == 0);
    CHECK(s.st_blocks * 512 >= s.st_size);
    CHECK_THROWS_AS(page_writer(here.path.string(), 1'000'000), std::system_error); // no reader would take it
}

TEST_CASE("no header and no content of a page makes a reader do more than refuse", "[tenancy][page]") {
    const scratch_folder here;
    std::vector<std::uint64_t> good;
    {
        page_writer page(here.path.string(), 3);
        page.write(some_rows(3), 7);
        good = words_of(page.file());
    }
    const std::string file = here.file(page_name({1, 1}));
    put_words(file, good);
    CHECK(read_page(file).rows == some_rows(3));
    for (std::size_t w = 0; w < page_layout::header_words; ++w) {
        if (w == page_layout::at_sequence) continue; // a busy page: below
        for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 32,
                                          std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
            std::vector<std::uint64_t> bad = good;
            bad[w] = value;
            put_words(file, bad);
            CAPTURE(w, value);
            CHECK(reads_or_refuses(file));
        }
    }
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    for (int i = 0; i < 200; ++i) {
        std::vector<std::uint64_t> bad = good;
        for (std::size_t w = page_layout::at_row_words; w < bad.size(); ++w) // behind magic and version
            if (rng() % 4 == 0 && w != page_layout::at_sequence) bad[w] = rng();
        bad.resize(rng() % (bad.size() + 1));
        put_words(file, bad);
        CHECK(reads_or_refuses(file));
    }
    std::vector<std::uint64_t> other = good;
    other[page_layout::at_version] = 2;
    put_words(file, other);
    CHECK(contains(error_of([&] { return read_page(file); }), "another version"));
}

TEST_CASE("a page whose writer sleeps in a write is busy, and stays so for a bounded time",
          "[tenancy][page]") {
    const scratch_folder here;
    page_writer page(here.path.string(), 1);
    page.write(some_rows(1), 7);
    std::vector<std::uint64_t> words = words_of(page.file());
    const std::string file = here.file(page_name({1, 1}));
    words[page_layout::at_sequence] |= 1;
    put_words(file, words);
    CHECK_THROWS_AS(read_page(file), page_is_busy);
    // One that comes back within the reader's patience is read.
    std::thread writer([&] {
        std::this_thread::sleep_for(page_reader::patience / 4);
        words[page_layout::at_sequence] += 1;
        const std::string next = file + ".next";
        const int f = ::open(file.c_str(), O_WRONLY);
        (void)!::pwrite(f, &words[page_layout::at_sequence], 8, page_layout::at_sequence * 8);
        ::close(f);
    });
    bool read = true;
    try {
        (void)read_page(file);
    } catch (const page_is_busy&) {
        read = false;
    }
    writer.join();
    CHECK(read);
}

TEST_CASE("what is no regular file of a bounded size is no page", "[tenancy][page]") {
    const scratch_folder here;
    const std::string pipe = here.file(page_name({1, 1}));
    REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(in_a_child([&] { return reads_or_refuses(pipe) ? 0 : 1; }) == 0); // does not wait for a writer
    const std::string huge = here.file(page_name({1, 2}));
    std::ofstream(huge) << "";
    fs::resize_file(huge, std::uintmax_t{1} << 40);
    CHECK(contains(error_of([&] { return read_page(huge); }), "not a page"));
    const std::string link = here.file(page_name({1, 3}));
    page_writer page(here.path.string(), 1);
    fs::create_symlink(page.file(), link);
    CHECK_THROWS_AS(read_page(link), std::system_error);
}

TEST_CASE("a page that is cut while it is read is an error and no signal", "[tenancy][page][threads]") {
    const scratch_folder here;
    const std::string file = here.file(page_name({1, 1}));
    std::vector<std::uint64_t> good;
    {
        page_writer page(here.path.string(), 256);
        page.write(some_rows(256), 7);
        good = words_of(page.file());
    }
    put_words(file, good);
    const int end = in_a_child([&] {
        std::atomic<bool> stop{false};
        std::thread vandal([&] {
            while (!stop) {
                (void)!::truncate(file.c_str(), 0);
                put_words(file, good);
            }
        });
        const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds{300};
        bool good_end = true;
        while (std::chrono::steady_clock::now() < enough) good_end = reads_or_refuses(file) && good_end;
        stop = true;
        vandal.join();
        return good_end ? 0 : 1;
    });
    CHECK(end == 0);
}

TEST_CASE("a page shows the process that its name says, or nothing", "[tenancy][page]") {
    const scratch_folder here;
    page_writer page(here.path.string(), 1);
    page.write(some_rows(1), 7);
    const std::string dir = here.path.string();
    CHECK(read_page_of(dir, me()).rows == some_rows(1));
    CHECK(page_keys(dir) == std::vector<page_key>{me()});
    const std::vector<std::uint64_t> good = words_of(page.file());

    // This page under the name of another living process.
    const page_key first{1, process_start(1)};
    REQUIRE(first.started != 0);
    put_words(here.file(page_name(first)), good);
    CHECK(contains(error_of([&] { return read_page_of(dir, first); }), "not a page of that process"));
    // Of another pid namespace, where the pid is another process's.
    std::vector<std::uint64_t> elsewhere = good;
    elsewhere[page_layout::at_namespace] += 1;
    const std::string mine = page.file();
    {
        const int f = ::open(mine.c_str(), O_WRONLY);
        CHECK(::pwrite(f, &elsewhere[page_layout::at_namespace], 8, page_layout::at_namespace * 8) == 8);
        ::close(f);
    }
    CHECK(contains(error_of([&] { return read_page_of(dir, me()); }), "not a page of that process"));
    put_words(mine, good);
    CHECK(read_page_of(dir, me()).rows == some_rows(1));
    // Of another user.
    CHECK(process_user(me().pid) == ::geteuid());
    if (::geteuid() == 0) {
        REQUIRE(::chown(mine.c_str(), 12345, 12345) == 0);
        CHECK(contains(error_of([&] { return read_page_of(dir, me()); }), "not a page of that process"));
    }
}

TEST_CASE("pages of dead processes go, but only where that can be told", "[tenancy][page]") {
    const scratch_folder here;
    const std::string dir = here.path.string();
    std::vector<std::uint64_t> words;
    {
        page_writer page(dir, 1);
        words = words_of(page.file());
    }
    const page_key dead{me().pid, me().started + 1}; // started at another time: not this process
    words[page_layout::at_started] = dead.started;
    words[page_layout::at_sequence] = 1; // and it died in the middle of a write
    const auto put = [&](std::size_t at, std::uint64_t more) {
        std::vector<std::uint64_t> changed = words;
        changed[at] += more;
        put_words(here.file(page_name(dead)), changed);
    };
    put(page_layout::at_namespace, 1);
    CHECK(remove_if_stale(dir, dead));
    CHECK(fs::exists(here.file(page_name(dead))));
    put(page_layout::at_pid, 1);
    CHECK(remove_if_stale(dir, dead));
    CHECK(fs::exists(here.file(page_name(dead)))); // says another process: not ours to judge
    put(page_layout::at_namespace, 0);
    arenas_view view;
    {
        // Who publishes tidies up.
        const publisher shown(view, {.when = publish::always, .rows = 1, .folder = dir});
        CHECK_FALSE(fs::exists(here.file(page_name(dead))));
        CHECK_FALSE(remove_if_stale(dir, me()));
        CHECK(fs::exists(shown.file()));
    }
    CHECK(fs::is_empty(here.path));
}

TEST_CASE("a child of fork destroys what publishes in its parent", "[tenancy][page]") {
    const scratch_folder here;
    arenas_view view;
    alignas(publisher) static std::byte room[sizeof(publisher)];
    auto* const shown = new (room) publisher(
        view,
        {.when = publish::always, .interval = std::chrono::milliseconds{50}, .folder = here.path.string()});
    const std::string file = shown->file();
    REQUIRE_FALSE(file.empty());
    std::this_thread::sleep_for(std::chrono::milliseconds{20}); // its thread waits
    const int end = in_a_child([&] {
        shown->~publisher();
        return fs::exists(file) ? 0 : 1;
    });
    CHECK(end == 0);
    CHECK(fs::exists(file));
    shown->~publisher();
    CHECK_FALSE(fs::exists(file));
}

TEST_CASE("a publisher's thread takes no signal of the program's", "[tenancy][page]") {
    const scratch_folder here;
    arenas_view view;
    CHECK(in_a_child([&] {
              const publisher shown(view, {.when = publish::always, .folder = here.path.string()});
              ::signal(SIGUSR1, [](int) { ::_exit(9); });
              sigset_t one;
              sigemptyset(&one);
              sigaddset(&one, SIGUSR1);
              pthread_sigmask(SIG_BLOCK, &one, nullptr); // only the publisher's thread could take it
              ::kill(::getpid(), SIGUSR1);
              std::this_thread::sleep_for(std::chrono::milliseconds{250});
              return 0;
          }) == 0);
}

TEST_CASE("a page goes though its program has changed its folder", "[tenancy][page]") {
    const scratch_folder here;
    fs::create_directory(here.path / "pages");
    CHECK(in_a_child([&] {
              if (::chdir(here.path.c_str()) != 0) return 2;
              const page_writer page("pages", 1);
              return ::chdir("/") == 0 && fs::exists(page.file()) ? 0 : 1;
          }) == 0);
    CHECK(fs::is_empty(here.path / "pages"));
}

TEST_CASE("a path for which the page has no room shows that it is cut", "[tenancy][page]") {
    const scratch_folder here;
    page_writer page(here.path.string(), 2);
    std::vector<arena_row> rows = some_rows(2);
    rows[0].path = std::string(page_layout::path_bytes, 'a');
    rows[1].path = std::string(page_layout::path_bytes + 1, 'b');
    page.write(rows, 1);
    const page_picture p = read_page(page.file());
    CHECK(p.rows[0].path == rows[0].path);
    CHECK(p.rows[1].path == std::string(page_layout::path_bytes - 3, 'b') + "...");
}

TEST_CASE("names are UTF-8 in what machines read", "[tenancy][view]") {
    const std::string bad = "\xef\xbf\xbd";
    for (const std::string good :
         {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
        CHECK(detail::as_utf8(good) == good);
    CHECK(detail::as_utf8("a\xc3") == "a" + bad);                        // cut
    CHECK(detail::as_utf8("\x80z") == bad + "z");                        // no beginning
    CHECK(detail::as_utf8("\xc0\xaf") == bad + bad);                     // overlong
    CHECK(detail::as_utf8("\xed\xa0\x80") == bad + bad + bad);           // half of a pair
    CHECK(detail::as_utf8("\xf4\x90\x80\x80") == bad + bad + bad + bad); // beyond Unicode
    CHECK(detail::as_utf8("\xe2\x82") == bad + bad);
    std::vector<arena_row> rows = some_rows(1);
    rows[0].path = "\xff";
    CHECK(to_json(rows, {.program = "\xd0"}).find("\"program\":\"" + bad + "\"") != std::string::npos);
    CHECK(to_json(rows, {}).find("\"path\":\"" + bad + "\"") != std::string::npos);
    CHECK(to_prometheus(rows, {}).find("{arena=\"" + bad + "\",") != std::string::npos);
}

TEST_CASE("arenas of one name are two series, and each series stands there once", "[tenancy][view]") {
    std::vector<arena_row> rows = some_rows(2);
    rows[1].id = 2;
    const std::string text = to_prometheus(rows, {.pid = 7});
    std::vector<std::string> series;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        if (text[at] != '#') series.push_back(text.substr(at, text.rfind(' ', end) - at));
        at = end + 1;
    }
    CHECK(series.size() == 2 * arena_columns.size());
    std::sort(series.begin(), series.end());
    CHECK(std::adjacent_find(series.begin(), series.end()) == series.end());
}

TEST_CASE("JSON tells how many rows are missing, and leaves out columns that nobody knows",
          "[tenancy][view]") {
    const std::string json = to_json(some_rows(1), {}, 1, 44, 2);
    CHECK(json.find("\"more\":44") != std::string::npos);
    CHECK(json.find("\"charged\":5") != std::string::npos);
    CHECK(json.find("\"own\"") == std::string::npos);
}
