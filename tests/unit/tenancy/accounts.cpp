/// Accounts: exact limits at every level, stocks that never cost anybody a refusal, frees by whoever, wrong frees.

#include <tenure/core/bits.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/tenancy/accounts.hpp>

#include "support/catch.hpp"
#include "support/misuse_log.hpp"
#include "support/random.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

using pool_type = best_fit_pool<sim::device>;

struct bank {
    explicit bank(accounts_options options = {})
        : device({.capacity = 64_GiB, .cost = sim::costs::zero()})
        , pool(device)
        , book(pool, std::move(options))
        , s(device.create_stream()) {}
    sim::device device;
    pool_type pool;
    accounts<pool_type> book;
    stream_handle s;
};

/// What a thread does is over for the caller when this returns.
template <class F>
void on_thread(F f) {
    std::thread t(f);
    t.join();
}

} // namespace

TEST_CASE("an account holds its limit to the byte, and names itself when it refuses", "[tenancy][account]") {
    bank b;
    account<pool_type> alice(b.book, {.name = "alice", .max = 1_MiB});
    void* const p = alice.allocate(b.s, 1_MiB);
    const allocate_result r = alice.try_allocate(b.s, 1);
    REQUIRE_FALSE(r);
    CHECK(r.error().cause == failure_cause::arena_limit);
    CHECK(r.error().arena.view() == "alice");
    CHECK(r.error().requested == 1);
    CHECK(r.error().rounded == 512);
    CHECK(r.error().used == 1_MiB);
    CHECK(r.error().max == 1_MiB);
    CHECK_THROWS_AS(alice.allocate(b.s, 1), out_of_memory);
    CHECK_THROWS_AS(alice.allocate_sync(1), out_of_memory);
    CHECK(alice.reading().refused == 3);
    CHECK(alice.usage().failures == 3);
    CHECK(alice.try_allocate(b.s, 1, 3).error().cause == failure_cause::invalid_alignment);
    alice.deallocate(b.s, p, 1_MiB);
    void* const q = alice.allocate(b.s, 1_MiB);
    CHECK(alice.reading().blocks == 1);
    alice.deallocate(b.s, q, 1_MiB);
    b.book.drain();
    CHECK(alice.reading().charged == 0);
    CHECK(alice.reading().blocks == 0);
    CHECK(alice.validate());
}

TEST_CASE("every level is held, and the one that refuses is named", "[tenancy][account]") {
    bank b({.name = "all", .max = 5_MiB});
    account<pool_type> org(b.book, {.name = "org", .max = 3_MiB});
    account<pool_type> alice(org, {.name = "alice", .max = 2_MiB});
    account<pool_type> bob(org, {.name = "bob", .max = 2_MiB});
    account<pool_type> solo(b.book, {.name = "solo"});
    void* const a = alice.allocate(b.s, 2_MiB);
    const allocate_result over_org = bob.try_allocate(b.s, 2_MiB);
    REQUIRE_FALSE(over_org);
    CHECK(over_org.error().cause == failure_cause::ancestor_limit);
    CHECK(over_org.error().arena.view() == "org");
    void* const c = bob.allocate(b.s, 1_MiB);
    const allocate_result over_root = solo.try_allocate(b.s, 3_MiB);
    REQUIRE_FALSE(over_root);
    CHECK(over_root.error().cause == failure_cause::ancestor_limit);
    CHECK(over_root.error().arena.view() == "all");
    CHECK(org.reading().used() == 3_MiB);
    CHECK(b.book.reading().used() == 3_MiB);
    CHECK(alice.path().view() == "org/alice");
    alice.deallocate(b.s, a, 2_MiB);
    bob.deallocate(b.s, c, 1_MiB);
    CHECK(b.book.reading().used() == 0);
    b.book.drain();
    CHECK(b.book.reading().charged == 0);
}

TEST_CASE("a stock of another thread never costs anybody a refusal", "[tenancy][account]") {
    bank b;
    account<pool_type> org(b.book, {.name = "org", .max = 64_MiB});
    account<pool_type> alice(org, {.name = "alice"});
    account<pool_type> bob(org, {.name = "bob", .max = 64_MiB});
    std::atomic<int> step{0};
    std::thread saver([&] {
        for (int i = 0; i < 100; ++i) {
            void* const p = alice.allocate(b.s, 1_MiB);
            alice.deallocate(b.s, p, 1_MiB);
        }
        step = 1;
        while (step != 2) std::this_thread::yield(); // the thread lives on, and so does its stock
    });
    while (step != 1) std::this_thread::yield();
    CHECK(alice.reading().stocked >= 1_MiB);
    void* const all = bob.allocate(b.s, 64_MiB);
    CHECK(org.reading().charged == 64_MiB);
    CHECK(alice.reading().charged == 0);
    CHECK_FALSE(alice.try_allocate(b.s, 1));
    bob.deallocate(b.s, all, 64_MiB);
    step = 2;
    saver.join();
    b.book.drain();
    CHECK(b.book.reading().charged == 0);
}

TEST_CASE("what is stocked is bought modestly and given back at the end of the thread",
          "[tenancy][account]") {
    bank b;
    account<pool_type> alice(b.book, {.name = "alice", .max = 8_MiB});
    void* p = nullptr;
    on_thread([&] {
        p = alice.allocate(b.s, 1_MiB);
        CHECK(alice.reading().stocked > 0);
        CHECK(alice.reading().stocked <= 7_MiB / 8);
    });
    CHECK(alice.reading().charged == 1_MiB);
    on_thread([&] { alice.deallocate(b.s, p, 1_MiB); });
    CHECK(alice.reading().charged == 0);
    CHECK(alice.reading().blocks == 0);
    CHECK(b.book.validate());
}

TEST_CASE("a thread with more accounts than slots keeps exact books", "[tenancy][account]") {
    bank b;
    std::deque<account<pool_type>> tenants;
    for (std::size_t i = 0; i < 3 * stock_shelf::slot_count + 7; ++i)
        tenants.emplace_back(b.book, account_options{.max = 1_MiB});
    for (int round = 0; round < 3; ++round) {
        std::vector<void*> blocks;
        for (auto& t : tenants) blocks.push_back(t.allocate(b.s, 3000));
        for (auto& t : tenants) {
            CHECK(t.reading().used() == 3072);
            CHECK(t.reading().blocks == 1);
        }
        CHECK(b.book.validate());
        for (std::size_t i = 0; i < tenants.size(); ++i) tenants[i].deallocate(b.s, blocks[i], 3000);
    }
    CHECK(b.book.reading().used() == 0);
    b.book.drain();
    CHECK(b.book.reading().charged == 0);
}

TEST_CASE("a block of another account is reported with both names and stays", "[tenancy][account]") {
    bank b;
    account<pool_type> org(b.book, {.name = "org"});
    account<pool_type> alice(org, {.name = "alice"});
    account<pool_type> bob(org, {.name = "bob"});
    void* const p = alice.allocate(b.s, 1000);
    misuse_log log;
    const deallocate_result r = bob.try_deallocate(b.s, p, 1000);
    REQUIRE_FALSE(r);
    CHECK(r.error().kind == misuse_kind::wrong_arena);
    CHECK(r.error().owner.view() == "org/bob");
    CHECK(r.error().real_owner.view() == "org/alice");
    bob.deallocate_sync(p, 1000);
    bob.release(p);
    bob.record_use(p, b.s);
    org.deallocate(b.s, p, 1000); // above, but alice is not closed
    const std::vector<misuse> reported = log.take();
    CHECK(reported.size() == 4);
    for (const misuse& m : reported) CHECK(m.kind == misuse_kind::wrong_arena);
    CHECK(alice.owns(p));
    CHECK_FALSE(bob.owns(p));
    alice.deallocate(b.s, p, 1000);
    CHECK(log.take().empty());
    CHECK_FALSE(alice.owns(p));
}

TEST_CASE("an account closed with live blocks is reported, and what is above can give them back",
          "[tenancy][account]") {
    bank b;
    account<pool_type> org(b.book, {.name = "org"});
    void* p = nullptr;
    void* q = nullptr;
    misuse_log log;
    {
        account<pool_type> alice(org, {.name = "alice"});
        p = alice.allocate(b.s, 1000);
        q = alice.allocate(b.s, 1_MiB);
    }
    const std::vector<misuse> reported = log.take();
    REQUIRE(reported.size() == 1);
    CHECK(reported[0].kind == misuse_kind::live_at_destruction);
    CHECK(reported[0].owner.view() == "org/alice");
    CHECK(reported[0].bytes == 1024 + 1_MiB);
    CHECK(reported[0].expected == 2);
    CHECK(org.reading().used() == 1024 + 1_MiB);
    {
        account<pool_type> stranger(b.book, {.name = "stranger"});
        CHECK(stranger.try_deallocate(b.s, p, 1000).error().kind == misuse_kind::wrong_arena);
    }
    CHECK(org.try_deallocate(b.s, p, 999).error().kind == misuse_kind::size_mismatch);
    org.deallocate(b.s, p, 1000);
    org.release(q);
    CHECK(log.take().empty());
    CHECK(org.try_deallocate(b.s, p, 1000).error().kind == misuse_kind::double_free);
    CHECK(org.reading().charged == 0);
    CHECK(b.book.validate());
}

TEST_CASE("what an account at the top has left is freed through the book", "[tenancy][account]") {
    bank b;
    misuse_log log;
    void* p = nullptr;
    void* q = nullptr;
    account<pool_type> stranger(b.book, {.name = "stranger"});
    {
        account<pool_type> alice(b.book, {.name = "alice", .at_destruction = leftovers::release});
        p = alice.allocate(b.s, 1000);
        q = alice.allocate(b.s, 1_MiB);
        CHECK(b.book.try_deallocate(b.s, p, 1000).error().kind == misuse_kind::wrong_arena); // it lives
        CHECK(alice.owns(p));
    }
    CHECK(b.book.reading().used() == 1024 + 1_MiB);
    CHECK(stranger.try_deallocate(b.s, p, 1000).error().kind == misuse_kind::wrong_arena);
    CHECK(b.book.try_deallocate(b.s, p, 999).error().kind == misuse_kind::size_mismatch);
    b.book.deallocate(b.s, p, 1000);
    b.book.release(q);
    CHECK(log.take().empty());
    CHECK(b.book.try_deallocate(b.s, p, 1000).error().kind == misuse_kind::double_free);
    int outside = 0;
    CHECK(b.book.try_deallocate(b.s, &outside, 4).error().kind == misuse_kind::foreign_pointer);
    CHECK(b.book.reading().charged == 0);
    CHECK(b.pool.usage().blocks.current == 0);
    CHECK(b.book.validate());
}

TEST_CASE("the number of an account whose blocks are still out is never another's", "[tenancy][account]") {
    bank b;
    misuse_log log;
    void* p = nullptr;
    {
        accounts<pool_type> book(b.pool);
        account<pool_type> gone(book, {.name = "gone", .at_destruction = leftovers::release});
        p = gone.allocate(b.s, 1_MiB);
    }
    for (int i = 0; i < 8; ++i) {
        accounts<pool_type> book(b.pool);
        account<pool_type> next(book, {.name = "next", .max = 8_MiB});
        CHECK_FALSE(next.owns(p));
        void* const mine = next.allocate(b.s, 1000);
        CHECK_FALSE(next.try_deallocate(b.s, p, 1_MiB));
        CHECK(next.reading().used() == 1024);
        next.deallocate(b.s, mine, 1000);
        (void)book.drain();
        CHECK(next.reading().charged == 0);
    }
    b.pool.release(p);
}

TEST_CASE("a limit may be lowered below what is held", "[tenancy][account]") {
    bank b;
    account<pool_type> alice(b.book, {.name = "alice", .max = 8_MiB});
    void* const p = alice.allocate(b.s, 4_MiB);
    CHECK(alice.set_max(1_MiB) == 3_MiB);
    CHECK_FALSE(alice.try_allocate(b.s, 1));
    alice.deallocate(b.s, p, 4_MiB);
    void* const q = alice.allocate(b.s, 1_MiB);
    CHECK_FALSE(alice.try_allocate(b.s, 1));
    CHECK(alice.set_max(no_limit) == 0);
    void* const r = alice.allocate(b.s, 1);
    alice.deallocate(b.s, q, 1_MiB);
    alice.deallocate(b.s, r, 1);
}

TEST_CASE("a refusal of the pool gives the charge back", "[tenancy][account]") {
    sim::device device({.capacity = 64_MiB, .cost = sim::costs::zero()});
    pool_type pool(device);
    accounts<pool_type> book(pool);
    account<pool_type> alice(book, {.name = "alice", .max = 1_GiB});
    CHECK(alice.try_allocate(default_stream, 100_MiB).error().cause == failure_cause::device);
    CHECK_THROWS_AS(alice.allocate_sync(100_MiB), out_of_memory);
    CHECK(alice.reading().used() == 0);
    CHECK(alice.reading().blocks == 0);
}

TEST_CASE("a pool of powers of two is charged by powers of two", "[tenancy][account]") {
    sim::device device({.cost = sim::costs::zero()});
    buddy_pool<sim::device> pool(device);
    accounts<buddy_pool<sim::device>, power_of_two_rounding> book(pool);
    account<buddy_pool<sim::device>, power_of_two_rounding> alice(book, {.name = "alice"});
    std::vector<std::pair<void*, std::size_t>> blocks;
    for (const std::size_t n : {1_B, 513_B, 3000_B, 5_MiB, 8_MiB})
        blocks.emplace_back(alice.allocate(default_stream, n), n);
    CHECK(alice.reading().used() == pool.usage().allocated.current);
    for (const auto& [p, n] : blocks) alice.deallocate(default_stream, p, n);
    CHECK(alice.reading().used() == 0);
}

TEST_CASE("racing threads never pass a limit, and nobody is refused in vain", "[tenancy][account][threads]") {
    // Eight threads hold at most four blocks each of an organisation that has room for exactly 32: no request may be
    // refused. A ninth asks for more than there is, all the time, and must harm nobody.
    CAPTURE(seed());
    constexpr std::size_t threads = 8;
    constexpr std::size_t each = 4;
    constexpr std::size_t block = 256_KiB;
    constexpr std::size_t room = threads * each * block;
    bank b;
    account<pool_type> org(b.book, {.name = "org", .max = room});
    std::deque<account<pool_type>> users;
    for (std::size_t i = 0; i < threads; ++i)
        users.emplace_back(org, account_options{.name = "u" + std::to_string(i)});
    account<pool_type> greedy(org, {.name = "greedy"});
    std::atomic<std::size_t> refused{0};
    std::atomic<std::size_t> over{0};
    std::atomic<std::size_t> running{threads};
    std::vector<std::thread> all;
    for (std::size_t t = 0; t < threads; ++t) {
        all.emplace_back([&, t] {
            std::mt19937_64 rng(seed() + t);
            std::vector<std::pair<void*, std::size_t>> mine; // block, whose
            for (int i = 0; i < 3000; ++i) {
                if (mine.size() < each && chance(rng, 60)) {
                    const std::size_t user = below(rng, threads); // any thread serves any user
                    const std::size_t n = block - below(rng, 512);
                    const allocate_result r = users[user].try_allocate(b.s, n);
                    if (!r) {
                        ++refused;
                        continue;
                    }
                    mine.emplace_back(*r, user << 32 | n);
                } else if (!mine.empty()) {
                    const auto [p, what] = mine.back();
                    mine.pop_back();
                    users[what >> 32].deallocate(b.s, p, what & 0xffffffff);
                }
                if (chance(rng, 2) && org.reading().charged > room) ++over;
            }
            for (const auto& [p, what] : mine) users[what >> 32].deallocate(b.s, p, what & 0xffffffff);
            --running;
        });
    }
    all.emplace_back([&] {
        while (running != 0)
            if (greedy.try_allocate(b.s, room + 1)) ++over;
    });
    for (std::thread& t : all) t.join();
    CHECK(refused == 0);
    CHECK(over == 0);
    CHECK(org.reading().peak <= room);
    CHECK(b.book.validate());
    CHECK(org.reading().charged == 0); // every thread has ended
    for (auto& u : users) {
        CHECK(u.reading().charged == 0);
        CHECK(u.reading().blocks == 0);
    }
}

TEST_CASE("of racing frees of one block one is accepted, and charges stay exact",
          "[tenancy][account][threads]") {
    bank b;
    account<pool_type> alice(b.book, {.name = "alice", .max = 64_MiB});
    for (int round = 0; round < 200; ++round) {
        void* const p = alice.allocate(b.s, 1_MiB);
        std::atomic<int> accepted{0};
        std::atomic<bool> go{false};
        std::vector<std::thread> all;
        for (int t = 0; t < 3; ++t)
            all.emplace_back([&] {
                while (!go) std::this_thread::yield();
                if (alice.try_deallocate(b.s, p, 1_MiB)) ++accepted;
            });
        go = true;
        for (std::thread& t : all) t.join();
        REQUIRE(accepted == 1);
    }
    CHECK(alice.reading().used() == 0);
    CHECK(alice.reading().blocks == 0);
}

TEST_CASE("many accounts cost little", "[tenancy][account]") {
    bank b;
    std::deque<std::unique_ptr<account<pool_type>>> tenants;
    account<pool_type> org(b.book, {.name = "org"});
    constexpr std::size_t many = 100'000;
    for (std::size_t i = 0; i < many; ++i)
        tenants.push_back(std::make_unique<account<pool_type>>(
            org, account_options{.name = std::to_string(i), .max = 1_MiB}));
    // Without allocator overhead and the vector's spare room: what docs and header say.
    CHECK(sizeof(account_state) + sizeof(account<pool_type>) + sizeof(void*) <= 128);
    for (std::size_t i = 0; i < many; i += 997) {
        void* const p = tenants[i]->allocate(b.s, 4096);
        CHECK_FALSE(tenants[i]->try_allocate(b.s, 1_MiB));
        tenants[i]->deallocate(b.s, p, 4096);
    }
    tenants.clear();
    b.book.drain();
    CHECK(org.reading().charged == 0);
    CHECK(b.book.validate());
}

TEST_CASE("what cannot be charged is left to the pool to refuse", "[tenancy][account]") {
    bank b;
    account<pool_type> alice(b.book, {});
    REQUIRE(alice.try_allocate(b.s, 0));
    CHECK(*alice.try_allocate(b.s, 0) == nullptr);
    CHECK(alice.try_deallocate(b.s, nullptr, 0));
    for (const std::size_t n : {std::size_t{1} << 41, no_limit, no_limit - 511}) {
        CHECK_FALSE(alice.try_allocate(b.s, n));
        CHECK_THROWS_AS(alice.allocate_sync(n), out_of_memory);
    }
    CHECK(alice.reading().charged == 0);
    CHECK(alice.usage().allocated.current == 0);
}
