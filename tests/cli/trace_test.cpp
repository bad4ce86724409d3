#include "cli/trace.hpp"

#include "scratch_file.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace tenure::cli;
using tenure::test::gzip;
using tenure::test::scratch_file;

constexpr const char* header = "t_us,op,id,bytes,stream\n";
constexpr const char* rmm = "Thread,Time,Action,Pointer,Size,Stream\n";

trace load(const std::string& bytes, const std::string& name = "trace.csv") {
    return load_trace(scratch_file(bytes, name).path());
}

/// What is wrong with a file: the error's text behind the file's path, "" if nothing is.
std::string complaint(const std::string& bytes) {
    const scratch_file file(bytes);
    try {
        load_trace(file.path());
        return "";
    } catch (const input_error& e) {
        const std::string text = e.what();
        REQUIRE(text.compare(0, file.path().size(), file.path()) == 0);
        return text.substr(file.path().size());
    }
}

std::string rows(const std::string& lines) {
    return complaint(header + lines);
}

bool begins(const std::string& text, const std::string& start) {
    INFO(text);
    CHECK(text.substr(0, start.size()) == start);
    return text.substr(0, start.size()) == start;
}

} // namespace

TEST_CASE("a trace is read and renumbered", "[cli][trace]") {
    const trace t = load("t_us,op,id,bytes,stream\n"
                         "0,a,700,1000,0\n"
                         "5,a,9,512,42\n"
                         "7,f,700,1000,0\n"
                         "7,c,700,1000,0\n"
                         "9,f,9,512,42\n",
                         "tiny.csv.gz"); // the name says gzip, the content decides
    CHECK(t.name == "tiny");
    REQUIRE(t.events.size() == 5);
    CHECK(t.streams == 2);
    CHECK(t.arenas == std::vector<std::string>{""});
    REQUIRE(t.blocks.size() == 2);
    CHECK(t.events[1].kind == op::allocate);
    CHECK(t.events[1].id == 1);
    CHECK(t.events[1].stream == 1);
    CHECK(t.events[1].bytes == 512);
    CHECK(t.events[1].t_us == 5);
    CHECK(t.events[3].kind == op::complete);
    CHECK(t.events[3].id == 0);
}

TEST_CASE("gzip, CRLF, a missing last newline and blank lines at the end are all the same trace",
          "[cli][trace]") {
    const std::string text = std::string(header) + "0,a,1,10,0\n1,f,1,10,0\n";
    std::string crlf;
    for (const char c : text) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
    for (const std::string& bytes :
         {text, gzip(text), crlf, text.substr(0, text.size() - 1), text + "\n\n\n", crlf + "\r\n"}) {
        CHECK(load(bytes).events.size() == 2);
    }
}

TEST_CASE("columns are found by their names", "[cli][trace]") {
    const trace t =
        load("stream,arena,bytes,id,op,t_us\n0,left,100,1,a,3\n0,right,200,2,a,4\n0,right,,2,f,5\n");
    CHECK(t.names_arenas);
    CHECK(t.arenas == std::vector<std::string>{"left", "right"});
    CHECK(t.events[1].bytes == 200);
    CHECK(t.events[1].arena == 1);
}

TEST_CASE("a completion right behind its free is part of it", "[cli][trace]") {
    const auto outlives = [](const std::string& lines) {
        return load(header + lines).blocks[0].outlives_free;
    };
    CHECK_FALSE(outlives("0,a,1,10,0\n1,f,1,10,0\n1,c,1,10,0\n"));
    CHECK_FALSE(outlives("0,a,1,10,0\n1,f,1,10,0\n3,c,1,10,0\n"));
    CHECK(outlives("0,a,1,10,0\n1,f,1,10,0\n1,a,2,10,0\n1,c,1,10,0\n"));
    CHECK_FALSE(outlives("0,a,1,10,0\n"));
}

TEST_CASE("a free without a completion", "[cli][trace]") {
    const auto outlives = [](const std::string& lines) {
        return load(header + lines).blocks[0].outlives_free;
    };
    SECTION("ends the block where the trace records no completions") {
        CHECK_FALSE(outlives("0,a,1,10,0\n1,f,1,10,0\n2,a,2,10,0\n"));
    }
    SECTION("was still pending at the end where it records them") {
        CHECK(outlives("0,a,1,10,0\n1,f,1,10,0\n2,a,2,10,0\n3,f,2,10,0\n3,c,2,10,0\n"));
    }
    SECTION("leaves the end to the recorded uses where there are any") {
        CHECK_FALSE(outlives("0,a,1,10,0\n0,u,1,,1\n1,f,1,10,0\n2,a,2,10,0\n3,f,2,10,0\n3,c,2,10,0\n"));
    }
}

TEST_CASE("the ops of scenario programs", "[cli][trace]") {
    const trace t = load("t_us,op,id,bytes,stream,arena\n"
                         "0,m,,1048576,,A\n"
                         "0,a,1,4096,0,A\n"
                         "0,k,,500,1,\n"
                         "0,u,1,,1,A\n"
                         "1,f,1,,0,\n"
                         "2,y,,,1,\n"
                         "3,d,,,1,\n"
                         "4,k,,1,1,\n");
    CHECK(t.sets_limits);
    CHECK(t.has_work);
    CHECK(t.arenas == std::vector<std::string>{"A"});
    CHECK(t.events[0].bytes == 1048576);
    CHECK(t.events[2].bytes == 500);
    CHECK(t.events[3].kind == op::use);
    CHECK(t.events[6].kind == op::destroy);
    CHECK(t.streams == 2);
}

TEST_CASE("a stream that waits names the other one as its id", "[cli][trace]") {
    const trace t = load("t_us,op,id,bytes,stream\n"
                         "0,a,7,4096,5\n"
                         "1,w,9,,5\n" // both are mentioned here
                         "2,w,0,,9\n"
                         "3,w,9,,9\n");
    REQUIRE(t.events.size() == 4);
    CHECK(t.blocks.size() == 1);
    CHECK(t.streams == 3);
    CHECK(t.events[1].kind == op::stream_wait);
    CHECK(t.events[1].stream == 1);
    CHECK(t.events[1].id == 2);
    CHECK(t.events[2].stream == 2);
    CHECK(t.events[2].id == 0);
    CHECK(t.events[3].stream == 2);
    CHECK(t.events[3].id == 2);
}

TEST_CASE("a bad header names what is missing", "[cli][trace]") {
    CHECK(begins(complaint(""), ":1: empty file"));
    CHECK(begins(complaint(gzip("")), ":1: empty file"));
    CHECK(begins(complaint("t_us,op,id,bytes\n0,a,1,2\n"), ":1: missing column stream"));
    CHECK(begins(complaint("op,id,bytes,stream\n"), ":1: missing column t_us"));
    CHECK(begins(complaint("0,a,1,512,0\n"), ":1: missing column t_us"));
    CHECK(begins(complaint(std::string("\x7f"
                                       "ELF\0\1\2\xff",
                                       8)),
                 ":1: missing column t_us"));
    CHECK(begins(complaint("t_us,op,id,bytes,stream,size\n"), ":1: unknown column \"size\""));
    CHECK(begins(complaint("t_us,op,id,bytes,stream,op\n"), ":1: column op appears twice"));
    CHECK(begins(complaint(header), ":1: no events"));
    CHECK(begins(complaint(std::string(header) + "\n\n"), ":3: no events"));
    CHECK(begins(complaint(rmm), ":1: no events"));
}

TEST_CASE("a bad line is named with its number", "[cli][trace]") {
    CHECK(begins(rows("0,a,1,10,0\n0,x,1,10,0\n"), ":3: unknown op \"x\""));
    CHECK(begins(rows("0,alloc,1,10,0\n"), ":2: unknown op \"alloc\""));
    CHECK(begins(rows("0,,1,10,0\n"), ":2: unknown op \"\""));
    CHECK(begins(rows("0,a,1,10\n"), ":2: expected 5 fields, found 4"));
    CHECK(begins(rows("0,a,1,10,0,0\n"), ":2: expected 5 fields, found 6"));
    CHECK(begins(rows("0,a,1,18446744073709551616,0\n"), ":2: bytes is out of range"));
    CHECK(begins(rows("0,a,1,-5,0\n"), ":2: bytes is negative"));
    CHECK(begins(rows("0,a,1,1e6,0\n"), ":2: bytes is not a whole number"));
    CHECK(begins(rows("0,a,1,,0\n"), ":2: bytes is not a whole number"));
    CHECK(begins(rows("0,a, 1,5,0\n"), ":2: id is not a whole number"));
    CHECK(begins(rows("0,a,1,5,zero\n"), ":2: stream is not a whole number"));
    CHECK(begins(rows("0,w,,,1\n"), ":2: id is not a whole number"));
    CHECK(begins(rows("0,w,-1,,1\n"), ":2: id is negative"));
    CHECK(begins(rows("0,w,1,,\n"), ":2: stream is not a whole number"));
    CHECK(begins(rows("9223372036854775807,a,1,5,0\n"), ":2: t_us is out of range"));
    CHECK(begins(rows("0,k,,9223372036854775,0\n1,k,,1,0\n"), ":3: t_us is out of range"));
    CHECK(begins(rows("5,a,1,5,0\n4,a,2,5,0\n"), ":3: time runs backwards"));
    CHECK(begins(rows("0,a,1,5,0\n\n1,a,2,5,0\n"), ":3: blank line"));
    CHECK(begins(rows(std::string(100000, '7')), ":2: line longer than"));
}

TEST_CASE("a size up to 2^64 - 1 is no mistake of the file", "[cli][trace]") {
    CHECK(rows("0,a,1,18446744073709551615,0\n1,a,2,0,0\n") == "");
}

TEST_CASE("a block's life is checked", "[cli][trace]") {
    CHECK(begins(rows("0,f,1,10,0\n"), ":2: free of unknown block 1"));
    CHECK(begins(rows("0,c,1,10,0\n"), ":2: completed free of unknown block 1"));
    CHECK(begins(rows("0,u,1,10,0\n"), ":2: use of unknown block 1"));
    CHECK(begins(rows("0,a,1,10,0\n1,f,1,10,0\n2,f,1,10,0\n"), ":4: double free of block 1"));
    CHECK(begins(rows("0,a,1,10,0\n1,c,1,10,0\n"), ":3: completed free of block 1, which is not freed"));
    CHECK(begins(rows("0,a,1,10,0\n1,f,1,10,0\n1,c,1,10,0\n2,c,1,10,0\n"),
                 ":5: free of block 1 is completed a second"));
    CHECK(begins(rows("0,a,1,10,0\n1,a,1,10,0\n"), ":3: block 1 is allocated a second time"));
    CHECK(begins(rows("0,a,1,10,0\n1,f,1,10,0\n2,a,1,10,0\n"), ":4: block 1 is allocated a second time"));
    CHECK(begins(rows("0,a,1,10,0\n1,f,1,10,0\n2,u,1,10,1\n"), ":4: use of block 1 after its free"));
    CHECK(begins(complaint("t_us,op,id,bytes,stream,arena\n0,a,1,10,0,A\n0,f,1,10,0,B\n"),
                 ":3: block 1 belongs to arena \"A\", not to \"B\""));
}

TEST_CASE("a stream's life is checked", "[cli][trace]") {
    CHECK(begins(rows("0,d,,,0\n"), ":2: the default stream cannot be destroyed"));
    CHECK(begins(rows("0,d,,,1\n0,d,,,1\n"), ":3: stream 1 is destroyed already"));
    CHECK(rows("0,a,1,10,1\n0,d,,,1\n0,f,1,10,1\n0,d,,,1\n") == "");
    CHECK(rows("0,d,,,1\n0,w,1,,2\n0,d,,,1\n0,d,,,2\n") == ""); // to be waited for is a mention, too
}

TEST_CASE("peaks last until a block may be handed out again", "[cli][trace]") {
    const peaks p = peaks_of(load(std::string(header) + "0,a,1,1000,0\n"
                                                        "1,f,1,1000,0\n"
                                                        "2,a,2,100,0\n"
                                                        "3,c,1,1000,0\n"
                                                        "4,a,3,500,0\n"));
    CHECK(p.requested == 1100);
    CHECK(p.live == 1536);

    // Absurd sizes do not wrap to small ones.
    const peaks absurd = peaks_of(load(std::string(header) + "0,a,1,18446744073709551615,0\n"
                                                             "1,a,2,1000,0\n"
                                                             "2,f,1,18446744073709551615,0\n"
                                                             "3,a,3,5000,0\n"));
    CHECK(absurd.requested == 18446744073709551615u);
    CHECK(absurd.live >= 18446744073709551104u);
}

TEST_CASE("what fits under a limit for each arena is that limit times the arenas", "[cli][trace]") {
    const trace t = load("t_us,op,id,bytes,stream,arena\n0,a,1,1000,0,x\n1,a,2,1000,0,y\n2,a,3,1000,0,z\n");
    const peaks p = peaks_of(t);
    CHECK(most_needed(t, p, 1u << 30) == 3 * 1024);
    CHECK(most_needed(t, p, 512) == 3 * 512);
    CHECK(most_needed(t, p, ~std::uint64_t{0}) == 3 * 1024);
}

TEST_CASE("blocks that outlive their free share holders where they complete in order", "[cli][trace]") {
    const auto holders = [](const std::string& ends) {
        const trace t = load(std::string(header) + "0,a,0,10,0\n0,a,1,10,0\n0,a,2,10,0\n0,a,3,10,0\n" + ends);
        std::vector<std::uint32_t> of;
        for (const block& b : t.blocks) of.push_back(b.holder);
        return of;
    };
    using list = std::vector<std::uint32_t>;
    SECTION("one for those in order") {
        CHECK(holders("1,f,0,10,0\n1,f,1,10,0\n2,c,0,10,0\n2,f,2,10,0\n2,f,3,10,0\n3,c,1,10,0\n3,c,2,10,0\n4,"
                      "c,3,10,0\n") == list{0, 0, 0, 0});
    }
    SECTION("each its own where the last freed completes first") {
        CHECK(holders("1,f,0,10,0\n1,f,1,10,0\n1,f,2,10,0\n1,f,3,10,0\n2,a,4,10,0\n2,c,3,10,0\n2,c,2,10,0\n2,"
                      "c,1,10,0\n"
                      "2,c,0,10,0\n") == list{0, 1, 2, 3, 0});
    }
    SECTION("the one that is free for it last") {
        // 0 completes last, 1 first; 2 follows 1, and 3 follows 2 rather than 1.
        CHECK(holders("1,f,0,10,0\n1,f,1,10,0\n1,f,2,10,0\n2,c,1,10,0\n2,f,3,10,0\n3,c,2,10,0\n3,c,3,10,0\n4,"
                      "c,0,10,0\n") == list{0, 1, 1, 1});
    }
    SECTION("one for all that never complete, behind what does") {
        CHECK(holders("1,f,0,10,0\n1,f,1,10,0\n1,f,2,10,0\n2,c,0,10,0\n") == list{0, 0, 0, 0});
    }
}

TEST_CASE("an RMM log is recognised by its header", "[cli][trace][rmm]") {
    const trace t = load(std::string(rmm) + "140,23:59:59.999990,allocate,0x7f00,1000,0\n"
                                            "141,00:00:00.000010,allocate,0x8f00,2000,0x5a\n"
                                            "140,23:59:59.999999,free,0x7f00,1000,0\n"
                                            "140,00:00:00.000020,allocate,0x7f00,3000,0x5a\n"
                                            "140,00:00:00.000021,allocate failure,(nil),99999999,0\n"
                                            "140,00:00:00.000022,allocate,(nil),0,0\n"
                                            "140,00:00:00.000023,free,(nil),0,0\n"
                                            "140,00:00:00.000024,free,0x7f00,3000,0x5a\n");
    REQUIRE(t.events.size() == 6);
    CHECK(t.blocks.size() == 4);
    CHECK(t.streams == 2);
    CHECK(t.events[0].t_us == 0);
    CHECK(t.events[1].t_us == 20);
    CHECK(t.events[2].t_us == 20); // written late: the order of the lines is the order of the calls
    CHECK(t.events[3].t_us == 30);
    CHECK(t.events[3].id == 2);
    CHECK(t.events[3].stream == 1);
    CHECK(t.events[5].kind == op::free);
    CHECK(t.events[5].id == 2);
    CHECK_FALSE(t.blocks[2].outlives_free);
}

TEST_CASE("streams of an RMM log are hexadecimal", "[cli][trace][rmm]") {
    const trace t = load(std::string(rmm) + "1,00:00:00.000000,allocate,0x1,1,0x10\n"
                                            "1,00:00:00.000000,allocate,0x2,1,10\n"
                                            "1,00:00:00.000000,allocate,0x3,1,0xffffffffffffffff\n");
    CHECK(t.streams == 3); // with the default stream
    CHECK(t.events[0].stream == t.events[1].stream);
}

TEST_CASE("a bad line of an RMM log is named with its number", "[cli][trace][rmm]") {
    const auto log = [](const std::string& lines) { return complaint(rmm + lines); };
    CHECK(begins(log("1,00:00:00.000000,allocate,0x1,1\n"), ":2: expected 6 fields, found 5"));
    CHECK(begins(log("1,00:00:00,allocate,0x1,1,0\n"), ":2: Time is not HH:MM:SS.ffffff"));
    CHECK(begins(log("1,24:00:00.000000,allocate,0x1,1,0\n"), ":2: Time is not HH:MM:SS.ffffff"));
    CHECK(begins(log("1,00:00:0x.000000,allocate,0x1,1,0\n"), ":2: Time is not HH:MM:SS.ffffff"));
    CHECK(begins(log("1,00:00:00.000000,grow,0x1,1,0\n"), ":2: unknown action \"grow\""));
    CHECK(begins(log("1,00:00:00.000000,allocate,0xg,1,0\n"), ":2: Pointer is not a"));
    CHECK(begins(log("1,00:00:00.000000,allocate,0x,1,0\n"), ":2: Pointer is not a hexadecimal number"));
    CHECK(begins(log("1,00:00:00.000000,allocate,0x11112222333344445,1,0\n"), ":2: Pointer is out of range"));
    CHECK(begins(log("1,00:00:00.000000,allocate,0x1,-1,0\n"), ":2: Size is negative"));
    CHECK(begins(log("1,00:00:00.000000,free,0x1,1,0\n"), ":2: free of unknown pointer 0x1"));
    CHECK(begins(log("1,00:00:00.000000,allocate,0x1,1,0\n1,00:00:00.000000,allocate,0x1,1,0\n"),
                 ":3: pointer 0x1 is handed out while it is live"));
}

TEST_CASE("a damaged trace is read or refused, never anything else", "[cli][trace][random]") {
    std::mt19937_64 rng(tenure::test::seed());
    CAPTURE(tenure::test::seed());
    const std::string event_table =
        "t_us,op,id,bytes,stream,arena\n0,m,0,1048576,0,A\n0,a,1,1000,0,A\n1,a,2,70000,1,B\n"
        "2,u,2,0,0,B\n3,k,0,100,1,\n4,f,1,1000,0,A\n5,w,1,0,0,\n5,y,0,0,1,\n6,c,1,1000,0,A\n7,d,0,0,1,\n";
    const std::string log = std::string(rmm) + "1,00:00:01.000000,allocate,0x10,1000,0\n"
                                               "2,00:00:02.000000,allocate,0x20,1000,0x5\n"
                                               "1,00:00:03.500000,free,0x10,1000,0\n";
    constexpr std::string_view interesting = "0123456789,\n\r-x.:afcukwydm\x1f\x8b\0\xff";
    std::size_t read = 0;
    std::size_t refused = 0;
    for (int i = 0; i < 3000; ++i) {
        std::string bytes = tenure::test::chance(rng, 50) ? event_table : log;
        const bool packed = tenure::test::chance(rng, 30);
        if (packed && tenure::test::chance(rng, 50)) bytes = gzip(bytes);
        for (std::uint64_t n = tenure::test::below(rng, 4); n-- > 0 && !bytes.empty();) {
            const std::size_t at = tenure::test::below(rng, bytes.size());
            const char c = tenure::test::chance(rng, 50)
                               ? static_cast<char>(tenure::test::below(rng, 256))
                               : interesting[tenure::test::below(rng, interesting.size())];
            switch (tenure::test::below(rng, 5)) {
            case 0: bytes[at] = c; break;
            case 1: bytes.erase(at, 1 + tenure::test::below(rng, 20)); break;
            case 2: bytes.insert(at, 1, c); break;
            case 3: bytes.resize(at); break;
            default: bytes.insert(at, bytes.substr(0, at)); break;
            }
        }
        if (packed && tenure::test::chance(rng, 50)) bytes = gzip(bytes);
        const scratch_file file(bytes);
        try {
            const trace t = load_trace(file.path());
            REQUIRE_FALSE(t.events.empty());
            for (const event& e : t.events) {
                REQUIRE(e.stream < t.streams);
                REQUIRE(e.arena < t.arenas.size());
                if (e.kind == op::stream_wait) REQUIRE(e.id < t.streams);
            }
            (void)peaks_of(t);
            ++read;
        } catch (const input_error& e) {
            REQUIRE(std::string(e.what()).compare(0, file.path().size(), file.path()) == 0);
            ++refused;
        }
    }
    CHECK(read > 100);
    CHECK(refused > 100);
}
