#pragma once

/// \file
/// `call_times`: how long driver calls really took, beside what the cost model says of the same calls.
///
///     (kind, size class) --> number, sum, histogram of real times; sum of modelled times
///
/// A size class is a power of two: the smallest that is not less than the call's bytes. The histogram divides each
/// octave of time into 16 parts, so that a median is exact to 4 % and tables of many replays can be added up.
///
/// Complexity: O(log n) an entry. Plain values; thread-compatible.

#include <tenure/device/sim/call.hpp>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

namespace tenure::cli {

class time_histogram {
  public:
    void add(std::chrono::nanoseconds t) { ++counts_[part_of(t)]; }

    void add(const time_histogram& other) {
        for (const auto& [part, count] : other.counts_) counts_[part] += count;
    }

    /// Returns: the middle of the part in which the median lies; 0 of nothing.
    [[nodiscard]] double median_ns() const {
        std::uint64_t all = 0;
        for (const auto& [part, count] : counts_) all += count;
        std::uint64_t seen = 0;
        for (const auto& [part, count] : counts_) {
            seen += count;
            if (2 * seen >= all) return part == 0 ? 0.0 : std::exp2((part - 0.5) / parts);
        }
        return 0;
    }

  private:
    static constexpr int parts = 16; ///< of an octave

    /// Part 0 is all below one nanosecond.
    static int part_of(std::chrono::nanoseconds t) {
        const auto ns = static_cast<double>(t.count());
        return ns < 1 ? 0 : 1 + static_cast<int>(std::log2(ns) * parts);
    }

    std::map<int, std::uint64_t> counts_;
};

struct call_time {
    std::uint64_t count = 0;
    std::chrono::nanoseconds real{0};     ///< sum
    std::chrono::nanoseconds modelled{0}; ///< sum
    time_histogram times;                 ///< real

    void add(const call_time& other) {
        count += other.count;
        real += other.real;
        modelled += other.modelled;
        times.add(other.times);
    }
};

/// What a call met.
enum class call_case : std::uint8_t {
    plain,
    growing, ///< an allocation from a driver pool that made the pool take memory
    passed,  ///< a query of an event that has passed
};

/// What calls are told apart by.
struct call_class {
    sim::call kind = sim::call::allocate;
    std::uint64_t bytes = 0; ///< a power of two; 0: a call without bytes
    call_case met = call_case::plain;

    friend bool operator<(const call_class& a, const call_class& b) noexcept {
        return std::tie(a.kind, a.met, a.bytes) < std::tie(b.kind, b.met, b.bytes);
    }
};

class call_times {
  public:
    void add(call_class of, std::chrono::nanoseconds real, std::chrono::nanoseconds modelled) {
        call_time& t = rows_[of];
        ++t.count;
        t.real += real;
        t.modelled += modelled;
        t.times.add(real);
    }
    void add(const call_times& other) {
        for (const auto& [of, time] : other.rows_) rows_[of].add(time);
    }

    [[nodiscard]] call_time total() const {
        call_time sum;
        for (const auto& [of, time] : rows_) sum.add(time);
        return sum;
    }
    [[nodiscard]] const std::map<call_class, call_time>& rows() const noexcept { return rows_; }

    /// Returns: the size class of n bytes.
    static std::uint64_t size_class(std::size_t n) noexcept {
        std::uint64_t c = n == 0 ? 0 : 1;
        while (c != 0 && c < n && c << 1 != 0) c <<= 1;
        return c;
    }

  private:
    std::map<call_class, call_time> rows_;
};

} // namespace tenure::cli
