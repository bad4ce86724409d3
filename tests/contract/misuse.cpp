/// Contract: a wrong free is reported by its kind, and nothing changes.

#include <tenure/core/bits.hpp>

#include "support/catch.hpp"
#include "support/policy_world.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

void* shifted(void* p, std::size_t bytes) {
    return to_pointer(to_address(p) + bytes);
}

/// Checks that every way to free `p` reports `kind` and changes nothing.
inline void every_free_reports(policy_world& w, stream_handle s, void* p, std::size_t n, misuse_kind kind) {
    misuse_log log;
    const usage_counters before = w.pool().usage();
    const auto live = w.pool().live();

    const deallocate_result r = w.pool().try_deallocate(s, p, n);
    REQUIRE_FALSE(r);
    CHECK(to_string(r.error().kind) == std::string(to_string(kind)));
    CHECK(r.error().pointer == p);
    CHECK(r.error().bytes == n);
    CHECK(log.take().empty()); // returned instead of reported

    w.pool().deallocate(s, p, n);
    w.pool().deallocate_sync(p, n);
    std::size_t expected = 2;
    if (kind != misuse_kind::size_mismatch) {
        w.pool().release(p);
        ++expected;
    }
    const std::vector<misuse> reported = log.take();
    REQUIRE(reported.size() == expected);
    for (const misuse& m : reported) {
        CHECK(to_string(m.kind) == std::string(to_string(kind)));
        CHECK(m.pointer == p);
    }

    CHECK(w.pool().usage() == before);
    CHECK(w.pool().validate());
    for (const auto& b : live) CHECK(w.pool().owns(b.pointer));
}

} // namespace

POLICY_TEST_CASE("a double free is reported", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    for (const std::size_t n : {100_B, 3_MiB, 50_MiB}) {
        CAPTURE(n);
        void* const neighbour = w.pool().allocate(s, n);
        void* const p = w.pool().allocate(s, n);
        w.pool().deallocate(s, p, n);
        every_free_reports(w, s, p, n, misuse_kind::double_free);
        w.pool().deallocate(s, neighbour, n);
    }
    w.finish();
}

POLICY_TEST_CASE("a foreign pointer is reported", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const own = w.pool().allocate(s, 1000);
    int host = 0;
    every_free_reports(w, s, &host, sizeof host, misuse_kind::foreign_pointer);
    every_free_reports(w, s, to_pointer(1), 1, misuse_kind::foreign_pointer);
    every_free_reports(w, s, to_pointer(~std::uint64_t{0}), 1, misuse_kind::foreign_pointer);

    const result<void*, status> raw = w.device.allocate(2_MiB);
    REQUIRE(raw);
    every_free_reports(w, s, *raw, 2_MiB, misuse_kind::foreign_pointer);
    {
        const std::unique_ptr<live_policy> holder = subject.make(w.device);
        resource_ref other = holder->ref();
        void* const theirs = other.allocate(s, 1000);
        every_free_reports(w, s, theirs, 1000,
                           w.traits.names_other_owner ? misuse_kind::wrong_arena
                                                      : misuse_kind::foreign_pointer);
        CHECK(other.owns(theirs));
        CHECK_FALSE(w.pool().owns(theirs));
        other.deallocate(s, theirs, 1000);
        w.drain();
    }
    CHECK(w.device.deallocate(*raw, 2_MiB) == status::ok);
    w.pool().deallocate(s, own, 1000);
    w.finish();
}

POLICY_TEST_CASE("an interior pointer is reported", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    for (const std::size_t n : {1000_B, 5_MiB, 60_MiB}) {
        CAPTURE(n);
        void* const p = w.pool().allocate(s, n);
        for (const std::size_t by : {std::size_t{1}, std::size_t{256}, std::size_t{512}, n / 2, n - 1})
            every_free_reports(w, s, shifted(p, by), n - by, misuse_kind::interior_pointer);
        w.pool().deallocate(s, p, n);
    }
    w.finish();
}

POLICY_TEST_CASE("a free with another size is reported with the right one", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 1000);
    for (const std::size_t wrong : {0_B, 1_B, 999_B, 1001_B, 1024_B, 5_MiB}) {
        CAPTURE(wrong);
        every_free_reports(w, s, p, wrong, misuse_kind::size_mismatch);
        CHECK(w.pool().owns(p));
        CHECK(w.pool().try_deallocate(s, p, wrong).error().expected == 1000);
    }
    w.pool().deallocate(s, p, 1000);
    w.finish();
}

POLICY_TEST_CASE("a stale free does not free the new owner of the address", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 4096);
    w.pool().deallocate(s, p, 4096);
    void* const q = w.pool().allocate(s, 3000);
    misuse_log log;
    w.pool().deallocate(s, p, 4096); // whether or not q lies there
    CHECK(log.take().size() == 1);
    CHECK(w.pool().owns(q));
    w.pool().deallocate(s, q, 3000);
    CHECK(log.take().empty());
    w.finish();
}

POLICY_TEST_CASE("a recorded use of no block of ours is reported and harmless", "[contract][misuse]") {
    policy_world w(subject);
    const stream_handle s = w.stream();
    void* const p = w.pool().allocate(s, 1000);
    const usage_counters before = w.pool().usage();
    {
        misuse_log log;
        int host = 0;
        w.pool().record_use(&host, s);
        w.pool().record_use(shifted(p, 256), s);
    }
    CHECK(w.pool().usage() == before);
    CHECK(w.pool().validate());
    w.pool().deallocate(s, p, 1000);
    w.finish();
}

POLICY_TEST_CASE("release frees a block of any size, once", "[contract][misuse]") {
    policy_world w(subject);
    misuse_log log;
    const stream_handle s = w.stream();
    for (const std::size_t n : {1_B, 4097_B, 2_MiB, 70_MiB}) {
        void* const p = w.pool().allocate(s, n, 512);
        w.pool().release(p);
        CHECK_FALSE(w.pool().owns(p));
        CHECK(log.take().empty());
        w.pool().release(p);
        const auto reported = log.take();
        REQUIRE(reported.size() == 1);
        CHECK(reported[0].kind == misuse_kind::double_free);
    }
    void* const synchronous = w.pool().allocate_sync(100, 64);
    w.pool().release(synchronous);
    CHECK(log.take().empty());
    CHECK(w.pool().usage().requested.current == 0);
    w.finish();
}
