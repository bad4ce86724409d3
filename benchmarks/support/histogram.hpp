#pragma once

/// \file
/// `tick_clock` and `histogram`: times of single calls, without a division or an allocation on the way.
///
///     [ 0 1 2 ... 63 | 64 66 ... 126 | 128 132 ... | ... ]      ticks
///
/// Up to 64 ticks each value has its own bucket; above, each power of two is divided into 32, so that what
/// is read is at most 1/32 below what was added.

#include <tenure/core/bits.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace bench {

/// The processor's own time stamp where it has one, else `steady_clock`.
class tick_clock {
  public:
    static std::uint64_t now() noexcept {
#if defined(__x86_64__)
        unsigned processor;
        return __rdtscp(&processor); // waits for what came before
#else
        return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
    }

    /// Returns: nanoseconds a tick, measured once.
    static double ns_per_tick() {
        static const double ns = [] {
            using clock = std::chrono::steady_clock;
            const auto t0 = clock::now();
            const std::uint64_t first = now();
            while (clock::now() - t0 < std::chrono::milliseconds(20)) {
            }
            const std::uint64_t last = now();
            return std::chrono::duration<double, std::nano>(clock::now() - t0).count() /
                   static_cast<double>(last - first);
        }();
        return ns;
    }
};

struct buckets {
    static constexpr unsigned steps = 5; ///< log2 of the buckets a power of two

    static constexpr std::size_t index(std::uint64_t t) noexcept {
        if (t < (std::uint64_t{2} << steps)) return static_cast<std::size_t>(t);
        const unsigned shift = tenure::log2_floor(t) - steps;
        return (static_cast<std::size_t>(shift) << steps) + static_cast<std::size_t>(t >> shift);
    }
    static constexpr std::uint64_t lowest(std::size_t i) noexcept {
        if (i < (std::size_t{2} << steps)) return i;
        const std::size_t shift = (i >> steps) - 1;
        return static_cast<std::uint64_t>(i - (shift << steps)) << shift;
    }
};
static_assert(buckets::lowest(buckets::index(63)) == 63 && buckets::lowest(buckets::index(127)) == 126);
static_assert(buckets::lowest(buckets::index(1000)) <= 1000 &&
              buckets::lowest(buckets::index(1000) + 1) > 1000);
static_assert(buckets::index(~std::uint64_t{0}) < (std::size_t{60} << buckets::steps));

class histogram {
  public:
    void add(std::uint64_t ticks) noexcept {
        ++counts_[buckets::index(ticks)];
        ++total_;
        if (ticks > largest_) largest_ = ticks;
    }

    /// Returns: the smallest recorded time, in ticks, that at most `1 - fraction` of the times are above; 0 if
    /// there are none.
    [[nodiscard]] std::uint64_t quantile(double fraction) const noexcept {
        const auto wanted = static_cast<std::uint64_t>(fraction * static_cast<double>(total_));
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i)
            if ((seen += counts_[i]) > wanted) return buckets::lowest(i);
        return largest_;
    }
    [[nodiscard]] std::uint64_t largest() const noexcept { return largest_; }
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

  private:
    std::array<std::uint64_t, 60u << buckets::steps> counts_{};
    std::uint64_t total_ = 0;
    std::uint64_t largest_ = 0;
};

} // namespace bench
