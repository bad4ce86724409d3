#pragma once

/// \file
/// A live block that moves from one pool to another of the same device, together with the memory under it.
///
///     pool A   |--- block p, all of a segment ---|     offer(p)  -->  moving_block
///     pool B                                           accept(m): the block is live here, too
///     pool A                                           let_go(p): and here not any more
///
/// Only whole segments change owners, so only a block that fills one can move. The bytes stay where they are, and what is
/// in them goes along; work on the block goes on undisturbed.
///
/// Thread-safety: plain values are thread-compatible; the pools' members thread-safe.

#include <tenure/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tenure {

/// Why a block cannot move.
enum class move_refusal : std::uint8_t {
    not_supported, ///< a pool involved cannot part with memory under live blocks, or take such memory in
    not_live,      ///< no live block starts there
    shares_memory, ///< its segment, or physical handles, hold other blocks or free memory, too
    in_use,        ///< other streams use it, or a captured graph does
    over_limit,    ///< the new owner, or a level above it, has no room; see `meter::last_refusal`
    host_memory,   ///< there was none
    device,        ///< it did not wipe what lies around the block
};

constexpr const char* to_string(move_refusal r) noexcept {
    switch (r) {
    case move_refusal::not_supported: return "not_supported";
    case move_refusal::not_live: return "not_live";
    case move_refusal::shares_memory: return "shares_memory";
    case move_refusal::in_use: return "in_use";
    case move_refusal::over_limit: return "over_limit";
    case move_refusal::host_memory: return "host_memory";
    case move_refusal::device: return "device";
    }
    return "unknown";
}

/// Sizes in bytes.
struct moving_block {
    std::uint64_t base = 0;       ///< of the segment, and the block's address
    std::size_t size = 0;         ///< of both
    std::uint64_t allocation = 0; ///< what the device returned
    std::size_t allocated = 0;    ///< what the device was asked for
    std::size_t requested = 0;    ///< of the block
    std::uint64_t stream_id = 0;  ///< of the block's allocation
    bool sync = false;            ///< it was allocated for every stream at once
};

/// | expression | effect |
/// |---|---|
/// | `p.offer(q)` | what moves if the block at q does, or why it cannot. Nothing changes |
/// | `p.accept(m)` | the block is live here. Returns whether it is: a layout may have no place for it. Throws `std::bad_alloc` |
/// | `p.let_go(q)` | the block and its segment are not here any more. Requires: `offer(q)` has a value, and nobody has used q through this pool since |
template <class P>
concept moves_blocks = requires(P& p, const P& cp, void* q, const moving_block& m) {
    { cp.offer(q) }
    noexcept->std::same_as<result<moving_block, move_refusal>>;
    { p.accept(m) } -> std::same_as<bool>;
    { p.let_go(q) }
    noexcept;
};

} // namespace tenure
