#pragma once

/// \file
/// `sim::call_ledger`: counts driver calls, and makes chosen ones fail.
///
/// Every call is entered first, which counts it, and then either goes ahead or is told what to answer
/// instead. A fault names an absolute position in the count of its kind (or of all kinds), fixed when it is
/// set: faults set later or calls of other kinds do not move it.
///
/// Complexity: a call costs O(number of faults set). Thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/sim/call.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace tenure::sim {

class call_ledger {
  public:
    /// Effects: counts one call of `kind`. Returns: what to answer instead of acting, if it is to fail. When
    /// several faults name the same call, the one that was set first wins.
    std::optional<status> enter(call kind) {
        const std::uint64_t nth = ++counts_[index(kind)];
        const std::uint64_t nth_of_any = ++total_;
        for (const fault& f : faults_) {
            if (f.kind && *f.kind != kind) continue;
            const std::uint64_t n = f.kind ? nth : nth_of_any;
            if (n >= f.first && n - f.first < f.count) return f.answer;
        }
        return std::nullopt;
    }

    /// Effects: the nth call from now (1: the next) of `kind`, or of any kind without one, and the `count -
    /// 1` such calls after it answer `answer`. `nth` 0 is taken as 1.
    void fail(std::optional<call> kind, std::uint64_t nth, status answer, std::uint64_t count) {
        const std::uint64_t done = kind ? counts_[index(*kind)] : total_;
        faults_.push_back({kind, saturating_add(done, nth == 0 ? 1 : nth), count, answer});
    }

    void clear_faults() noexcept { faults_.clear(); }

    [[nodiscard]] const std::array<std::uint64_t, call_kinds>& counts() const noexcept { return counts_; }
    [[nodiscard]] std::uint64_t total() const noexcept { return total_; }

  private:
    struct fault {
        std::optional<call> kind;
        std::uint64_t first = 0;
        std::uint64_t count = 1;
        status answer = status::failed;
    };
    std::array<std::uint64_t, call_kinds> counts_{};
    std::uint64_t total_ = 0;
    std::vector<fault> faults_;
};

} // namespace tenure::sim
