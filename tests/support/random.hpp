#pragma once

/// \file
/// Randomness for tests: one seed per process, printed, replayable with `TENURE_SEED=<number>`.

#include <bit>
#include <charconv>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

namespace tenure::test {

/// Returns: the seed of this process: the environment's `TENURE_SEED`, else a random number. Printed once to stderr.
/// A `TENURE_SEED` that is not a decimal number ends the process: running with another seed than asked would look
/// like a replay and be none.
inline std::uint64_t seed() {
    static const std::uint64_t value = [] {
        std::uint64_t chosen = 0;
        if (const char* text = std::getenv("TENURE_SEED")) {
            const char* const end = text + std::strlen(text);
            const auto [rest, error] = std::from_chars(text, end, chosen);
            if (error != std::errc{} || rest != end) {
                std::fprintf(stderr, "TENURE_SEED=\"%s\" is not a decimal number of 64 bits\n", text);
                std::exit(2);
            }
        } else {
            std::random_device entropy;
            chosen = (std::uint64_t{entropy()} << 32) | entropy();
        }
        std::fprintf(stderr, "TENURE_SEED=%" PRIu64 "\n", chosen);
        return chosen;
    }();
    return value;
}

/// Requires: `n > 0`. Returns: a number in [0, n).
template <class Rng>
std::uint64_t below(Rng& rng, std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(rng);
}

/// Returns: true in `percent` of 100 calls.
template <class Rng>
bool chance(Rng& rng, unsigned percent) {
    return below(rng, 100) < percent;
}

/// Requires: `1 <= low <= high < 2^63`. Returns: a number in [low, high], every power of two as likely as the next.
template <class Rng>
std::uint64_t log_uniform(Rng& rng, std::uint64_t low, std::uint64_t high) {
    const auto lowest = static_cast<unsigned>(std::bit_width(low)) - 1;
    const auto highest = static_cast<unsigned>(std::bit_width(high)) - 1;
    for (;;) {
        const unsigned power = lowest + static_cast<unsigned>(below(rng, highest - lowest + 1));
        const std::uint64_t n = (std::uint64_t{1} << power) + below(rng, std::uint64_t{1} << power);
        if (n >= low && n <= high) return n;
    }
}

} // namespace tenure::test
