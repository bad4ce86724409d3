#pragma once

/// \file
/// What the benchmarks ask of a resource: sizes, and the random replacement of live blocks.
///
/// Sizes are drawn log-uniformly, as many between 512 B and 1 KiB as between 1 and 2 MiB, into a palette of
/// 64: programs repeat theirs. Seeds are fixed.

#include "support/harness.hpp"
#include "support/shift.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/core/units.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace bench {

using namespace tenure::literals;

/// Sizes in bytes between 512 and `most`, drawn beforehand so that no time is spent on them.
class size_mix {
  public:
    explicit size_mix(std::size_t most, std::uint64_t seed = 42) {
        std::mt19937_64 rng(seed);
        std::uniform_real_distribution<double> exponent(9, std::log2(static_cast<double>(most)));
        std::array<std::uint32_t, 64> palette{};
        for (std::uint32_t& s : palette) s = static_cast<std::uint32_t>(std::exp2(exponent(rng)));
        for (std::uint32_t& s : sizes_) s = palette[rng() % palette.size()];
    }
    std::size_t next() noexcept { return sizes_[at_++ % sizes_.size()]; }

  private:
    std::vector<std::uint32_t> sizes_ = std::vector<std::uint32_t>(1 << 14);
    std::size_t at_ = 0;
};

/// Steps through numbers that look random, for about a nanosecond each.
class quick_random {
  public:
    explicit quick_random(std::uint64_t seed) noexcept : x_(seed) {}
    std::size_t below(std::size_t n) noexcept {
        x_ = x_ * 6364136223846793005u + 1442695040888963407u;
        return static_cast<std::size_t>(((x_ >> 32) * n) >> 32);
    }

  private:
    std::uint64_t x_;
};

/// What is timed most often. The compiler must not know what became of the block.
template <class Resource>
void allocate_and_free(Resource& r, tenure::stream_handle s, std::size_t bytes) {
    void* p = r.allocate(s, bytes);
    benchmark::DoNotOptimize(p);
    r.deallocate(s, p, bytes);
}

/// One thread's part of a shift: warms up, then pairs of 64 KiB until it is over.
template <class Resource>
void work_pairs(Resource& r, tenure::stream_handle s, shift::worker& w) {
    constexpr unsigned batch = 64; // between two looks at whether it is over
    for (int i = 0; i < (smoke() ? 10 : 1000); ++i) allocate_and_free(r, s, 64_KiB);
    w.begin();
    std::uint64_t n = 0;
    for (; w.goes_on(); n += batch)
        for (unsigned i = 0; i < batch; ++i) allocate_and_free(r, s, 64_KiB);
    w.end(n);
}

/// Returns: 1, 2, 4... and all of the processors.
inline std::vector<unsigned> thread_counts() {
    const unsigned most = std::min<unsigned>(hardware_threads(), max_streams);
    std::vector<unsigned> counts;
    for (unsigned n = 1; n < most; n *= 2) counts.push_back(n);
    counts.push_back(most);
    return counts;
}

/// A number of live blocks of mixed sizes; each step frees a random one and allocates another. It can free
/// what it holds, or leave that to whoever owns the resource.
template <class Resource>
class replacement {
  public:
    struct block {
        void* pointer = nullptr;
        std::size_t bytes = 0;
    };

    /// Effects: allocates `live` blocks, then replaces until the holes look as they will, 20 times over, or a
    /// second has passed.
    replacement(Resource& r, tenure::stream_handle s, std::size_t live, std::size_t most)
        : resource_(r), stream_(s), sizes_(most), blocks_(live) {
        try {
            for (block& b : blocks_) put(b);
            warm_up();
        } catch (...) {
            free_all();
            throw;
        }
    }
    replacement(const replacement&) = delete;
    replacement& operator=(const replacement&) = delete;
    ~replacement() { free_all(); }

    [[nodiscard]] block& pick() noexcept { return blocks_[random_.below(blocks_.size())]; }
    void take(block& b) noexcept { resource_.deallocate(stream_, b.pointer, b.bytes); }
    void draw(block& b) noexcept { b = {nullptr, sizes_.next()}; } // null, should the allocation fail
    void fill(block& b) { b.pointer = resource_.allocate(stream_, b.bytes); }
    void put(block& b) {
        draw(b);
        fill(b);
    }
    void step() {
        block& b = pick();
        take(b);
        put(b);
    }

  private:
    void warm_up() {
        using clock = std::chrono::steady_clock;
        const auto until = clock::now() + std::chrono::milliseconds(smoke() ? 2 : 1000);
        for (std::size_t i = 0; i < 20 * blocks_.size(); ++i) {
            step();
            if (i % 256 == 0 && clock::now() > until) break;
        }
    }
    void free_all() noexcept {
        for (block& b : blocks_) take(b);
    }

    Resource& resource_;
    tenure::stream_handle stream_;
    size_mix sizes_;
    quick_random random_{1};
    std::vector<block> blocks_;
};

} // namespace bench
