/// What pools do for a front end: blocks from what they hold, and frees in batches.

#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/policy.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <set>
#include <span>
#include <vector>

using namespace tenure;
using namespace tenure::literals;
using namespace std::chrono_literals;

namespace {

template <class Pool>
struct world {
    sim::device device{sim::device_options{.cost = sim::costs::zero()}};
    Pool pool{device};

    /// Returns: what the pool gives of what it holds, at most `n` blocks.
    std::vector<held_block> held(stream_handle s, std::size_t bytes, std::size_t n) {
        std::vector<held_block> out(n);
        out.resize(pool.try_allocate_held(s, bytes, default_alignment, out));
        return out;
    }
    std::size_t held_for_all(std::size_t bytes) {
        std::array<held_block, 1> out;
        const std::size_t n = pool.try_allocate_sync_held(bytes, default_alignment, out);
        if (n != 0) pool.release(out[0].pointer);
        return n;
    }
    void give_back(const std::vector<held_block>& blocks) {
        std::vector<void*> pointers;
        for (const held_block& b : blocks) pointers.push_back(b.pointer);
        pool.release_batch(pointers);
    }
};

using best_fit = best_fit_pool<sim::device>;
using exact = exact_best_fit_pool<sim::device>;
using buddy = buddy_pool<sim::device>;
using slab = slab_pool<sim::device>;
using caching = caching_pool<sim::device>;
using remap = remap_pool<sim::device>;

static_assert(holding_resource<best_fit> && holding_resource<exact> && holding_resource<buddy> &&
              holding_resource<slab> && holding_resource<caching> && holding_resource<remap>);

} // namespace

TEMPLATE_TEST_CASE("a pool gives of what it holds, and buys nothing for it", "[policy][holding]", best_fit,
                   exact, buddy, slab, caching, remap) {
    world<TestType> w;
    CHECK(w.held(default_stream, 4_KiB, 8).empty()); // it holds nothing
    CHECK(w.device.reserved() == 0);
    CHECK(w.pool.usage().failures == 0);
    void* const first = w.pool.allocate(default_stream, 4_KiB);
    w.pool.deallocate(default_stream, first, 4_KiB);
    const std::size_t reserved = w.device.reserved();

    const std::vector<held_block> some = w.held(default_stream, 4_KiB, 8);
    REQUIRE(some.size() == 8);
    std::set<void*> distinct;
    for (const held_block& b : some) {
        distinct.insert(b.pointer);
        CHECK(b.bytes >= 4_KiB);
        CHECK(b.bytes == w.pool.block_bytes(b.pointer));
        CHECK(w.pool.owns(b.pointer));
    }
    CHECK(distinct.size() == 8);
    CHECK(w.pool.usage().blocks.current == 8);
    CHECK(w.pool.usage().requested.current == 32_KiB);
    CHECK(w.pool.validate());

    // All that there is, and no more.
    const std::vector<held_block> rest = w.held(default_stream, 4_KiB, 100'000);
    CHECK(rest.size() < 100'000);
    CHECK(w.held(default_stream, 4_KiB, 1).empty());
    CHECK(w.device.reserved() == reserved);
    w.give_back(rest);
    w.give_back(some);
    CHECK(w.pool.usage().blocks.current == 0);
    CHECK(w.pool.usage().allocated.current == 0);
    CHECK(w.pool.block_bytes(some[0].pointer) == 0);
    CHECK(w.pool.validate());
    CHECK_FALSE(w.held(default_stream, 4_KiB, 1).empty());
}

TEMPLATE_TEST_CASE(
    "what a pool holds is not given to whom it may not be, nor for requests that make no sense",
    "[policy][holding]", best_fit, exact, buddy, slab, caching, remap) {
    world<TestType> w;
    const stream_handle busy = w.device.create_stream();
    const stream_handle other = w.device.create_stream();
    void* const p = w.pool.allocate(busy, 100_KiB);
    // The whole segment is this stream's after it: a new one is settled, a freed one is not.
    const std::vector<held_block> all = w.held(busy, 100_KiB, 10'000);
    w.device.launch(busy, 1s);
    w.pool.deallocate(busy, p, 100_KiB);
    CHECK(w.held(other, 100_KiB, 1).empty());
    CHECK(w.held_for_all(100_KiB) == 0);
    const std::vector<held_block> own = w.held(busy, 100_KiB, 10);
    CHECK(own.size() == 1);

    const std::uint64_t capture = w.device.begin_capture(busy);
    w.give_back(own);
    CHECK(w.held(busy, 100_KiB, 1).empty());
    CHECK(w.device.end_capture(busy));
    w.pool.release_captured(capture);

    held_block out;
    const std::span<held_block> one(&out, 1);
    CHECK(w.pool.try_allocate_held(busy, 0, default_alignment, one) == 0);
    CHECK(w.pool.try_allocate_held(busy, no_limit, default_alignment, one) == 0);
    CHECK(w.pool.try_allocate_held(busy, 100, 3, one) == 0);
    CHECK(w.pool.try_allocate_held(busy, 100, 2 * max_alignment, one) == 0);
    CHECK(w.pool.try_allocate_held(busy, 100, default_alignment, {}) == 0);
    w.give_back(all);
    CHECK(w.pool.usage().blocks.current == 0);
    CHECK(w.pool.validate());
}

TEMPLATE_TEST_CASE("what is free for every stream is given for all of them", "[policy][holding]", best_fit,
                   exact, buddy, slab, caching, remap) {
    world<TestType> w;
    CHECK(w.held_for_all(64_KiB) == 0);
    void* const p = w.pool.allocate_sync(64_KiB, default_alignment);
    w.pool.deallocate_sync(p, 64_KiB, default_alignment);
    const std::size_t reserved = w.device.reserved();
    CHECK(w.held_for_all(64_KiB) == 1);
    CHECK(w.device.reserved() == reserved);
    CHECK(w.pool.usage().blocks.current == 0);
}

TEMPLATE_TEST_CASE("a batch is freed whole, whatever is wrong with some of it", "[policy][holding][misuse]",
                   best_fit, exact, buddy, slab, caching, remap) {
    world<TestType> w;
    test::misuse_log log;
    std::vector<void*> blocks;
    for (int i = 0; i < 20; ++i) blocks.push_back(w.pool.allocate(default_stream, 4_KiB));
    w.pool.deallocate(default_stream, blocks[3], 4_KiB);
    w.pool.release_batch(blocks);
    const std::vector<misuse> reported = log.take();
    REQUIRE(reported.size() == 1);
    CHECK(reported[0].kind == misuse_kind::double_free);
    CHECK(reported[0].pointer == blocks[3]);
    CHECK(w.pool.usage().blocks.current == 0);
    CHECK(w.pool.usage().requested.current == 0);
    w.pool.release_batch({});
    CHECK(log.take().empty());
    CHECK(w.pool.validate());
}

TEST_CASE("a held block can be asked for only if it fits well", "[policy][holding]") {
    world<remap> w;
    void* const a = w.pool.allocate(default_stream, 3_MiB);
    void* const between = w.pool.allocate(default_stream, 1_MiB);
    w.pool.deallocate(default_stream, a, 3_MiB);
    const auto within = [&w](std::size_t bytes, std::size_t most) {
        return w.pool.try_allocate_held_within(default_stream, bytes, default_alignment, most);
    };
    CHECK(within(2_MiB, 2_MiB) == nullptr);
    CHECK(within(2_MiB, 3_MiB - 1) == nullptr);
    CHECK(within(3_MiB, 3_MiB) == a);
    w.pool.release(a);
    void* const b = within(2_MiB, 3_MiB);
    CHECK(b == a);
    w.pool.release(b);
    w.pool.deallocate(default_stream, between, 1_MiB);

    world<caching_pool<sim::device>> c; // cannot tell
    void* const p = c.pool.allocate(default_stream, 3_MiB);
    c.pool.deallocate(default_stream, p, 3_MiB);
    CHECK(c.pool.try_allocate_held_within(default_stream, 3_MiB, default_alignment, 6_MiB) == nullptr);
}
