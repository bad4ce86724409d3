#pragma once

/// \file
/// `caching_options`: what can be set on a `caching_pool`, and the size rules that follow from it.
///
/// The defaults are PyTorch's (`caching_options::pytorch()` is the same thing with a name), so that a pool
/// made without options buys from the device exactly what PyTorch's native allocator would. All sizes are
/// bytes.
///
///     request --round--> block size --+-- <= small_size       part of a `small_segment`
///                                     +-- <  min_large_alloc  part of a `large_segment`
///                                     +-- otherwise           its own segment, rounded to `round_large`
///
/// Plain values; thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>
#include <tenure/policy/caching/roundup.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace tenure {

struct caching_options {
    /// Every block is a multiple of this. 512: the unit in which memory is read efficiently.
    std::size_t min_block = 512;

    /// Blocks up to this size share small segments, larger ones never do: a long-lived small block must not
    /// keep a large one from being merged.
    std::size_t small_size = 1_MiB;

    /// What is bought for small blocks. 2 MiB: the device's own granularity, so nothing is bought in vain.
    std::size_t small_segment = 2_MiB;

    /// What is bought for blocks over `small_size` and under `min_large_alloc`. 20 MiB: few driver calls
    /// while a program warms up.
    std::size_t large_segment = 20_MiB;

    /// From this size on a block gets a segment of its own size. 10 MiB: half a large segment; anything
    /// larger would leave more than half of one unused.
    std::size_t min_large_alloc = 10_MiB;

    /// Such a segment's size is a multiple of this. 2 MiB: the device's granularity.
    std::size_t round_large = 2_MiB;

    /// Blocks of this size and more are never split, and are handed only to requests of this size and more. A
    /// limit keeps very large blocks whole, against fragmentation. Default: no such limit.
    std::size_t max_split = no_limit;

    /// How much larger than the request a block over `max_split` may be. It cannot be split, so this is
    /// waste.
    std::size_t max_non_split_rounding = 20_MiB;

    /// Rounding to a fraction of a power of two, see `roundup_divisions`. Default: none.
    roundup_divisions roundup_power2_divisions{};

    /// When more than this fraction of the limit is reserved, large segments that have been free for longer
    /// than average go back to the device before a new one is bought. The limit is the arena's `max`; outside
    /// an arena, or in one without a limit, the device's capacity: there always is one. 0: off, as in
    /// PyTorch.
    double garbage_collection_threshold = 0.0;

    /// Whether running out of memory may make the host wait for work that holds freed blocks back
    /// (`record_use`). On, as in PyTorch: a slow answer is better than a refusal. Off: no hidden waiting, and
    /// a failure `stream_pending`.
    bool synchronize_on_oom = true;

    /// What goes back to the device when it has no more memory: every wholly free segment, as in PyTorch (a
    /// clean slate), or (off) only as many as the request needs, in as few driver calls as possible.
    bool release_all_on_oom = true;

    /// Whether memory freed on one stream serves another, once the first stream's work has passed. Off, as in
    /// PyTorch: a block serves the stream it was first allocated on for as long as its segment lives.
    bool cross_stream_reuse = false;

    /// Returns: the settings of PyTorch's native allocator without a configuration of its own.
    [[nodiscard]] static caching_options pytorch() { return {}; }

    /// Throws: `std::invalid_argument` that names the first option with a value that makes no sense.
    void check() const {
        const auto require = [](bool holds, const char* name, std::size_t value, const std::string& rule) {
            if (!holds)
                throw std::invalid_argument(std::string("caching_options: ") + name + " is " +
                                            std::to_string(value) + ", but must be " + rule);
        };
        const std::string block = "a multiple of min_block (" + std::to_string(min_block) + ")";
        require(is_power_of_two(min_block) && min_block >= 512, "min_block", min_block,
                "a power of two, 512 or more");
        require(small_size % min_block == 0, "small_size", small_size, block);
        require(small_segment % min_block == 0 && small_segment >= small_size && small_segment > 0,
                "small_segment", small_segment,
                block + " and no less than small_size (" + std::to_string(small_size) + ")");
        require(large_segment % min_block == 0 && large_segment > small_segment, "large_segment",
                large_segment,
                block + " and more than small_segment (" + std::to_string(small_segment) + ")");
        require(min_large_alloc > small_size && min_large_alloc <= large_segment, "min_large_alloc",
                min_large_alloc,
                "more than small_size (" + std::to_string(small_size) + ") and no more than large_segment (" +
                    std::to_string(large_segment) + ")");
        require(is_power_of_two(round_large) && round_large >= min_block, "round_large", round_large,
                "a power of two, and no less than min_block (" + std::to_string(min_block) + ")");
        require(max_split >= large_segment, "max_split", max_split,
                "no less than large_segment (" + std::to_string(large_segment) + "), or no_limit");
        for (const std::size_t d : roundup_power2_divisions.values)
            require(d == 0 || is_power_of_two(d), "roundup_power2_divisions", d,
                    "0 or a power of two, everywhere");
        if (!(garbage_collection_threshold >= 0.0 && garbage_collection_threshold < 1.0))
            throw std::invalid_argument("caching_options: garbage_collection_threshold is " +
                                        std::to_string(garbage_collection_threshold) +
                                        ", but must be 0 (off) or a fraction between 0 and 1");
    }

    /// Requires: `bytes > 0`. Returns: the size of the block for a request; saturates, never wraps.
    [[nodiscard]] constexpr std::size_t block_size(std::size_t bytes) const noexcept {
        if (bytes <= min_block) return min_block;
        const std::size_t divisions = roundup_power2_divisions.at(bytes);
        if (divisions > 1 && bytes / min_block >= divisions && bytes != min_block * divisions)
            return roundup_divisions::round(bytes, divisions);
        return round_up(bytes, min_block);
    }

    /// Returns: whether a block of this size lives in small segments.
    [[nodiscard]] constexpr bool is_small(std::size_t block) const noexcept { return block <= small_size; }

    /// Returns: the size of the segment to buy for a block.
    [[nodiscard]] constexpr std::size_t segment_size(std::size_t block) const noexcept {
        if (is_small(block)) return small_segment;
        if (block < min_large_alloc) return large_segment;
        return round_up(block, round_large);
    }

    /// Returns: whether a free block of `found` bytes may serve a block of `wanted` bytes at all.
    [[nodiscard]] constexpr bool acceptable(std::size_t wanted, std::size_t found) const noexcept {
        if (wanted < max_split) return found < max_split;
        return found < saturating_add(wanted, max_non_split_rounding);
    }

    /// Returns: whether what is left over when a block of `wanted` bytes is cut from one of `found` becomes a
    /// free block of its own. A large block keeps a remainder of up to `small_size`: nothing would ever ask
    /// for it.
    [[nodiscard]] constexpr bool splits(std::size_t wanted, std::size_t found) const noexcept {
        const std::size_t rest = found - wanted;
        if (is_small(wanted)) return rest >= min_block;
        return wanted < max_split && rest > small_size;
    }

    friend bool operator==(const caching_options&, const caching_options&) = default;
};

} // namespace tenure
