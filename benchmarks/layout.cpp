/// \file
/// How long does a layout take for an allocation and a free, and how much of a range does it need for the
/// blocks?
///
///   * `replace/<layout>/<sizes>`: 20 000 live blocks in 192 GiB; free a random one, allocate another.
///   `repeated`
///     draws from 64 sizes, as a training step does; `distinct` draws every size anew. Log-uniform, 512 B to
///     32 MiB.
///   * `pairs/<layout>/<live>`: the same with 64 repeated sizes and that many live blocks.
///
/// All include the map from address to block that a free needs. The counter `footprint` is what the range
/// lacks as its largest free block, over the highest sum of live bytes: what a device would have had to hold.
/// `std_set` is the usual scheme: best fit by `std::set`, neighbours by `std::map`, blocks by
/// `std::unordered_map`.
///
/// `--smoke` runs every benchmark shortly. All other arguments are Google Benchmark's.

#include <tenure/core/pointer_map.hpp>
#include <tenure/core/units.hpp>
#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/buddy.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/slab.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using namespace tenure;

/// The part of an allocator that is measured: addresses in, addresses out.
template <class Layout>
class heap {
  public:
    explicit heap(layout::range r) { layout_.add(r, 0); }

    layout::address allocate(std::size_t n) {
        const layout::domain domains[]{0};
        const layout::block_id id = layout_.allocate(n, 256, domains);
        if (id == layout::no_block) return 0;
        const layout::address at = layout_.offset(id);
        blocks_.insert(at, id);
        return at;
    }
    void deallocate(layout::address at) noexcept { layout_.deallocate(*blocks_.erase(at), 0); }
    std::size_t largest_free() const {
        const layout::domain domains[]{0};
        return layout_.largest_free(domains);
    }

  private:
    Layout layout_;
    pointer_map blocks_;
};

struct std_set;

template <>
class heap<std_set> {
  public:
    explicit heap(layout::range r) { insert(r.base, r.size); }

    layout::address allocate(std::size_t n) {
        n = round_up(n, layout::granule);
        const auto hole = by_size_.lower_bound({n, 0});
        if (hole == by_size_.end()) return 0;
        const auto [size, at] = *hole;
        by_size_.erase(hole);
        by_address_.erase(at);
        if (size != n) insert(at + n, size - n);
        live_.emplace(at, n);
        return at;
    }
    void deallocate(layout::address at) {
        const auto block = live_.find(at);
        std::size_t size = block->second;
        live_.erase(block);
        auto next = by_address_.lower_bound(at);
        if (next != by_address_.end() && next->first == at + size) {
            size += next->second;
            by_size_.erase({next->second, next->first});
            next = by_address_.erase(next);
        }
        if (next != by_address_.begin()) {
            const auto previous = std::prev(next);
            if (previous->first + previous->second == at) {
                at = previous->first;
                size += previous->second;
                by_size_.erase({previous->second, previous->first});
                by_address_.erase(previous);
            }
        }
        insert(at, size);
    }
    std::size_t largest_free() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

  private:
    void insert(layout::address at, std::size_t size) {
        by_size_.emplace(size, at);
        by_address_.emplace(at, size);
    }
    std::set<std::pair<std::size_t, layout::address>> by_size_;
    std::map<layout::address, std::size_t> by_address_;
    std::unordered_map<layout::address, std::size_t> live_;
};

constexpr layout::range space{2_MiB, 192_GiB};

/// Sizes in bytes, drawn beforehand so that no time is spent on them.
std::vector<std::uint32_t> sizes(bool repeated) {
    std::mt19937_64 rng(42);
    const auto draw = [&] {
        return static_cast<std::uint32_t>(std::exp2(std::uniform_real_distribution<double>(9, 25)(rng)));
    };
    std::array<std::uint32_t, 64> palette{};
    for (std::uint32_t& s : palette) s = draw();
    std::vector<std::uint32_t> all(1 << 16);
    for (std::uint32_t& s : all) s = repeated ? palette[rng() % palette.size()] : draw();
    return all;
}

template <class Layout>
void replace(benchmark::State& state, std::size_t live, bool repeated) {
    struct block {
        layout::address at;
        std::size_t size;
    };
    const std::vector<std::uint32_t> pool = sizes(repeated);
    std::mt19937_64 rng(1);
    heap<Layout> h(space);
    std::vector<block> blocks(live);
    std::size_t bytes = 0, peak = 0, smallest_hole = space.size, next = 0, refused = 0;
    const auto put = [&](block& b) {
        b.size = pool[next++ % pool.size()];
        b.at = h.allocate(b.size);
        if (b.at == 0) {
            ++refused;
            b.size = 0;
        }
        bytes += round_up(b.size, layout::granule);
    };
    const auto take = [&](block& b) {
        bytes -= round_up(b.size, layout::granule);
        if (b.at != 0) h.deallocate(b.at);
    };
    const auto measure = [&] {
        peak = std::max(peak, bytes);
        smallest_hole = std::min(smallest_hole, h.largest_free());
    };
    for (block& b : blocks) put(b);
    for (std::size_t i = 0; i < 20 * live; ++i) { // until the holes look as they will
        block& b = blocks[rng() % live];
        take(b);
        put(b);
        if (i % 256 == 0) measure();
    }
    std::uint64_t x = rng();
    for (auto _ : state) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        block& b = blocks[(x >> 33) % live];
        take(b);
        put(b);
    }
    state.SetItemsProcessed(state.iterations());
    state.counters["footprint"] = static_cast<double>(space.size - smallest_hole) / static_cast<double>(peak);
    state.counters["refused"] = static_cast<double>(refused);
}

template <class Layout>
void add(const std::string& name) {
    for (const bool repeated : {true, false})
        benchmark::RegisterBenchmark(("replace/" + name + (repeated ? "/repeated" : "/distinct")).c_str(),
                                     [=](benchmark::State& s) { replace<Layout>(s, 20000, repeated); });
    for (const std::size_t live : {64u, 1000u, 4096u, 30000u})
        benchmark::RegisterBenchmark(("pairs/" + name + "/" + std::to_string(live)).c_str(),
                                     [=](benchmark::State& s) { replace<Layout>(s, live, true); });
}

} // namespace

int main(int argc, char** argv) {
    std::vector<char*> arguments(argv, argv + argc);
    static char short_run[] = "--benchmark_min_time=0.01";
    for (char*& a : arguments)
        if (std::strcmp(a, "--smoke") == 0) a = short_run;
    int count = static_cast<int>(arguments.size());
    arguments.push_back(nullptr);
    add<std_set>("std_set");
    add<layout::best_fit>("best_fit");
    add<layout::bitmap>("bitmap");
    add<layout::buddy>("buddy");
    add<layout::slab>("slab");
    benchmark::Initialize(&count, arguments.data());
    if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
