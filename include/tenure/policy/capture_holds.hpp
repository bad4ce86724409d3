#pragma once

/// \file
/// `capture_holds`: blocks that a captured graph may replay into, and so nobody else may have.
///
///     hold(b, c)       b was allocated, used or freed in capture c         live or pending
///     park(b)          b is free but for its captures                      parked
///     release(c, f)    no graph of c replays any more: f(b) for each parked block that this sets free
///
/// Invariants:
///   1. A block leaves only when every capture that holds it has been released, be that before or after its free.
///   2. After `make_room(n)`, nothing about blocks below n needs host memory but the hold of a second capture;
///      without memory for that, the block stays until the end of the pool.
///
/// Complexity: O(1), except `release` and `only`, which are linear in the blocks and in the second holds.
/// Cost: 12 bytes a block. Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tenure {

class capture_holds {
  public:
    using block_id = layout::block_id;

    /// Effects: there is room for the blocks below `n`. Throws: `std::bad_alloc`, changing nothing.
    void make_room(std::size_t n) {
        if (n > first_.size()) first_.resize(n);
        parked_.reserve(first_.capacity());
    }

    /// Effects: the block waits for `capture` too. Requires: there is room for it.
    void hold(block_id block, std::uint64_t capture) noexcept {
        std::uint64_t& first = first_[block];
        if (first == 0) first = capture;
        if (first == capture || first == forever) return;
        for (const later& l : later_)
            if (l.block == block && l.capture == capture) return;
        try {
            later_.push_back({block, capture});
        } catch (...) {
            first = forever;
        }
    }

    /// Returns: whether any capture holds the block.
    [[nodiscard]] bool held(block_id block) const noexcept { return first_[block] != 0; }

    /// Returns: whether this capture holds the block, and no other.
    [[nodiscard]] bool only(block_id block, std::uint64_t capture) const noexcept {
        return first_[block] == capture && std::none_of(later_.begin(), later_.end(),
                                                        [block](const later& l) { return l.block == block; });
    }

    /// Effects: the held block waits here from now on.
    void park(block_id block) noexcept { parked_.push_back(block); }

    /// Returns: the blocks that wait, in no particular order.
    [[nodiscard]] const own_lines_vector<block_id>& parked() const noexcept { return parked_; }

    /// Effects: the block at this place of `parked()` is in use again; its holds stay.
    void unpark(std::size_t place) noexcept {
        parked_[place] = parked_.back();
        parked_.pop_back();
    }

    /// Effects: `capture` holds nothing any more. Calls let_go(block) for each parked block that no capture
    /// holds.
    template <class F>
    void release(std::uint64_t capture, F&& let_go) noexcept {
        std::erase_if(later_, [capture](const later& l) { return l.capture == capture; });
        for (block_id b = 0; b < first_.size(); ++b)
            if (first_[b] == capture) first_[b] = next_hold(b);
        for (std::size_t i = 0; i < parked_.size();) {
            const block_id block = parked_[i];
            if (held(block)) {
                ++i;
            } else {
                unpark(i);
                let_go(block);
            }
        }
    }

  private:
    /// No capture has this number, and the one above stands for captures that failed.
    static constexpr std::uint64_t forever = std::numeric_limits<std::uint64_t>::max() - 1;

    struct later {
        block_id block;
        std::uint64_t capture;
    };

    std::uint64_t next_hold(block_id block) noexcept {
        const auto it =
            std::find_if(later_.begin(), later_.end(), [block](const later& l) { return l.block == block; });
        if (it == later_.end()) return 0;
        const std::uint64_t capture = it->capture;
        *it = later_.back();
        later_.pop_back();
        return capture;
    }

    own_lines_vector<std::uint64_t> first_; ///< by block id: the capture that held it first; 0: none
    own_lines_vector<later> later_;         ///< the captures after that
    own_lines_vector<block_id> parked_;     ///< has room for every block
};

} // namespace tenure
