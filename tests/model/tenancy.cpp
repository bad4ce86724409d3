// Trees of tenants against a sequential oracle, and the properties that hold under threads. Run longer with
// TENURE_MODEL_ROUNDS (a factor) and TENURE_RACE_REQUESTS (a number, for the two races; 10^6 for the second if not told).

#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
    const char* const text = std::getenv(variable);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
int rounds(int n) {
    return n * static_cast<int>(number_from("TENURE_MODEL_ROUNDS", 1));
}

// ---- the oracle: a tree in which every level is computed anew from the numbers of its leaves ----

struct oracle_node {
    int parent = -1;
    std::size_t own = 0;
    std::size_t min = 0;
    std::size_t max = no_limit;
};

struct oracle {
    std::vector<oracle_node> nodes;

    [[nodiscard]] std::size_t charged(int v) const {
        std::size_t sum = nodes[static_cast<std::size_t>(v)].own;
        for (std::size_t c = 0; c < nodes.size(); ++c)
            if (nodes[c].parent == v) sum += std::max(charged(static_cast<int>(c)), nodes[c].min);
        return sum;
    }
    [[nodiscard]] std::size_t min_sum(int v) const {
        std::size_t sum = 0;
        for (const oracle_node& n : nodes)
            if (n.parent == v) sum += n.min;
        return sum;
    }
    [[nodiscard]] std::vector<int> path(int v) const {
        std::vector<int> up;
        for (; v >= 0; v = nodes[static_cast<std::size_t>(v)].parent) up.push_back(v);
        return up;
    }
    [[nodiscard]] bool below(int v, int top) const {
        const std::vector<int> up = path(v);
        return std::find(up.begin() + 1, up.end(), top) != up.end();
    }
    /// Returns: whether `change` lifts no level above v (v included if `with_itself`) past its max. If so it is done.
    template <class Change>
    bool grants(int v, bool with_itself, Change&& change) {
        std::vector<int> levels = path(v);
        if (!with_itself) levels.erase(levels.begin());
        const oracle before = *this;
        change(*this);
        for (const int level : levels) {
            const std::size_t now = charged(level);
            if (now > before.charged(level) && now > nodes[static_cast<std::size_t>(level)].max) {
                *this = before;
                return false;
            }
        }
        return true;
    }
};

/// A random tree of n nodes, node 0 the root; parents stand before children.
std::vector<int> random_parents(std::mt19937_64& rng, std::size_t n) {
    std::vector<int> parents{-1};
    while (parents.size() < n) parents.push_back(static_cast<int>(test::below(rng, parents.size())));
    return parents;
}

using sim_hub = hub<sim::device>;
using tenant = arena<best_fit_pool, sim_hub>;

} // namespace

TEST_CASE("every charge, limit and move of a random tree is what the oracle says", "[model][tenancy]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (int round = 0; round < rounds(60); ++round) {
        oracle truth;
        std::vector<std::unique_ptr<meter>> meters;
        for (const int parent : random_parents(rng, 2 + test::below(rng, 9))) {
            const std::size_t max = parent < 0              ? 1000
                                    : test::chance(rng, 50) ? test::below(rng, 1200)
                                                            : no_limit;
            truth.nodes.push_back({.parent = parent, .max = max});
            meters.push_back(
                std::make_unique<meter>(parent < 0 ? nullptr : meters[static_cast<std::size_t>(parent)].get(),
                                        "m", tenant_limits{.max = max}));
        }
        const std::size_t n = meters.size();
        for (int step = 0; step < 200; ++step) {
            const std::size_t i = test::below(rng, n);
            const int v = static_cast<int>(i);
            oracle_node& o = truth.nodes[i];
            switch (test::below(rng, 6)) {
            case 0:
            case 1: {
                const std::size_t bytes = test::below(rng, 300);
                const bool expected =
                    bytes == 0 || truth.grants(v, true, [&](oracle& t) { t.nodes[i].own += bytes; });
                auto t = meters[i]->reserve(bytes);
                REQUIRE(t.has_value() == expected);
                if (t) t->commit();
                break;
            }
            case 2: {
                const std::size_t bytes = test::below(rng, o.own + 1);
                o.own -= bytes;
                meters[i]->refund(bytes);
                break;
            }
            case 3: {
                o.max = test::chance(rng, 20) ? no_limit : test::below(rng, 1200);
                const std::size_t now = truth.charged(v);
                REQUIRE(meters[i]->set_max(o.max) == (now > o.max ? now - o.max : 0));
                break;
            }
            case 4: {
                const std::size_t min = test::below(rng, 300);
                bool expected = min <= o.max;
                if (expected && o.parent >= 0 && min > o.min) {
                    const std::size_t sum = truth.min_sum(o.parent);
                    const std::size_t room = truth.nodes[static_cast<std::size_t>(o.parent)].max;
                    expected = sum <= room && min - o.min <= room - sum;
                }
                expected = expected && truth.grants(v, false, [&](oracle& t) { t.nodes[i].min = min; });
                REQUIRE((meters[i]->set_min(min) == status::ok) == expected);
                break;
            }
            default: {
                const std::size_t j = test::below(rng, n);
                const int to = static_cast<int>(j);
                if (o.parent < 0) break;
                if (i == j || truth.below(to, v)) {
                    REQUIRE(meters[i]->set_parent(*meters[j]) == status::invalid_value);
                    break;
                }
                oracle without = truth;
                without.nodes[i].parent = -1;
                const std::size_t sum = without.min_sum(to);
                const std::size_t room = truth.nodes[j].max;
                bool expected = sum <= room && o.min <= room - sum;
                for (int level : without.path(to)) { // each level by what it has without, and with
                    if (!expected) break;
                    oracle with = without;
                    with.nodes[i].parent = to;
                    const std::size_t now = with.charged(level);
                    expected = now == without.charged(level) ||
                               now <= truth.nodes[static_cast<std::size_t>(level)].max;
                }
                REQUIRE((meters[i]->set_parent(*meters[j]) == status::ok) == expected);
                if (expected) o.parent = to;
            }
            }
            for (std::size_t k = 0; k < n; ++k) {
                const meter_reading r = meters[k]->read();
                REQUIRE(r.charged == truth.charged(static_cast<int>(k)));
                REQUIRE(r.own == truth.nodes[k].own);
                REQUIRE(r.open == 0);
            }
        }
        for (std::size_t k = 0; k < n; ++k) {
            meters[k]->refund(truth.nodes[k].own);
            REQUIRE(meters[k]->set_min(0) == status::ok);
        }
        for (const auto& m : meters) {
            REQUIRE(m->read().charged == 0);
            REQUIRE(m->read().used == 0);
        }
        // In any order: whoever is left moves up.
        std::shuffle(meters.begin(), meters.end(), rng);
        while (!meters.empty()) meters.pop_back();
    }
}

TEST_CASE("after the ladder exactly what the oracle grants is granted, and nobody reads what another wrote",
          "[model][tenancy]") {
    // Every block is a segment of its own, so that all idle memory can go, and the oracle needs to know live blocks only.
    constexpr std::size_t block = 2_MiB;
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (int round = 0; round < rounds(25); ++round) {
        const std::size_t capacity = (10 + test::below(rng, 40)) * block;
        sim::device device({.capacity = capacity, .cost = sim::costs::zero()});
        const scrub how = test::chance(rng, 50) ? scrub::on_transfer : scrub::on_free;
        sim_hub between(device, {.wipe = how});
        std::vector<std::unique_ptr<tenant>> arenas;
        oracle truth; // own: live bytes
        struct live_block {
            std::size_t arena;
            void* at;
        };
        std::vector<live_block> live;
        {
            arena_group gpu({.name = "gpu", .max = capacity});
            std::vector<std::unique_ptr<arena_group>> groups;
            std::vector<int> node_of; // of each arena
            truth.nodes.push_back({.max = capacity});
            for (std::size_t g = 0; g < 3; ++g) {
                const std::size_t max =
                    test::chance(rng, 50) ? no_limit : test::below(rng, capacity / block) * block;
                groups.push_back(
                    std::make_unique<arena_group>(gpu, group_options{.name = "group", .max = max}));
                truth.nodes.push_back({.parent = 0, .max = max});
            }
            for (std::size_t a = 0; a < 6; ++a) {
                const std::size_t g = test::below(rng, 4);
                const std::size_t max =
                    test::chance(rng, 50) ? no_limit : test::below(rng, capacity / block) * block;
                arenas.push_back(std::make_unique<tenant>(
                    g == 3 ? gpu : *groups[g], between,
                    arena_options{.name = "arena",
                                  .max = max,
                                  .weight = 1 + static_cast<unsigned>(test::below(rng, 300))},
                    pool_options{.segment_bytes = block}));
                node_of.push_back(static_cast<int>(truth.nodes.size()));
                truth.nodes.push_back({.parent = g == 3 ? 0 : static_cast<int>(g) + 1, .max = max});
            }
            for (int step = 0; step < 300; ++step) {
                const std::size_t a = test::below(rng, arenas.size());
                const int v = node_of[a];
                oracle_node& o = truth.nodes[static_cast<std::size_t>(v)];
                if (test::chance(rng, 55)) {
                    const bool has_idle = arenas[a]->limits().own > o.own;
                    const oracle before = truth;
                    bool expected = truth.grants(
                        v, true, [&](oracle& t) { t.nodes[static_cast<std::size_t>(v)].own += block; });
                    if (!expected && has_idle) { // its own is as good as live
                        expected = true;
                        o.own += block;
                    }
                    const bool within_min = before.nodes[static_cast<std::size_t>(v)].own + block <= o.min;
                    const auto r = arenas[a]->try_allocate(default_stream, block);
                    CAPTURE(round, step, a, expected, within_min);
                    REQUIRE(r.has_value() == expected);
                    if (within_min) REQUIRE(r.has_value());
                    if (!r) continue;
                    for (const std::uint64_t writer : device.read(*r, block)) REQUIRE(writer == a + 1);
                    device.write(*r, block, a + 1);
                    live.push_back({a, *r});
                } else if (test::chance(rng, 80)) {
                    if (live.empty()) continue;
                    std::swap(live[test::below(rng, live.size())], live.back());
                    const live_block b = live.back();
                    live.pop_back();
                    arenas[b.arena]->deallocate(default_stream, b.at, block);
                    truth.nodes[static_cast<std::size_t>(node_of[b.arena])].own -= block;
                } else if (test::chance(rng, 50)) { // of an arena, or of a group
                    const std::size_t g = test::below(rng, 2 * groups.size());
                    const int u = g < groups.size() ? static_cast<int>(g) + 1 : v;
                    oracle_node& guaranteed = truth.nodes[static_cast<std::size_t>(u)];
                    const std::size_t min = test::below(rng, 6) * block;
                    bool expected = min <= guaranteed.max;
                    if (expected && min > guaranteed.min) {
                        const std::size_t sum = truth.min_sum(guaranteed.parent);
                        const std::size_t room = truth.nodes[static_cast<std::size_t>(guaranteed.parent)].max;
                        expected = sum <= room && min - guaranteed.min <= room - sum;
                    }
                    // Idle bytes of its own count here: a guarantee takes from others only.
                    oracle held = truth;
                    for (std::size_t k = 0; k < arenas.size(); ++k)
                        if (node_of[k] == u || truth.below(node_of[k], u))
                            held.nodes[static_cast<std::size_t>(node_of[k])].own = arenas[k]->limits().own;
                    expected = expected && held.grants(u, false, [&](oracle& t) {
                        t.nodes[static_cast<std::size_t>(u)].min = min;
                    });
                    CAPTURE(round, step, u, min);
                    const status s = u == v ? arenas[a]->set_min(min) : groups[g]->set_min(min);
                    REQUIRE((s == status::ok) == expected);
                    if (expected) guaranteed.min = min;
                } else {
                    arenas[a]->trim(test::below(rng, 4) * block);
                }
                for (const tenant_picture& t : gpu.picture()) REQUIRE(t.reading.charged <= t.reading.max);
                REQUIRE(device.reserved() <= capacity);
            }
            for (const live_block& b : live) arenas[b.arena]->deallocate(default_stream, b.at, block);
            for (auto& a : arenas) {
                REQUIRE(a->validate());
                REQUIRE(a->set_min(0) == status::ok);
                a->trim(0);
            }
            for (auto& g : groups) REQUIRE(g->set_min(0) == status::ok);
            REQUIRE(gpu.limits().charged == 0);
            REQUIRE(gpu.limits().used == 0);
            arenas.clear();
        }
        REQUIRE(between.validate());
        between.trim(0);
        REQUIRE(device.reserved() == 0);
        REQUIRE(device.violations() == std::vector<std::string>{});
    }
}

TEST_CASE("with threads no level passes its max, every guarantee is kept, and all counters end at 0",
          "[model][tenancy][threads]") {
    constexpr std::size_t block = 2_MiB;
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (int round = 0; round < rounds(6); ++round) {
        const std::size_t blocks = 24 + test::below(rng, 24);
        sim::device device({.capacity = blocks * block, .cost = sim::costs::zero(), .check_overlap = false});
        sim_hub between(device);
        {
            arena_group gpu({.name = "gpu", .max = blocks * block});
            arena_group left(gpu, {.name = "left", .max = (blocks - 4) * block});
            arena_group right(gpu, {.name = "right", .min = 6 * block});
            std::vector<std::unique_ptr<tenant>> arenas;
            std::vector<std::size_t> guaranteed;
            for (std::size_t a = 0; a < 6; ++a) {
                guaranteed.push_back(test::below(rng, 4));
                arenas.push_back(std::make_unique<tenant>(
                    a % 2 == 0 ? left : right, between,
                    arena_options{.name = "arena", .min = guaranteed.back() * block, .high = 10 * block},
                    pool_options{.segment_bytes = block}));
            }
            std::atomic<bool> done{false};
            std::atomic<std::uint64_t> over{0};
            std::atomic<std::uint64_t> broken{0};
            std::atomic<std::uint64_t> residue{0};
            std::atomic<std::uint64_t> granted{0};
            std::thread watcher([&] {
                while (!done) {
                    for (const tenant_picture& t : gpu.picture())
                        if (t.reading.charged > t.reading.max) ++over;
                    if (device.reserved() > blocks * block) ++over;
                }
            });
            std::vector<std::thread> threads;
            for (std::size_t a = 0; a < arenas.size(); ++a)
                threads.emplace_back([&, a, seed = rng()] {
                    std::mt19937_64 mine(seed);
                    tenant& here = *arenas[a];
                    std::vector<void*> live;
                    for (int step = 0; step < 300; ++step) {
                        if (test::chance(mine, 55)) {
                            if (const auto r = here.try_allocate(default_stream, block)) {
                                ++granted;
                                for (const std::uint64_t writer : device.read(*r, block))
                                    if (writer != a + 1) ++residue;
                                device.write(*r, block, a + 1);
                                live.push_back(*r);
                            } else if (live.size() < guaranteed[a]) {
                                ++broken;
                            }
                        } else if (!live.empty()) {
                            here.deallocate(default_stream, live.back(), block);
                            live.pop_back();
                        }
                        if (test::chance(mine, 3)) here.trim(0);
                    }
                    for (void* const p : live) here.deallocate(default_stream, p, block);
                });
            for (auto& t : threads) t.join();
            done = true;
            watcher.join();
            CHECK(over == 0);
            CHECK(broken == 0);
            CHECK(residue == 0);
            CHECK(granted > 0);
            CHECK(device.reserved_peak() <= blocks * block);
            for (auto& a : arenas) {
                CHECK(a->validate());
                CHECK(a->set_min(0) == status::ok);
                a->trim(0);
            }
            CHECK(right.set_min(0) == status::ok);
            CHECK(gpu.limits().charged == 0);
            CHECK(gpu.limits().open == 0);
        }
        between.trim(0);
        CHECK(device.reserved() == 0);
    }
}

TEST_CASE("racing takers in the ladder: whoever stays within the sum is never refused",
          "[model][tenancy][threads]") {
    // Threads share tokens, one for each block that there is, and ask only with one in their hand. So at every instant there
    // is room, or idle memory with somebody, for each request that is under way, and every refusal is one too many.
    constexpr std::size_t block = 2_MiB;
    constexpr std::size_t tenants = 5;
    constexpr std::size_t threads_of_each = 2;
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    std::size_t reclaimed = 0;
    const std::uint64_t wanted = number_from("TENURE_RACE_REQUESTS", 0);
    std::atomic<std::uint64_t> requests{0};
    for (int round = 0; round < rounds(4) || requests < wanted; ++round) {
        const std::size_t all = 10 + test::below(rng, 20);
        const bool device_is_short = test::chance(rng, 50); // else the tree is
        sim::device device({.capacity = all * block, .cost = sim::costs::zero(), .check_overlap = false});
        sim_hub between(device);
        {
            arena_group gpu({.name = "gpu", .max = device_is_short ? no_limit : all * block});
            arena_group org(gpu, {.name = "org"});
            std::vector<std::unique_ptr<tenant>> arenas;
            for (std::size_t a = 0; a < tenants; ++a)
                arenas.push_back(std::make_unique<tenant>(a < 2 ? gpu : org, between,
                                                          arena_options{.name = "arena"},
                                                          pool_options{.segment_bytes = block}));
            std::atomic<std::size_t> tokens{all};
            std::atomic<std::size_t> ready{0};
            std::atomic<std::uint64_t> refused{0};
            std::vector<std::thread> threads;
            for (std::size_t t = 0; t < threads_of_each * tenants; ++t)
                threads.emplace_back([&, t, seed = rng()] {
                    std::mt19937_64 mine(seed);
                    tenant& here = *arenas[t % tenants];
                    std::vector<void*> live;
                    const auto free_one = [&] {
                        here.deallocate(default_stream, live.back(), block);
                        live.pop_back();
                        ++tokens;
                    };
                    std::uint64_t mine_asked = 0;
                    ++ready;
                    while (ready < threads_of_each * tenants) std::this_thread::yield();
                    unsigned growing = 60; // percent; changes, so that memory has to change hands
                    for (int step = 0; step < 2000; ++step) {
                        if (step % 50 == 0) growing = 100 - growing;
                        std::size_t left = tokens;
                        if (test::chance(mine, growing) && left != 0 &&
                            tokens.compare_exchange_strong(left, left - 1)) {
                            ++mine_asked;
                            if (const auto r = here.try_allocate(default_stream, block)) {
                                live.push_back(*r);
                            } else {
                                ++refused;
                                ++tokens;
                            }
                        } else if (!live.empty()) {
                            free_one();
                        }
                        if (test::chance(mine, 1)) here.trim(0);
                    }
                    while (!live.empty()) free_one();
                    requests += mine_asked;
                });
            for (auto& t : threads) t.join();
            CAPTURE(round, device_is_short, all);
            CHECK(refused == 0);
            for (auto& a : arenas) {
                reclaimed += a->limits().reclaimed;
                CHECK(a->validate());
                a->trim(0);
            }
            CHECK(device.reserved_peak() <= all * block);
            CHECK(gpu.limits().used == 0);
            CHECK(gpu.limits().open == 0);
        }
        between.trim(0);
        CHECK(device.reserved() == 0);
    }
    CHECK(reclaimed > 0); // or nothing was tested
}

TEST_CASE("racing requests at a limit: none over, no innocent refused", "[model][tenancy][threads]") {
    // The innocents need, together, exactly what there is. Others ask for more than there ever is, or charge what is free
    // for a moment and give it back, as a request does whose device has no memory.
    constexpr std::size_t share = 1000;
    constexpr std::size_t innocents = 3;
    const std::uint64_t requests = number_from("TENURE_RACE_REQUESTS", 1'000'000);
    meter gpu("gpu", share * innocents);
    meter org(gpu, "org", {});
    meter greedy(org, "greedy", {});
    meter fickle(gpu, "fickle", {});
    std::vector<std::unique_ptr<meter>> good;
    for (std::size_t i = 0; i < innocents; ++i)
        good.push_back(std::make_unique<meter>(org, "good", tenant_limits{}));
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> over{0};
    std::atomic<std::uint64_t> refused{0};
    std::atomic<std::uint64_t> asked_by_others{0};
    std::vector<std::thread> bad;
    bad.emplace_back([&] {
        std::uint64_t asked = 0;
        for (; !stop; asked += 2) {
            if (greedy.reserve_settled(share * innocents + 1)) ++over;
            if (greedy.reserve(no_limit)) ++over;
        }
        asked_by_others += asked;
    });
    bad.emplace_back([&] {
        std::uint64_t asked = 0;
        for (std::size_t n = 1; !stop; n = n % (share * innocents) + 1, ++asked)
            (void)fickle.reserve(n).has_value();
        asked_by_others += asked;
    });
    std::vector<std::thread> threads;
    for (auto& m : good)
        threads.emplace_back([&] {
            for (std::uint64_t r = 0; r < requests / innocents; ++r) {
                auto t = m->reserve_settled(share);
                if (!t) {
                    ++refused;
                    continue;
                }
                t->commit();
                if (r % 64 == 0) {
                    const meter_reading now = gpu.read();
                    if (now.charged > now.max) ++over;
                }
                m->refund(share);
            }
        });
    for (auto& t : threads) t.join();
    stop = true;
    for (auto& t : bad) t.join();
    CAPTURE(asked_by_others.load());
    CHECK(asked_by_others > 0); // or nobody raced
    CHECK(over == 0);
    CHECK(refused == 0);
    CHECK(gpu.read().charged == 0);
    CHECK(gpu.read().peak <= share * innocents);
    std::uint64_t charges = 0;
    for (const auto& m : good) charges += m->read().charges;
    CHECK(charges == requests / innocents * innocents);
}
