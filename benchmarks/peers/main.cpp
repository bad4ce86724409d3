/// \file
/// How do tenure's policies compare with other allocators, in one process on one GPU?
///
///   * `pair/<contender>/<stream>/<bytes>`: allocate a block and free it at once, one thread.
///   * `replace/<contender>/<stream>/<live>`: free a random one of so many live blocks and allocate another; 64
///     sizes from 512 B to 4 MiB.
///   * `threads/<contender>/<threads>`: pairs of 64 KiB, each thread on its own stream; `pairs` is pairs a second,
///     all together.
///
/// At the end the tables. Ours are in arenas with a limit. Exits with 77 where there is no GPU.
/// Arguments: see `support/harness.hpp`; the device is always cuda.

#include "contender.hpp"
#include "ratio_table.hpp"

#include "support/cuda_world.hpp"
#include "support/harness.hpp"
#include "support/shift.hpp"
#include "support/workload.hpp"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace bench;

contender_list all_contenders() {
    contender_list all;
    add_cuda_malloc_async(all);
    add_cub(all);
#ifdef TENURE_HAVE_TORCH
    add_torch(all);
#endif
#ifdef TENURE_HAVE_RMM
    add_rmm(all);
#endif
    add_tenure(all);
    return all;
}

/// An allocator and the blocks that are live in it.
struct replaced {
    replaced(const contender& s, tenure::stream_handle stream, std::size_t live)
        : memory(s.make()), blocks(*memory, stream, live, 4_MiB) {}
    std::unique_ptr<allocator> memory;
    replacement<allocator> blocks;
};

void add_pair(const contender& s, const std::string& name, tenure::stream_handle stream, std::size_t bytes) {
    add(
        name,
        [=] {
            std::shared_ptr<allocator> a = s.make();
            for (int i = 0; i < 1000; ++i) allocate_and_free(*a, stream, bytes);
            return a;
        },
        [=](allocator& a) { allocate_and_free(a, stream, bytes); });
}

void add_replacement(const contender& s, const std::string& name, tenure::stream_handle stream,
                     std::size_t live) {
    add(
        name, [=] { return std::make_shared<replaced>(s, stream, live); },
        [](replaced& r) { r.blocks.step(); });
}

void add_threads(const contender& s, const std::string& name, cuda_world& world, unsigned threads) {
    benchmark::RegisterBenchmark(
        name.c_str(),
        [=, &world](benchmark::State& state) {
            guarded(state, [&] {
                auto& a = keep<allocator>(name, [&] { return std::shared_ptr<allocator>(s.make()); });
                const auto length = std::chrono::milliseconds(smoke() ? 1 : 50);
                for (auto _ : state) {
                    state.counters["pairs"] = shift::work(threads, length, [&](shift::worker& w, unsigned i) {
                        work_pairs(a, world.stream(i), w);
                    });
                    state.SetIterationTime(std::chrono::duration<double>(length).count());
                }
            });
        })
        ->UseManualTime()
        ->Iterations(1);
}

struct named_stream {
    const char* name;
    tenure::stream_handle handle;
};
struct named_size {
    const char* name;
    std::size_t bytes;
};
constexpr named_size sizes[]{{"512 B", 512}, {"64 KiB", 64_KiB}, {"1 MiB", 1_MiB}, {"20 MiB", 20_MiB}};
constexpr std::size_t lives[]{4'096, 100'000};

void add_all(const contender_list& contenders, cuda_world& world) {
    for (const contender& s : contenders) {
        add_context({{s.name, s.version}});
        for (const named_stream stream :
             {named_stream{"default", tenure::default_stream}, named_stream{"created", world.stream(0)}}) {
            const std::string middle = "/" + s.name + "/" + stream.name + "/";
            for (const named_size& size : sizes)
                add_pair(s, "pair" + middle + std::to_string(size.bytes), stream.handle, size.bytes);
            for (const std::size_t live : lives)
                if (!smoke() || live < 10'000)
                    add_replacement(s, "replace" + middle + std::to_string(live), stream.handle, live);
        }
        for (const unsigned n : thread_counts())
            add_threads(s, "threads/" + s.name + "/" + std::to_string(n), world, n);
    }
}

void print_all(const ratio_table& results, const contender_list& contenders) {
    for (const std::string stream : {"default", "created"}) {
        std::vector<ratio_table::column> columns;
        for (const named_size& size : sizes)
            columns.push_back({size.name, "pair/", "/" + stream + "/" + std::to_string(size.bytes)});
        for (const std::size_t live : lives)
            columns.push_back(
                {std::to_string(live) + " live", "replace/", "/" + stream + "/" + std::to_string(live)});
        results.print(("ns an allocation and free, " + stream + " stream").c_str(), contenders, columns,
                      false);
    }
    std::vector<ratio_table::column> columns;
    for (const unsigned n : thread_counts())
        columns.push_back(
            {std::to_string(n) + (n == 1 ? " thread" : " threads"), "threads/", "/" + std::to_string(n)});
    results.print("million pairs of 64 KiB a second, each thread on its own stream", contenders, columns,
                  true);
}

} // namespace

int main(int argc, char** argv) {
    arguments given(argc, argv);
    const contender_list contenders = all_contenders();
    ratio_table results;
    const int status = run_in<cuda_world>(
        given, [&](cuda_world& world) { add_all(contenders, world); }, &results);
    if (status == 0) print_all(results, contenders);
    return status;
}
