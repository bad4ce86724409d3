#pragma once

/// \file
/// `patience`: how long a pool may wait on the host for what other streams have freed, rather than buy.
///
///     buying:   costs the driver's time once, and the memory from then on
///     waiting:  costs time now, and the same memory may be wanted again in the next round
///
/// Which of the two is dearer is known only later. So waiting may take, in all, no longer than buying has taken so far: the
/// pool's growth costs at most twice what it would without (the argument of the ski rental problem; Karlin, Manasse, Rudolph,
/// Sleator: Competitive Snoopy Caching, 1988). A wait that ends in a purchase does not come again for the same memory.
///
/// The wait is bounded, so it cannot deadlock: what never passes is bought in the end.
///
/// Plain values; thread-compatible.

#include <algorithm>
#include <chrono>

namespace tenure {

class patience {
  public:
    using duration = std::chrono::nanoseconds;

    /// `at_once`: the longest single wait; 0: none at all.
    explicit constexpr patience(duration at_once) noexcept : at_once_(at_once) {}

    [[nodiscard]] constexpr bool any() const noexcept { return at_once_ > duration::zero(); }

    /// Effects: buying has taken so long.
    constexpr void has_bought(duration t) noexcept { bought_ += t; }
    /// Effects: a wait has taken so long.
    constexpr void has_waited(duration t) noexcept { waited_ += t; }

    /// Returns: how long the next wait may be.
    [[nodiscard]] constexpr duration left() const noexcept {
        return std::clamp(bought_ - waited_, duration::zero(), at_once_);
    }

  private:
    duration at_once_;
    duration bought_{0};
    duration waited_{0};
};

} // namespace tenure
