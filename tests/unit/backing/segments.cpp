#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/backing/segments.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

using namespace tenure;
using namespace tenure::literals;

namespace {

/// A device that hands out what it is told to, in order.
class scripted_device : public sim::device {
  public:
    std::vector<std::uint64_t> answers;
    std::vector<std::pair<std::uint64_t, std::size_t>> freed;

    result<void*, status> allocate(std::size_t) noexcept {
        if (answers.empty()) return status::out_of_memory;
        const std::uint64_t address = answers.front();
        answers.erase(answers.begin());
        return to_pointer(address);
    }
    status deallocate(void* p, std::size_t n) noexcept {
        freed.emplace_back(to_address(p), n);
        return status::ok;
    }
};
static_assert(device<scripted_device>);

} // namespace

TEST_CASE("a segment is as large as what the device takes for it", "[backing][segments]") {
    sim::device dev;
    segments<sim::device> s(dev);
    const auto r = s.acquire(3_MiB + 1, 512);
    REQUIRE(r);
    CHECK(r->size == 4_MiB);
    CHECK(s.bytes() == dev.reserved());
    CHECK(s.bytes_of(r->base) == 4_MiB);
    CHECK(s.count() == 1);
    CHECK(s.find(r->base).base == r->base);
    CHECK(s.find(r->base + 4_MiB - 1).base == r->base);
    CHECK(s.find(r->base + 4_MiB).size == 0);
    CHECK(s.find(r->base - 1).size == 0);
    CHECK(s.give_back(r->base) == status::ok);
    CHECK(s.bytes() == 0);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("an alignment beyond the device's is reached inside a larger allocation", "[backing][segments]") {
    sim::device dev;
    segments<sim::device> s(dev);
    const auto shift = s.acquire(2_MiB, 2_MiB); // so that the next is not aligned by chance
    REQUIRE(shift);
    for (const std::size_t alignment : {4_MiB, 64_MiB, 1_GiB}) {
        const auto r = s.acquire(6_MiB, alignment);
        REQUIRE(r);
        CHECK(is_aligned(r->base, alignment));
        CHECK(r->size == 6_MiB);
        CHECK(s.bytes() == dev.reserved());
        CHECK(s.find(r->base + 6_MiB - 1).base == r->base);
        CHECK(s.bytes_of(r->base) >= 6_MiB);
        CHECK(s.give_back(r->base) == status::ok);
        CHECK(s.bytes() == 2_MiB);
    }
    CHECK(dev.reserved() == 2_MiB);
}

TEST_CASE("sizes that no device has are refused, not wrapped", "[backing][segments]") {
    sim::device dev;
    segments<sim::device> s(dev);
    for (const std::size_t n : {~std::size_t{0}, ~std::size_t{0} - 2_MiB, std::size_t{1} << 63}) {
        const auto r = s.acquire(n, 1_GiB);
        REQUIRE_FALSE(r);
        CHECK(r.error() == status::out_of_memory);
    }
    CHECK(s.count() == 0);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("a device that hands out live memory is caught, and the memory left alone", "[backing][segments]") {
    // Scenario 18.
    scripted_device dev;
    {
        segments<scripted_device> s(dev);
        dev.answers = {1_GiB, 1_GiB, 1_GiB + 2_MiB, 1_GiB - 2_MiB, 1_GiB + 8_MiB};
        REQUIRE(s.acquire(8_MiB, 512));
        for (int i = 0; i < 3; ++i) {
            const auto r = s.acquire(4_MiB, 512);
            REQUIRE_FALSE(r);
            CHECK(r.error() == status::failed);
        }
        CHECK(s.count() == 1);
        CHECK(s.bytes() == 8_MiB);
        const auto beside = s.acquire(2_MiB, 512);
        REQUIRE(beside);
        CHECK(dev.freed.empty());
    }
    CHECK(dev.freed ==
          std::vector<std::pair<std::uint64_t, std::size_t>>{{1_GiB, 8_MiB}, {1_GiB + 8_MiB, 2_MiB}});
}

TEST_CASE("a refused free keeps the segment", "[backing][segments]") {
    sim::device dev;
    segments<sim::device> s(dev);
    const auto r = s.acquire(2_MiB, 512);
    REQUIRE(r);
    dev.fail_call(sim::call::deallocate, 1, status::failed);
    CHECK(s.give_back(r->base) == status::failed);
    CHECK(s.bytes() == 2_MiB);
    CHECK(s.find(r->base).size == 2_MiB);
    s.offer_refused(); // somebody may still use it
    CHECK(dev.reserved() == 2_MiB);
    CHECK(s.give_back(r->base) == status::ok);
    CHECK(dev.reserved() == 0);
}

TEST_CASE("what nobody uses is offered again to a device that has refused it", "[backing][segments]") {
    sim::device dev;
    segments<sim::device> s(dev);
    const auto r = s.acquire(2_MiB, 512);
    REQUIRE(r);
    SECTION("discarded") {
        dev.fail_call(sim::call::deallocate, 1, status::failed);
        s.discard(r->base);
        CHECK(s.bytes() == 2_MiB);
    }
    SECTION("not aligned") {
        dev.fail_call(sim::call::deallocate, 1, status::failed);
        const auto wide = s.acquire(2_MiB, 1_GiB);
        REQUIRE_FALSE(wide);
        CHECK(wide.error() == status::failed);
        CHECK(s.bytes() == 4_MiB);
        CHECK(s.bytes() == dev.reserved());
        REQUIRE(s.give_back(r->base) == status::ok);
    }
    CHECK(s.count() == 1);
    if (GENERATE(true, false)) {
        const auto next = s.acquire(4_MiB, 512);
        REQUIRE(next);
        CHECK(s.count() == 1);
        CHECK(dev.reserved() == 4_MiB);
    } else {
        s.offer_refused();
        CHECK(s.bytes() == 0);
        CHECK(dev.reserved() == 0);
    }
}

TEST_CASE("at the end a device that refuses once is asked twice, and one that refuses twice is reported",
          "[backing][segments]") {
    sim::device dev;
    test::misuse_log log;
    {
        segments<sim::device> s(dev);
        REQUIRE(s.acquire(2_MiB, 512));
        dev.fail_call(sim::call::deallocate, 1, status::failed);
    }
    CHECK(dev.reserved() == 0);
    CHECK(log.size() == 0);
    {
        segments<sim::device> s(dev);
        REQUIRE(s.acquire(2_MiB, 512));
        dev.fail_call(sim::call::deallocate, 1, status::failed, 2);
    }
    REQUIRE(log.size() == 1);
    CHECK(log[0].kind == misuse_kind::driver);
    CHECK(log[0].driver_status == status::failed);
    CHECK(log[0].bytes == 2_MiB);
    {
        segments<sim::device> s(dev);
        REQUIRE(s.acquire(2_MiB, 512));
        dev.fail_call(sim::call::deallocate, 1, status::shutting_down);
    }
    CHECK(log.size() == 1); // a driver that unloads takes everything with it
}
