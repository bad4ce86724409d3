/// \file
/// `caching_options` and `roundup_divisions`: the size rules, the parser and the checks.

#include <tenure/policy/caching_options.hpp>

#include "support/catch.hpp"

#include <functional>
#include <stdexcept>
#include <string>

using namespace tenure;

namespace {

roundup_divisions parse(const char* text) {
    return parse_roundup_power2_divisions(text);
}

/// Runs `f`, which must throw `std::invalid_argument`, and returns its text.
std::string refusal(const std::function<void()>& f) {
    try {
        f();
    } catch (const std::invalid_argument& e) {
        return e.what();
    }
    return "";
}

bool contains(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("caching_options: PyTorch's sizes of blocks and segments", "[policy][caching]") {
    const caching_options o = caching_options::pytorch();
    o.check();
    CHECK(o == caching_options{});

    CHECK(o.block_size(1) == 512);
    CHECK(o.block_size(512) == 512);
    CHECK(o.block_size(513) == 1024);
    CHECK(o.block_size(1_MiB + 1) == 1_MiB + 512);
    CHECK(o.block_size(~std::size_t{0}) > 1_TiB); // absurd stays absurd

    CHECK(o.segment_size(512) == 2_MiB);
    CHECK(o.segment_size(1_MiB) == 2_MiB);
    CHECK(o.segment_size(1_MiB + 512) == 20_MiB);
    CHECK(o.segment_size(10_MiB - 512) == 20_MiB);
    CHECK(o.segment_size(10_MiB) == 10_MiB);
    CHECK(o.segment_size(10_MiB + 512) == 12_MiB);

    CHECK(o.splits(512, 1024));
    CHECK_FALSE(o.splits(512, 512));
    CHECK_FALSE(o.splits(2_MiB, 3_MiB)); // a remainder of exactly 1 MiB stays with the block
    CHECK(o.splits(2_MiB, 3_MiB + 512));
}

TEST_CASE("caching_options: max_split and max_non_split_rounding", "[policy][caching]") {
    caching_options o;
    o.max_split = 100_MiB;
    o.check();
    CHECK_FALSE(o.splits(100_MiB, 200_MiB));
    CHECK(o.splits(100_MiB - 512, 200_MiB));
    CHECK_FALSE(o.acceptable(50_MiB, 100_MiB)); // an oversize block is not for small requests
    CHECK(o.acceptable(50_MiB, 100_MiB - 512));
    CHECK(o.acceptable(100_MiB, 120_MiB - 512));
    CHECK_FALSE(o.acceptable(100_MiB, 120_MiB)); // 20 MiB of waste is too much
    o.max_non_split_rounding = 40_MiB;
    CHECK(o.acceptable(100_MiB, 120_MiB));
}

TEST_CASE("roundup_divisions: steps between powers of two", "[policy][caching]") {
    CHECK(roundup_divisions::round(1200, 4) == 1280);
    CHECK(roundup_divisions::round(1280, 4) == 1280);
    CHECK(roundup_divisions::round(1793, 4) == 2048);
    CHECK(roundup_divisions::round(1024, 4) == 1024);
    CHECK(roundup_divisions::round(5, 16) == 5); // steps under one byte: nothing to round to

    caching_options o;
    o.roundup_power2_divisions = parse("4");
    CHECK(o.block_size(2048) == 2048);
    CHECK(o.block_size(1900) == 2048); // not above 4 * 512: the plain rule
    CHECK(o.block_size(2049) == 2560);
    CHECK(o.block_size(5_MiB + 1) == 6_MiB);
    for (std::size_t n = 1; n < 100000; n += 37) {
        CAPTURE(n);
        REQUIRE(o.block_size(n) >= n);
        REQUIRE(o.block_size(n) % 512 == 0);
        REQUIRE(o.block_size(o.block_size(n)) == o.block_size(n));
    }
}

TEST_CASE("roundup_divisions: one number or a list by size", "[policy][caching]") {
    for (const std::size_t d : parse(" 8 ").values) CHECK(d == 8);

    const roundup_divisions list = parse("[256:1, 512:2,1024:4,>:8]");
    CHECK(list.at(1) == 1); // below the first key: the first value
    CHECK(list.at(255_MiB) == 1);
    CHECK(list.at(256_MiB) == 1);
    CHECK(list.at(512_MiB) == 2);
    CHECK(list.at(1_GiB) == 4);
    CHECK(list.at(2_GiB - 1) == 4);
    CHECK(list.at(2_GiB) == 8); // above the last key
    CHECK(list.at(64_GiB) == 8);
    CHECK(list.at(5_TiB) == 8);

    const roundup_divisions gap = parse("[1:2,8:4]");
    CHECK(gap.at(1_MiB) == 2);
    CHECK(gap.at(2_MiB) == 0);
    CHECK(gap.at(8_MiB) == 4);
    CHECK(gap.at(16_MiB) == 0);
    CHECK(parse("[32768:2]").at(32_GiB) == 2);
    CHECK(parse("[64:0,>:2]").at(64_MiB) == 0);
}

TEST_CASE("roundup_divisions: what is wrong with a text is said", "[policy][caching]") {
    const auto why = [](const char* text) { return refusal([text] { (void)parse(text); }); };
    CHECK(contains(why(""), "a number of divisions"));
    CHECK(contains(why("3"), "power of two"));
    CHECK(contains(why("-8"), "a number of divisions"));
    CHECK(contains(why("8x"), "unexpected text"));
    CHECK(contains(why("99999999999999999999999"), "a number of divisions"));
    CHECK(contains(why("[]"), "a size in MiB"));
    CHECK(contains(why("[256]"), "\":\""));
    CHECK(contains(why("[256:]"), "a number of divisions"));
    CHECK(contains(why("[300:2]"), "powers of two"));
    CHECK(contains(why("[256:3]"), "power of two"));
    CHECK(contains(why("[0:2]"), "powers of two"));
    CHECK(contains(why("[512:2,256:1]"), "ascend"));
    CHECK(contains(why("[>:8]"), "before it"));
    CHECK(contains(why("[256:1,>:8,512:2]"), "last"));
    CHECK(contains(why("[256:1"), "\"]\""));
    CHECK(contains(why("[256:1,]"), "a size in MiB"));
    CHECK(contains(why("[256:1]]"), "unexpected text"));
    CHECK(contains(why("[256:1]]"), "[256:1]]")); // quotes what it was given
}

TEST_CASE("caching_options: senseless values are named", "[policy][caching]") {
    const auto why = [](void (*change)(caching_options&)) {
        caching_options o;
        change(o);
        return refusal([&o] { o.check(); });
    };
    CHECK(contains(why([](caching_options& o) { o.min_block = 256; }), "min_block"));
    CHECK(contains(why([](caching_options& o) { o.min_block = 1000; }), "min_block"));
    CHECK(contains(why([](caching_options& o) { o.small_size = 700; }), "small_size"));
    CHECK(contains(why([](caching_options& o) { o.small_segment = 512; }), "small_segment"));
    CHECK(contains(why([](caching_options& o) { o.large_segment = 2_MiB; }), "large_segment"));
    CHECK(contains(why([](caching_options& o) { o.min_large_alloc = 1_MiB; }), "min_large_alloc"));
    CHECK(contains(why([](caching_options& o) { o.min_large_alloc = 21_MiB; }), "min_large_alloc"));
    CHECK(contains(why([](caching_options& o) { o.round_large = 3_MiB; }), "round_large"));
    CHECK(contains(why([](caching_options& o) { o.max_split = 10_MiB; }), "max_split"));
    CHECK(contains(why([](caching_options& o) { o.roundup_power2_divisions.values[3] = 3; }),
                   "roundup_power2"));
    CHECK(contains(why([](caching_options& o) { o.garbage_collection_threshold = 1.0; }),
                   "garbage_collection"));
    CHECK(contains(why([](caching_options& o) { o.garbage_collection_threshold = -0.1; }),
                   "garbage_collection"));
    CHECK(contains(why([](caching_options& o) { o.garbage_collection_threshold = 0.0 / 0.0; }),
                   "garbage_coll"));
}
