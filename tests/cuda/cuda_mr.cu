/// \file
/// `cuda_mr` is a `cuda::mr` resource under the CCCL this is compiled with, and forwards what it is given.
/// Needs no GPU.

#include <tenure/interop/cuda_mr.hpp>

#include "cuda/check.hpp"
#include "support/recording_resource.hpp"

#include <cuda/memory_resource>

#include <memory>

#if CCCL_VERSION >= 3002000
#include <cuda/buffer>
#endif

#if defined(TENURE_EXPECTED_CCCL)
static_assert(CCCL_VERSION == TENURE_EXPECTED_CCCL, "compiled with another CCCL than the one under test");
#endif

namespace {

using tenure::cuda_mr;
using tenure::test::fake_pointer;
using tenure::test::fake_stream;
using tenure::test::recorded_call;
using tenure::test::recording_resource;

// The names of this CCCL, as other code would ask for them.
#if CCCL_VERSION >= 3001000
template <class T>
constexpr bool stream_ordered = cuda::mr::resource_with<T, cuda::mr::device_accessible>;
template <class T>
constexpr bool synchronous = cuda::mr::synchronous_resource_with<T, cuda::mr::device_accessible>;
#else
template <class T>
constexpr bool stream_ordered = cuda::mr::async_resource_with<T, cuda::mr::device_accessible>;
template <class T>
constexpr bool synchronous = cuda::mr::resource_with<T, cuda::mr::device_accessible>;
#endif

static_assert(stream_ordered<cuda_mr> && synchronous<cuda_mr>);
static_assert(stream_ordered<const cuda_mr> && synchronous<const cuda_mr>);
static_assert(!stream_ordered<recording_resource>, "a pool goes through the handle");
static_assert(!cuda::has_property<cuda_mr, cuda::mr::host_accessible>);
static_assert(sizeof(cuda_mr) <= 24 && std::is_nothrow_move_constructible_v<cuda_mr>);
static_assert(!std::is_constructible_v<cuda_mr, recording_resource>, "borrowing a temporary would dangle");

void both_spellings_forward() {
    recording_resource r;
    const cuda_mr mr(r);
    const auto s = fake_stream(0x10);
    const auto p = fake_pointer(0x20);
    const cuda::stream_ref stream = tenure::to_stream_ref(s);
    TENURE_CHECK(tenure::to_stream_handle(stream) == s);

    TENURE_CHECK(mr.allocate(stream, 100, 16) == fake_pointer(0x1000));
    TENURE_CHECK((r.last == recorded_call{"allocate", s, nullptr, 100, 16}));
    TENURE_CHECK(mr.allocate_async(101, 32, stream) == fake_pointer(0x1000));
    TENURE_CHECK((r.last == recorded_call{"allocate", s, nullptr, 101, 32}));
    TENURE_CHECK(mr.allocate_sync(102, 64) == fake_pointer(0x3000));
    TENURE_CHECK((r.last == recorded_call{"allocate_sync", nullptr, nullptr, 102, 64}));
    TENURE_CHECK(mr.allocate(103, 128) == fake_pointer(0x3000));
    TENURE_CHECK((r.last == recorded_call{"allocate_sync", nullptr, nullptr, 103, 128}));

    mr.deallocate(stream, p, 104, 16);
    TENURE_CHECK((r.last == recorded_call{"deallocate", s, p, 104, 16}));
    mr.deallocate_async(p, 105, 32, stream);
    TENURE_CHECK((r.last == recorded_call{"deallocate", s, p, 105, 32}));
    mr.deallocate_sync(p, 106, 64);
    TENURE_CHECK((r.last == recorded_call{"deallocate_sync", nullptr, p, 106, 64}));
    mr.deallocate(p, 107, 128);
    TENURE_CHECK((r.last == recorded_call{"deallocate_sync", nullptr, p, 107, 128}));

    // A raw handle is a stream; without an alignment it is the default one.
    (void)mr.allocate(s, 108);
    TENURE_CHECK((r.last == recorded_call{"allocate", s, nullptr, 108, tenure::default_alignment}));
}

void failures_are_ours() {
    recording_resource r;
    r.fail = true;
    const cuda_mr mr(r);
    bool thrown = false;
    try {
        (void)mr.allocate(tenure::to_stream_ref(fake_stream(1)), 9, 16);
    } catch (const tenure::out_of_memory& e) {
        thrown = e.failure().requested == 9;
    }
    TENURE_CHECK(thrown);
}

void identity_and_ownership() {
    int alive = 0;
    {
        recording_resource r;
        recording_resource other;
        const cuda_mr a(r);
        const cuda_mr b = a;
        TENURE_CHECK(a == b);
        TENURE_CHECK(a != cuda_mr(other));
        TENURE_CHECK(tenure::resource_ref(a.resource()) == tenure::resource_ref(r));

        auto owner =
            std::make_unique<tenure::any_resource>(tenure::make_any_resource<recording_resource>(&alive));
        const cuda_mr shared(*owner);
        owner.reset();
        TENURE_CHECK(alive == 1);
        TENURE_CHECK(shared.resource().validate());
    }
    TENURE_CHECK(alive == 0);
}

/// CCCL's own erased handles take it, and their calls arrive.
void erased_by_cccl() {
    recording_resource r;
    cuda_mr mr(r);
    const cuda::stream_ref stream = tenure::to_stream_ref(fake_stream(0x10));
#if CCCL_VERSION >= 3001000 &&                                                                               \
    (CCCL_VERSION >= 3002000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE))
    cuda::mr::resource_ref<cuda::mr::device_accessible> ref(mr);
    (void)ref.allocate(stream, 64, 32);
    TENURE_CHECK((r.last == recorded_call{"allocate", fake_stream(0x10), nullptr, 64, 32}));
#elif CCCL_VERSION < 3001000
    cuda::mr::async_resource_ref<cuda::mr::device_accessible> ref(mr);
    (void)ref.allocate_async(64, 32, stream);
    TENURE_CHECK((r.last == recorded_call{"allocate", fake_stream(0x10), nullptr, 64, 32}));
#endif
#if CCCL_VERSION >= 3002000
    cuda::mr::any_resource<cuda::mr::device_accessible> any(mr);
    any.deallocate_sync(fake_pointer(0x20), 8, 4);
    TENURE_CHECK((r.last == recorded_call{"deallocate_sync", nullptr, fake_pointer(0x20), 8, 4}));
    static_assert(std::is_constructible_v<cuda::device_buffer<int>, cuda::stream_ref, cuda_mr>);
#endif
    (void)stream;
}

} // namespace

int main() {
    both_spellings_forward();
    failures_are_ours();
    identity_and_ownership();
    erased_by_cccl();
    std::printf("CCCL %d.%d.%d: ", CCCL_MAJOR_VERSION, CCCL_MINOR_VERSION, CCCL_PATCH_VERSION);
    return tenure::test::finish("cuda_mr");
}
