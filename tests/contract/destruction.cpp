/// Contract: a destroyed pool gives everything back, whatever is still live.

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>

using namespace tenure;
using namespace tenure::test;

POLICY_TEST_CASE("a pool destroyed with live blocks says so and gives everything back",
                 "[contract][destruction]") {
    policy_world w(subject);
    misuse_log log;
    const stream_handle s = w.stream();
    const stream_handle other = w.stream();
    const stream_handle gone = w.stream();
    w.pool().allocate(s, 1000);
    w.pool().allocate(gone, 3_MiB, 4_MiB);
    void* const used = w.pool().allocate(s, 70_MiB);
    w.pool().use(used, other, microseconds{10});
    w.pool().allocate_sync(5000);
    void* const cached = w.pool().allocate(s, 10_MiB);
    w.pool().deallocate(s, cached, 10_MiB);
    w.drain();
    w.destroy(gone);
    w.device.advance(long_time);
    const auto blocks = w.pool().live();
    for (const auto& b : blocks)
        w.device.block_freed_sync(b.pointer); // the work is over, which is all that is asked
    w.close();
    const auto reported = log.take();
    CHECK(reported.size() == (w.traits.has_parts ? 2u : 1u));
    std::size_t number = 0;
    std::size_t bytes = 0;
    for (const misuse& m : reported) {
        CHECK(m.kind == misuse_kind::live_at_destruction);
        number += m.expected;
        bytes += m.bytes;
    }
    CHECK(number == 4);
    CHECK(bytes == 1000 + 3_MiB + 70_MiB + 5000);
}

POLICY_TEST_CASE("a pool destroyed with its cache full is silent and gives everything back",
                 "[contract][destruction]") {
    policy_world w(subject);
    misuse_log log;
    const stream_handle s = w.stream();
    const stream_handle other = w.stream();
    for (const std::size_t n : {100_B, 1_MiB, 30_MiB}) {
        void* const p = w.pool().allocate(s, n);
        w.pool().use_own(p, s, milliseconds{10});
        w.pool().use(p, other, milliseconds{10});
        w.pool().deallocate(s, p, n);
    }
    w.drain();
    w.close();
    CHECK(log.take().empty());
}

POLICY_TEST_CASE("a pool that was never used leaves nothing", "[contract][destruction]") {
    policy_world w(subject);
    w.close();
}

POLICY_TEST_CASE("several pools live on one device", "[contract][destruction]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 2_MiB);
    {
        const std::unique_ptr<live_policy> holder = subject.make(w.device);
        resource_ref second = holder->ref();
        checked_resource checked(second, w.device);
        void* const q = checked.allocate(s, 2_MiB);
        CHECK(second.owns(q));
        CHECK_FALSE(second.owns(p));
        checked.deallocate(s, q, 2_MiB);
        CHECK(joined(checked.violations()) == "");
        w.drain();
    }
    CHECK(w.device.reserved() == w.pool().usage().reserved.current);
    w.pool().deallocate(s, p, 2_MiB);
    w.finish();
}
