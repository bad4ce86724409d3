/// \file
/// `any_resource`: the resource lives exactly as long as its last handle, and no handle is ever empty.

#include <tenure/resource/any_resource.hpp>

#include "support/catch.hpp"
#include "support/recording_resource.hpp"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace {

using tenure::any_resource;
using tenure::make_any_resource;
using tenure::resource_ref;
using tenure::test::fake_pointer;
using tenure::test::fake_stream;
using tenure::test::recorded_call;
using tenure::test::recording_resource;

static_assert(!std::is_default_constructible_v<any_resource>);
static_assert(std::is_nothrow_move_assignable_v<any_resource>);

} // namespace

TEST_CASE("any_resource keeps its resource alive until the last copy is gone", "[resource][any_resource]") {
    int alive = 0;
    auto first = std::make_unique<any_resource>(make_any_resource<recording_resource>(&alive));
    CHECK(alive == 1);
    auto second = std::make_unique<any_resource>(*first);
    CHECK(*first == *second);
    first.reset();
    CHECK(alive == 1);
    CHECK(second->allocate(fake_stream(1), 2, 4) == fake_pointer(0x1000));
    second.reset();
    CHECK(alive == 0);
}

TEST_CASE("any_resource is not empty after a move", "[resource][any_resource]") {
    int alive = 0;
    {
        any_resource from = make_any_resource<recording_resource>(&alive);
        const any_resource to = std::move(from);
        CHECK(from == to);
        CHECK(from.validate()); // a call, not a crash
        any_resource other = make_any_resource<recording_resource>(&alive);
        CHECK(alive == 2);
        other = std::move(from);
        CHECK(alive == 1);
        CHECK(other == to);
    }
    CHECK(alive == 0);
}

TEST_CASE("any_resource shares a resource with a shared_ptr", "[resource][any_resource]") {
    int alive = 0;
    auto owner = std::make_shared<recording_resource>(&alive);
    auto handle = std::make_unique<any_resource>(owner);
    CHECK(owner.use_count() == 2);
    (void)handle->try_allocate(fake_stream(7), 8, 16);
    CHECK(owner->last == recorded_call{"try_allocate", fake_stream(7), nullptr, 8, 16});
    CHECK(resource_ref(*handle) == resource_ref(*owner));
    owner.reset();
    CHECK(alive == 1);
    handle.reset();
    CHECK(alive == 0);

    CHECK_THROWS_AS(any_resource(std::shared_ptr<recording_resource>{}), std::invalid_argument);
}

TEST_CASE("any_resource can borrow", "[resource][any_resource]") {
    int alive = 0;
    recording_resource r(&alive);
    {
        const any_resource borrowed = any_resource::borrow(r);
        const any_resource copy = borrowed;
        copy.deallocate(fake_stream(1), fake_pointer(2), 3, 4);
        CHECK(r.last == recorded_call{"deallocate", fake_stream(1), fake_pointer(2), 3, 4});
        CHECK(copy == borrowed);
        CHECK(resource_ref(copy) == resource_ref(r));
    }
    CHECK(alive == 1);
}

TEST_CASE("a resource_ref made from an any_resource refers to the resource, not to the handle",
          "[resource][any_resource]") {
    const any_resource keeper = make_any_resource<recording_resource>();
    auto handle = std::make_unique<any_resource>(keeper);
    const resource_ref ref = *handle;
    handle.reset();
    CHECK(ref == resource_ref(keeper));
    CHECK(ref.trim(1) == 2);
}

TEST_CASE("any_resource handles may be copied and dropped by many threads at once",
          "[resource][any_resource]") {
    int alive = 0;
    {
        auto handle = std::make_unique<any_resource>(make_any_resource<recording_resource>(&alive));
        std::atomic<int> seen{0};
        std::vector<std::thread> threads;
        for (int t = 0; t < 4; ++t) {
            threads.emplace_back([mine = *handle, &seen] {
                for (int i = 0; i < 1000; ++i) {
                    const any_resource copy = mine;
                    if (copy.validate() && copy == mine) seen.fetch_add(1, std::memory_order_relaxed);
                }
            });
        }
        handle.reset();
        for (auto& t : threads) t.join();
        CHECK(seen == 4000);
        threads.clear();
    }
    CHECK(alive == 0);
}
