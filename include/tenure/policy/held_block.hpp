#pragma once

/// \file
/// `holding_resource`: a pool that can be asked for what it holds, without buying, and in batches. What a front end
/// needs of the pool behind it.
///
/// | expression | effect |
/// |---|---|
/// | `r.try_allocate_held(s, n, a, out)` | noexcept: up to `out.size()` blocks as `try_allocate(s, n, a)` gives them, from memory that the pool holds and that the stream may use at once. Nothing is waited for, no memory is asked of the device or given back to it. Returns the number of blocks written to `out`; 0 on a capturing stream |
/// | `r.release_batch(blocks)` | noexcept: `release` of each, under one lock. Names no stream to the device: the streams of the blocks may be gone |
/// | `r.block_bytes(p)` | noexcept: bytes that the live block takes, as rounded; 0 if there is none |

#include <tenure/resource/resource.hpp>

#include <concepts>
#include <cstddef>
#include <span>

namespace tenure {

/// A block and the bytes that it takes, as rounded.
struct held_block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
};

template <class R>
concept holding_resource = resource<R> &&
    requires(R& r, const R& cr, stream_handle s, std::size_t n, std::size_t a, const void* p,
             std::span<held_block> out, std::span<void* const> blocks) {
    { r.try_allocate_held(s, n, a, out) }
    noexcept->std::same_as<std::size_t>;
    { r.release_batch(blocks) }
    noexcept;
    { cr.block_bytes(p) }
    noexcept->std::same_as<std::size_t>;
};

} // namespace tenure
