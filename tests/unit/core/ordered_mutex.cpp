/// `ordered_mutex`: what a debug build says about a wrong order, and that nothing else is wrong.

#include <tenure/core/ordered_mutex.hpp>

#include "support/catch.hpp"

#include <mutex>
#include <string>

#if defined(__unix__)
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>
#endif

using namespace tenure;

namespace {

using low = ordered_mutex<lock_level::front>;
using high = ordered_mutex<lock_level::pool>;

void in_order() {
    low a;
    high b;
    for (int i = 0; i < 2; ++i) { // what was unlocked is not held any more
        const std::lock_guard first(a);
        const std::lock_guard second(b);
    }
    const std::lock_guard again(a);
}

#if !defined(NDEBUG) && defined(__unix__)

/// What became of a program that did `f`: how it ended, and what it said on the way.
struct outcome {
    int status = 0;
    std::string said;
};

template <class F>
outcome in_a_child(F f) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        std::signal(SIGABRT, SIG_DFL); // not the test framework's
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        f();
        _exit(0);
    }
    close(ends[1]);
    outcome o;
    char buffer[256];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;)
        o.said.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    REQUIRE(waitpid(child, &o.status, 0) == child);
    return o;
}

bool was_aborted(const outcome& o) {
    return WIFSIGNALED(o.status) && WTERMSIG(o.status) == SIGABRT;
}

#endif

} // namespace

TEST_CASE("mutexes are locked in their order, again and again", "[core][ordered_mutex]") {
    in_order();
}

#if !defined(NDEBUG) && defined(__unix__)

TEST_CASE("a debug build ends a program that locks against the order, and says which lock",
          "[core][ordered_mutex]") {
    CHECK(in_a_child(in_order).status == 0);
    const outcome reversed = in_a_child([] {
        low a;
        high b;
        const std::lock_guard first(b);
        const std::lock_guard second(a);
    });
    CHECK(was_aborted(reversed));
    CHECK(reversed.said.find("lock of level 20 taken out of order") != std::string::npos);
    const outcome two_of_one_level = in_a_child([] {
        high a, b;
        const std::lock_guard first(a);
        const std::lock_guard second(b);
    });
    CHECK(was_aborted(two_of_one_level));
}

#endif
