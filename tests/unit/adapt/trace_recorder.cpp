/// \file
/// `trace_recorder` and `trace_writer`: the lines of each call, what is not recorded, and that no loss is
/// silent.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/mock_resource.hpp"
#include "support/random.hpp"

#include <tenure/adapt/trace_recorder.hpp>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <ostream>
#include <random>
#include <set>
#include <sstream>
#include <streambuf>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace tenure;
using test::mock_resource;

static_assert(resource<trace_recorder<mock_resource>>);

namespace {

stream_handle stream(std::uintptr_t n) {
    return reinterpret_cast<stream_handle>(n);
}

/// Lines after the header, without their times; checks the header and that times start at 0 and never go
/// back.
std::vector<std::string> events(const std::string& text,
                                const std::string& header = "t_us,op,id,bytes,stream") {
    std::istringstream in(text);
    std::string line;
    REQUIRE(std::getline(in, line));
    CHECK(line == header);
    std::vector<std::string> lines;
    std::uint64_t last = 0;
    while (std::getline(in, line)) {
        const std::size_t comma = line.find(',');
        REQUIRE(comma != std::string::npos);
        const std::uint64_t t = std::stoull(line.substr(0, comma));
        if (lines.empty()) CHECK(t == 0);
        CHECK(t >= last);
        last = t;
        lines.push_back(line.substr(comma + 1));
    }
    return lines;
}

/// A stream that takes so many bytes and then fails.
class short_buffer : public std::streambuf {
  public:
    explicit short_buffer(std::size_t room) : room_(room) {}

  protected:
    int_type overflow(int_type c) override {
        if (room_ == 0) return traits_type::eof();
        --room_;
        return c;
    }
    std::streamsize xsputn(const char*, std::streamsize n) override {
        const auto taken = std::min(room_, static_cast<std::size_t>(n));
        room_ -= taken;
        return static_cast<std::streamsize>(taken);
    }

  private:
    std::size_t room_;
};

} // namespace

TEST_CASE("trace_recorder writes allocations, frees and completions", "[adapt][trace]") {
    mock_resource upstream;
    std::ostringstream out;
    {
        trace_recorder recorder(upstream, out);
        void* const a = recorder.allocate(stream(0x10), 1000);
        void* const b = recorder.allocate(default_stream, 512);
        void* const c = *recorder.try_allocate(stream(0x20), 64);
        void* const d = recorder.allocate_sync(7, 256);
        recorder.deallocate(stream(0x10), a, 1000);
        void* const e = recorder.allocate(stream(0x10), 1000); // the same address, another id
        CHECK(e == a);
        recorder.release(e);
        CHECK(recorder.try_deallocate(stream(0x30), b, 512)); // freed on another stream than allocated
        recorder.release(c);
        recorder.deallocate_sync(d, 7, 256);
        CHECK(recorder.validate());
        CHECK(recorder.flush());
        CHECK(recorder.good());
    }
    CHECK(upstream.live() == 0);
    CHECK(events(out.str()) == std::vector<std::string>{"a,0,1000,1", "a,1,512,0", "a,2,64,2", "a,3,7,0", //
                                                        "f,0,1000,1", "c,0,1000,1", "a,4,1000,1",         //
                                                        "f,4,1000,1", "c,4,1000,1", "f,1,512,3",
                                                        "c,1,512,3", //
                                                        "f,2,64,2", "c,2,64,2", "f,3,7,0", "c,3,7,0"});
}

TEST_CASE("trace_recorder leaves the completion of a shared block to the replay", "[adapt][trace]") {
    mock_resource upstream;
    std::ostringstream out;
    trace_recorder recorder(upstream, out);
    void* const a = recorder.allocate(default_stream, 10);
    void* const b = recorder.allocate(default_stream, 20);
    void* const c = recorder.allocate(default_stream, 30);
    recorder.record_use(a, stream(0x10));
    recorder.record_use(b, stream(0x20));
    recorder.record_use(c, stream(0x10));
    recorder.deallocate(default_stream, a, 10);
    recorder.release(b);
    recorder.deallocate_sync(c, 30, 256);  // all work is over, says the caller
    recorder.allocate(default_stream, 10); // shared was the block, not the address
    recorder.deallocate(default_stream, a, 10);
    REQUIRE(recorder.flush());
    CHECK(events(out.str()) == std::vector<std::string>{"a,0,10,0", "a,1,20,0", "a,2,30,0", "u,0,10,1",
                                                        "u,1,20,2", "u,2,30,1",                         //
                                                        "f,0,10,0", "f,1,20,0", "f,2,30,0", "c,2,30,0", //
                                                        "a,3,10,0", "f,3,10,0", "c,3,10,0"});
    CHECK(upstream.calls().size() == 3);
}

TEST_CASE("trace_recorder records nothing that did not happen", "[adapt][trace]") {
    test::misuse_log log;
    mock_resource upstream;
    void* const before = upstream.allocate(default_stream, 64, 256);
    std::ostringstream out;
    trace_recorder recorder(upstream, out);
    upstream.fail_next(3);
    CHECK_THROWS_AS(recorder.allocate(default_stream, 8), out_of_memory);
    CHECK_THROWS_AS(recorder.allocate_sync(8), out_of_memory);
    CHECK_FALSE(recorder.try_allocate(default_stream, 8));
    CHECK(recorder.allocate(default_stream, 0) == nullptr);
    recorder.deallocate(default_stream, nullptr, 0);
    recorder.release(nullptr);
    void* const p = recorder.allocate(default_stream, 100);
    recorder.deallocate(default_stream, p, 99);                                // upstream refuses
    CHECK_FALSE(recorder.try_deallocate(default_stream, to_pointer(77), 100)); // and here
    recorder.record_use(to_pointer(77), stream(0x10));
    recorder.deallocate(default_stream, p, 100);
    recorder.deallocate(default_stream, p, 100);
    recorder.deallocate(default_stream, before, 64);
    REQUIRE(recorder.flush());
    CHECK(events(out.str()) == std::vector<std::string>{"a,0,100,0", "f,0,100,0", "c,0,100,0"});
    CHECK(log.size() == 2);
    CHECK(upstream.live() == 0);
}

TEST_CASE("trace_recorder ends a block that was freed behind its back", "[adapt][trace]") {
    mock_resource upstream;
    std::ostringstream out;
    trace_recorder recorder(upstream, out);
    void* const p = recorder.allocate(default_stream, 100);
    upstream.deallocate(default_stream, p, 100, 256);
    REQUIRE(recorder.allocate(default_stream, 100) == p);
    REQUIRE(recorder.flush());
    CHECK(events(out.str()) == std::vector<std::string>{"a,0,100,0", "f,0,100,0", "c,0,100,0", "a,1,100,0"});
}

TEST_CASE("trace_recorder passes everything else through", "[adapt][trace]") {
    mock_resource upstream;
    std::ostringstream out;
    trace_recorder recorder(upstream, out);
    void* const p = recorder.allocate(default_stream, 100);
    CHECK(recorder.owns(p));
    CHECK(recorder.usage() == upstream.usage());
    CHECK(recorder.snapshot().segments.size() == 1);
    CHECK(recorder.trim(5) == 6);
    CHECK(upstream.calls() == std::vector<std::string>{"trim"});
    CHECK(&recorder.upstream() == &upstream);
    upstream.valid = false;
    CHECK_FALSE(recorder.validate());
}

TEST_CASE("trace_recorder names its arena in a column of its own", "[adapt][trace]") {
    mock_resource upstream;
    std::ostringstream out;
    trace_recorder recorder(upstream, out, "tenants/a");
    recorder.release(recorder.allocate(default_stream, 1));
    REQUIRE(recorder.flush());
    CHECK(events(out.str(), "t_us,op,id,bytes,stream,arena") ==
          std::vector<std::string>{"a,0,1,0,tenants/a", "f,0,1,0,tenants/a", "c,0,1,0,tenants/a"});
    CHECK_THROWS_AS(trace_recorder(upstream, out, "a,b"), std::invalid_argument);
    CHECK_THROWS_AS(trace_recorder(upstream, out, "a\nb"), std::invalid_argument);
}

TEST_CASE("trace_recorder writes to a file", "[adapt][trace]") {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("tenure-trace-" + std::to_string(std::random_device{}()));
    std::filesystem::create_directory(folder);
    const std::filesystem::path file = folder / "trace.csv";
    std::ofstream(file) << "what was there before";
    mock_resource upstream;
    constexpr int rounds = 5000; // more than one buffer
    {
        trace_recorder recorder(upstream, file);
        for (int i = 0; i < rounds; ++i) recorder.release(recorder.allocate(default_stream, 1));
    } // no flush: the end does it
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    CHECK(events(text.str()).size() == 3 * rounds);
    CHECK_THROWS_AS(trace_recorder(upstream, folder / "missing" / "trace.csv"), std::system_error);
    std::filesystem::remove_all(folder);
}

TEST_CASE("trace_recorder tells of lines that were lost", "[adapt][trace]") {
    mock_resource upstream;
    short_buffer buffer(100);
    std::ostream out(&buffer);
    const bool throws = GENERATE(false, true);
    if (throws) out.exceptions(std::ios::badbit | std::ios::failbit);
    trace_recorder recorder(upstream, out);
    for (int i = 0; i < 20; ++i) recorder.release(recorder.allocate(default_stream, 1));
    CHECK(recorder.good()); // all in the buffer still
    CHECK_FALSE(recorder.flush());
    CHECK_FALSE(recorder.good());
    void* const p = recorder.allocate(default_stream, 1); // serves on
    CHECK(p != nullptr);
    recorder.release(p);
    CHECK(upstream.live() == 0);
    CHECK_FALSE(recorder.flush());
}

TEST_CASE("trace_recorder notices a full disk without being asked to flush", "[adapt][trace]") {
    mock_resource upstream;
    short_buffer buffer(100);
    std::ostream out(&buffer);
    trace_recorder recorder(upstream, out);
    for (int i = 0; i < 5000; ++i) recorder.release(recorder.allocate(default_stream, 1));
    CHECK_FALSE(recorder.good());
}

TEST_CASE("trace_recorder keeps a trace of many threads in an order that replays",
          "[adapt][trace][threads]") {
    mock_resource upstream;
    std::ostringstream out;
    trace_recorder recorder(upstream, out);
    constexpr std::uint64_t threads = 4, rounds = 400;
    std::vector<std::thread> workers;
    for (std::uint64_t t = 0; t < threads; ++t) {
        workers.emplace_back([&recorder, t] {
            for (std::uint64_t i = 0; i < rounds; ++i) {
                void* const p = recorder.allocate(stream(0x10 + t), 64);
                if (i % 3 == 0) recorder.record_use(p, stream(0x10));
                recorder.deallocate(stream(0x10 + t), p, 64);
            }
        });
    }
    for (std::thread& w : workers) w.join();
    REQUIRE(recorder.flush());
    CHECK(recorder.validate());
    std::map<std::string, std::string> history; // id -> ops
    const std::vector<std::string> lines = events(out.str());
    for (std::size_t n = 0; n < lines.size(); ++n) {
        const std::string id = lines[n].substr(2, lines[n].find(',', 2) - 2);
        history[id] += lines[n][0];
        if (lines[n][0] == 'c') CHECK(lines[n - 1] == "f" + lines[n].substr(1));
    }
    CHECK(history.size() == threads * rounds);
    for (const auto& [id, ops] : history) CHECK((ops == "afc" || ops == "auf"));
}
