/// `output_file`: whole or not at all, and nothing beside it.

#include "cli/errors.hpp"
#include "cli/output_file.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using tenure::cli::output_file;
using tenure::test::scratch_file;

std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::size_t files_in(const std::string& folder) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

} // namespace

TEST_CASE("an output file appears in commit, and nothing is beside it before or after",
          "[cli][output_file]") {
    const scratch_file old("old", "out.json");
    fs::permissions(old.path(), fs::perms::owner_read | fs::perms::owner_write);
    {
        output_file out(old.path());
        CHECK(files_in(old.folder()) == 1);
        CHECK(text_of(old.path()) == "old");
        out.commit("new");
    }
    CHECK(text_of(old.path()) == "new");
    CHECK(fs::status(old.path()).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
    { const output_file unused(old.path()); }
    CHECK(text_of(old.path()) == "new");
    CHECK(files_in(old.folder()) == 1);
    CHECK_THROWS_AS(output_file(old.folder()), tenure::cli::usage_error);
    CHECK_THROWS_AS(output_file(old.folder() + "/absent/x"), tenure::cli::usage_error);
}

TEST_CASE("a file that is a mount of its own is written in place", "[cli][output_file]") {
    const scratch_file file("old text that is longer", "out.json");
    const scratch_file mounted("", "outside.json");
    constexpr int not_allowed = 77;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        const bool mine = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
        if (!mine || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount(file.path().c_str(), mounted.path().c_str(), nullptr, MS_BIND, nullptr) != 0)
            ::_exit(not_allowed);
        try {
            output_file(mounted.path()).commit("new");
        } catch (const std::exception&) {
            ::_exit(1);
        }
        ::_exit(files_in(mounted.folder()) == 1 ? 0 : 2);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == not_allowed) {
        WARN("nothing can be mounted here");
        return;
    }
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(text_of(file.path()) == "new");
}
