#pragma once

/// \file
/// `draw_arena`: an arena's memory as torch's snapshots show it: segments and blocks whose sums equal the statistics.
///
///     the arena:     [ a | free | segment of a private pool | b's first half ]  [ b's second half | free ]
///     the picture:   [ a | free ]   (drawn by the pool)                          [ free ]     [ b ]
///
/// Blocks appear at the address that the application has. Where a policy shows a block's memory in a row behind other
/// addresses (remap), the block is drawn as a segment of its own, and its pieces are left out where they lie. What is
/// drawn is every reserved byte, once.
///
/// Complexity: O(n log n) in blocks. Thread-safety: externally synchronised.

#include "block.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/resource/usage.hpp>

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tenure::torch {

using segment_info = c10::CachingDeviceAllocator::SegmentInfo;
using block_info = c10::CachingDeviceAllocator::BlockInfo;

/// Where the segments of private pools lie in an arena: begin to bytes.
using holes = std::map<std::uint64_t, std::size_t>;

/// Live and pending blocks by address.
using known_blocks = std::map<std::uint64_t, const block*>;

/// Effects: appends one block to `to`: `b`'s, or inactive if there is none. A used one is drawn as large as torch counts
/// it; what the policy has added follows as an inactive one.
inline void draw_block(segment_info& to, std::size_t bytes, const block* b) {
    block_info shown;
    shown.size = bytes;
    to.total_size += bytes;
    if (b != nullptr) {
        shown.size = std::min(b->size, bytes);
        shown.requested_size = b->requested;
        shown.allocated = b->allocated;
        shown.active = true;
        shown.context_when_allocated = b->context;
        to.active_size += shown.size;
        to.requested_size += b->requested;
        if (b->allocated) to.allocated_size += shown.size;
        if (to.blocks.empty()) to.stream = b->stream;
    }
    const std::size_t rest = bytes - shown.size;
    to.blocks.push_back(std::move(shown));
    if (rest == 0) return;
    block_info added;
    added.size = rest;
    to.blocks.push_back(std::move(added));
}

class arena_painter {
  public:
    arena_painter(c10::DeviceIndex device, const known_blocks& known, const holes& cut,
                  std::vector<segment_info>& out) noexcept
        : device_(device), known_(&known), cut_(&cut), out_(&out) {}

    void draw(const memory_snapshot& picture) {
        for (const segment_snapshot& s : picture.segments)
            for (const block_snapshot& b : s.blocks)
                if (b.block != 0) elsewhere_[b.block] = 0; // to be drawn apart as a whole
        for (const segment_snapshot& s : picture.segments) {
            for (const block_snapshot& b : s.blocks) piece(b, &b == &s.blocks.front());
        }
        for (const auto& [address, bytes] : elsewhere_) {
            const auto hole = cut_->find(address);
            if (hole == cut_->end()) {
                segment_info& s = fresh(address);
                draw_block(s, bytes, block_at(address));
            } else if (bytes > hole->second) { // more than the pool has asked for
                draw_block(fresh(address + hole->second), bytes - hole->second, nullptr);
            }
        }
    }

  private:
    void piece(const block_snapshot& b, bool first) {
        const bool used = b.state != block_state::free;
        const std::uint64_t shown_at = b.block != 0 ? b.block : b.address;
        if (used && (b.block != 0 || cut_->count(shown_at) != 0 || elsewhere_.count(shown_at) != 0)) {
            elsewhere_[shown_at] += b.size;
            run_ = false;
            return;
        }
        if (!run_ || first) fresh(b.address);
        run_ = true;
        draw_block(out_->back(), b.size, used ? block_at(b.address) : nullptr);
    }

    segment_info& fresh(std::uint64_t address) {
        segment_info s;
        s.device = device_;
        s.address = address;
        s.is_large = true;
        s.is_expandable = true;
        out_->push_back(std::move(s));
        return out_->back();
    }

    [[nodiscard]] const block* block_at(std::uint64_t address) const {
        const auto it = known_->find(address);
        return it == known_->end() ? nullptr : it->second;
    }

    c10::DeviceIndex device_;
    const known_blocks* known_;
    const holes* cut_;
    std::vector<segment_info>* out_;
    std::map<std::uint64_t, std::size_t>
        elsewhere_;    ///< bytes of blocks drawn apart, by the application's address
    bool run_ = false; ///< the last segment in `out_` may grow
};

} // namespace tenure::torch
