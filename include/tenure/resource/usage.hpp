#pragma once

/// \file
/// What a resource says about itself: counters (`usage`) and a picture of its blocks (`memory_snapshot`).
///
///     requested  <=  allocated  <=  reserved
///     as asked       as rounded     held from the device: live, cached and pending blocks together
///
/// Invariants: after every block is freed and its work has passed, `requested` and `allocated` are exactly 0; after
/// `trim(0)` so is `reserved`. `peak >= current` always. Plain values; thread-compatible.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tenure {

/// One counted quantity: its value now, its highest value, and what flowed in and out since construction.
struct gauge {
    std::size_t current = 0;
    std::size_t peak = 0;
    std::size_t total_in = 0;
    std::size_t total_out = 0;

    void add(std::size_t n) noexcept {
        current += n;
        total_in += n;
        peak = std::max(peak, current);
    }
    void subtract(std::size_t n) noexcept {
        current -= n;
        total_out += n;
    }
    /// Effects: adds or subtracts what leads to `n`.
    void set(std::size_t n) noexcept { n > current ? add(n - current) : subtract(current - n); }
    void reset_peak() noexcept { peak = current; }
    friend bool operator==(const gauge&, const gauge&) = default;
};

/// Bytes unless the name says otherwise.
struct usage_counters {
    gauge requested;
    gauge allocated;
    gauge reserved;
    gauge blocks;            ///< number of live blocks
    gauge segments;          ///< number of ranges held from the device
    std::size_t pending = 0; ///< freed, waiting for work on other streams (still counted in `allocated`)
    std::size_t captured =
        0; ///< kept for captured graphs that may replay into it (still counted in `allocated`)
    std::size_t failures = 0; ///< number of allocations refused

    friend bool operator==(const usage_counters&, const usage_counters&) = default;
};

enum class block_state : std::uint8_t { free, allocated, pending, captured };

constexpr const char* to_string(block_state s) noexcept {
    switch (s) {
    case block_state::free: return "free";
    case block_state::allocated: return "allocated";
    case block_state::pending: return "pending";
    case block_state::captured: return "captured";
    }
    return "unknown";
}

struct block_snapshot {
    std::uint64_t address = 0;
    std::size_t size = 0;      ///< bytes, as rounded
    std::size_t requested = 0; ///< bytes, as asked; 0 when free
    block_state state = block_state::free;
    std::uint64_t stream =
        0; ///< identity (not handle) of the stream it belongs to; 0: any or the default stream
    std::uint64_t block = 0; ///< the address that the application has, where that is another than this one
    bool continued = false;  ///< a further part of such a block; `requested` is the part's
};

/// One range held from the device. `blocks` tile it exactly, in address order.
struct segment_snapshot {
    std::uint64_t address = 0;
    std::size_t size = 0; ///< bytes
    std::vector<block_snapshot> blocks;
};

/// Segments in address order.
struct memory_snapshot {
    std::vector<segment_snapshot> segments;
};

} // namespace tenure
