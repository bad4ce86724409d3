#pragma once

/// \file
/// `holding_resource`: a pool that can be asked for what it holds, without buying, and in batches. What a front end
/// needs of the pool behind it. `holding<Pool>`: these calls, once for all pools.
///
/// | expression | effect |
/// |---|---|
/// | `r.try_allocate_held(s, n, a, out)` | noexcept: up to `out.size()` blocks as `try_allocate(s, n, a)` gives them, from memory that the pool holds and that the stream may use at once. Nothing is waited for, no memory is asked of the device or given back to it. Returns the number of blocks written to `out`; 0 on a capturing stream |
/// | `r.try_allocate_sync_held(n, a, out)` | noexcept: the same, as `allocate_sync(n, a)` gives them |
/// | `r.release_batch(blocks)` | noexcept: `release` of each, under one lock. Names no stream to the device: the streams of the blocks may be gone |
/// | `r.block_bytes(p)` | noexcept: bytes that the live block takes, as rounded; 0 if there is none |

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/resource/resource.hpp>

#include <concepts>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>

namespace tenure {

/// A block and the bytes that it takes, as rounded.
struct held_block {
    void* pointer = nullptr;
    std::size_t bytes = 0;
};

/// A resource whose blocks may be held beyond their free, see above.
template <class R>
concept holding_resource = resource<R> &&
    requires(R& r, const R& cr, stream_handle s, std::size_t n, std::size_t a, const void* p,
             std::span<held_block> out, std::span<void* const> blocks) {
    { r.try_allocate_held(s, n, a, out) }
    noexcept->std::same_as<std::size_t>;
    { r.try_allocate_sync_held(n, a, out) }
    noexcept->std::same_as<std::size_t>;
    { r.release_batch(blocks) }
    noexcept;
    { cr.block_bytes(p) }
    noexcept->std::same_as<std::size_t>;
};

/// A base of pools. `Pool` derives from it, makes it a friend, and has, beside a `mutex_`:
///
/// | expression | effect |
/// |---|---|
/// | `p.held_request(s, sync, n, a)` | noexcept: an `optional` request; none where such a stream is served nothing. No lock is held here; it is at all the rest |
/// | `p.begin_held(q)` | whether the request can be served; may throw `std::bad_alloc` |
/// | `p.search(q)` | a live block from what the pool holds, or null; may throw `std::bad_alloc` |
/// | `p.fits_within(q, most)` | noexcept: whether `search` would cut the block from a free one of at most `most` bytes; false where that is not known |
/// | `p.end_held(q)` | noexcept: the end of a call that named a stream |
/// | `p.size_of_live(p)` | noexcept: bytes of a live block, as rounded; 0 if there is none |
/// | `p.look_ahead(blocks)` | noexcept: these will be released now: a chance to fetch what that reads |
/// | `p.release_locked(p)` | noexcept: `release`, but returns what is wrong |
template <class Pool>
class holding {
  public:
    /// See `holding_resource`.
    std::size_t try_allocate_held(stream_handle stream, std::size_t bytes, std::size_t alignment,
                                  std::span<held_block> out) noexcept {
        return take_held(stream, false, bytes, alignment, out);
    }

    /// The same, but one block, and only if the free block that it is cut from has at most `most` bytes; null where the
    /// pool cannot tell.
    void* try_allocate_held_within(stream_handle stream, std::size_t bytes, std::size_t alignment,
                                   std::size_t most) noexcept {
        held_block b;
        return take_held(stream, false, bytes, alignment, {&b, 1}, most) != 0 ? b.pointer : nullptr;
    }

    std::size_t try_allocate_sync_held(std::size_t bytes, std::size_t alignment,
                                       std::span<held_block> out) noexcept {
        return take_held(default_stream, true, bytes, alignment, out);
    }

    /// Reports the last that was wrong.
    void release_batch(std::span<void* const> blocks) noexcept {
        deallocate_result last = freed{};
        {
            const std::lock_guard lock(self().mutex_);
            self().look_ahead(blocks);
            for (void* const p : blocks)
                if (deallocate_result r = self().release_locked(p); !r) last = std::move(r);
        }
        if (!last) report_misuse(last.error());
    }

    [[nodiscard]] std::size_t block_bytes(const void* p) const noexcept {
        const std::lock_guard lock(self().mutex_);
        return self().size_of_live(p);
    }

  protected:
    ~holding() = default;

  private:
    Pool& self() noexcept { return static_cast<Pool&>(*this); }
    const Pool& self() const noexcept { return static_cast<const Pool&>(*this); }

    std::size_t take_held(stream_handle stream, bool sync, std::size_t bytes, std::size_t alignment,
                          std::span<held_block> out, std::size_t most = no_limit) noexcept {
        if (bytes == 0 || bytes > max_block_bytes || !is_power_of_two(alignment) || alignment > max_alignment)
            return 0;
        auto q = self().held_request(stream, sync, bytes, alignment);
        if (!q) return 0;
        const std::lock_guard lock(self().mutex_);
        std::size_t n = 0;
        bool begun = false; // only then is the request's stream known to the pool
        try {
            if (!self().begin_held(*q)) return 0;
            begun = true;
            if (most != no_limit && !self().fits_within(*q, most)) out = {};
            for (; n < out.size(); ++n) {
                void* const p = self().search(*q);
                if (p == nullptr) break;
                out[n] = {p, self().size_of_live(p)};
            }
        } catch (...) { // host memory: what there is so far
        }
        if (begun) self().end_held(*q);
        return n;
    }
};

} // namespace tenure
