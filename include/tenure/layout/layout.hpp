#pragma once

/// \file
/// `tenure::layout::layout`: where in a range does a block go? Pure arithmetic on a 48-bit space; no CUDA, no
/// streams, no locks.
///
/// A layout manages any number of disjoint *ranges*, added and removed at run time. Each range is tiled exactly by
/// *blocks*, free or used. Every free block carries a *domain*, a small number whose meaning belongs to the caller
/// (ordering uses: "free for everybody", "free for stream 7 only"). The layout promises only that domains are kept
/// apart:
///
///   1. Blocks tile each range exactly, in address order; no two blocks overlap.
///   2. Two neighbouring free blocks are merged if and only if they have the same domain (as far as the layout merges
///      at all: a buddy merges buddies, a slab its slots).
///   3. `allocate` takes memory only from free blocks whose domain is among those asked for.
///   4. If the layout has a free block that could hold the request under its own rounding, in one of those domains,
///      `allocate` finds it: no false "no space".
///   5. If free neighbours of domains asked for could hold it only together, `allocate_across` finds them.
///   6. Sums equal counters: `free_bytes() + used_bytes() == total_bytes()`.
///
/// Blocks are named by a `block_id`, dense and reused, so that callers keep side tables indexed by it. An id is valid
/// from the `allocate` that returned it to its `deallocate`.
///
/// Failure of host memory: `add`, `allocate` and `allocate_across` may need host memory for nodes and throw `std::bad_alloc`, leaving
/// everything as it was; `deallocate`, `recolor` and `remove` never need any.
///
/// Thread-safety: thread-compatible (externally synchronised).

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tenure::layout {

using address = std::uint64_t; ///< bytes, < 2^48
using domain = std::uint16_t;
using block_id = std::uint32_t;

inline constexpr block_id no_block = std::numeric_limits<block_id>::max();

/// Granule of all layouts, in bytes: sizes and addresses of blocks are multiples of it.
inline constexpr std::size_t granule = 512;

/// One end of the space of a layout, in bytes.
inline constexpr address space_end = address{1} << 48;

/// Returns: whether d is among `domains`, which are few.
[[nodiscard]] constexpr bool is_in(domain d, std::span<const domain> domains) noexcept {
    return std::find(domains.begin(), domains.end(), d) != domains.end();
}

/// A range to be added, or one that is wholly free. Bytes.
struct range {
    address base = 0;
    std::size_t size = 0;
    friend bool operator==(const range&, const range&) = default;
};

/// How large a range must be, and how aligned, for a request to fit in it. Bytes.
struct range_request {
    std::size_t size = 0;
    std::size_t alignment = 0;
};

/// One block, as `for_each_block` shows it.
struct block_view {
    block_id id = no_block; ///< `no_block` where the layout has no id for it (free space of some layouts)
    address offset = 0;
    std::size_t size = 0;
    bool free = false;
    domain color = 0; ///< meaningful when free
};

namespace detail {
struct range_visitor {
    void operator()(const range&) const {}
};
struct block_visitor {
    void operator()(const block_view&) const {}
};
} // namespace detail

/// | expression | effect |
/// |---|---|
/// | `L::rounded(n, a)` | bytes that a block for n bytes at alignment a takes; saturates, never wraps |
/// | `L::range_for(n, a, preferred)` | the range to add so that this request surely fits; at least `preferred` bytes where that makes sense |
/// | `l.add(r, d)` | adds a range, one free block of domain d. Requires: granule-aligned, inside the space, disjoint from all others |
/// | `l.remove(base)` | removes the range that starts at base if it is wholly free (any domains); returns whether it was |
/// | `l.allocate(n, a, domains)` | a block for n >= 1 bytes at alignment a, or `no_block` |
/// | `l.allocate_across(n, a, domains, d)` | the same, from the smallest run of free neighbours of these domains that holds it together; what is left of each keeps its domain, or becomes d where all of it must be of one |
/// | `l.deallocate(id, d)` | the block becomes free with domain d and merges by rule 2. Requires: valid id |
/// | `l.recolor(from, to)` | every free block of `from` becomes `to`, merging |
/// | `l.offset(id)`, `l.size(id)` | of a used block, bytes; size is as rounded, or more where the layout says so |
/// | `l.free_bytes(d)`, `l.free_bytes()`, `l.used_bytes()`, `l.total_bytes()` | sums |
/// | `l.largest_free(domains)` | bytes of the largest free block there |
/// | `l.for_each_free_range(f)` | f(range) for each range that is wholly free (any domains); f must not change the layout |
/// | `l.for_each_block(f)` | f(block_view), ranges in address order, blocks in address order |
/// | `l.validate()` | whether all invariants hold; linear |
template <class L>
concept layout = std::default_initializable<L> &&
    requires(L& l, const L& cl, std::size_t n, range r, address base, domain d,
             std::span<const domain> domains, block_id id, detail::range_visitor on_range,
             detail::block_visitor on_block) {
    { L::rounded(n, n) }
    noexcept->std::same_as<std::size_t>;
    { L::range_for(n, n, n) }
    noexcept->std::same_as<range_request>;
    {l.add(r, d)};
    { l.remove(base) }
    noexcept->std::same_as<bool>;
    { l.allocate(n, n, domains) } -> std::same_as<block_id>;
    { l.allocate_across(n, n, domains, d) } -> std::same_as<block_id>;
    { l.deallocate(id, d) }
    noexcept;
    { l.recolor(d, d) }
    noexcept;
    { cl.offset(id) }
    noexcept->std::same_as<address>;
    { cl.size(id) }
    noexcept->std::same_as<std::size_t>;
    { cl.free_bytes() }
    noexcept->std::same_as<std::size_t>;
    { cl.free_bytes(d) }
    noexcept->std::same_as<std::size_t>;
    { cl.used_bytes() }
    noexcept->std::same_as<std::size_t>;
    { cl.total_bytes() }
    noexcept->std::same_as<std::size_t>;
    { cl.largest_free(domains) }
    noexcept->std::same_as<std::size_t>;
    {cl.for_each_free_range(on_range)};
    {cl.for_each_block(on_block)};
    { cl.validate() }
    noexcept->std::same_as<bool>;
};

} // namespace tenure::layout
