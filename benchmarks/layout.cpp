/// \file
/// How long does a layout take for an allocation and a free, and how much of a range does it need for the
/// blocks?
///
///   * `replace/<layout>/<sizes>`: 20 000 live blocks in 192 GiB; free a random one, allocate another.
///     `repeated` draws from 64 sizes, as a training step does; `distinct` draws every size anew.
///     Log-uniform, 512 B to 32 MiB.
///   * `pairs/<layout>/<live>`: the same with 64 repeated sizes and that many live blocks.
///
/// All include the map from address to block that a free needs. The counter `footprint` is bytes held over
/// the highest sum of live bytes, in the warm-up. best_fit, bitmap and std_set get all of the space as one
/// range; what they hold is that less its largest free block. buddy and slab cannot use one range so (a
/// slab's range serves one size class): they get ranges as they need them, and hold all of those. A benchmark
/// in which a request is refused is an error, because a refusal is faster than an allocation. `std_set` is
/// the usual scheme: best fit by `std::set`, neighbours by `std::map`, blocks by `std::unordered_map`.
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

/// Bytes of the ranges that a layout gets as it needs them; 0: all of the space at once.
template <class Layout>
constexpr std::size_t growth = 0;
template <>
constexpr std::size_t growth<layout::buddy> = 1_GiB;
template <>
constexpr std::size_t growth<layout::slab> = 2_MiB;

/// The part of an allocator that is measured: addresses in, addresses out.
template <class Layout>
class heap {
  public:
    explicit heap(layout::range r) : rest_(r) {
        if (growth<Layout> == 0) layout_.add(r, 0);
    }

    layout::address allocate(std::size_t n) {
        const layout::domain domains[]{0};
        layout::block_id id = layout_.allocate(n, 256, domains);
        if (id == layout::no_block) {
            if (growth<Layout> == 0 || !grow(n)) return 0;
            id = layout_.allocate(n, 256, domains);
            if (id == layout::no_block) return 0;
        }
        const layout::address at = layout_.offset(id);
        blocks_.insert(at, id);
        return at;
    }
    void deallocate(layout::address at) noexcept { layout_.deallocate(*blocks_.erase(at), 0); }
    std::size_t held() const {
        const layout::domain domains[]{0};
        return layout_.total_bytes() - (growth<Layout> == 0 ? layout_.largest_free(domains) : 0);
    }

  private:
    bool grow(std::size_t n) {
        const layout::range_request want = Layout::range_for(n, 256, growth<Layout>);
        const layout::address base = round_up(rest_.base, want.alignment);
        const layout::address end = rest_.base + rest_.size;
        if (base > end || want.size > end - base) return false;
        layout_.add({base, want.size}, 0);
        rest_ = {base + want.size, end - base - want.size};
        return true;
    }

    Layout layout_;
    pointer_map blocks_;
    layout::range rest_;
};

struct std_set;

template <>
class heap<std_set> {
  public:
    explicit heap(layout::range r) : total_(r.size) { insert(r.base, r.size); }

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
    std::size_t held() const { return total_ - (by_size_.empty() ? 0 : by_size_.rbegin()->first); }

  private:
    void insert(layout::address at, std::size_t size) {
        by_size_.emplace(size, at);
        by_address_.emplace(at, size);
    }
    std::size_t total_;
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

bool smoke = false;

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
    std::size_t bytes = 0, peak = 0, held = 0, next = 0, refused = 0;
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
        held = std::max(held, h.held());
    };
    for (block& b : blocks) put(b);
    const std::size_t warm_up = smoke ? 256 : 20 * live; // until the holes look as they will
    for (std::size_t i = 0; i < warm_up; ++i) {
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
    state.counters["footprint"] = static_cast<double>(held) / static_cast<double>(peak);
    if (refused != 0) state.SkipWithError("requests were refused: the time is not that of allocations");
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
    static char short_run[] = "--benchmark_min_time=0.001";
    for (char*& a : arguments)
        if (std::strcmp(a, "--smoke") == 0) {
            smoke = true;
            a = short_run;
        }
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
