#include "cli/gpu/pattern.hpp"

#include "support/catch.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <utility>

namespace {

using namespace tenure::cli;

bool same(const pattern_word& x, const pattern_word& y) {
    return x.a == y.a && x.b == y.b && x.c == y.c && x.d == y.d;
}

} // namespace

TEST_CASE("every block of a replay has a key of its own", "[cli][verify]") {
    std::set<std::uint64_t> keys;
    for (std::uint64_t salt = 1; salt <= 3; ++salt)
        for (std::uint64_t id = 0; id < 100'000; ++id) {
            const pattern_key k = key_of(id, salt);
            keys.insert(std::uint64_t{k.high} << 32 | k.low);
        }
    CHECK(keys.size() == 300'000);
}

TEST_CASE("a word tells whose it is, and where it belongs", "[cli][verify]") {
    std::mt19937_64 rng(tenure::test::seed());
    CAPTURE(tenure::test::seed());
    for (int round = 0; round < 10'000; ++round) {
        const pattern_key mine = key_of(tenure::test::below(rng, 1'000'000), 1);
        const pattern_key other = key_of(1'000'000 + tenure::test::below(rng, 1'000'000), 1);
        const std::size_t i = tenure::test::below(rng, std::size_t{1} << 32);
        const std::size_t j = tenure::test::below(rng, std::size_t{1} << 32);
        const pattern_word w = word_of(mine, i);
        REQUIRE(written_for(mine, w));
        REQUIRE((i == j || !same(w, word_of(mine, j))));
        REQUIRE_FALSE(same(w, word_of(other, i)));
        if (mine.high != other.high) REQUIRE_FALSE(written_for(other, w));
    }
    CHECK_FALSE(written_for(key_of(1, 1), {0, 0, 0, 0})); // memory that nobody has written
}

TEST_CASE("the bytes of a pattern are those of its words in memory", "[cli][verify]") {
    const pattern_key key = key_of(3, 4);
    for (std::size_t i = 0; i < 100; ++i) {
        const pattern_word w = word_of(key, i);
        unsigned char bytes[sizeof w];
        std::memcpy(bytes, &w, sizeof w);
        for (std::size_t k = 0; k < sizeof w; ++k)
            REQUIRE(bytes[k] == byte_of(key, i * pattern_word_bytes + k));
    }
}
