#pragma once

/// \file
/// `tenure::resource`: the one interface of every policy, arena and adaptor.
///
/// Stream first, as in current CCCL. `s` is a stream, `n` bytes, `a` an alignment in bytes.
///
/// | expression | effect |
/// |---|---|
/// | `r.allocate(s, n, a)` | a block of n bytes whose first use is ordered on `s`; throws `out_of_memory`, `invalid_alignment`, `driver_error` |
/// | `r.try_allocate(s, n, a)` | the same, noexcept: `result<void*, allocation_failure>` |
/// | `r.allocate_sync(n, a)` | a block that every stream may use at once |
/// | `r.deallocate(s, p, n, a)` | noexcept: the caller's last use of p is ordered before the end of `s`; misuse goes to the misuse handler |
/// | `r.try_deallocate(s, p, n, a)` | the same; misuse is returned instead: `result<freed, misuse>` |
/// | `r.deallocate_sync(p, n, a)` | noexcept: all work on p is over |
/// | `r.release(p)` | noexcept: frees p on the stream it was allocated on, whatever its size (for C interfaces) |
/// | `r.record_use(p, s)` | noexcept: p is also used on `s`; after its free it is not handed out before the work that `s` holds at the time of the free has passed. `s` must outlive the free |
/// | `r.owns(p)` | noexcept: whether p points into a live block's start |
/// | `r.usage()` | counters, see `usage_counters` |
/// | `r.trim(keep)` | gives free memory back to the device until at most `keep` bytes are reserved, or nothing more can go; returns the bytes given back |
/// | `r.snapshot()` | segments and blocks in address order |
/// | `r.validate()` | noexcept: whether all internal invariants hold (for tests) |
///
/// Rules that hold for every model:
///   1. `allocate(s, 0)` returns null and charges nothing; deallocating null does nothing.
///   2. Any power-of-two alignment up to `max_alignment` is honoured. The same n and a are given at free.
///   3. A failing call changes nothing.
///   4. Everything is thread-safe unless the type says otherwise.
///   5. Sizes that overflow when rounded are refused, never wrapped.

#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/units.hpp>
#include <tenure/resource/usage.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tenure {

/// What a call aligns to when it says nothing: what `cudaMalloc` guarantees, in bytes.
inline constexpr std::size_t default_alignment = 256;

/// The largest alignment that a policy must honour, in bytes.
inline constexpr std::size_t max_alignment = std::size_t{1} << 30;

/// The largest block that a policy can describe, in bytes: the size of the address space that a layout spans.
inline constexpr std::size_t max_block_bytes = std::size_t{1} << 48;

/// What a successful `try_deallocate` returns.
struct freed {};

using allocate_result = result<void*, allocation_failure>;
using deallocate_result = result<freed, misuse>;

/// What memory is had from: the table above.
template <class R>
concept resource = requires(R& r, const R& cr, stream_handle s, void* p, std::size_t n, std::size_t a) {
    { r.allocate(s, n, a) } -> std::same_as<void*>;
    { r.try_allocate(s, n, a) }
    noexcept->std::same_as<allocate_result>;
    { r.allocate_sync(n, a) } -> std::same_as<void*>;
    { r.deallocate(s, p, n, a) }
    noexcept;
    { r.try_deallocate(s, p, n, a) }
    noexcept->std::same_as<deallocate_result>;
    { r.deallocate_sync(p, n, a) }
    noexcept;
    { r.release(p) }
    noexcept;
    { r.record_use(p, s) }
    noexcept;
    { cr.owns(p) }
    noexcept->std::same_as<bool>;
    { cr.usage() } -> std::same_as<usage_counters>;
    { r.trim(n) } -> std::same_as<std::size_t>;
    { cr.snapshot() } -> std::same_as<memory_snapshot>;
    { cr.validate() }
    noexcept->std::same_as<bool>;
};

/// A resource that keeps what captured graphs may replay into. `r.release_captured(capture)`: the graphs made from this
/// capture, as `device.describe` numbers it, are gone and their work is over; what was kept for them is free.
template <class R>
concept capture_resource = requires(R& r, std::uint64_t capture) {
    { r.release_captured(capture) }
    noexcept;
};

} // namespace tenure
