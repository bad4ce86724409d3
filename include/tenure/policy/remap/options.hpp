#pragma once

/// \file
/// `remap_options`: options of `remap_pool`.

#include <tenure/core/units.hpp>

#include <cstddef>

namespace tenure {

struct remap_options {
    /// Bytes: handles for large blocks are at least this large where the need is; smaller ones pack tighter, but the
    /// driver's time goes with their number (some 45 us each when bought, 30 us to show one again).
    std::size_t least_handle_bytes = std::size_t{20} << 20;

    /// Handles are at most this part of what the pool holds (and `least_handle_bytes` at least, and at most
    /// `most_handle_bytes`, or a 256th of what the pool holds where that is more): a large pool buys large handles, and
    /// a half used one is a small loss in it. Up to 128 MiB they cost the driver the same.
    std::size_t handles_per_pool = 44;
    std::size_t most_handle_bytes = std::size_t{160} << 20;

    /// What is bought for one request may come in handles as large as this part of it, too (512 MiB at most): what is
    /// bought together tends to be shown together, and a first request of many GiB would be some hundred handles. Larger
    /// parts cost less to grow by, and hold more. 0: the request's size does not matter.
    std::size_t handles_per_request = 2;

    /// At least this part of the pool, and at least `least_purchase_bytes`, is bought at once, `least_handle_bytes` at
    /// most: the rest is there for what comes next. Where the device refuses that, only what is missing. 0: always
    /// only that.
    std::size_t purchases_per_pool = 160;
    std::size_t least_purchase_bytes = std::size_t{16} << 20;

    /// Bytes, a power of two: what the homes of small blocks (up to 256 KiB) grow by.
    std::size_t small_handle_bytes = std::size_t{2} << 20;

    /// The pool may hold 1 + 1/`slack_divisor` times the most that has been used at once before it prefers showing
    /// free memory behind new addresses to buying more. 0: no slack.
    std::size_t slack_divisor = 66;

    /// Bytes: memory that is bought anyway is bought smaller where a handle shown again saves at least this much.
    std::size_t worth_showing_bytes = std::size_t{6} << 20;

    /// Which free handles are shown in a row: those that were bought one after the other, or few that are together little more
    /// than is needed. The first fall free together more often, so what is shown once serves more often; worth it where handles
    /// are small and many.
    bool show_in_order = false;

    /// Microseconds: before memory beyond that slack is bought, the host waits at most this long for what other streams have
    /// freed, where that would do. In all no longer than buying has taken (`patience`). The pool is locked meanwhile. 0: never; a minute
    /// at most.
    std::size_t patience_us = 0;

    /// Views kept, at least one; the least recently used one goes when there are more.
    std::size_t max_views = 128;

    /// Returns: the same with small handles, bought as they are needed, and with some patience: on seven recorded programs at
    /// most 1.017 times the live peak is held instead of 1.035, for some three to seven times the driver's time until the peak is
    /// reached (12 to 40 ms a program). For programs that run longer than that.
    [[nodiscard]] constexpr remap_options tight() const noexcept {
        remap_options o = *this;
        o.least_handle_bytes = std::size_t{2} << 20;
        o.most_handle_bytes = std::size_t{64} << 20;
        o.handles_per_pool = 192;
        o.handles_per_request = 14;
        o.purchases_per_pool = 200;
        o.least_purchase_bytes = std::size_t{6} << 20;
        o.slack_divisor = 52;
        o.worth_showing_bytes = std::size_t{2} << 20;
        o.show_in_order = true;
        o.patience_us = 2000;
        return o;
    }

    /// See `pool_options`.
    std::size_t mark_bytes = std::size_t{1} << 20;
    /// On a miss that the device refuses, wait for all work of the device, so that what other streams have freed can be
    /// had, and try again.
    bool release_on_oom = true;
    bool synchronize_on_oom = false;
};

} // namespace tenure
