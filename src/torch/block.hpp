#pragma once

/// \file
/// `block`: one piece of memory that torch has, or had until its last use has passed; and `block_table`, all that are live.
///
///     live      torch has it                        in the table, found by its address
///     pending   torch freed it, streams still use it   in nobody's table; held by `pending_frees`
///     cached    free in a private pool              held by that pool
///
/// A block comes from an arena (`slot`) or lies in a segment of a private pool (`segment`), never both.
///
/// Complexity: O(1). Thread-safety: externally synchronised, by the heap's mutex.

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/pointer_map.hpp>

#include <c10/core/Allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tenure::torch {

struct arena_slot;
struct pool_segment;

struct block {
    void* ptr = nullptr;
    std::size_t size = 0;      ///< bytes, rounded to 512
    std::size_t requested = 0; ///< bytes, as asked
    stream_handle stream = nullptr;
    arena_slot* slot = nullptr;
    pool_segment* segment = nullptr;
    block* previous = nullptr; ///< in the segment, in address order
    block* next = nullptr;
    std::uint32_t index = 0;  ///< its own, in the table
    std::uint32_t events = 0; ///< number that its reuse still waits for
    bool allocated = false;
    bool pending = false;
    std::vector<stream_handle> uses{}; ///< other streams
    std::shared_ptr<c10::GatheredContext> context{};

    [[nodiscard]] bool split() const noexcept { return previous != nullptr || next != nullptr; }
};

class block_table {
  public:
    /// Returns: a fresh block, in no list. Throws: `std::bad_alloc`, changing nothing.
    block* create() {
        if (spare_.empty()) {
            spare_.reserve((chunks_.size() + 1) * chunk);
            chunks_.push_back(std::make_unique<block[]>(chunk));
            block* const fresh = chunks_.back().get();
            for (std::uint32_t i = chunk; i-- > 0;) {
                fresh[i].index = static_cast<std::uint32_t>((chunks_.size() - 1) * chunk) + i;
                spare_.push_back(fresh + i);
            }
        }
        block* const b = spare_.back();
        spare_.pop_back();
        return b;
    }

    /// Requires: `b` is in no list. Never needs memory.
    void destroy(block* b) noexcept {
        if (b->context) b->context.reset();
        b->uses.clear();
        b->slot = nullptr;
        b->segment = nullptr;
        b->previous = b->next = nullptr;
        b->events = 0;
        b->allocated = b->pending = false;
        spare_.push_back(b);
    }

    /// Effects: `b` is live. Throws: `std::bad_alloc`, changing nothing.
    void enter(block* b) { live_.insert(to_address(b->ptr), b->index); }
    void leave(const block* b) noexcept { live_.erase(to_address(b->ptr)); }

    /// Returns: the live block that starts at p, or null.
    [[nodiscard]] block* find(const void* p) const noexcept {
        const auto index = live_.find(to_address(p));
        return index ? &chunks_[*index / chunk][*index % chunk] : nullptr;
    }

    [[nodiscard]] std::size_t live() const noexcept { return live_.size(); }

    template <class F>
    void for_each_live(F&& f) const {
        live_.for_each([&](std::uint64_t, std::uint32_t i) { f(chunks_[i / chunk][i % chunk]); });
    }

  private:
    static constexpr std::uint32_t chunk = 512;

    std::vector<std::unique_ptr<block[]>> chunks_;
    std::vector<block*> spare_; ///< has room for all blocks there are
    pointer_map live_;
};

} // namespace tenure::torch
