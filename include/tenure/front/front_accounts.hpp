#pragma once

/// \file
/// `front_accounts`: what went between the magazines and the pool, and what that makes of the pool's own counters.
///
///     application <--requested bytes-- racks --rounded bytes--> pool
///                                        | parked
///
/// The pool counts what the magazines hold as live, as rounded; the application wants to know what it holds itself, as
/// requested. Both flows are counted where they pass: by each rack for its thread (`front_traffic`), and here, by
/// misses, for what reached the pool.
///
/// The answer is exact while no other thread is inside a call; otherwise off by what is under way, and never so that
/// `requested <= allocated` fails. Peaks are those of the pool, which counts parked blocks as live: upper bounds.
///
/// Complexity: constant. Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/front/rack_list.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tenure {

class front_accounts {
  public:
    static std::size_t rounded(std::size_t bytes) noexcept { return round_up(bytes, layout::granule); }

    /// Blocks came from the pool: `bytes` all together, as rounded.
    void out(std::size_t bytes, std::size_t blocks) noexcept {
        bytes_out_.fetch_add(bytes, std::memory_order_relaxed);
        blocks_out_.fetch_add(blocks, std::memory_order_relaxed);
    }
    /// Blocks went back to the pool.
    void in(std::size_t bytes, std::size_t blocks) noexcept {
        bytes_in_.fetch_add(bytes, std::memory_order_relaxed);
        blocks_in_.fetch_add(blocks, std::memory_order_relaxed);
    }
    /// The application has freed a block of so many bytes, as requested, past the magazines: it went back to the pool.
    void freed(std::size_t bytes) noexcept {
        freed_bytes_.fetch_add(bytes, std::memory_order_relaxed);
        freed_blocks_.fetch_add(1, std::memory_order_relaxed);
        in(rounded(bytes), 1);
    }
    /// The pool has counted a failure that the application never saw.
    void tried_again() noexcept { tried_again_.fetch_add(1, std::memory_order_relaxed); }

    /// Returns: what the application holds. `pool`: what the pool counts, read after `front`.
    [[nodiscard]] usage_counters usage(usage_counters pool, const front_totals& front) const noexcept {
        usage_counters u = pool;
        u.allocated = corrected(u.allocated, 0, signed_of(front.parked));
        const std::int64_t bytes_out = get(bytes_out_), blocks_out = get(blocks_out_);
        u.requested =
            corrected(u.requested, signed_of(front.bytes_out) - bytes_out,
                      bytes_out - get(bytes_in_) -
                          (signed_of(front.bytes_out) - signed_of(front.bytes_in) - get(freed_bytes_)));
        u.blocks =
            corrected(u.blocks, signed_of(front.blocks_out) - blocks_out,
                      blocks_out - get(blocks_in_) -
                          (signed_of(front.blocks_out) - signed_of(front.blocks_in) - get(freed_blocks_)));
        u.requested = at_most(u.requested, u.allocated.current);
        u.failures -= std::min<std::size_t>(u.failures, tried_again_.load(std::memory_order_relaxed));
        return u;
    }

  private:
    using counter = std::atomic<std::uint64_t>;

    static std::int64_t signed_of(std::uint64_t n) noexcept { return static_cast<std::int64_t>(n); }
    static std::int64_t get(const counter& c) noexcept {
        return signed_of(c.load(std::memory_order_relaxed));
    }

    /// Returns: the pool's gauge with `in` added to what flowed in, and `held` taken from what is there.
    static gauge corrected(gauge g, std::int64_t in, std::int64_t held) noexcept {
        g.total_in = static_cast<std::size_t>(std::max<std::int64_t>(signed_of(g.total_in) + in, 0));
        g.current = static_cast<std::size_t>(std::max<std::int64_t>(signed_of(g.current) - held, 0));
        return at_most(g, g.total_in);
    }
    static gauge at_most(gauge g, std::size_t limit) noexcept {
        g.current = std::min({g.current, g.total_in, limit});
        g.peak = std::max(g.peak, g.current);
        g.total_out = g.total_in - g.current;
        return g;
    }

    // Bytes as rounded, but `freed`: as requested.
    counter bytes_out_{0}, bytes_in_{0}, blocks_out_{0}, blocks_in_{0}, freed_bytes_{0}, freed_blocks_{0};
    std::atomic<std::size_t> tried_again_{0};
};

} // namespace tenure
