#include "support/catch.hpp"
#include "support/random.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy/caching/giving_back.hpp>
#include <tenure/tenancy/metered.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

static_assert(device<metered<sim::device>>);
static_assert(pool_device<metered<sim::device>>);
static_assert(vmm_device<metered<sim::device>>);

constexpr std::size_t large_device = 141_GiB;

struct metered_world {
    explicit metered_world(std::size_t max, std::size_t capacity = large_device)
        : device({.capacity = capacity, .cost = sim::costs::zero()})
        , account("alice", max)
        , paid(device, account) {}

    [[nodiscard]] std::size_t charged() const { return account.read().charged; }

    sim::device device;
    meter account;
    metered<sim::device> paid;
};

} // namespace

TEST_CASE("memory is charged as the device takes it, and refunded when it is back", "[tenancy][metered]") {
    metered_world w(10_MiB);
    const auto p = w.paid.allocate(3_MiB);
    REQUIRE(p);
    CHECK(w.charged() == 4_MiB);
    CHECK(w.charged() == w.device.reserved());
    const auto q = w.paid.allocate(6_MiB + 1);
    REQUIRE_FALSE(q);
    CHECK(q.error() == status::over_limit);
    CHECK(w.device.calls(sim::call::allocate) == 1); // the device was not even asked
    w.device.fail_call(sim::call::deallocate, 1, status::failed);
    CHECK(w.paid.deallocate(*p, 3_MiB) == status::failed);
    CHECK(w.charged() == 4_MiB); // still held, still charged
    CHECK(w.paid.deallocate(*p, 3_MiB) == status::ok);
    CHECK(w.charged() == 0);
}

TEST_CASE("a device that refuses leaves no charge, and no peak that never was", "[tenancy][metered]") {
    metered_world w(no_limit, 10_MiB);
    CHECK_FALSE(w.paid.allocate(std::size_t{1} << 47));
    CHECK_FALSE(w.paid.allocate(~std::size_t{0}));
    CHECK(w.charged() == 0);
    CHECK(w.account.read().peak == 0);
}

TEST_CASE("a pool is charged what it holds, and may be full to its limit", "[tenancy][metered]") {
    metered_world w(100_MiB);
    const auto pool = w.paid.create_pool({});
    REQUIRE(pool);
    std::vector<void*> blocks;
    while (auto p = w.paid.allocate_from(*pool, 30_MiB, default_stream)) {
        blocks.push_back(*p);
        CHECK(w.charged() == w.device.reserved());
    }
    CHECK(blocks.size() == 3);
    CHECK(w.charged() == 96_MiB);
    const auto over = w.paid.allocate_from(*pool, 30_MiB, default_stream);
    REQUIRE_FALSE(over);
    CHECK(over.error() == status::over_limit);
    CHECK(w.paid.deallocate_to(*pool, blocks.back(), default_stream) == status::ok);
    const auto again = w.paid.allocate_from(*pool, 30_MiB, default_stream);
    REQUIRE(again);
    blocks.back() = *again;
    for (void* p : blocks) CHECK(w.paid.deallocate_to(*pool, p, default_stream) == status::ok);
    CHECK(w.paid.synchronize(default_stream) == status::ok);
    CHECK(w.paid.trim_pool(*pool, 0) == status::ok);
    CHECK(w.charged() == 0);
    CHECK(w.paid.destroy_pool(*pool) == status::ok);
    CHECK(w.device.reserved() == 0);
}

TEST_CASE("what a pool gives back by itself is not paid for any longer", "[tenancy][metered]") {
    metered_world w(96_MiB);
    const auto keeps = w.paid.create_pool({.release_threshold = 0});
    REQUIRE(keeps);
    const auto p = w.paid.allocate_from(*keeps, 60_MiB, default_stream);
    REQUIRE(p);
    CHECK(w.charged() == 64_MiB);
    CHECK(w.paid.deallocate_to(*keeps, *p, default_stream) == status::ok);
    CHECK(w.paid.synchronize(default_stream) == status::ok);
    REQUIRE(w.device.reserved() == 0);
    SECTION("noticed when the pool is asked") {
        REQUIRE(w.paid.memory_of(*keeps));
        CHECK(w.charged() == 0);
    }
    SECTION("noticed by the pool's next allocation") {
        const auto q = w.paid.allocate_from(*keeps, 1_MiB, default_stream);
        REQUIRE(q);
        CHECK(w.charged() == 32_MiB);
        CHECK(w.charged() == w.device.reserved());
        CHECK(w.paid.deallocate_to(*keeps, *q, default_stream) == status::ok);
        CHECK(w.paid.synchronize(default_stream) == status::ok);
    }
    SECTION("noticed when the limit is met") {
        w.account.set_max(70_MiB);
        const auto q = w.paid.allocate_from(*keeps, 50_MiB, default_stream);
        REQUIRE(q);
        CHECK(w.charged() == 64_MiB);
        CHECK(w.paid.deallocate_to(*keeps, *q, default_stream) == status::ok);
        CHECK(w.paid.synchronize(default_stream) == status::ok);
    }
    CHECK(w.paid.destroy_pool(*keeps) == status::ok);
    CHECK(w.charged() == 0);
}

TEST_CASE("while it is not known what a pool holds, the most that it can hold is charged",
          "[tenancy][metered]") {
    metered_world w(no_limit);
    const auto pool = w.paid.create_pool({});
    REQUIRE(pool);
    const auto p = w.paid.allocate_from(*pool, 1_MiB, default_stream);
    REQUIRE(p);
    w.device.fail_call(sim::call::memory_of, 1, status::failed);
    const auto q = w.paid.allocate_from(*pool, 1_MiB, default_stream); // did not grow, but who knows
    REQUIRE(q);
    CHECK(w.charged() == 64_MiB);
    CHECK(w.device.reserved() == 32_MiB);
    const auto r = w.paid.allocate_from(*pool, 1_MiB, default_stream);
    REQUIRE(r);
    CHECK(w.charged() == 32_MiB); // known again
    for (void* x : {*p, *q, *r}) CHECK(w.paid.deallocate_to(*pool, x, default_stream) == status::ok);
    CHECK(w.paid.synchronize(default_stream) == status::ok);
    CHECK(w.paid.trim_pool(*pool, 0) == status::ok);
    CHECK(w.charged() == 0);
    CHECK(w.paid.destroy_pool(*pool) == status::ok);
}

TEST_CASE("a full device is not taken for a full tenant", "[tenancy][metered]") {
    metered_world w(96_MiB, 64_MiB);
    const auto pool = w.paid.create_pool({});
    REQUIRE(pool);
    const auto p = w.paid.allocate_from(*pool, 64_MiB, default_stream);
    REQUIRE(p);
    const auto q = w.paid.allocate_from(*pool, 32_MiB, default_stream); // its limit leaves 32 MiB
    REQUIRE_FALSE(q);
    CHECK(q.error() == status::out_of_memory);
    CHECK(w.charged() == 64_MiB);
    CHECK(w.paid.deallocate_to(*pool, *p, default_stream) == status::ok);
    CHECK(w.paid.synchronize(default_stream) == status::ok);
    CHECK(w.paid.destroy_pool(*pool) == status::ok);
    CHECK(w.charged() == 0);
}

TEST_CASE("a pool made elsewhere is none of its own", "[tenancy][metered]") {
    metered_world w(no_limit);
    const auto foreign = w.device.create_pool({});
    REQUIRE(foreign);
    const auto p = w.paid.allocate_from(*foreign, 1, default_stream);
    REQUIRE_FALSE(p);
    CHECK(p.error() == status::invalid_value);
    CHECK(w.charged() == 0);
    CHECK(w.paid.trim_pool(*foreign, 0) == status::ok);
    CHECK(w.paid.destroy_pool(*foreign) == status::ok);
}

TEST_CASE("explain blames the tenant's limit only where it refused", "[tenancy][metered]") {
    metered_world w(10_MiB, 64_MiB);
    allocation_failure by_device{.driver_status = status::out_of_memory};
    w.paid.explain(by_device);
    CHECK(by_device.arena.empty());
    CHECK(by_device.max == 64_MiB);
    allocation_failure by_limit{.driver_status = status::over_limit};
    w.paid.explain(by_limit);
    CHECK(by_limit.arena.view() == "alice");
    CHECK(by_limit.cause == failure_cause::arena_limit);
    CHECK(by_limit.max == 10_MiB);
}

TEST_CASE("whichever call fails, a pool's account is right in the end", "[tenancy][metered][faults]") {
    std::mt19937_64 rng(test::seed());
    CAPTURE(test::seed());
    for (std::uint64_t k = 1;; ++k) {
        metered_world w(160_MiB);
        w.device.fail_any_call(k, status::failed);
        std::vector<std::pair<pool_handle, void*>> live;
        std::vector<pool_handle> pools;
        for (const std::size_t threshold : {std::size_t{0}, no_limit})
            if (const auto pool = w.paid.create_pool({.release_threshold = threshold}))
                pools.push_back(*pool);
        for (int i = 0; i < 30 && !pools.empty(); ++i) {
            const pool_handle pool = pools[test::below(rng, pools.size())];
            if (test::chance(rng, 60)) {
                if (const auto p = w.paid.allocate_from(pool, 1 + test::below(rng, 40_MiB), default_stream))
                    live.emplace_back(pool, *p);
            } else if (!live.empty()) {
                const std::size_t which = test::below(rng, live.size());
                std::swap(live[which], live.back());
                if (w.paid.deallocate_to(live.back().first, live.back().second, default_stream) == status::ok)
                    live.pop_back();
            }
            if (test::chance(rng, 20)) (void)w.paid.synchronize(default_stream);
            if (test::chance(rng, 10)) (void)w.paid.trim_pool(pool, 0);
            CHECK(w.charged() >= w.device.reserved());
            CHECK(w.charged() <= 160_MiB);
        }
        const bool failed = w.device.total_calls() >= k;
        w.device.clear_faults();
        for (auto [pool, p] : live) CHECK(w.paid.deallocate_to(pool, p, default_stream) == status::ok);
        CHECK(w.paid.synchronize(default_stream) == status::ok);
        for (const pool_handle pool : pools) {
            CHECK(w.paid.trim_pool(pool, 0) == status::ok);
            CHECK(w.paid.destroy_pool(pool) == status::ok);
        }
        CHECK(w.charged() == 0);
        CHECK(w.device.reserved() == 0);
        if (!failed) break;
        REQUIRE(k < 1000);
    }
}

TEST_CASE("allocations, frees, trims and changes of the limit race without losing a byte",
          "[tenancy][metered][threads]") {
    metered_world w(256_MiB);
    const auto pool = w.paid.create_pool({});
    REQUIRE(pool);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::mt19937_64 rng(test::seed() + t);
            std::vector<std::pair<void*, std::size_t>> mine;
            for (int i = 0; i < 2000; ++i) {
                const std::size_t n = 1 + test::below(rng, 20_MiB);
                if (t % 2 == 0) {
                    if (const auto p = w.paid.allocate_from(*pool, n, default_stream))
                        mine.emplace_back(*p, n);
                } else if (const auto p = w.paid.allocate(n)) {
                    mine.emplace_back(*p, n);
                }
                if (mine.size() > 4 || (!mine.empty() && test::chance(rng, 40))) {
                    const auto [p, bytes] = mine.back();
                    mine.pop_back();
                    const status s = t % 2 == 0 ? w.paid.deallocate_to(*pool, p, default_stream)
                                                : w.paid.deallocate(p, bytes);
                    if (s != status::ok) ++wrong;
                }
            }
            for (const auto& [p, bytes] : mine) {
                const status s =
                    t % 2 == 0 ? w.paid.deallocate_to(*pool, p, default_stream) : w.paid.deallocate(p, bytes);
                if (s != status::ok) ++wrong;
            }
        });
    std::thread control([&] {
        std::mt19937_64 rng(test::seed() + 99);
        while (!stop) {
            (void)w.paid.synchronize(default_stream);
            if (w.paid.trim_pool(*pool, 0) != status::ok) ++wrong;
            w.account.set_max(128_MiB + test::below(rng, 128_MiB));
            if (w.account.read().charged > 256_MiB || w.device.reserved() > 256_MiB) ++wrong;
        }
    });
    for (auto& t : threads) t.join();
    stop = true;
    control.join();
    CHECK(wrong == 0);
    CHECK(w.paid.synchronize(default_stream) == status::ok);
    CHECK(w.paid.trim_pool(*pool, 0) == status::ok);
    CHECK(w.charged() == 0);
    CHECK(w.device.reserved() == 0);
    CHECK(w.paid.destroy_pool(*pool) == status::ok);
}

TEST_CASE("physical memory is charged until the last that holds it lets go", "[tenancy][metered][vmm]") {
    metered_world w(10_MiB);
    char* const window = static_cast<char*>(w.paid.reserve_address(64_MiB, 0).value());
    CHECK(w.charged() == 0); // addresses are free
    const auto h = w.paid.create_memory(4_MiB);
    REQUIRE(h);
    CHECK(w.charged() == 4_MiB);
    const auto over = w.paid.create_memory(8_MiB);
    REQUIRE_FALSE(over);
    CHECK(over.error() == status::over_limit);
    CHECK(w.device.calls(sim::call::create_memory) == 1); // the device was not even asked
    REQUIRE(w.paid.map(window, *h) == status::ok);
    REQUIRE(w.paid.map(window + 8_MiB, *h) == status::ok);
    CHECK(w.paid.map(window + 8_MiB, *h) == status::invalid_value); // and the mapping that is there stays
    CHECK(w.charged() == 4_MiB);
    SECTION("released first") {
        REQUIRE(w.paid.release_memory(*h) == status::ok);
        CHECK(w.charged() == 4_MiB);
        CHECK(w.paid.release_memory(*h) == status::invalid_value);
        REQUIRE(w.paid.unmap(window, 4_MiB) == status::ok);
        CHECK(w.charged() == 4_MiB);
        REQUIRE(w.paid.unmap(window + 8_MiB, 4_MiB) == status::ok);
    }
    SECTION("unmapped first") {
        REQUIRE(w.paid.unmap(window, 4_MiB) == status::ok);
        REQUIRE(w.paid.unmap(window + 8_MiB, 4_MiB) == status::ok);
        CHECK(w.charged() == 4_MiB);
        REQUIRE(w.paid.release_memory(*h) == status::ok);
    }
    SECTION("refused by the device") {
        w.device.fail_call(sim::call::unmap, 1, status::failed);
        CHECK(w.paid.unmap(window, 4_MiB) == status::failed);
        CHECK(w.charged() == 4_MiB);
        w.device.fail_call(sim::call::release_memory, 1, status::failed);
        CHECK(w.paid.release_memory(*h) == status::failed);
        REQUIRE(w.paid.release_memory(*h) == status::ok);
        REQUIRE(w.paid.unmap(window, 4_MiB) == status::ok);
        REQUIRE(w.paid.unmap(window + 8_MiB, 4_MiB) == status::ok);
    }
    CHECK(w.charged() == 0);
    CHECK(w.device.reserved() == 0);
    CHECK(w.paid.free_address(window, 64_MiB) == status::ok);
}

TEST_CASE("memory made elsewhere is paid for by nobody here", "[tenancy][metered][vmm]") {
    metered_world w(2_MiB);
    void* const window = w.paid.reserve_address(8_MiB, 0).value();
    const memory_handle foreign = w.device.create_memory(8_MiB).value();
    REQUIRE(w.paid.map(window, foreign) == status::ok);
    CHECK(w.paid.set_access(window, 8_MiB) == status::ok);
    CHECK(w.charged() == 0);
    CHECK(w.paid.unmap(window, 8_MiB) == status::ok);
    CHECK(w.paid.release_memory(foreign) == status::ok);
    CHECK(w.charged() == 0);
}

TEST_CASE("a device without virtual memory says so through a meter", "[tenancy][metered][vmm]") {
    sim::device bare({.cost = sim::costs::zero(), .vmm = false});
    meter account("alice", no_limit);
    metered<sim::device> paid(bare, account);
    CHECK_FALSE(paid.supports_vmm());
    CHECK(paid.create_memory(2_MiB).error() == status::not_supported);
    CHECK(paid.reserve_address(2_MiB, 0).error() == status::not_supported);
    CHECK(account.read().charged == 0);
}

namespace {

/// A few handles and one window of 16 places of 2 MiB, used at random.
class vmm_program {
  public:
    vmm_program(metered<sim::device>& paid, std::uint64_t seed) : paid_(paid), rng_(seed) {
        if (const auto p = paid.reserve_address(32_MiB, 0)) window_ = static_cast<char*>(*p);
    }

    void step() {
        const std::size_t place = test::below(rng_, 16);
        switch (test::below(rng_, 4)) {
        case 0:
            if (const auto h = paid_.create_memory(2_MiB * (1 + test::below(rng_, 2))))
                handles_.push_back(*h);
            break;
        case 1:
            if (!handles_.empty() && window_ != nullptr)
                (void)paid_.map(window_ + place * 2_MiB, handles_[test::below(rng_, handles_.size())]);
            break;
        case 2:
            if (window_ != nullptr)
                (void)paid_.unmap(window_ + place * 2_MiB, 2_MiB * (1 + test::below(rng_, 4)));
            break;
        default:
            if (handles_.empty()) break;
            std::swap(handles_[test::below(rng_, handles_.size())], handles_.back());
            if (paid_.release_memory(handles_.back()) == status::ok) handles_.pop_back();
        }
    }

    void clear() {
        for (const memory_handle h : handles_) (void)paid_.release_memory(h);
        for (std::size_t place = 0; place < 16 && window_ != nullptr; ++place)
            for (const std::size_t n : {2_MiB, 4_MiB}) (void)paid_.unmap(window_ + place * 2_MiB, n);
    }

  private:
    metered<sim::device>& paid_;
    std::mt19937_64 rng_;
    char* window_ = nullptr;
    std::vector<memory_handle> handles_;
};

} // namespace

TEST_CASE("whichever call fails, what is charged for virtual memory is what is taken",
          "[tenancy][metered][vmm][faults]") {
    CAPTURE(test::seed());
    for (std::uint64_t k = 1;; ++k) {
        metered_world w(20_MiB);
        w.device.fail_any_call(k, status::failed);
        vmm_program program(w.paid, test::seed());
        for (int i = 0; i < 200; ++i) {
            program.step();
            CHECK(w.charged() == w.device.reserved());
            CHECK(w.charged() <= 20_MiB);
        }
        const bool failed = w.device.total_calls() >= k;
        w.device.clear_faults();
        program.clear();
        CHECK(w.charged() == 0);
        CHECK(w.device.reserved() == 0);
        if (!failed) break;
        REQUIRE(k < 1000);
    }
}

TEST_CASE("threads that map and release race without losing a byte", "[tenancy][metered][vmm][threads]") {
    metered_world w(40_MiB);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            vmm_program program(w.paid, test::seed() + t);
            for (int i = 0; i < 3000; ++i) {
                program.step();
                if (w.device.reserved() > 40_MiB) ++wrong;
            }
            program.clear();
        });
    for (auto& t : threads) t.join();
    CHECK(wrong == 0);
    CHECK(w.charged() == 0);
    CHECK(w.device.reserved() == 0);
}

TEST_CASE("a pool's limit and room are those of now, whatever was refused before", "[tenancy][metered]") {
    sim::device device({.cost = sim::costs::zero()});
    meter gpu("gpu", 100_MiB);
    meter alice(gpu, "alice", {.max = 40_MiB});
    metered<sim::device> paid(device, alice);
    gpu.reserve(90_MiB).value().commit();
    CHECK_FALSE(paid.allocate(20_MiB)); // by the level above, of 100 MiB
    CHECK(paid.room() == 10_MiB);
    CHECK(caching::memory_limit(paid) == 40_MiB);
    gpu.refund(90_MiB);
    CHECK(paid.room() == 40_MiB);
    CHECK(caching::memory_limit(paid) == 40_MiB);
    CHECK(caching::memory_limit(device) == large_device);
    (void)alice.set_max(no_limit);
    CHECK(caching::memory_limit(paid) == 100_MiB);
}
