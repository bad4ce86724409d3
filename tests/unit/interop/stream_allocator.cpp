/// `stream_allocator` forwards to its resource, on its stream, with the alignment of its type.

#include <tenure/interop/stream_allocator.hpp>

#include "support/catch.hpp"
#include "support/recording_resource.hpp"

#include <cstdint>
#include <limits>
#include <new>

namespace {

using tenure::stream_allocator;
using tenure::test::fake_pointer;
using tenure::test::fake_stream;
using tenure::test::recorded_call;
using tenure::test::recording_resource;

struct alignas(64) wide {
    char bytes[64];
};

} // namespace

TEST_CASE("a stream allocator asks in bytes, on its stream", "[interop][stream_allocator]") {
    recording_resource r;
    const auto s = fake_stream(0x10);
    stream_allocator<double> a(r, s);
    CHECK(static_cast<void*>(a.allocate(100)) == fake_pointer(0x1000));
    CHECK(r.last == recorded_call{"allocate", s, nullptr, 800, 16});
    a.deallocate(static_cast<double*>(fake_pointer(0x20)), 100);
    CHECK(r.last == recorded_call{"deallocate", s, fake_pointer(0x20), 800, 16});

    stream_allocator<wide> w(a); // another type, the same memory
    (void)w.allocate(3);
    CHECK(r.last == recorded_call{"allocate", s, nullptr, 192, 64});
    CHECK(w.stream() == s);
}

TEST_CASE("stream allocators are equal where one takes the other's memory back",
          "[interop][stream_allocator]") {
    recording_resource r;
    recording_resource other;
    const stream_allocator<int> a(r, fake_stream(1));
    CHECK(a == stream_allocator<int>(r, fake_stream(1)));
    CHECK(a == stream_allocator<char>(a));
    CHECK_FALSE(a == stream_allocator<int>(r, fake_stream(2)));
    CHECK_FALSE(a == stream_allocator<int>(other, fake_stream(1)));
}

TEST_CASE("a stream allocator refuses what overflows, and passes failures on",
          "[interop][stream_allocator]") {
    recording_resource r;
    stream_allocator<std::uint64_t> a(r, nullptr);
    CHECK_THROWS_AS(a.allocate(std::numeric_limits<std::size_t>::max() / 8 + 1), std::bad_array_new_length);
    CHECK(r.last.name.empty());
    r.fail = true;
    CHECK_THROWS_AS(a.allocate(1), tenure::out_of_memory);
    CHECK_THROWS_AS(a.allocate(1), std::bad_alloc);
}
