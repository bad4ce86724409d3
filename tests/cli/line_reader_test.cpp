#include "cli/line_reader.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

namespace {

using tenure::cli::input_error;
using tenure::cli::line_reader;
using tenure::test::gzip;
using tenure::test::scratch_file;

/// All lines of a file; an error becomes the last of them.
std::vector<std::string> lines_of(const std::string& path) {
    std::vector<std::string> all;
    try {
        line_reader reader(path);
        std::string_view line;
        while (reader.next(line)) {
            all.emplace_back(line);
            CHECK(reader.line() == all.size());
        }
    } catch (const input_error& e) {
        all.emplace_back(std::string("error ") + e.what());
    }
    return all;
}

std::vector<std::string> lines_in(std::string_view bytes) {
    return lines_of(scratch_file(bytes).path());
}

bool ends_with(const std::string& text, std::string_view end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

using list = std::vector<std::string>;

} // namespace

TEST_CASE("lines end with LF, CRLF or the file", "[cli][line_reader]") {
    CHECK(lines_in("").empty());
    CHECK(lines_in("a\nbb\n") == list{"a", "bb"});
    CHECK(lines_in("a\r\nbb") == list{"a", "bb"});
    CHECK(lines_in("\n\nx") == list{"", "", "x"});
}

TEST_CASE("gzip is recognised by content", "[cli][line_reader]") {
    CHECK(lines_in(gzip("a\nbb\n")) == list{"a", "bb"});
    CHECK(lines_in(gzip("a\n") + gzip("b\n")) == list{"a", "b"});
    CHECK(lines_in(gzip("")).empty());
}

TEST_CASE("lines across the reader's chunks stay whole", "[cli][line_reader]") {
    std::string bytes;
    list expected;
    for (std::size_t i = 0; i < 3000; ++i) {
        expected.emplace_back((i * 37) % 200, static_cast<char>('a' + i % 26));
        bytes += expected.back() + "\n";
    }
    REQUIRE(bytes.size() > 3 * 65536);
    CHECK(lines_in(bytes) == expected);
    CHECK(lines_in(gzip(bytes)) == expected);
}

TEST_CASE("a line of exactly the limit passes, one byte more does not", "[cli][line_reader]") {
    const std::string longest(line_reader::max_line, 'x');
    CHECK(lines_in("a\n" + longest + "\nb\n") == list{"a", longest, "b"});
    CHECK(lines_in("a\n" + longest) == list{"a", longest});
    const list cut = lines_in("a\n" + longest + "x\nb\n");
    REQUIRE(cut.size() == 2);
    CHECK(cut[1].find(":2: line longer than 4096 bytes") != std::string::npos);
}

TEST_CASE("an endless line is refused after a bounded amount of reading", "[cli][line_reader]") {
    const list all = lines_of("/dev/zero");
    REQUIRE(all.size() == 1);
    CHECK(all[0].find("/dev/zero:1: line longer than") != std::string::npos);
    const list bomb = lines_in(gzip(std::string(std::size_t{64} << 20, 'x')));
    REQUIRE(bomb.size() == 1);
    CHECK(bomb[0].find(":1: line longer than") != std::string::npos);
}

TEST_CASE("a gzip file cut anywhere is an error, never a shorter file", "[cli][line_reader]") {
    const std::string whole = gzip("first line\nsecond line\nthird line\n");
    for (std::size_t n = 2; n < whole.size(); ++n) { // with one byte it is no gzip file yet
        const list all = lines_in(whole.substr(0, n));
        CAPTURE(n);
        REQUIRE_FALSE(all.empty());
        CHECK(all.back().find("error ") == 0);
        CHECK(ends_with(all.back(), "truncated gzip data"));
    }
}

TEST_CASE("corrupt gzip data is an error", "[cli][line_reader]") {
    std::string bytes = gzip("first line\nsecond line\nthird line\n");
    bytes[bytes.size() - 6] = static_cast<char>(bytes[bytes.size() - 6] ^ 1); // the checksum
    CHECK(lines_in(bytes).back().find("corrupt gzip data") != std::string::npos);
    bytes = gzip("text");
    bytes[2] = 7; // the method
    CHECK(lines_in(bytes).back().find("corrupt gzip data") != std::string::npos);
}

TEST_CASE("a damaged member of a gzip file is an error, not the end", "[cli][line_reader]") {
    const std::string first = gzip("first line\n");
    const std::string second = gzip("second line\n");
    CHECK(lines_in(first + second) == list{"first line", "second line"});
    CHECK(lines_in(first + std::string(1000, '\0')) == list{"first line"}); // padding of a tape or a disk
    for (std::size_t bit = 0; bit < 16; ++bit) {                            // of the second's magic
        std::string bytes = first + second;
        char& c = bytes[first.size() + bit / 8];
        c = static_cast<char>(c ^ (1 << bit % 8));
        CAPTURE(bit);
        const list all = lines_in(bytes);
        REQUIRE(all.size() == 2);
        CHECK(all[1].find(":2: corrupt gzip data") != std::string::npos);
    }
    CHECK(lines_in(first + "rest\n").back().find("corrupt gzip data") != std::string::npos);
    CHECK(lines_in(first + std::string("\0\0x", 3)).back().find("corrupt gzip data") != std::string::npos);
    for (std::size_t n = 1; n < second.size(); ++n) {
        CAPTURE(n);
        CHECK(lines_in(first + second.substr(0, n)).back().find("error ") == 0);
    }
}

TEST_CASE("a reader says whether a line was ended, and takes longer ones if asked", "[cli][line_reader]") {
    const scratch_file file("a\n" + std::string(10000, 'x'));
    line_reader reader(file.path(), 10000);
    std::string_view line;
    REQUIRE(reader.next(line));
    CHECK_FALSE(reader.unended());
    REQUIRE(reader.next(line));
    CHECK(line.size() == 10000);
    CHECK(reader.unended());
}

TEST_CASE("what cannot be opened or read says so", "[cli][line_reader]") {
    CHECK(lines_of("/nonexistent/x.csv") ==
          list{"error /nonexistent/x.csv: cannot open: No such file or directory"});
    const scratch_file file("x");
    CHECK(lines_of(file.folder()).back().find("cannot read: Is a directory") != std::string::npos);
}
