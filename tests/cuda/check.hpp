#pragma once

/// \file
/// Checks for programs that nvcc compiles: a failed one prints where and what, and the program ends with 1. A
/// program that cannot run here says why and ends with 77, which the test runner counts as skipped.

#include <cstdio>
#include <cstdlib>

namespace tenure::test {

inline int failed_checks = 0;

[[noreturn]] inline void skip(const char* reason) {
    std::printf("skipped: %s\n", reason);
    std::exit(77);
}

/// Returns: the exit code of the program.
inline int finish(const char* program) {
    if (failed_checks == 0) std::printf("%s: passed\n", program);
    return failed_checks == 0 ? 0 : 1;
}

} // namespace tenure::test

#define TENURE_CHECK(condition)                                                                              \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            ++tenure::test::failed_checks;                                                                   \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                     \
        }                                                                                                    \
    } while (false)

/// For conditions without which going on makes no sense.
#define TENURE_REQUIRE(condition)                                                                            \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);                     \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (false)
