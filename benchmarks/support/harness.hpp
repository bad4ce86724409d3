#pragma once

/// \file
/// `main` of a benchmark program: arguments, what the results say about the machine, and the world to run in.
///
///     int main(int argc, char** argv) {
///         return bench::run(argc, argv, [](auto& world) { benchmark::RegisterBenchmark(...); });
///     }
///
///   --device sim|cuda   where to run; default sim. 77, "skipped", where a GPU is asked for and there is none
///   --smoke             everything shortly, to see that it works; its figures mean nothing
///
/// All other arguments are Google Benchmark's. Unless they say otherwise each benchmark is repeated five
/// times, and the median counts. Warming up is the benchmarks' own business: they know what must be warm.

#include "commit.hpp"
#include "support/worlds.hpp"
#ifdef TENURE_HAVE_CUDA
#include "support/cuda_world.hpp"
#endif

#include <tenure/core/error.hpp>
#include <tenure/core/version.hpp>

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

inline constexpr int skipped = 77;

namespace detail {
inline bool is_smoke = false;

/// What `keep` holds.
struct kept {
    std::string key;
    std::shared_ptr<void> value;
};
inline kept& slot() {
    static kept k;
    return k;
}
} // namespace detail

/// Returns: whether this run only has to show that the program works.
inline bool smoke() noexcept {
    return detail::is_smoke;
}

/// Returns: the object of benchmark `key`. Google Benchmark calls a function several times, to find out how
/// often to iterate and for each repetition; pools are made and warmed up once. The one of another benchmark
/// is destroyed first, so that there is one at a time.
template <class T, class Make>
T& keep(const std::string& key, Make make) {
    detail::kept& slot = detail::slot();
    if (slot.key != key) {
        slot.value.reset();
        slot.key.clear();
        slot.value = std::shared_ptr<T>(make());
        slot.key = key;
    }
    return *static_cast<T*>(slot.value.get());
}

/// Effects: destroys what the last benchmark kept.
inline void drop() {
    detail::slot() = {};
}

/// Effects: runs `body`; what it throws becomes the benchmark's error. A request that is refused must not pass
/// for a fast one.
template <class Body>
void guarded(benchmark::State& state, Body body) {
    try {
        body();
    } catch (const std::exception& e) {
        const std::string_view text = e.what();
        drop();
        state.SkipWithError(std::string(text.substr(0, text.find('\n'))).c_str());
    }
}

/// Effects: registers a benchmark whose iteration is `once(subject)`; `make()` returns a warm subject, as a
/// `std::shared_ptr` or `std::unique_ptr`.
template <class Make, class Once>
void add(const std::string& name, Make make, Once once) {
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        guarded(state, [&] {
            auto& subject = keep<typename decltype(make())::element_type>(name, make);
            for (auto _ : state) once(subject);
        });
    });
}

/// Returns: the number of processors that this process may count on.
inline unsigned hardware_threads() noexcept {
    const unsigned n = std::thread::hardware_concurrency();
    return n == 0 ? 1 : n;
}

/// Returns: the processor's name.
inline std::string cpu_model() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
    return "unknown";
}

/// Effects: the results say so.
inline void add_context(const context& values) {
    for (const auto& [name, value] : values) benchmark::AddCustomContext(name, value);
}

/// A program's arguments without those that are ours, behind our defaults for Google Benchmark's.
class arguments {
  public:
    arguments(int argc, char** argv) {
        std::vector<std::string> theirs;
        for (int i = 1; i < argc; ++i) {
            const std::string_view a = argv[i];
            if (a == "--smoke")
                detail::is_smoke = true;
            else if (a == "--device" && i + 1 < argc)
                device_ = argv[++i];
            else if (a.substr(0, 9) == "--device=")
                device_ = a.substr(9);
            else
                theirs.emplace_back(a);
        }
        text_ = {argv[0]};
        if (smoke()) {
            text_.insert(text_.end(), {"--benchmark_min_time=0.0005", "--benchmark_repetitions=1"});
        } else {
            text_.insert(text_.end(), {"--benchmark_min_time=0.03", "--benchmark_repetitions=5",
                                       "--benchmark_display_aggregates_only=true"});
        }
        text_.insert(text_.end(), theirs.begin(), theirs.end());
        for (std::string& t : text_) pointers_.push_back(t.data());
        count_ = static_cast<int>(pointers_.size());
        pointers_.push_back(nullptr);
    }

    [[nodiscard]] const std::string& device() const noexcept { return device_; }

    /// Returns: whether Google Benchmark knows all of the rest.
    bool initialise() {
        benchmark::Initialize(&count_, pointers_.data());
        return !benchmark::ReportUnrecognizedArguments(count_, pointers_.data());
    }

  private:
    std::string device_ = "sim";
    std::vector<std::string> text_;
    std::vector<char*> pointers_;
    int count_ = 0;
};

/// Effects: the results say which machine, versions and commit they are of.
template <class World>
void introduce(const World& world) {
    add_context({{"cpu", cpu_model()},
                 {"hardware_threads", std::to_string(hardware_threads())},
                 {"tenure", TENURE_VERSION_STRING},
                 {"git_commit", commit},
                 {"compiler", compiler},
                 {"smoke", smoke() ? "yes" : "no"}});
    add_context(world.describe());
}

/// Effects: lets `add(world)` register benchmarks and runs them in a new world. `reporter` shows the results, null:
/// as Google Benchmark does. Returns: what `main` returns.
template <class World, class Register>
int run_in(arguments& given, Register add, benchmark::BenchmarkReporter* reporter = nullptr) {
    std::unique_ptr<World> world;
    try {
        world = std::make_unique<World>();
    } catch (const tenure::driver_error& e) {
        std::fprintf(stderr, "skipped: %s\n", e.what());
        return skipped;
    }
    introduce(*world);
    add(*world);
    if (!given.initialise()) return 2;
    benchmark::RunSpecifiedBenchmarks(reporter);
    benchmark::Shutdown();
    drop();
    return 0;
}

/// Effects: the same in the world that the arguments name.
template <class Register>
int run(int argc, char** argv, Register add) {
    arguments given(argc, argv);
    if (given.device() == "sim") return run_in<sim_world>(given, add);
#ifdef TENURE_HAVE_CUDA
    if (given.device() == "cuda") return run_in<cuda_world>(given, add);
#endif
    std::fprintf(stderr, "--device %s: this program was built for sim%s\n", given.device().c_str(),
#ifdef TENURE_HAVE_CUDA
                 " and cuda"
#else
                 " only"
#endif
    );
    return 2;
}

} // namespace bench
