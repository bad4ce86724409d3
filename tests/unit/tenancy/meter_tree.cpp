#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/meter.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;

namespace {

void charge(meter& m, std::size_t bytes) {
    auto t = m.reserve(bytes);
    REQUIRE(t);
    t->commit();
}

/// Somebody whose memory is all idle, down to what is live.
struct cache final : idle_holder {
    explicit cache(meter& m, std::size_t live_bytes = 0) : account(&m), live(live_bytes) { m.attach(*this); }
    ~cache() { account->detach(); }
    std::size_t give_idle(std::size_t keep) noexcept override {
        const std::size_t own = account->read().own;
        const std::size_t left = std::min(own, std::max(keep, live));
        account->refund(own - left);
        ++asked;
        return own - left;
    }
    [[nodiscard]] std::uint64_t freed_blocks() const noexcept override { return 0; }
    meter* account;
    std::size_t live;
    int asked = 0;
};

} // namespace

TEST_CASE("a level is charged its own bytes and max(charged, min) of each child", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {});
    meter alice(org, "alice", {});
    meter batch(gpu, "batch", {.min = 60});
    CHECK(gpu.read().charged == 60);
    CHECK(gpu.read().used == 0);
    charge(batch, 40);
    CHECK(gpu.read().charged == 60);
    charge(alice, 20);
    charge(org, 5);
    CHECK(org.read().charged == 25);
    CHECK(org.read().own == 5);
    CHECK(gpu.read().charged == 85);
    CHECK(gpu.read().used == 65);
    charge(batch, 25); // 5 beyond its min
    CHECK(gpu.read().charged == 90);
    batch.refund(65);
    alice.refund(20);
    org.refund(5);
    CHECK(batch.set_min(0) == status::ok);
    CHECK(gpu.read().charged == 0);
    CHECK(gpu.read().used == 0);
    CHECK(gpu.read().open == 0);
}

TEST_CASE("the level that refuses is named, and nothing has changed anywhere", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {.max = 50});
    meter alice(org, "alice", {.max = 80});
    charge(gpu, 70);
    CHECK_FALSE(alice.reserve(81));
    CHECK(alice.last_refusal()->path.view() == "gpu/org/alice");
    CHECK_FALSE(alice.last_refusal()->ancestor);
    CHECK(alice.last_refusal()->hopeless);
    CHECK_FALSE(alice.reserve(60));
    CHECK(alice.last_refusal()->path.view() == "gpu/org");
    CHECK(alice.last_refusal()->ancestor);
    CHECK(alice.last_refusal()->max == 50);
    CHECK_FALSE(alice.reserve(40));
    CHECK(alice.last_refusal()->path.view() == "gpu");
    CHECK(alice.last_refusal()->missing == 10);
    CHECK(alice.last_refusal()->used == 70);
    CHECK_FALSE(alice.last_refusal()->hopeless);
    CHECK(alice.read().charged == 0);
    CHECK(org.read().charged == 0);
    CHECK(gpu.read().charged == 70);
    CHECK(alice.read().refused == 3);
    CHECK(org.read().at_max == 1);
    CHECK(gpu.read().at_max == 1);
    gpu.refund(70);
}

TEST_CASE("a charge within min is never refused by a level above", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter quiet(gpu, "quiet", {.min = 40});
    meter loud(gpu, "loud", {});
    charge(loud, 60);
    CHECK_FALSE(loud.reserve(1));
    charge(quiet, 40);
    CHECK_FALSE(quiet.reserve(1));
    CHECK(gpu.read().charged == 100);
    quiet.refund(40);
    loud.refund(60);
    // Even where the level above was lowered meanwhile.
    CHECK(gpu.set_max(10) == 30);
    charge(quiet, 40);
    quiet.refund(40);
}

TEST_CASE("min is admitted only as far as the level above can honour it", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {.min = 60});
    CHECK_THROWS_AS(meter(gpu, "b", {.min = 41}), not_admitted);
    meter b(gpu, "b", {.min = 30});
    CHECK(b.set_min(41) == status::over_limit);
    CHECK(b.set_min(40) == status::ok);
    CHECK(a.set_min(61) == status::over_limit);
    CHECK(a.set_min(50) == status::ok);
    CHECK(gpu.read().charged == 90);
    meter c(gpu, "c", {});
    charge(c, 10);
    CHECK(a.set_min(51) == status::over_limit); // admissible, but the room is in use
    c.refund(10);
    CHECK(a.set_min(51) == status::ok);
    CHECK(c.set_max(5) == 0);
    CHECK(c.set_min(6) == status::over_limit); // above its own max
    CHECK_THROWS_AS(meter(gpu, "d", tenant_limits{.min = 2, .max = 1}), not_admitted);
    meter below(a, "below", {.min = 20});
    CHECK_THROWS_AS(meter(b, "too much", tenant_limits{.min = no_limit}), not_admitted);
}

TEST_CASE("a tree is as deep as is said, and no deeper", "[tenancy][meter][tree]") {
    std::vector<std::unique_ptr<meter>> levels;
    levels.push_back(std::make_unique<meter>("0", 100));
    while (levels.size() < max_tenancy_depth)
        levels.push_back(
            std::make_unique<meter>(*levels.back(), std::to_string(levels.size()), tenant_limits{}));
    CHECK_THROWS_AS(meter(*levels.back(), "deeper", tenant_limits{}), not_admitted);
    charge(*levels.back(), 100);
    CHECK(levels.front()->read().charged == 100);
    CHECK_FALSE(levels.back()->reserve(1));
    CHECK(levels.back()->path() == "0/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15");
    levels.back()->refund(100);
    while (!levels.empty()) levels.pop_back();
}

TEST_CASE("what stands under a level that goes moves up", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    auto org = std::make_unique<meter>(gpu, "org", tenant_limits{.min = 50});
    meter alice(*org, "alice", {});
    charge(alice, 20);
    CHECK(gpu.read().charged == 50);
    org.reset();
    CHECK(alice.path() == "gpu/alice");
    CHECK(gpu.read().charged == 20);
    CHECK(gpu.read().used == 20);
    alice.refund(20);
    CHECK(gpu.read().charged == 0);

    auto root = std::make_unique<meter>("root", 10);
    meter orphan(*root, "orphan", {});
    charge(orphan, 10);
    root.reset();
    CHECK(orphan.path() == "orphan");
    charge(orphan, 100);
    orphan.refund(110);
}

TEST_CASE("a tenant moves within its tree with all that it holds, or stays", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter small(gpu, "small", {.max = 30});
    meter large(gpu, "large", {.max = 90});
    meter alice(large, "alice", {.min = 10});
    meter child(alice, "child", {});
    charge(child, 40);
    CHECK(alice.set_parent(small) == status::over_limit);
    CHECK(alice.path() == "gpu/large/alice");
    CHECK(large.read().charged == 40);
    child.refund(15);
    CHECK(alice.set_parent(small) == status::ok);
    CHECK(child.path() == "gpu/small/alice/child");
    CHECK(large.read().charged == 0);
    CHECK(large.read().used == 0);
    CHECK(small.read().charged == 25);
    CHECK(gpu.read().charged == 25);
    CHECK(alice.set_parent(child) == status::invalid_value); // below itself
    CHECK(alice.set_parent(alice) == status::invalid_value);
    meter elsewhere("other gpu", 100);
    CHECK(alice.set_parent(elsewhere) == status::invalid_value);
    child.refund(25);
    CHECK(small.read().charged == 10); // its min
}

TEST_CASE("a charge moves between tenants at one instant", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {.max = 50});
    charge(a, 100);
    CHECK(meter::move_charge(a, b, 50) == status::ok); // though gpu is full
    CHECK(meter::move_charge(a, b, 1) == status::over_limit);
    CHECK(b.last_refusal()->path.view() == "gpu/b");
    CHECK(a.read().charged == 50);
    CHECK(b.read().charged == 50);
    CHECK(gpu.read().peak == 100);
    meter other("other", 100);
    CHECK(meter::move_charge(a, other, 1) == status::invalid_value);
    a.refund(50);
    b.refund(50);
}

TEST_CASE("a charge that may still go back refuses nobody", "[tenancy][meter][tree][threads]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {});
    std::atomic<bool> asked{false};
    std::atomic<bool> refused{false};
    std::optional<meter::ticket> open;
    {
        auto t = a.reserve(90);
        REQUIRE(t);
        open.emplace(std::move(*t));
    }
    CHECK_FALSE(b.reserve(20)); // at this instant
    std::thread innocent([&] {
        asked = true;
        if (!b.reserve_settled(20)) refused = true;
    });
    while (!asked) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    open.reset(); // the device had no memory for it
    innocent.join();
    CHECK_FALSE(refused);
    CHECK_FALSE(b.reserve_settled(101)); // does not wait: no ticket is open
    CHECK(gpu.read().charged == 0);
}

TEST_CASE("idle memory of others is taken by overage and weight, never what lies under a min",
          "[tenancy][meter][tree]") {
    meter gpu("gpu", 1000);
    meter a(gpu, "a", {.min = 100});
    meter b(gpu, "b", {.weight = 300});
    meter team(gpu, "team", {.min = 200});
    meter c(team, "c", {});
    meter asking(gpu, "asking", {});
    charge(a, 300);
    charge(b, 450);
    charge(c, 210);
    cache of_a(a), of_b(b), of_c(c), of_asking(asking);
    SECTION("the largest overage for its weight first") {
        CHECK(asking.borrow(gpu.id(), 30) == 30); // a: 200 / 100, b: 450 / 300, c: 10 / 100
        CHECK(a.read().own == 270);
        CHECK(b.read().own == 450);
        CHECK(a.read().reclaimed == 30);
        CHECK(asking.read().borrowed == 30);
    }
    SECTION("down to the guarantees of all levels between") {
        CHECK(asking.borrow(0, 10'000) == 200 + 450 + 10);
        CHECK(a.read().own == 100);
        CHECK(b.read().own == 0);
        CHECK(c.read().own == 200);
    }
    SECTION("never live bytes") {
        of_b.live = 440;
        of_a.live = 300;
        CHECK(asking.borrow(0, 10'000) == 10 + 10);
    }
    SECTION("only below the level that refused") {
        meter mate(team, "mate", {});
        CHECK(mate.borrow(team.id(), 100) == 100); // inside the team its own guarantee protects nothing
        CHECK(a.read().own == 300);
        CHECK(c.read().own == 110);
    }
    SECTION("by trim, guarantees or not") {
        CHECK(gpu.trim(100) == 860);
        CHECK(gpu.read().used == 100);
    }
    a.refund(a.read().own);
    b.refund(b.read().own);
    c.refund(c.read().own);
}

TEST_CASE("a guarantee is admitted at the cost of others' idle memory", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {});
    charge(a, 80);
    cache of_a(a, 30);
    CHECK(b.set_min(60) == status::over_limit);
    CHECK(b.admit_min(60) == status::ok);
    CHECK(a.read().own == 40);
    CHECK(b.admit_min(71) == status::over_limit); // the rest is live
    CHECK(b.admit_min(101) == status::over_limit);
    a.refund(a.read().own);
}

TEST_CASE("above high every level is told and trimmed, and nothing fails", "[tenancy][meter][tree]") {
    std::vector<std::string> told;
    meter gpu("gpu", 1000);
    arena_group org(gpu, {.name = "org", .high = 100, .on_high = [&](const pressure& p) {
                              told.emplace_back(p.level.view());
                              CHECK(p.high == 100);
                              CHECK(p.charged > 100);
                          }});
    meter a(org, "a", {});
    meter b(org, "b", {.high = 60});
    b.on_high([&](const pressure& p) {
        told.emplace_back(p.level.view());
        throw 1; // is dropped
    });
    cache of_a(a), of_b(b, 70);
    charge(a, 90);
    CHECK_FALSE(a.pressed());
    charge(b, 70);
    CHECK(b.pressed());
    CHECK_FALSE(a.pressed()); // whose request it was is told
    CHECK(b.read().at_high == 1);
    CHECK(org.limits().at_high == 1);
    b.relieve();
    CHECK_FALSE(b.pressed());
    CHECK(told == std::vector<std::string>{"gpu/org/b", "gpu/org"});
    CHECK(b.read().own == 70); // live
    CHECK(a.read().own == 30); // idle
    b.relieve();               // now only b itself is above
    CHECK(told.size() == 3);
    a.refund(a.read().own);
    b.refund(b.read().own);
}

TEST_CASE("a picture shows the whole tree at one instant", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {.min = 10});
    meter alice(org, "alice", {.weight = 7});
    meter bob(gpu, "bob", {});
    cache of_alice(alice);
    charge(alice, 4);
    const std::vector<tenant_picture> all = gpu.picture();
    REQUIRE(all.size() == 4);
    CHECK(all[0].path == "gpu");
    CHECK(all[0].parent == 0);
    CHECK(all[1].path == "gpu/org");
    CHECK(all[2].path == "gpu/org/alice");
    CHECK(all[2].name == "alice");
    CHECK(all[2].depth == 2);
    CHECK(all[2].parent == all[1].id);
    CHECK(all[2].arena);
    CHECK(all[2].reading.weight == 7);
    CHECK(all[3].path == "gpu/bob");
    CHECK_FALSE(all[3].arena);
    CHECK(org.picture().size() == 2);
    CHECK(org.picture()[0].depth == 0);
    alice.refund(4);
}

TEST_CASE("waiting is refused exactly where nobody is left to end it", "[tenancy][meter][wait]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {});
    meter c(gpu, "c", {});
    charge(a, 50);
    charge(b, 50);
    {
        meter::place first(a, gpu.id(), 1); // b may still free
        CHECK(first.granted());
        meter::place other(c, gpu.id(), 1); // holds nothing, so it keeps nobody waiting
        CHECK(other.granted());
        meter::place last(b, gpu.id(), 1); // now all who hold memory would wait
        CHECK_FALSE(last.granted());
        CHECK(b.read().deadlocks == 1);
    }
    {
        meter::place alone(a, a.id(), 1); // its own limit, and its only thread
        CHECK_FALSE(alone.granted());
        meter::place one_of_two(b, b.id(), 2); // its other thread may free
        CHECK(one_of_two.granted());
        meter::place both(b, b.id(), 2);
        CHECK_FALSE(both.granted());
    }
    {
        meter::place first(a, gpu.id(), 1);
        meter::place second(b, b.id(), 2);
        CHECK(second.granted());
        second.turn_to(gpu.id());
        CHECK(second.granted()); // b has another thread
        meter::place third(b, gpu.id(), 2);
        CHECK_FALSE(third.granted());
    }
    CHECK(a.read().waits == 3);
    a.refund(50);
    b.refund(50);
}

TEST_CASE("those who wait for one level are served in the order of their coming",
          "[tenancy][meter][wait][threads]") {
    using clock = std::chrono::steady_clock;
    meter gpu("gpu", 100);
    meter holder(gpu, "holder", {});
    charge(holder, 100);
    std::vector<std::unique_ptr<meter>> waiters;
    std::vector<int> order;
    std::atomic<int> standing{0};
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    const auto end = clock::now() + std::chrono::seconds(30);
    for (int i = 0; i < 5; ++i) {
        waiters.push_back(std::make_unique<meter>(gpu, std::to_string(i), tenant_limits{}));
        threads.emplace_back([&, i] {
            meter& me = *waiters[static_cast<std::size_t>(i)];
            meter::place place(me, gpu.id(), 1);
            if (!place.granted()) ++failures;
            ++standing;
            while (place.await(end)) {
                // The first asks for most: those behind it would fit before.
                auto t = me.reserve(i == 0 ? 100 : 10);
                if (!t) continue;
                order.push_back(i); // only the first in line is here
                return;
            }
            ++failures;
        });
        while (standing != i + 1) std::this_thread::yield();
    }
    holder.refund(50);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    holder.refund(50);
    for (std::thread& t : threads) t.join();
    CHECK(failures == 0);
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
    CHECK(gpu.read().charged == 0);
    CHECK(waiters[0]->read().waits == 1);
    CHECK(waiters[0]->read().waited_ns >= 5'000'000);
}

TEST_CASE("a wait ends at its deadline", "[tenancy][meter][wait]") {
    using clock = std::chrono::steady_clock;
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {});
    charge(a, 100);
    const auto begin = clock::now();
    meter::place place(b, gpu.id(), 1);
    int tries = 0;
    while (place.await(begin + std::chrono::milliseconds(20))) ++tries;
    CHECK(clock::now() - begin >= std::chrono::milliseconds(20));
    CHECK(tries > 0);
    a.refund(100);
}

TEST_CASE("limits, charges and the shape of a tree may change together, from many threads",
          "[tenancy][meter][tree][threads]") {
    std::mt19937_64 seeds(test::seed());
    CAPTURE(test::seed());
    meter gpu("gpu", 1000);
    meter left(gpu, "left", {.max = 700});
    meter right(gpu, "right", {.max = 700});
    std::vector<std::unique_ptr<meter>> leaves;
    for (int i = 0; i < 4; ++i)
        leaves.push_back(
            std::make_unique<meter>(i % 2 == 0 ? left : right, std::to_string(i), tenant_limits{}));
    std::atomic<std::uint64_t> over{0};
    std::vector<std::thread> threads;
    for (auto& leaf : leaves)
        threads.emplace_back([&, seed = seeds(), m = leaf.get()] {
            std::mt19937_64 rng(seed);
            std::size_t held = 0;
            for (int i = 0; i < 4000; ++i) {
                const std::size_t n = test::below(rng, 400);
                if (auto t = test::chance(rng, 50) ? m->reserve(n) : m->reserve_settled(n)) {
                    const std::size_t used = test::below(rng, n + 1);
                    t->commit(used);
                    held += used;
                }
                if (test::chance(rng, 60)) {
                    const std::size_t back = test::below(rng, held + 1);
                    m->refund(back);
                    held -= back;
                }
                if (test::chance(rng, 5)) (void)m->set_min(test::below(rng, 200));
                if (test::chance(rng, 5)) (void)m->set_parent(test::chance(rng, 50) ? left : right);
                for (const tenant_picture& p : gpu.picture())
                    if (p.reading.charged > p.reading.max) ++over;
            }
            m->refund(held);
            if (m->set_min(0) != status::ok) ++over;
        });
    for (auto& t : threads) t.join();
    CHECK(over == 0);
    for (const tenant_picture& p : gpu.picture()) {
        CHECK(p.reading.charged == 0);
        CHECK(p.reading.used == 0);
        CHECK(p.reading.open == 0);
    }
    CHECK(gpu.read().peak <= 1000);
}

TEST_CASE("takers that find only live bytes come to an end, however many there are",
          "[tenancy][meter][tree][threads]") {
    constexpr std::uint64_t holders = 16;
    constexpr std::uint64_t takers = 8;
    constexpr std::uint64_t calls = 20;
    struct full final : idle_holder {
        explicit full(meter& m) : account(&m) { m.attach(*this); }
        ~full() { account->detach(); }
        std::size_t give_idle(std::size_t) noexcept override {
            std::this_thread::yield(); // others ask, too, in between
            if (++asked < 4 * calls * takers) return 0;
            const std::size_t own = account->read().own; // so that a livelock ends in a failure and not never
            account->refund(own);
            return own;
        }
        [[nodiscard]] std::uint64_t freed_blocks() const noexcept override { return 0; }
        meter* account;
        std::atomic<std::uint64_t> asked{0};
    };
    meter gpu("gpu", holders * 100);
    std::vector<std::unique_ptr<meter>> meters;
    std::vector<std::unique_ptr<full>> caches;
    for (std::uint64_t i = 0; i < holders; ++i) {
        meters.push_back(std::make_unique<meter>(gpu, "live", tenant_limits{.min = 10}));
        charge(*meters.back(), 100);
        caches.push_back(std::make_unique<full>(*meters.back()));
    }
    std::vector<std::unique_ptr<meter>> asking;
    for (std::uint64_t i = 0; i < takers; ++i)
        asking.push_back(std::make_unique<meter>(gpu, "asking", tenant_limits{}));
    std::vector<std::thread> threads;
    for (auto& m : asking)
        threads.emplace_back([&m] {
            for (std::uint64_t i = 0; i < calls; ++i) (void)m->borrow(0, 50);
        });
    for (auto& t : threads) t.join();
    for (const auto& c : caches) CHECK(c->asked <= calls * takers); // once by each
    CHECK(gpu.read().used == holders * 100);
    caches.clear();
    for (auto& m : meters) m->refund(100);
}

TEST_CASE("nothing found among others is an answer only while nobody frees", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    meter b(gpu, "b", {});
    cache idle(a);
    const free_count before = b.count_frees(0);
    CHECK(before == b.count_frees(0));
    CHECK_FALSE(b.reserve(101)); // a charge that was not to be had kept nobody out
    (void)b.reserve(100);
    CHECK(before == b.count_frees(0));
    charge(a, 10);
    CHECK(before == b.count_frees(0));
    a.refund(10);
    CHECK_FALSE(before == b.count_frees(0));
}

TEST_CASE("a new tenant's min takes others' idle memory, as set_min does", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter a(gpu, "a", {});
    cache idle(a, 30);
    charge(a, 90);
    {
        meter b(gpu, "b", {.min = 50});
        CHECK(a.read().charged <= 50);
        CHECK(gpu.read().charged <= 100);
        CHECK(b.reserve(50));
    }
    CHECK(gpu.read().charged == a.read().charged);
    charge(a, 90 - a.read().charged);
    CHECK_THROWS_AS(meter(gpu, "b", {.min = 71}), not_admitted); // 30 are live
    CHECK(gpu.read().charged == a.read().charged);
    CHECK(gpu.picture().size() == 2);
    a.refund(a.read().own);
}

TEST_CASE("what guarantees further down leave no room for is not waited for", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {});
    meter job(org, "job", {.min = 60});
    meter a(gpu, "a", {});
    CHECK_FALSE(a.reserve(41));
    CHECK(a.last_refusal()->hopeless);
    CHECK(a.reserve(40));
    meter beside(org, "beside", {});
    CHECK_FALSE(beside.reserve(41));
    CHECK(beside.last_refusal()->hopeless);
    charge(gpu, 10);
    CHECK_FALSE(a.reserve(40));
    CHECK_FALSE(a.last_refusal()->hopeless);
    gpu.refund(10);
}

TEST_CASE("changes of guarantees and places wait for charges that are not final, too",
          "[tenancy][meter][tree][threads]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {.max = 50});
    meter a(gpu, "a", {});
    meter b(org, "b", {});
    charge(a, 30);
    const auto while_open = [&](meter& m, std::size_t bytes, auto&& change) {
        std::optional<result<meter::ticket, status>> open = m.reserve(bytes);
        REQUIRE(*open);
        std::atomic<bool> done{false};
        status s = status::failed;
        std::thread t([&] {
            s = change();
            done = true;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds{5});
        CHECK_FALSE(done);
        open.reset(); // goes back
        t.join();
        CHECK(s == status::ok);
    };
    while_open(gpu, 60, [&] { return b.set_min(30); });
    CHECK(b.set_min(0) == status::ok);
    while_open(org, 40, [&] { return meter::move_charge(a, b, 20); });
    CHECK(meter::move_charge(b, a, 20) == status::ok);
    while_open(org, 40, [&] { return a.set_parent(org); });
    a.refund(30);
    CHECK(gpu.read().charged == 0);
    CHECK(org.read().open == 0);
}

TEST_CASE("room is what could be charged now, limit what could ever be", "[tenancy][meter][tree]") {
    meter gpu("gpu", 100);
    meter org(gpu, "org", {.min = 30, .max = 60});
    meter a(org, "a", {.min = 10});
    meter b(gpu, "b", {});
    CHECK(a.limit() == 60);
    CHECK(b.limit() == 100);
    CHECK(a.room() == 60);
    CHECK(b.room() == 70);
    charge(b, 65);
    CHECK(a.room() == 35);   // 30 that are guaranteed, and 5
    CHECK(org.room() == 25); // 10 of the 30 are kept for a
    CHECK_FALSE(a.reserve(36));
    CHECK(a.reserve(35));
    b.refund(65);
    CHECK(a.room() == 60);         // whatever was refused before
    CHECK_FALSE(a.last_refusal()); // the charge was granted
    gpu.set_max(0);
    CHECK(a.room() == 10 + 20);
    CHECK(b.room() == 0);
}
