// Statistics, snapshots and history: that they are equal to each other, and say what happened.

#include "sim_world.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace tenure;
using namespace tenure::test;
using entry = tenure::torch::trace_entry;
using level = tenure::torch::context_level;

namespace {

struct marked_context final : c10::GatheredContext {};
int contexts_made = 0;

std::shared_ptr<c10::GatheredContext> make_context() {
    ++contexts_made;
    return std::make_shared<marked_context>();
}

std::vector<entry::Action> actions(sim_allocator& a) {
    std::vector<entry::Action> all;
    const auto picture = a.snapshot();
    for (const entry& e : picture.device_traces.at(0)) all.push_back(e.action_);
    return all;
}

std::ptrdiff_t count(const std::vector<entry::Action>& all, entry::Action what) {
    return std::count(all.begin(), all.end(), what);
}

} // namespace

TEST_CASE("sums over a snapshot equal the statistics, with every policy", "[torch][snapshot]") {
    const std::string policy = GENERATE("remap", "caching", "best_fit", "async", "fronted_remap",
                                        "fronted_caching", "fronted_best_fit");
    CAPTURE(policy);
    torch_world w(2_GiB, "policy=" + policy);
    std::vector<void*> live;
    for (std::size_t i = 1; i <= 40; ++i) live.push_back(w.a->raw_alloc(i * 777'777));
    CHECK(w.a->validate());
    for (std::size_t i = 0; i < live.size(); i += 2) w.a->raw_delete(live[i]);
    CHECK(w.a->validate());
    void* const large = w.a->raw_alloc(300_MiB); // remap: shown behind addresses of its own
    CHECK(w.a->validate());
    const auto picture = w.a->snapshot();
    bool found = false;
    for (const auto& s : picture.segments) {
        std::size_t at = s.address;
        for (const auto& b : s.blocks) {
            found = found || (b.allocated && at == to_address(large) && b.requested_size == 300_MiB);
            at += b.size;
        }
    }
    CHECK(found);
    CHECK(std::is_sorted(picture.segments.begin(), picture.segments.end(),
                         [](const auto& x, const auto& y) { return x.address < y.address; }));
    w.a->raw_delete(large);
    for (std::size_t i = 1; i < live.size(); i += 2) w.a->raw_delete(live[i]);
    CHECK(w.a->validate());
    CHECK(now(w.stats().active_bytes) == 0);
}

TEST_CASE("peaks and accumulated counts can be reset", "[torch][snapshot]") {
    torch_world w;
    w.a->raw_delete(w.a->raw_alloc(10_MiB));
    CHECK(w.stats().allocated_bytes[0].peak == static_cast<std::int64_t>(10_MiB));
    CHECK(w.stats().allocation[0].allocated == 1);
    CHECK(w.stats().allocation[0].freed == 1);
    CHECK(w.stats().num_device_alloc >= 1);
    w.a->resetPeakStats(0);
    CHECK(w.stats().allocated_bytes[0].peak == 0);
    CHECK(w.stats().reserved_bytes[0].peak == now(w.stats().reserved_bytes));
    w.a->resetAccumulatedStats(0);
    CHECK(w.stats().allocation[0].allocated == 0);
    CHECK(w.stats().num_device_alloc == 0);
    CHECK_THROWS_AS(w.a->getDeviceStats(1), c10::Error);
}

TEST_CASE("statistics of a device that nobody has used are zeros, and open no device", "[torch][snapshot]") {
    torch_world w;
    CHECK(now(w.stats().reserved_bytes) == 0);
    CHECK(w.a->heap_if_any(0) == nullptr);
    CHECK(w.a->snapshot().segments.empty());
    CHECK(w.a->snapshot().device_traces.size() == 1);
    CHECK_NOTHROW(w.a->emptyCache());
    CHECK_NOTHROW(w.a->resetPeakStats(0));
}

TEST_CASE("history records what happens, in order, with contexts as asked", "[torch][history]") {
    torch_world w;
    contexts_made = 0;
    CHECK_FALSE(w.a->isHistoryEnabled());
    w.a->recordHistory(true, &make_context, 100, level::ALL, true, {});
    CHECK(w.a->isHistoryEnabled());
    w.a->raw_delete(w.a->raw_alloc(1000));
    CHECK(contexts_made == 2);
    const auto made = w.a->snapshot().device_traces.at(0);
    REQUIRE(made.size() >= 4);
    std::vector<entry> of_block;
    for (const entry& e : made)
        if (e.action_ == entry::ALLOC || e.action_ == entry::FREE_REQUESTED ||
            e.action_ == entry::FREE_COMPLETED)
            of_block.push_back(e);
    REQUIRE(of_block.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(of_block[i].action_ == static_cast<entry::Action>(i));
        CHECK(of_block[i].size_ == 1000);
        CHECK(of_block[i].addr_ == of_block[0].addr_);
        CHECK(dynamic_cast<marked_context*>(of_block[i].context_.get()) != nullptr);
        CHECK(of_block[i].time_.t_ > 1'000'000'000'000'000); // microseconds since 1970
    }
    CHECK(count(actions(*w.a), entry::SNAPSHOT) >= 1);
    w.a->recordHistory(false, nullptr, 1, level::NEVER, true, {});
    CHECK_FALSE(w.a->isHistoryEnabled());
    CHECK(w.a->snapshot().device_traces.at(0).empty());
}

TEST_CASE("history keeps the latest entries, leaves out what is skipped, and contexts where none are wanted",
          "[torch][history]") {
    torch_world w;
    w.a->recordHistory(true, &make_context, 5, level::STATE, true, {"free_completed"});
    for (int i = 0; i < 20; ++i) w.a->raw_delete(w.a->raw_alloc(1000));
    const auto kept =
        w.a->snapshot(std::pair<unsigned long long, unsigned long long>{0, 0}).device_traces.at(0);
    CHECK(kept.size() == 5);
    CHECK(count(actions(*w.a), entry::FREE_COMPLETED) == 0);
    for (const entry& e : kept) CHECK(e.context_ == nullptr);
    void* const p = w.a->raw_alloc(1000);
    bool with_context = false;
    const auto picture = w.a->snapshot();
    for (const auto& s : picture.segments)
        for (const auto& b : s.blocks)
            with_context = with_context || (b.allocated && b.context_when_allocated);
    CHECK(with_context);
    w.a->raw_delete(p);
}

TEST_CASE("a failure is in the history, with what the device had free", "[torch][history]") {
    torch_world w(100_MiB);
    w.a->recordHistory(true, nullptr, 100, level::NEVER, true, {});
    CHECK_THROWS_AS(w.a->raw_alloc(200_MiB), c10::OutOfMemoryError);
    const auto made = w.a->snapshot().device_traces.at(0);
    const auto oom =
        std::find_if(made.begin(), made.end(), [](const entry& e) { return e.action_ == entry::OOM; });
    REQUIRE(oom != made.end());
    CHECK(oom->size_ == 200_MiB);
    CHECK(oom->addr_ == 100_MiB);
}

TEST_CASE("trackers hear of blocks and of memory taken from the device, without history",
          "[torch][history]") {
    torch_world w(1_GiB, "policy=caching");
    std::map<entry::Action, std::size_t> bytes;
    w.a->attachAllocatorTraceTracker([&](const entry& e) { bytes[e.action_] += e.size_; });
    w.a->raw_delete(w.a->raw_alloc(30_MiB));
    w.a->emptyCache();
    CHECK(bytes[entry::ALLOC] == 30_MiB);
    CHECK(bytes[entry::FREE_COMPLETED] == 30_MiB);
    CHECK(bytes[entry::SEGMENT_ALLOC] == 30_MiB);
    CHECK(bytes[entry::SEGMENT_FREE] == 30_MiB);
}

TEST_CASE("threads have compile contexts and metadata of their own", "[torch][history]") {
    torch_world w;
    w.a->recordHistory(true, nullptr, 100, level::NEVER, true, {});
    std::string frame = "0/1";
    w.a->pushCompileContext(frame);
    w.a->setUserMetadata("mine");
    CHECK(w.a->getUserMetadata() == "mine");
    w.a->raw_delete(w.a->raw_alloc(1000));
    w.a->popCompileContext();
    w.a->popCompileContext(); // one too many does nothing
    w.a->setUserMetadata("");
    const auto made = w.a->snapshot().device_traces.at(0);
    const auto alloc =
        std::find_if(made.begin(), made.end(), [](const entry& e) { return e.action_ == entry::ALLOC; });
    REQUIRE(alloc != made.end());
    CHECK(alloc->compile_context_ == "0/1");
    CHECK(alloc->user_metadata_ == "mine");
    w.a->recordAnnotation({{"name", "step"}});
    const auto notes = w.a->snapshot().external_annotations;
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].metadata_.at("name") == "step");
}

TEST_CASE("without caching, memory comes from the device and goes back at once", "[torch][uncached]") {
    torch_world w;
    c10::DataPtr cached = w.a->allocate(1_MiB);
    const auto standard = w.a->raw_deleter();
    w.a->enable(false);
    CHECK_FALSE(w.a->isEnabled());
    CHECK(w.a->raw_deleter() != standard);
    const auto before = w.gpu().live_allocations();
    c10::DataPtr plain = w.a->allocate(1_MiB);
    CHECK(plain.get_deleter() == w.a->raw_deleter());
    CHECK(w.gpu().live_allocations() == before + 1);
    cached.clear(); // by its own deleter
    plain.clear();
    CHECK(w.gpu().live_allocations() == before);
    plain = w.a->allocate(1_MiB);
    w.a->enable(true);
    CHECK(w.a->raw_deleter() == standard);
    plain.clear();
    CHECK(w.gpu().live_allocations() == before);
    CHECK(w.a->validate());
}

TEST_CASE("the base of a block is what the device knows", "[torch][base]") {
    torch_world w(1_GiB, "policy=caching");
    void* const a = w.a->raw_alloc(3_MiB);
    void* const b = w.a->raw_alloc(3_MiB);
    std::size_t size = 0;
    CHECK(w.a->getBaseAllocation(b, &size) == w.a->getBaseAllocation(a, nullptr));
    CHECK(size == 20_MiB);
    CHECK_THROWS_AS(w.a->getBaseAllocation(&size, nullptr), c10::Error);
    CHECK(w.a->shareIpcHandle(b).handle == "1");
    CHECK_THROWS_AS(w.a->shareIpcHandle(&size), c10::Error);
    w.a->raw_delete(a);
    w.a->raw_delete(b);
    CHECK_THROWS_AS(w.a->raw_delete(a), c10::Error); // freed already
    CHECK_NOTHROW(w.a->raw_delete(nullptr));
}

TEST_CASE("copies choose the peer call for memory of another device without peer access", "[torch][copy]") {
    torch_world w;
    CHECK(w.a->memcpyAsync(nullptr, 0, nullptr, 0, 1, nullptr, false) == cudaSuccess);
    CHECK(w.world.last_copy == "plain");
    (void)w.a->memcpyAsync(nullptr, 0, nullptr, 1, 1, nullptr, false);
    CHECK(w.world.last_copy == "peer");
    (void)w.a->memcpyAsync(nullptr, 0, nullptr, 1, 1, nullptr, true);
    CHECK(w.world.last_copy == "plain");
    w.a->copy_data(nullptr, nullptr, 1);
    CHECK(w.world.last_copy == "copy");
}

TEST_CASE("init may be called again, for more devices", "[torch][init]") {
    sim_world world;
    sim_allocator a(world, {}, {});
    CHECK_FALSE(a.initialized());
    a.init(1);
    a.init(3);
    a.init(2);
    CHECK(a.initialized());
    CHECK(a.device_count() == 3);
    world.device = 2;
    c10::DataPtr d = a.allocate(1000);
    CHECK(d.device().index() == 2);
    world.device = 0; // a free may come with another device current
    d.clear();
    CHECK(now(a.getDeviceStats(2).allocation) == 0);
    CHECK(a.name() == "tenure");
    CHECK(a.validate());
}
