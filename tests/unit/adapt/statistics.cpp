/// \file
/// `statistics`: what is counted, what is not, and that everything reaches upstream.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/mock_resource.hpp"
#include "support/random.hpp"

#include <tenure/adapt/statistics.hpp>
#include <tenure/core/units.hpp>

#include <map>
#include <random>
#include <thread>
#include <vector>

using namespace tenure;
using test::mock_resource;

static_assert(resource<statistics<mock_resource>>);
static_assert(resource<statistics<statistics<mock_resource>>>);

TEST_CASE("statistics counts blocks and bytes by size class", "[adapt][statistics]") {
    mock_resource upstream;
    statistics counted(upstream);
    void* const a = counted.allocate(default_stream, 1000);
    void* const b = counted.allocate_sync(1024, 256);
    void* const c = *counted.try_allocate(default_stream, 1025);
    void* const d = counted.allocate(default_stream, 1);

    statistics_report r = counted.report();
    CHECK(r.blocks == gauge{4, 4, 4, 0});
    CHECK(r.requested == gauge{3050, 3050, 3050, 0});
    CHECK(r.by_size[10].largest == 1024);
    CHECK(r.by_size[10].blocks == gauge{2, 2, 2, 0});
    CHECK(r.by_size[10].bytes == gauge{2024, 2024, 2024, 0});
    CHECK(r.by_size[11].blocks.current == 1);
    CHECK(r.by_size[0].bytes.current == 1);
    CHECK(counted.validate());

    counted.deallocate(default_stream, a, 1000);
    counted.release(b);
    CHECK(counted.try_deallocate(default_stream, c, 1025));
    r = counted.report();
    CHECK(r.blocks == gauge{1, 4, 4, 3});
    CHECK(r.by_size[10].bytes == gauge{0, 2024, 2024, 2024});
    CHECK(r.by_size[11].bytes == gauge{0, 1025, 1025, 1025});
    counted.reset_peaks();
    r = counted.report();
    CHECK(r.blocks == gauge{1, 1, 4, 3});
    CHECK(r.requested.peak == 1);
    CHECK(r.by_size[10].blocks == gauge{0, 0, 2, 2});
    CHECK(r.by_size[10].bytes.peak == 0);
    counted.deallocate_sync(d, 1, 256);
    CHECK(counted.report().requested == gauge{0, 1, 3050, 3050});
    CHECK(upstream.live() == 0);
    CHECK(counted.validate());
}

TEST_CASE("statistics counts failures and no empty requests", "[adapt][statistics]") {
    mock_resource upstream;
    statistics counted(upstream);
    upstream.fail_next(3);
    CHECK_THROWS_AS(counted.allocate(default_stream, 8), out_of_memory);
    CHECK_THROWS_AS(counted.allocate_sync(8), out_of_memory);
    const allocate_result refused = counted.try_allocate(default_stream, 8);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().requested == 8);
    CHECK(counted.allocate(default_stream, 0) == nullptr);
    counted.deallocate(default_stream, nullptr, 0);
    counted.release(nullptr);
    const statistics_report r = counted.report();
    CHECK(r.failures == 3);
    CHECK(r.blocks == gauge{});
    CHECK(r.uncounted == 0);
}

TEST_CASE("statistics leaves misuse to upstream and its figures as they are", "[adapt][statistics]") {
    test::misuse_log log;
    mock_resource upstream;
    void* const before = upstream.allocate(default_stream, 64, 256);
    statistics counted(upstream);
    void* const p = counted.allocate(default_stream, 100);
    counted.deallocate(default_stream, p, 99);
    CHECK_FALSE(counted.try_deallocate(default_stream, to_pointer(77), 100));
    CHECK(counted.report().blocks == gauge{1, 1, 1, 0});
    CHECK(upstream.live() == 2);
    counted.deallocate(default_stream, p, 100);
    counted.deallocate(default_stream, p, 100);
    CHECK(counted.report().blocks == gauge{0, 1, 1, 1});
    counted.deallocate(default_stream, before, 64); // not counted: it came from elsewhere
    CHECK(counted.report().blocks == gauge{0, 1, 1, 1});
    CHECK(upstream.live() == 0);
    CHECK(log.size() == 2);
    CHECK(counted.validate());
}

TEST_CASE("statistics mends an entry that was freed behind its back", "[adapt][statistics]") {
    mock_resource upstream;
    statistics counted(upstream);
    void* const p = counted.allocate(default_stream, 100);
    upstream.deallocate(default_stream, p, 100, 256);
    REQUIRE(counted.allocate(default_stream, 100) == p); // the same address again
    CHECK(counted.report().blocks == gauge{1, 1, 2, 1});
    CHECK(counted.validate());
}

TEST_CASE("statistics passes everything else through", "[adapt][statistics]") {
    mock_resource upstream;
    statistics counted(upstream);
    void* const p = counted.allocate(default_stream, 100);
    CHECK(counted.owns(p));
    CHECK_FALSE(counted.owns(to_pointer(77)));
    CHECK(counted.usage() == upstream.usage());
    CHECK(counted.snapshot().segments.size() == 1);
    CHECK(counted.trim(5) == 6);
    counted.record_use(p, default_stream);
    CHECK(upstream.calls() == std::vector<std::string>{"trim", "record_use"});
    CHECK(&counted.upstream() == &upstream);
    upstream.valid = false;
    CHECK_FALSE(counted.validate());
}

TEST_CASE("statistics agrees with a count by hand", "[adapt][statistics]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    mock_resource upstream;
    statistics counted(upstream);
    std::map<std::size_t, std::size_t> blocks, bytes;
    std::vector<std::pair<void*, std::size_t>> live;
    for (int step = 0; step < 3000; ++step) {
        if (live.empty() || test::chance(rng, 52)) {
            const std::size_t n = test::log_uniform(rng, 1, max_block_bytes);
            live.emplace_back(counted.allocate(default_stream, n), n);
            std::size_t k = 0;
            while ((std::size_t{1} << k) < n) ++k;
            ++blocks[k];
            bytes[k] += n;
        } else {
            std::swap(live[test::below(rng, live.size())], live.back());
            const auto [p, n] = live.back();
            live.pop_back();
            counted.deallocate(default_stream, p, n);
            std::size_t k = 0;
            while ((std::size_t{1} << k) < n) ++k;
            --blocks[k];
            bytes[k] -= n;
        }
    }
    const statistics_report r = counted.report();
    for (std::size_t k = 0; k < statistics_report::classes; ++k) {
        CAPTURE(k);
        CHECK(r.by_size[k].blocks.current == blocks[k]);
        CHECK(r.by_size[k].bytes.current == bytes[k]);
    }
    CHECK(r.blocks.current == live.size());
    CHECK(counted.validate());
}

TEST_CASE("statistics counts right with many threads", "[adapt][statistics][threads]") {
    mock_resource upstream;
    statistics counted(upstream);
    constexpr std::size_t threads = 4, rounds = 500;
    std::vector<std::thread> workers;
    for (std::size_t t = 0; t < threads; ++t) {
        workers.emplace_back([&counted, t] {
            for (std::size_t i = 1; i <= rounds; ++i) {
                void* const p = counted.allocate(default_stream, i * (t + 1));
                void* const q = counted.allocate(default_stream, 64);
                counted.deallocate(default_stream, p, i * (t + 1));
                counted.release(q);
                if (i % 100 == 0) counted.reset_peaks();
            }
        });
    }
    for (std::thread& w : workers) w.join();
    const statistics_report r = counted.report();
    CHECK(r.blocks.current == 0);
    CHECK(r.blocks.total_in == 2 * threads * rounds);
    CHECK(r.blocks.total_out == r.blocks.total_in);
    CHECK(r.requested.total_out == r.requested.total_in);
    CHECK(counted.validate());
}
