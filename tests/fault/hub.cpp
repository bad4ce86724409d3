// Tenants over a hub while the k-th device call of each kind fails: nothing is lost, nothing is charged twice, and nobody
// reads what another wrote.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/device.hpp>
#include <tenure/policy.hpp>
#include <tenure/tenancy.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

using sim_hub = hub<sim::device>;

struct held {
    void* at;
    std::size_t bytes;
};

/// Two tenants that take and give back by turns, each marking what it has.
template <class Arena>
void by_turns(sim::device& device, Arena& first, Arena& second) {
    for (std::uint64_t round = 0; round < 4; ++round) {
        Arena& mine = round % 2 == 0 ? first : second;
        const std::uint64_t me = round % 2 + 1;
        std::vector<held> blocks;
        for (const std::size_t n : {3_MiB, 2_MiB, 14_MiB}) {
            const allocate_result r = mine.try_allocate(default_stream, n);
            if (!r) continue;
            for (const std::uint64_t writer : device.read(*r, n)) CHECK(writer == me);
            device.write(*r, n, me);
            blocks.push_back({*r, n});
        }
        for (const held& b : blocks) mine.deallocate(default_stream, b.at, b.bytes);
        mine.trim(0);
    }
}

template <class Arena>
std::uint64_t run(sim::call kind, std::uint64_t k, status with, scrub how) {
    test::misuse_log log;
    sim::device device({.capacity = 48_MiB, .cost = sim::costs::zero()});
    std::uint64_t calls = 0;
    {
        sim_hub between(device, {.wipe = how});
        arena_group gpu({.name = "gpu", .max = 48_MiB});
        {
            Arena first(gpu, between, {.name = "first", .max = 40_MiB});
            Arena second(gpu, between, {.name = "second", .min = 8_MiB});
            if (k != 0) device.fail_call(kind, k, with);
            by_turns(device, first, second);
            calls = device.calls(kind);
            device.clear_faults();
            first.trim(0);
            second.trim(0);
            CHECK(first.validate());
            CHECK(second.validate());
            CHECK(first.limits().own == 0);
            CHECK(second.limits().own == 0);
            by_turns(device, first, second); // all works again
            CHECK(first.usage().requested.current == 0);
        }
        CHECK(gpu.limits().charged == 0);
        CHECK(gpu.limits().open == 0);
        CHECK(between.validate());
        between.trim(0);
        CHECK(between.read().shelved == 0);
    }
    CHECK(device.reserved() == 0);
    CHECK(device.violations() == std::vector<std::string>{});
    CHECK(log.size() == 0);
    return calls;
}

} // namespace

TEMPLATE_TEST_CASE("a failing device call loses nothing between tenants", "[fault][tenancy][hub]",
                   (arena<best_fit_pool, sim_hub>), (arena<caching_pool, sim_hub>),
                   (arena<remap_pool, sim_hub>)) {
    for (const scrub how : {scrub::on_transfer, scrub::on_free}) {
        for (std::size_t i = 0; i < sim::call_kinds; ++i) {
            const auto kind = static_cast<sim::call>(i);
            const std::uint64_t calls = run<TestType>(kind, 0, status::ok, how);
            for (std::uint64_t k = 1; k <= calls; ++k)
                for (const status with : {status::failed, status::out_of_memory}) {
                    // What a driver does not answer with is not asked of the pools either.
                    if (with == status::out_of_memory && kind != sim::call::allocate &&
                        kind != sim::call::create_memory && kind != sim::call::synchronize_device)
                        continue;
                    CAPTURE(sim::to_string(kind), k, to_string(with), static_cast<int>(how));
                    run<TestType>(kind, k, with, how);
                }
        }
    }
}
