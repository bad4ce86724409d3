// record_stream: memory that other streams use is not reused before they are done.

#include "sim_world.hpp"
#include "support/catch.hpp"

#include <set>
#include <vector>

using namespace tenure;
using namespace tenure::test;

TEST_CASE("a block that another stream uses is reused only when that stream is done", "[torch][streams]") {
    const std::string policy = GENERATE("remap", "caching", "best_fit", "async", "fronted_remap");
    CAPTURE(policy);
    torch_world w(1_GiB, "policy=" + policy);
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    c10::DataPtr d = w.a->allocate(1_MiB);
    void* const first = d.get();
    gpu.hold(side);
    w.a->record_stream(d, side);
    d.clear();
    CHECK(now(w.stats().allocated_bytes) == 0);
    CHECK(now(w.stats().active_bytes) == 1_MiB);
    CHECK(now(w.stats().active) == 1);
    CHECK(w.a->validate());

    c10::DataPtr other = w.a->allocate(1_MiB);
    CHECK(other.get() != first);
    gpu.finish(side);
    CHECK(now(w.stats().active_bytes) == 2_MiB); // asking changes nothing
    w.look();
    CHECK(now(w.stats().active_bytes) == 1_MiB);
    CHECK(w.a->validate());
}

TEST_CASE("the block's own stream, null, and foreign memory are not recorded", "[torch][streams]") {
    torch_world w;
    auto& gpu = w.gpu();
    w.world.stream = gpu.create_stream();
    c10::DataPtr d = w.a->allocate(1_MiB);
    w.a->record_stream(d, w.world.stream);
    gpu.hold(w.world.stream);
    d.clear();
    CHECK(now(w.stats().active_bytes) == 0); // no event was waited for

    const c10::DataPtr null;
    w.a->record_stream(null, w.world.stream);
    int elsewhere = 0;
    const c10::DataPtr foreign(
        &elsewhere, &elsewhere, [](void*) {}, c10::Device(c10::kCUDA, 0));
    w.a->record_stream(foreign, w.world.stream);
    gpu.finish(w.world.stream);
    CHECK(w.a->validate());
}

TEST_CASE("a pending block used on two streams waits for both", "[torch][streams]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle s1 = gpu.create_stream();
    const stream_handle s2 = gpu.create_stream();
    c10::DataPtr d = w.a->allocate(4_MiB);
    gpu.hold(s1);
    gpu.hold(s2);
    w.a->record_stream(d, s1);
    w.a->record_stream(d, s2);
    w.a->record_stream(d, s2);
    d.clear();
    gpu.finish(s1);
    w.look();
    CHECK(now(w.stats().active) == 1);
    gpu.finish(s2);
    w.look();
    CHECK(now(w.stats().active) == 0);
}

TEST_CASE("memory pending on a stream is waited for before an allocation fails", "[torch][streams][oom]") {
    torch_world w(100_MiB);
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    void* const p = w.a->raw_alloc(80_MiB);
    gpu.launch(side, sim::nanoseconds{1'000'000});
    const c10::DataPtr view(p, p, w.a->raw_deleter(), c10::Device(c10::kCUDA, 0));
    w.a->record_stream(view, side);
    w.a->raw_delete(p);
    void* const q = w.a->raw_alloc(80_MiB);
    CHECK(q != nullptr);
    CHECK(w.stats().num_sync_all_streams >= 0);
    CHECK(now(w.stats().active_bytes) == 80_MiB);
    const_cast<c10::DataPtr&>(view).release_context();
    w.a->raw_delete(q);
    CHECK(w.a->validate());
    CHECK(gpu.violations().empty());
}

TEST_CASE("statistics and snapshots agree whichever is asked for first, while work passes",
          "[torch][streams]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    c10::DataPtr d = w.a->allocate(4_MiB);
    gpu.hold(side);
    w.a->record_stream(d, side);
    d.clear();
    const auto active = [](const auto& picture) {
        std::size_t n = 0;
        for (const auto& s : picture.segments) n += s.active_size;
        return n;
    };
    const auto picture = w.a->snapshot();
    gpu.finish(side);
    CHECK(now(w.stats().active_bytes) == static_cast<std::int64_t>(active(picture)));
    CHECK(active(w.a->snapshot()) == 4_MiB);
    w.look();
    CHECK(now(w.stats().active_bytes) == 0);
    CHECK(active(w.a->snapshot()) == 0);
}

TEST_CASE("a block whose uses can be neither marked nor waited for is not reused",
          "[torch][streams][fault]") {
    torch_world w;
    auto& gpu = w.gpu();
    const stream_handle side = gpu.create_stream();
    c10::DataPtr d = w.a->allocate(4_MiB);
    gpu.launch(side, sim::nanoseconds{1'000'000});
    w.a->record_stream(d, side);
    gpu.fail_call(sim::call::record, 1, status::failed);
    gpu.fail_call(sim::call::synchronize_device, 1, status::out_of_memory);
    d.clear();
    CHECK(now(w.stats().active) == 1);
    CHECK(w.a->validate());
    w.look(); // marked now
    CHECK(now(w.stats().active) == 1);
    gpu.advance(sim::nanoseconds{2'000'000});
    w.look();
    CHECK(now(w.stats().active) == 0);
    CHECK(w.a->validate());
}
