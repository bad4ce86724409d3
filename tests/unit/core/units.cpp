#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>

#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <string_view>

using namespace tenure;
using namespace std::string_view_literals;

TEST_CASE("literals are whole bytes", "[core][units]") {
    CHECK(7_B == 7);
    CHECK(1_KiB == 1024);
    CHECK(3_MiB == 3 * 1024 * 1024);
    CHECK(8_GiB == std::size_t{8} << 30);
    CHECK(2_TiB == std::size_t{2} << 40);
}

TEST_CASE("parse_bytes reads every unit", "[core][units]") {
    CHECK(parse_bytes("0") == 0);
    CHECK(parse_bytes("1") == 1);
    CHECK(parse_bytes("17B") == 17);
    CHECK(parse_bytes("8GiB") == 8_GiB);
    CHECK(parse_bytes("8 GiB") == 8_GiB);
    CHECK(parse_bytes("8  G") == 8_GiB);
    CHECK(parse_bytes("512MiB") == 512_MiB);
    CHECK(parse_bytes("3M") == 3_MiB);
    CHECK(parse_bytes("4KiB") == 4_KiB);
    CHECK(parse_bytes("4K") == 4_KiB);
    CHECK(parse_bytes("2TiB") == 2_TiB);
    CHECK(parse_bytes("2T") == 2_TiB);
    CHECK(parse_bytes("1PiB") == std::size_t{1} << 50);
    CHECK(parse_bytes("1P") == std::size_t{1} << 50);
    CHECK(parse_bytes("15EiB") == std::size_t{15} << 60);
    CHECK(parse_bytes("15E") == std::size_t{15} << 60);
    CHECK(parse_bytes("007") == 7);
    CHECK(parse_bytes("18446744073709551615") == std::numeric_limits<std::size_t>::max());
    CHECK(parse_bytes("0EiB") == 0);
}

TEST_CASE("parse_bytes refuses everything else and quotes it", "[core][units]") {
    const std::string_view bad = GENERATE(
        // nothing, signs, fractions, other notations
        ""sv, " "sv, "-1"sv, "+1"sv, "-1GiB"sv, "1.5GiB"sv, "1,5GiB"sv, ".5GiB"sv, "1e9"sv, "0x10"sv,
        "1_000"sv, "inf"sv, "nan"sv,
        // units alone, decimal units, wrong case, bits, longer words
        "GiB"sv, "B"sv, "1GB"sv, "1MB"sv, "1KB"sv, "1kB"sv, "1TB"sv, "1kib"sv, "1gib"sv, "1GIB"sv, "1k"sv,
        "1g"sv, "1b"sv, "1Gib"sv, "1Gi"sv, "1GiBs"sv, "1ZiB"sv, "1bytes"sv, "1GiBGiB"sv,
        // spaces and rubbish around
        " 1"sv, "1 "sv, "1GiB "sv, "1\tGiB"sv, "1\nGiB"sv, "1 GiB 2"sv, "1 2"sv, "1;"sv, "1\0"sv, "1GiB\0"sv,
        "\xff\xfe"sv, "１"sv,
        // more than 64 bits
        "18446744073709551616"sv, "99999999999999999999999999"sv, "16EiB"sv, "16384PiB"sv, "16777216TiB"sv,
        "17179869184GiB"sv, "18014398509481984KiB"sv, "18446744073709551615K"sv);
    CAPTURE(bad);
    std::string message;
    try {
        (void)parse_bytes(bad);
    } catch (const invalid_byte_size& e) {
        message = e.what();
    }
    // A message is shown up to its first zero byte; an embedded one cuts the quotation.
    CHECK(message.find(std::string("\"") +
                       std::string(bad.data(), bad.find('\0') < bad.size() ? bad.find('\0') : bad.size())) !=
          std::string::npos);
}

TEST_CASE("parse_bytes explains what is accepted", "[core][units]") {
    std::string message;
    try {
        (void)parse_bytes("8GB");
    } catch (const std::invalid_argument& e) {
        message = e.what();
    }
    CHECK(message.find("unknown unit") != std::string::npos);
    CHECK(message.find("GiB") != std::string::npos);
}

TEST_CASE("the largest size of each unit is accepted, the next is not", "[core][units]") {
    const char* const names[]{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    for (unsigned u = 0; u < 6; ++u) {
        const unsigned shift = 10 * (u + 1);
        const std::size_t most = std::numeric_limits<std::size_t>::max() >> shift;
        CAPTURE(names[u]);
        CHECK(parse_bytes(std::to_string(most) + names[u]) == most << shift);
        CHECK_THROWS_AS(parse_bytes(std::to_string(most + 1) + names[u]), invalid_byte_size);
    }
}

TEST_CASE("format_bytes chooses the largest unit and two decimals", "[core][units]") {
    CHECK(format_bytes(0) == "0 B");
    CHECK(format_bytes(512) == "512 B");
    CHECK(format_bytes(1023) == "1023 B");
    CHECK(format_bytes(1024) == "1 KiB");
    CHECK(format_bytes(1_MiB + 512_KiB) == "1.50 MiB");
    CHECK(format_bytes(20_MiB) == "20 MiB");
    CHECK(format_bytes(1_GiB + 1) == "1.00 GiB");
    CHECK(format_bytes(2_TiB) == "2 TiB");
    CHECK(format_bytes(std::numeric_limits<std::size_t>::max()) == "15.99 EiB");
}

TEST_CASE("whole units survive printing and parsing", "[core][units]") {
    CAPTURE(test::seed());
    std::mt19937_64 rng(test::seed());
    for (int i = 0; i < 300; ++i) {
        const std::size_t n = (1 + test::below(rng, 1023)) << (10 * test::below(rng, 6));
        CAPTURE(n);
        REQUIRE(parse_bytes(format_bytes(n)) == n);
    }
}
