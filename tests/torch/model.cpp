// Random programs: whatever torch does in whatever order, the statistics equal the snapshot, the device sees no overlap,
// and everything comes back.

#include "pool_ids.hpp"
#include "sim_world.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace tenure;
using namespace tenure::test;

namespace {

class program {
  public:
    program(const std::string& policy, std::uint64_t seed) : w_(1_GiB, "policy=" + policy), rng_(seed) {
        streams_ = {nullptr, w_.gpu().create_stream(), w_.gpu().create_stream()};
        arenas_ = {nullptr, w_.a->arenas().create("alice", 300_MiB, {}),
                   w_.a->arenas().create("bob", 200_MiB, {.name = "best_fit"})};
    }

    void run(int steps) {
        for (int i = 0; i < steps; ++i) {
            step();
            if (i % 20 == 0) REQUIRE(w_.a->validate());
        }
        finish();
    }

  private:
    struct tensor {
        void* p;
        stream_handle stream;
        std::vector<stream_handle> uses{};
    };

    std::size_t below(std::size_t n) { return rng_() % n; }

    void step() {
        switch (below(12)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4: allocate(); break;
        case 5:
        case 6:
        case 7: release(); break;
        case 8: use(); break;
        case 9: pool(); break;
        case 10: w_.gpu().launch(streams_[below(3)], sim::nanoseconds{static_cast<long>(below(5000))}); break;
        case 11: rarely(); break;
        }
        w_.gpu().advance(sim::nanoseconds{static_cast<long>(below(1000))});
    }

    std::size_t size() {
        switch (below(4)) {
        case 0: return 1 + below(2000);
        case 1: return 1 + below(1_MiB);
        case 2: return 1 + below(20_MiB);
        default: return 1 + below(120_MiB);
        }
    }

    void allocate() {
        const auto& arena = arenas_[below(3)];
        const stream_handle s = streams_[below(3)];
        const std::size_t n = size();
        if (arena) tenure::torch::tenants::push(arena);
        try {
            void* const p = w_.a->raw_alloc_with_stream(n, s);
            w_.gpu().block_allocated(p, n, s);
            live_.push_back({p, s});
        } catch (const c10::OutOfMemoryError&) {
            ++failures_;
        }
        if (arena) tenure::torch::tenants::pop();
    }

    void release() {
        if (live_.empty()) return;
        const std::size_t i = below(live_.size());
        const tensor t = live_[i];
        live_[i] = live_.back();
        live_.pop_back();
        w_.gpu().block_freed(t.p, t.stream);
        w_.a->raw_delete(t.p);
    }

    void use() {
        if (live_.empty()) return;
        tensor& t = live_[below(live_.size())];
        const stream_handle s = streams_[below(3)];
        const c10::DataPtr view(t.p, t.p, w_.a->raw_deleter(), c10::Device(c10::kCUDA, 0));
        w_.gpu().launch(s, sim::nanoseconds{static_cast<long>(below(3000))});
        w_.gpu().block_used(t.p, s);
        w_.a->record_stream(view, s);
        (void)const_cast<c10::DataPtr&>(view).release_context();
    }

    void pool() {
        if (inside_) {
            w_.a->endAllocateToPool(0, {0, inside_});
            w_.a->releasePool(0, {0, inside_});
            inside_ = 0;
        } else {
            inside_ = 1 + below(3);
            const stream_handle s = streams_[below(3)];
            w_.a->beginAllocateToPool(0, {0, inside_}, [s](cudaStream_t x) { return x == s; });
        }
    }

    void rarely() {
        switch (below(6)) {
        case 0: w_.a->emptyCache(); break;
        case 1: w_.a->setMemoryFraction(0.5 + 0.1 * static_cast<double>(below(6)), 0); break;
        case 2: (void)w_.a->heap_of(0).trim(*w_.a->arenas().find("torch"), below(100_MiB)); break;
        case 3: w_.a->resetPeakStats(0); break;
        default: break;
        }
    }

    void finish() {
        if (inside_) pool();
        while (!live_.empty()) release();
        (void)w_.gpu().synchronize();
        w_.a->emptyCache();
        REQUIRE(w_.a->validate());
        CHECK(now(w_.stats().allocation) == 0);
        CHECK(now(w_.stats().active_bytes) == 0);
        CHECK(now(w_.stats().requested_bytes) == 0);
        CHECK(now(w_.stats().reserved_bytes) == 0);
        CHECK(w_.gpu().reserved() == 0);
        CHECK(w_.gpu().violations().empty());
    }

    torch_world w_;
    std::mt19937_64 rng_;
    std::vector<stream_handle> streams_;
    std::vector<tenure::torch::tenant_ptr> arenas_;
    std::vector<tensor> live_;
    unsigned long long inside_ = 0;
    int failures_ = 0;
};

} // namespace

TEST_CASE("random programs keep every promise", "[torch][model]") {
    const std::string policy = GENERATE("remap", "caching", "best_fit", "fronted_remap");
    CAPTURE(policy);
    CAPTURE(seed());
    for (std::uint64_t round = 0; round < 4; ++round) program(policy, seed() + round).run(500);
}

TEST_CASE("threads allocate, free each other's memory and ask for statistics at once", "[torch][threads]") {
    const std::string policy = GENERATE("remap", "caching", "fronted_remap");
    CAPTURE(policy);
    CAPTURE(seed());
    torch_world w(8_GiB, "policy=" + policy);
    auto& gpu = w.gpu();
    std::array<std::atomic<void*>, 64> shelf{};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            std::mt19937_64 rng(seed() + t);
            const stream_handle s = gpu.create_stream();
            const auto arena = w.a->arenas().create("t" + std::to_string(t), 2_GiB, {.name = policy});
            tenure::torch::tenants::push(arena);
            for (int i = 0; i < 400; ++i) {
                void* const p = w.a->raw_alloc_with_stream(1 + rng() % 4_MiB, s);
                if (void* const old = shelf[rng() % shelf.size()].exchange(p)) w.a->raw_delete(old);
                if (i % 50 == 0) (void)w.stats();
                if (i % 100 == 0) (void)w.a->snapshot();
                if (i % 150 == 0) w.a->emptyCache();
            }
            tenure::torch::tenants::pop();
            arena->close();
            w.a->heap_of(0).close(*arena);
        });
    for (std::thread& t : threads) t.join();
    for (auto& p : shelf)
        if (void* const q = p.load()) w.a->raw_delete(q);
    CHECK(now(w.stats().allocation) == 0);
    w.a->emptyCache();
    CHECK(gpu.reserved() == 0);
    CHECK(w.a->validate());
}
