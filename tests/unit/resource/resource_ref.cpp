/// \file
/// `resource_ref`: forwards every call with every argument in its place, and knows what it refers to.

#include <tenure/resource/resource_ref.hpp>

#include "support/catch.hpp"
#include "support/recording_resource.hpp"

#include <type_traits>

namespace {

using tenure::resource_ref;
using tenure::test::fake_pointer;
using tenure::test::fake_stream;
using tenure::test::recorded_call;
using tenure::test::recording_resource;

/// A resource whose first member is another: both start at the same address.
struct wrapping_resource : recording_resource {
    using recording_resource::recording_resource;
};

static_assert(!std::is_default_constructible_v<resource_ref>);
static_assert(!std::is_constructible_v<resource_ref, const recording_resource&>,
              "a resource is changed by its use");
static_assert(!std::is_constructible_v<resource_ref, recording_resource>, "would dangle at once");
static_assert(!std::is_constructible_v<resource_ref, int&>);

} // namespace

TEST_CASE("resource_ref hands every argument on", "[resource][resource_ref]") {
    recording_resource r;
    resource_ref ref = r;
    const auto s = fake_stream(0x10);
    const auto p = fake_pointer(0x20);

    CHECK(ref.allocate(s, 100, 16) == fake_pointer(0x1000));
    CHECK(r.last == recorded_call{"allocate", s, nullptr, 100, 16});

    CHECK(ref.try_allocate(s, 101, 32).value() == fake_pointer(0x2000));
    CHECK(r.last == recorded_call{"try_allocate", s, nullptr, 101, 32});

    CHECK(ref.allocate_sync(102, 64) == fake_pointer(0x3000));
    CHECK(r.last == recorded_call{"allocate_sync", nullptr, nullptr, 102, 64});

    ref.deallocate(s, p, 103, 128);
    CHECK(r.last == recorded_call{"deallocate", s, p, 103, 128});

    CHECK(ref.try_deallocate(s, p, 104, 256).has_value());
    CHECK(r.last == recorded_call{"try_deallocate", s, p, 104, 256});

    ref.deallocate_sync(p, 105, 512);
    CHECK(r.last == recorded_call{"deallocate_sync", nullptr, p, 105, 512});

    ref.release(p);
    CHECK(r.last == recorded_call{"release", nullptr, p, 0, 0});

    ref.record_use(p, s);
    CHECK(r.last == recorded_call{"record_use", s, p, 0, 0});

    CHECK(ref.trim(106) == 107);
    CHECK(r.last == recorded_call{"trim", nullptr, nullptr, 106, 0});

    CHECK(ref.owns(fake_pointer(0x1000)));
    CHECK_FALSE(ref.owns(p));
    CHECK(ref.usage().failures == 77);
    CHECK(ref.snapshot().segments.size() == 3);
    CHECK(ref.validate());
    r.valid = false;
    CHECK_FALSE(ref.validate());
}

TEST_CASE("resource_ref without an alignment asks for the default one", "[resource][resource_ref]") {
    recording_resource r;
    const resource_ref ref = r;
    (void)ref.allocate(fake_stream(1), 8);
    CHECK(r.last.alignment == tenure::default_alignment);
    (void)ref.allocate_sync(8);
    CHECK(r.last.alignment == tenure::default_alignment);
    ref.deallocate(fake_stream(1), fake_pointer(8), 8);
    CHECK(r.last.alignment == tenure::default_alignment);
    ref.deallocate_sync(fake_pointer(8), 8);
    CHECK(r.last.alignment == tenure::default_alignment);
}

TEST_CASE("resource_ref hands failures on", "[resource][resource_ref]") {
    recording_resource r;
    r.fail = true;
    const resource_ref ref = r;
    try {
        (void)ref.allocate(nullptr, 5, 256);
        FAIL("allocate did not throw");
    } catch (const tenure::out_of_memory& e) {
        CHECK(e.failure().requested == 5);
        CHECK(e.failure().cause == tenure::failure_cause::arena_limit);
    }
    CHECK_THROWS_AS(ref.allocate_sync(5, 256), tenure::out_of_memory);
    const auto refused = ref.try_allocate(nullptr, 6, 256);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().requested == 6);
    const auto misused = ref.try_deallocate(nullptr, fake_pointer(9), 6, 256);
    REQUIRE_FALSE(misused.has_value());
    CHECK(misused.error().kind == tenure::misuse_kind::double_free);
    CHECK(misused.error().pointer == fake_pointer(9));
}

TEST_CASE("resource_ref is equal to another exactly when both refer to the same resource",
          "[resource][resource_ref]") {
    recording_resource a;
    recording_resource b;
    resource_ref ra = a;
    const resource_ref rb = b;
    resource_ref copy = ra;
    CHECK(copy == ra);
    CHECK(ra != rb);
    ra = rb;
    CHECK(ra == rb);
    CHECK(copy != ra);

    // The same address through another type is another resource: its deallocate may be another function.
    wrapping_resource w;
    recording_resource& base = w;
    CHECK(resource_ref(w) != resource_ref(base));
}

TEST_CASE("resource_ref of a reference is a copy of it", "[resource][resource_ref]") {
    recording_resource r;
    resource_ref outer = r;
    {
        resource_ref inner = r;
        resource_ref of_ref = inner;
        outer = of_ref;
    }
    (void)outer.allocate(fake_stream(3), 4, 8); // would read a dead `inner` if references nested
    CHECK(r.last == recorded_call{"allocate", fake_stream(3), nullptr, 4, 8});
}
