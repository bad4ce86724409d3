/// \file
/// How many pairs of allocation and free do many threads make, all together?
///
///   * `own_stream/<policy>/<owner>/<threads>`: each thread allocates and frees 64 KiB on a stream of its own.
///   * `shared_stream/<policy>/arena/<threads>`: the same, all on one stream.
///   * `producer_consumer/<policy>/arena/<threads>`: half of the threads allocate 64 KiB blocks and hand each
///     to a partner, which frees it on the same stream. So every block is freed by another thread than its own.
///   * `idle/<policy>/arena/<threads>`: one thread works; all others have worked, may hold what they kept for
///     themselves, and sleep.
///
/// `pairs` is pairs a second. Owner: the pool alone, or an arena with a hard limit; both are called through
/// `resource_ref`. Each figure is of 50 ms of work by new threads, which warm up first.

#include "support/harness.hpp"
#include "support/shift.hpp"
#include "support/subjects.hpp"
#include "support/workload.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace bench;

constexpr std::size_t block_bytes = 64_KiB;

/// What one thread hands to one other: a ring of slots, null where empty. Each side touches a slot once a
/// block, so the hand-over is as cheap as it can be; what it costs shows in the figures of `nothing`.
class hand_over {
  public:
    /// Returns: whether there was room.
    bool put(void* p) noexcept {
        std::atomic<void*>& slot = slots_[in_ % slots_.size()];
        if (slot.load(std::memory_order_acquire) != nullptr) return false;
        slot.store(p, std::memory_order_release);
        ++in_;
        return true;
    }
    /// Returns: null where there is nothing.
    void* take() noexcept {
        std::atomic<void*>& slot = slots_[out_ % slots_.size()];
        void* p = slot.load(std::memory_order_acquire);
        if (p == nullptr) return nullptr;
        slot.store(nullptr, std::memory_order_release);
        ++out_;
        return p;
    }
    void close() noexcept { closed_.store(true, std::memory_order_release); }
    [[nodiscard]] bool closed() const noexcept { return closed_.load(std::memory_order_acquire); }

  private:
    std::array<std::atomic<void*>, 256> slots_{};
    alignas(64) std::size_t in_ = 0;
    alignas(64) std::size_t out_ = 0;
    alignas(64) std::atomic<bool> closed_{false};
};

void produce(tenure::resource_ref r, tenure::stream_handle s, shift::worker& w, hand_over& to) {
    struct closer {
        hand_over& h;
        ~closer() { h.close(); } // after a refused allocation too: the partner waits for it
    } const at_end{to};
    w.begin();
    while (w.goes_on()) {
        void* p = r.allocate(s, block_bytes);
        while (!to.put(p)) std::this_thread::yield();
    }
}

void consume(tenure::resource_ref r, tenure::stream_handle s, shift::worker& w, hand_over& from) {
    w.begin();
    std::uint64_t n = 0;
    for (;;) {
        const bool last = from.closed(); // asked before the look, so that nothing put before is missed
        if (void* p = from.take()) {
            r.deallocate(s, p, block_bytes);
            ++n;
        } else if (last) {
            break;
        } else {
            std::this_thread::yield();
        }
    }
    w.end(n);
}

/// Effects: leaves behind what a thread that used many sizes leaves behind.
void use_and_idle(tenure::resource_ref r, tenure::stream_handle s, shift::worker& w) {
    std::vector<void*> held(64);
    for (std::size_t bytes = 512; bytes <= 1_MiB; bytes *= 2) {
        for (void*& p : held) p = r.allocate(s, bytes);
        for (void* p : held) r.deallocate(s, p, bytes);
    }
    w.begin();
    w.sleep();
}

/// Effects: registers a benchmark whose iteration is one shift. `make()` returns the resource, `make_body()` is
/// called before each shift; its result is called as `body(resource, worker, i)` on each thread.
template <class Make, class MakeBody>
void add_shift(const std::string& name, Make make, unsigned threads, MakeBody make_body) {
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=](benchmark::State& state) {
            guarded(state, [&] {
                auto& owner = keep<tenure::any_resource>(
                    name, [&] { return std::make_unique<tenure::any_resource>(make()); });
                const tenure::resource_ref resource = owner;
                const auto length = std::chrono::milliseconds(smoke() ? 1 : 50);
                for (auto _ : state) {
                    const auto body = make_body();
                    const double rate = shift::work(
                        threads, length, [&](shift::worker& w, unsigned i) { body(resource, w, i); });
                    state.SetIterationTime(std::chrono::duration<double>(length).count());
                    state.counters["pairs"] = rate;
                }
            });
        })
        ->UseManualTime()
        ->Iterations(1);
}

template <class World, class Subject>
void add_subject(World& world, const Subject& subject) {
    using ref = tenure::resource_ref;
    const auto alone = [=, &world] { return subject.make(world.device()); };
    const auto tenant = [=, &world] { return subject.make_tenant(world.device(), wide_limit); };
    const auto on_own = [&world] {
        return [&world](ref r, shift::worker& w, unsigned i) { work_pairs(r, world.stream(i), w); };
    };
    const auto on_shared = [&world] {
        return [&world](ref r, shift::worker& w, unsigned) { work_pairs(r, world.stream(0), w); };
    };
    const auto one_works = [&world] {
        return [&world](ref r, shift::worker& w, unsigned i) {
            i == 0 ? work_pairs(r, world.stream(i), w) : use_and_idle(r, world.stream(i), w);
        };
    };
    for (const unsigned n : thread_counts()) {
        const auto named = [&](const char* what, const char* owner) {
            return std::string(what) + "/" + subject.name + "/" + owner + "/" + std::to_string(n);
        };
        add_shift(named("own_stream", "pool"), alone, n, on_own);
        add_shift(named("own_stream", "arena"), tenant, n, on_own);
        add_shift(named("shared_stream", "arena"), tenant, n, on_shared);
        if (n == 1) continue;
        add_shift(named("idle", "arena"), tenant, n, one_works);
        if (n % 2 != 0) continue;
        add_shift(named("producer_consumer", "arena"), tenant, n, [&world, n] {
            auto rings = std::make_shared<std::vector<hand_over>>(n / 2);
            return [&world, rings](ref r, shift::worker& w, unsigned i) {
                hand_over& ring = (*rings)[i / 2];
                i % 2 == 0 ? produce(r, world.stream(i / 2), w, ring)
                           : consume(r, world.stream(i / 2), w, ring);
            };
        });
    }
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        for (const auto& s : subjects_for(world)) add_subject(world, s);
    });
}
