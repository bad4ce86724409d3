#include "support/catch.hpp"
#include "support/misuse_log.hpp"

#include <tenure/backing/windows.hpp>
#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/device/standing_on.hpp>

#include <cstddef>
#include <optional>

using namespace tenure;
using namespace tenure::literals;

namespace {

struct world {
    sim::device device{{.capacity = 64_MiB, .cost = sim::costs::zero()}};
    std::optional<windows<sim::device>> w{device};

    windows<sim::device>& operator*() { return *w; }
    windows<sim::device>* operator->() { return &*w; }
};

} // namespace

TEST_CASE("handles are bought next to each other, and shown again elsewhere", "[backing][windows]") {
    world w;
    const auto homes = *w->open(32_MiB);
    const auto a = w->buy(homes, 2_MiB);
    const auto b = w->buy(homes, 6_MiB);
    REQUIRE(a);
    REQUIRE(b);
    CHECK(w->of(*b).home == w->of(*a).home + 2_MiB);
    CHECK(w->bytes() == 8_MiB);
    CHECK(w->count() == 2);
    CHECK(w->at(homes).homes == 2);

    const auto view = *w->open(8_MiB);
    REQUIRE(w->show(view, *b) == status::ok);
    REQUIRE(w->show(view, *a) == status::ok);
    CHECK(w->at(view).slots[1].address == w->at(view).base + 6_MiB);
    CHECK(w->at(view).homes == 0);
    CHECK(w.device.reserved() == 8_MiB); // a view takes no memory
    CHECK(w->shows(w->at(view).base + 7_MiB));
    CHECK_FALSE(w->shows(w->at(homes).base + 8_MiB));
    CHECK(w->validate());
    w.w.reset();
    CHECK(w.device.reserved() == 0);
    CHECK(w.device.violations().empty());
}

TEST_CASE("a released handle leaves its places empty everywhere", "[backing][windows]") {
    world w;
    const auto homes = *w->open(32_MiB);
    const auto a = *w->buy(homes, 2_MiB);
    const auto b = *w->buy(homes, 4_MiB);
    const auto view = *w->open(8_MiB);
    REQUIRE(w->show(view, b) == status::ok);
    REQUIRE(w->show(view, a) == status::ok);
    REQUIRE(w->release(b) == status::ok);
    CHECK(w->bytes() == 2_MiB);
    CHECK(w.device.reserved() == 2_MiB);
    CHECK(w->at(view).mapped == 1);
    CHECK(w->at(homes).mapped == 1);
    CHECK(w->at(homes).homes == 1);
    CHECK(w->drop(view) == status::invalid_value); // a is still shown there
    REQUIRE(w->hide(view, a) == status::ok);
    CHECK(w->is_at_home(a));
    CHECK(w->drop(view) == status::ok);

    // What was emptied at the end of a window can be filled again.
    w->unfill(homes);
    const auto c = *w->buy(homes, 6_MiB);
    CHECK(w->of(c).home == w->of(a).home + 2_MiB);
    CHECK(w->validate());
}

TEST_CASE("a purchase that fails half way changes nothing", "[backing][windows]") {
    const sim::call failing = GENERATE(sim::call::create_memory, sim::call::map, sim::call::set_access);
    CAPTURE(to_string(failing));
    world w;
    const auto homes = *w->open(32_MiB);
    const auto a = *w->buy(homes, 2_MiB);
    w.device.fail_call(failing, 1, status::failed);
    CHECK_FALSE(w->buy(homes, 2_MiB));
    CHECK(w->bytes() == 2_MiB);
    CHECK(w.device.reserved() == 2_MiB);
    CHECK(w->validate());
    const auto b = *w->buy(homes, 2_MiB);
    CHECK(w->of(b).home == w->of(a).home + 2_MiB);
    CHECK(w->validate());
}

TEST_CASE("a purchase that fails and cannot be taken back is held, and released later",
          "[backing][windows]") {
    const bool mapped = GENERATE(true, false);
    CAPTURE(mapped);
    world w;
    const auto homes = *w->open(32_MiB);
    const auto a = *w->buy(homes, 2_MiB);
    w.device.fail_call(mapped ? sim::call::set_access : sim::call::map, 1, status::failed);
    w.device.fail_call(mapped ? sim::call::unmap : sim::call::release_memory, 1, status::failed);
    CHECK_FALSE(w->buy(homes, 4_MiB));
    CHECK(w->bytes() == w.device.reserved());
    CHECK(w->count() == 2);
    CHECK(w->validate());
    const auto b = *w->buy(homes, 2_MiB); // not where the other may still be
    CHECK(w->of(b).home == w->of(a).home + 6_MiB);
    const auto refused = w->take_refused();
    REQUIRE(refused != windows<sim::device>::none);
    CHECK(w->take_refused() == windows<sim::device>::none);
    REQUIRE(w->release(refused) == status::ok);
    CHECK(w->bytes() == 4_MiB);
    CHECK(w.device.reserved() == 4_MiB);
    CHECK(w->at(homes).homes == 2);
    CHECK(w->validate());
}

TEST_CASE("a release that the device refuses goes on where it stopped", "[backing][windows]") {
    world w;
    const auto homes = *w->open(32_MiB);
    const auto a = *w->buy(homes, 2_MiB);
    const auto view = *w->open(2_MiB);
    REQUIRE(w->show(view, a) == status::ok);
    w.device.fail_call(sim::call::unmap, 2, status::failed);
    CHECK(w->release(a) == status::failed);
    CHECK(w->is_at_home(a)); // home goes last
    w.device.fail_call(sim::call::release_memory, 1, status::failed);
    CHECK(w->release(a) == status::failed);
    CHECK_FALSE(w->is_at_home(a));
    CHECK(w->bytes() == 2_MiB);
    CHECK(w->release(a) == status::ok);
    CHECK(w->bytes() == 0);
    CHECK(w.device.reserved() == 0);
}

TEST_CASE("windows wait for the device before they end", "[backing][windows]") {
    test::misuse_log log;
    sim::device device({.capacity = 64_MiB});
    const stream_handle s = device.create_stream();
    {
        windows<sim::device> w(device);
        const auto homes = *w.open(2_MiB);
        REQUIRE(w.buy(homes, 2_MiB));
        void* const p = to_pointer(w.at(homes).base);
        device.block_allocated(p, 1_MiB, s);
        device.launch(s, std::chrono::milliseconds{5});
        device.block_freed(p, s);
    }
    CHECK(device.now() >= std::chrono::milliseconds{5});
    CHECK(device.violations().empty());
    CHECK(log.take().empty());
}

namespace {

/// A device that gives its addresses from the top down.
class downwards : public standing_on<sim::device> {
  public:
    explicit downwards(sim::device& below) noexcept : standing_on(below) {}
    result<void*, status> reserve_address(std::size_t n, std::size_t a, std::uint64_t near) noexcept {
        const result<void*, status> wished = device_->reserve_address(n, a, near);
        if (!wished || to_address(*wished) == near) return wished;
        const status s = device_->free_address(*wished, n);
        if (s != status::ok) return s;
        top_ -= round_up(n, 1_TiB);
        return device_->reserve_address(n, a, top_);
    }
    result<void*, status> allocate(std::size_t n) noexcept { return device_->allocate(n); }
    status deallocate(void* p, std::size_t n) noexcept { return device_->deallocate(p, n); }
    result<device_memory, status> memory() noexcept { return device_->memory(); }
    void explain(allocation_failure& f) noexcept { device_->explain(f); }
    result<memory_handle, status> create_memory(std::size_t n) noexcept { return device_->create_memory(n); }
    status release_memory(memory_handle h) noexcept { return device_->release_memory(h); }
    status map(void* p, memory_handle h) noexcept { return device_->map(p, h); }
    status unmap(void* p, std::size_t n) noexcept { return device_->unmap(p, n); }
    status set_access(void* p, std::size_t n) noexcept { return device_->set_access(p, n); }

  private:
    std::uint64_t top_ = 0x1000'0000'0000 + 64_TiB;
};

} // namespace

TEST_CASE("windows follow each other, and the place of one that went is taken again", "[backing][windows]") {
    sim::device below{{.cost = sim::costs::zero()}};
    SECTION("wherever the device would have put them") {
        downwards device(below);
        windows<downwards> w(device);
        const auto a = *w.open(32_MiB), b = *w.open(4_MiB), c = *w.open(8_MiB);
        CHECK(w.at(b).base == w.at(a).base + 32_MiB);
        CHECK(w.at(c).base == w.at(b).base + 4_MiB);
        const auto place = w.at(b).base;
        REQUIRE(w.drop(b) == status::ok);
        const auto large = *w.open(6_MiB); // does not fit there
        CHECK(w.at(large).base == w.at(c).base + 8_MiB);
        CHECK(w.at(*w.open(4_MiB)).base == place);
        CHECK(w.at(*w.open(2_MiB, 1_GiB)).base % 1_GiB == 0);
    }
    SECTION("above what somebody else has taken behind them") {
        windows<sim::device> w(below);
        const auto a = *w.open(32_MiB);
        const auto theirs = below.reserve_address(2_MiB, 0, w.at(a).end() + 32_MiB);
        REQUIRE(theirs);
        const auto b = *w.open(32_MiB);
        CHECK(w.at(b).base >= to_address(*theirs) + 2_MiB);
        CHECK(w.at(*w.open(32_MiB)).base == w.at(b).base + 32_MiB);
        CHECK(below.free_address(*theirs, 2_MiB) == status::ok);
    }
}
