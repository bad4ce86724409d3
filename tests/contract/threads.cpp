/// Contract: everything is thread-safe. Run under ThreadSanitizer too.
///
/// Each test exists twice: watched, where the overlap check judges what threads do to each other's memory, and bare,
/// where no lock of the watcher's own brings an order between threads that the policy might lack.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"
#include "support/random.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

inline constexpr unsigned threads = 8;
inline constexpr std::size_t largest = 8_MiB;
inline constexpr std::size_t most_kept = 64_MiB;

template <class F>
void on_threads(F f) {
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; ++t) all.emplace_back([t, &f] { f(t); });
    for (std::thread& t : all) t.join();
}

/// Blocks on their way from one thread to another.
struct exchange {
    struct parcel {
        void* p;
        std::size_t n;
        stream_handle s;
    };
    std::mutex mutex;
    std::vector<parcel> parcels;

    void put(const parcel& b) {
        const std::lock_guard lock(mutex);
        parcels.push_back(b);
    }
    bool take(parcel& b) {
        const std::lock_guard lock(mutex);
        if (parcels.empty()) return false;
        b = parcels.back();
        parcels.pop_back();
        return true;
    }
};

/// How many answers of each kind were wrong.
struct answers {
    std::atomic<unsigned> blocks{0}; ///< none, misaligned or not owned
    std::atomic<unsigned> frees{0};
    std::atomic<unsigned> usages{0};
    std::atomic<unsigned> validations{0};
};

/// What every thread does: own stream and a shared one, frees of blocks that other threads allocated.
template <class Resource>
void hammer(Resource& r, world_device& device, const std::vector<stream_handle>& own, stream_handle shared,
            int rounds, answers& wrong) {
    exchange post;
    on_threads([&](unsigned t) {
        std::mt19937_64 rng(seed() + t);
        std::vector<exchange::parcel> mine;
        for (int i = 0; i < rounds; ++i) {
            const stream_handle s = chance(rng, 70) ? own[t] : shared;
            const std::size_t n = log_uniform(rng, 1, largest);
            const std::size_t a = std::size_t{1} << below(rng, 14);
            const allocate_result got = r.try_allocate(s, n, a);
            if (!got || *got == nullptr || !is_aligned(to_address(*got), a) || !r.owns(*got)) {
                ++wrong.blocks;
                continue;
            }
            device.launch(s, microseconds{5});
            const exchange::parcel b{*got, n, s};
            if (chance(rng, 10)) r.record_use(b.p, b.s); // before others may free it
            if (chance(rng, 30))
                post.put(b);
            else
                mine.push_back(b);
            exchange::parcel other{};
            if (chance(rng, 50) && post.take(other)) {
                // On the stream it was allocated on: its last use is before that stream's end.
                if (!r.try_deallocate(other.s, other.p, other.n)) ++wrong.frees;
            }
            if (mine.size() > 16) {
                const std::size_t which = below(rng, mine.size());
                r.deallocate(mine[which].s, mine[which].p, mine[which].n);
                mine[which] = mine.back();
                mine.pop_back();
            }
            if (chance(rng, 2)) (void)r.trim(below(rng, most_kept));
            if (chance(rng, 5)) {
                const usage_counters u = r.usage();
                if (u.requested.current > u.allocated.current || u.allocated.current > u.reserved.current)
                    ++wrong.usages;
            }
            if (chance(rng, 1) && !r.validate()) ++wrong.validations;
            if (chance(rng, 1)) (void)r.snapshot();
            if (chance(rng, 10)) device.advance(microseconds{3});
        }
        for (const exchange::parcel& b : mine) r.deallocate(b.s, b.p, b.n);
    });
    exchange::parcel rest{};
    while (post.take(rest)) r.deallocate(rest.s, rest.p, rest.n);
}

/// Hammers the world's policy through one of its doors, and finishes the world.
template <class Resource>
void hammer_world(policy_world& w, Resource& r) {
    std::vector<stream_handle> own;
    for (unsigned t = 0; t < threads; ++t) own.push_back(w.stream());
    const stream_handle shared = w.stream();
    answers wrong;
    misuse_log log;
    hammer(r, w.device, own, shared, 250, wrong);
    CHECK(wrong.blocks == 0);
    CHECK(wrong.frees == 0);
    CHECK(wrong.usages == 0);
    CHECK(wrong.validations == 0);
    CHECK(log.take().empty());
    w.finish();
}

} // namespace

POLICY_TEST_CASE("eight threads with own and shared streams, watched", "[contract][threads]") {
    CAPTURE(seed());
    policy_world w(subject);
    hammer_world(w, w.pool());
}

POLICY_TEST_CASE("eight threads with own and shared streams, bare", "[contract][threads]") {
    CAPTURE(seed());
    policy_world w(subject);
    hammer_world(w, w.bare());
}

POLICY_TEST_CASE("of many threads that free one block, one succeeds", "[contract][threads]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    for (int round = 0; round < 20; ++round) {
        void* const p = w.bare().allocate(s, 4096);
        std::atomic<unsigned> freed_by{0};
        on_threads([&](unsigned) {
            if (w.bare().try_deallocate(s, p, 4096)) ++freed_by;
        });
        CHECK(freed_by == 1);
    }
    w.finish();
}

POLICY_TEST_CASE("threads that race for a nearly full device fail cleanly", "[contract][threads]") {
    CAPTURE(seed());
    policy_world w(subject, {.capacity = 512_MiB, .cost = sim::costs::zero()});
    std::vector<stream_handle> own;
    for (unsigned t = 0; t < threads; ++t) own.push_back(w.stream());
    std::atomic<std::uint64_t> wrong{0};
    std::atomic<std::uint64_t> served{0};
    on_threads([&](unsigned t) {
        std::mt19937_64 rng(seed() + t);
        std::vector<std::pair<void*, std::size_t>> mine;
        for (int i = 0; i < 120; ++i) {
            const std::size_t n = log_uniform(rng, 1_MiB, 90_MiB);
            const allocate_result r = w.pool().try_allocate(own[t], n);
            if (r) {
                ++served;
                mine.emplace_back(*r, n);
            } else if (r.error().cause == failure_cause::driver || r.error().requested != n) {
                ++wrong;
            }
            if (!mine.empty() && (!r || chance(rng, 50))) {
                w.pool().deallocate(own[t], mine.back().first, mine.back().second);
                mine.pop_back();
            }
        }
        for (const auto& [p, n] : mine) w.pool().deallocate(own[t], p, n);
    });
    CHECK(wrong == 0);
    CHECK(served > 0);
    CHECK(w.device.reserved_peak() <= 512_MiB);
    w.finish();
}
