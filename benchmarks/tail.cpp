/// \file
/// How long do the slowest single calls take?
///
///   * `clock`: two looks at the clock with nothing between them. It is in all other figures.
///   * `replace/<policy>/<load>`: the calls of random replacement among 4096 live blocks of 64 sizes, 512 B to
///     4 MiB, on a created stream, in an arena. `alone`: one thread; `beside_others`: while all other
///     processors allocate and free 64 KiB on their own streams.
///
/// `allocate_p50` to `allocate_worst`, and the same for `free`, are in nanoseconds. `bought` counts the segments
/// bought meanwhile: where it is not 0, driver calls are among the times. The operating system is too: a
/// `p99_99` of `clock` far above its `p50`, or a `worst` of milliseconds, is a thread that was not running.

#include "support/harness.hpp"
#include "support/histogram.hpp"
#include "support/shift.hpp"
#include "support/subjects.hpp"
#include "support/workload.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace {

using namespace bench;

void report(benchmark::State& state, const std::string& what, const histogram& h) {
    const double ns = tick_clock::ns_per_tick();
    const auto in_ns = [ns](std::uint64_t ticks) { return static_cast<double>(ticks) * ns; };
    state.counters[what + "p50"] = in_ns(h.quantile(0.5));
    state.counters[what + "p99"] = in_ns(h.quantile(0.99));
    state.counters[what + "p99_9"] = in_ns(h.quantile(0.999));
    state.counters[what + "p99_99"] = in_ns(h.quantile(0.9999));
    state.counters[what + "worst"] = in_ns(h.largest());
}

/// Returns: how many calls are timed. Beside others a call can take very long, and tells as much sooner.
std::size_t calls(unsigned threads) {
    if (smoke()) return 2'000;
    return threads == 1 ? 500'000 : 100'000;
}

void clock_alone(benchmark::State& state) {
    for (auto _ : state) {
        histogram h;
        for (std::size_t i = 0; i < calls(1); ++i) {
            const std::uint64_t t = tick_clock::now();
            h.add(tick_clock::now() - t);
        }
        report(state, "", h);
    }
}

/// An arena, the blocks that are live in it, and how long its calls take.
class timed {
  public:
    timed(tenure::any_resource arena, tenure::stream_handle s)
        : resource_(std::move(arena)), blocks_(resource_, s, 4096, 4_MiB) {}

    struct times {
        histogram allocate, free;
        std::size_t bought = 0;
    };

    /// Effects: adds the times of `n` allocations and as many frees.
    void measure(std::size_t n, times& t) {
        const std::size_t before = bought();
        for (std::size_t i = 0; i < n; ++i) {
            auto& b = blocks_.pick();
            const std::uint64_t t0 = tick_clock::now();
            blocks_.take(b);
            const std::uint64_t t1 = tick_clock::now();
            t.free.add(t1 - t0);
            blocks_.draw(b);
            const std::uint64_t t2 = tick_clock::now();
            blocks_.fill(b);
            const std::uint64_t t3 = tick_clock::now();
            t.allocate.add(t3 - t2);
        }
        t.bought = bought() - before;
    }

    /// The same while the other `threads - 1` work, each on a stream of its own but the first.
    template <class World>
    void measure_beside_others(World& world, unsigned threads, times& t) {
        std::atomic<bool> measured{false};
        shift::work(threads, std::chrono::milliseconds(0), [&](shift::worker& w, unsigned i) {
            if (i == 0) {
                w.begin();
                try {
                    measure(calls(threads), t);
                } catch (...) {
                    measured = true;
                    throw;
                }
                measured = true;
                return;
            }
            w.begin();
            while (!measured.load(std::memory_order_relaxed))
                allocate_and_free(resource_, world.stream(i), 64_KiB);
        });
    }

  private:
    std::size_t bought() { return resource_.usage().segments.total_in; }

    tenure::any_resource resource_;
    replacement<tenure::any_resource> blocks_;
};

template <class World, class Subject>
void add_timed(World& world, const Subject& subject, unsigned threads) {
    const std::string name =
        std::string("replace/") + subject.name + (threads == 1 ? "/alone" : "/beside_others");
    benchmark::RegisterBenchmark(name.c_str(), [=, &world](benchmark::State& state) {
        guarded(state, [&] {
            auto& s = keep<timed>(name, [&] {
                return std::make_unique<timed>(subject.make_tenant(world.device(), wide_limit),
                                               world.stream(0));
            });
            for (auto _ : state) {
                timed::times t;
                if (threads == 1)
                    s.measure(calls(threads), t);
                else
                    s.measure_beside_others(world, threads, t);
                report(state, "allocate_", t.allocate);
                report(state, "free_", t.free);
                state.counters["bought"] = static_cast<double>(t.bought);
            }
        });
    })->Iterations(1);
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        benchmark::RegisterBenchmark("clock", clock_alone)->Iterations(1);
        const unsigned all = std::min<unsigned>(hardware_threads(), max_streams);
        for (const auto& s : subjects_for(world)) {
            add_timed(world, s, 1);
            if (all > 1) add_timed(world, s, all);
        }
    });
}
