#pragma once

/// \file
/// `tenure::device`: everything that touches the driver, behind one small concept.
///
/// Two models: `sim::device` (host only, deterministic, can be made to fail) and `cuda::device` (thin: no logic).
/// Policies are templates over the device, so all their code runs without a GPU.
///
/// | expression | what it does on a GPU |
/// |---|---|
/// | `d.allocate(n)` | `cudaMalloc`: `result<void*, status>` |
/// | `d.deallocate(p, n)` | `cudaFree`; waits for the whole device |
/// | `d.allocation_granularity()` | bytes: what `allocate` takes from the device is a multiple of it (2 MiB) |
/// | `d.memory()` | `cudaMemGetInfo` |
/// | `d.describe(s)` | identity of the stream (`cudaStreamGetId`, unique for the life of the process; a handle is not) and of the capture it is in. Undefined if `s` has been destroyed |
/// | `d.permanent(s)` | no driver call: whether this handle names one and the same stream for the life of the process (the legacy default stream) |
/// | `d.create_event()`, `d.destroy_event(e)` | an event without timing |
/// | `d.record(e, s)` | marks the end of the work that `s` holds now. Undefined if `s` has been destroyed |
/// | `d.query(e)` | `ok` when the marked work has passed, `not_ready` before |
/// | `d.synchronize(e)`, `d.synchronize(s)` | the host waits |
/// | `d.wait(s, e)` | later work of `s` waits for the marked work |
/// | `d.explain(f)` | fills in who limits memory here: `arena`, `used`, `min`, `max`, and `cause` |
///
/// Everything is noexcept and thread-safe. Calls that a stream capture on *another* thread would forbid
/// (`allocate`, `deallocate`, `query`, `synchronize`, all pool calls) are made in relaxed capture mode by the model
/// itself: calling them never invalidates somebody's capture. What stays forbidden even so, and answers
/// `capture_violation`: synchronising or querying what is being captured. A failed call leaves no sticky state behind
/// (the runtime's last error is cleared by the model) except where the status is `failed` or `device_lost`.

#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tenure {

struct stream_state {
    /// Unique for the life of the process, never reused; in a capture it is another one, good for that capture only
    /// (a capturing stream cannot be asked for its own).
    std::uint64_t id = 0;
    std::uint64_t capture = 0; ///< identity of the active capture the stream is in; 0: none
    [[nodiscard]] bool capturing() const noexcept { return capture != 0; }
};

/// Bytes.
struct device_memory {
    std::size_t free = 0;
    std::size_t total = 0;
};

/// What memory and streams are: the table above.
template <class D>
concept device = requires(D& d, const D& cd, void* p, std::size_t n, stream_handle s, event_handle e,
                          allocation_failure& f) {
    { d.allocate(n) }
    noexcept->std::same_as<result<void*, status>>;
    { d.deallocate(p, n) }
    noexcept->std::same_as<status>;
    { cd.allocation_granularity() }
    noexcept->std::same_as<std::size_t>;
    { d.memory() }
    noexcept->std::same_as<result<device_memory, status>>;
    { d.describe(s) }
    noexcept->std::same_as<result<stream_state, status>>;
    { cd.permanent(s) }
    noexcept->std::same_as<bool>;
    { d.create_event() }
    noexcept->std::same_as<result<event_handle, status>>;
    { d.destroy_event(e) }
    noexcept->std::same_as<status>;
    { d.record(e, s) }
    noexcept->std::same_as<status>;
    { d.query(e) }
    noexcept->std::same_as<status>;
    { d.synchronize(e) }
    noexcept->std::same_as<status>;
    { d.synchronize(s) }
    noexcept->std::same_as<status>;
    { d.wait(s, e) }
    noexcept->std::same_as<status>;
    { d.explain(f) }
    noexcept;
};

/// A device that has a clock: `d.now()`, the host's time since some moment, as `std::chrono::nanoseconds`, never less than before.
template <class D>
concept tells_time = requires(const D& cd) {
    { cd.now() } -> std::same_as<std::chrono::nanoseconds>;
};

/// A device that can wipe memory, for memory that changes hands.
///
/// | expression | what it does on a GPU |
/// |---|---|
/// | `d.own_stream()` | a stream of the device's own, made at the first call: it orders itself with no other, is never captured, and lives as long as the device |
/// | `d.fill_zero(p, n, s)` | `cudaMemsetAsync`: later work of `s` finds n bytes of zero at p. Requires: accessible memory, and all work on it over or ordered before |
/// | `d.synchronize()` | the host waits for all work of the device, as `d.deallocate` does, and harms no capture |
template <class D>
concept filling_device = device<D> && requires(D& d, void* p, std::size_t n, stream_handle s) {
    { d.own_stream() }
    noexcept->std::same_as<result<stream_handle, status>>;
    { d.fill_zero(p, n, s) }
    noexcept->std::same_as<status>;
    { d.synchronize() }
    noexcept->std::same_as<status>;
};

/// How a driver pool is made; the defaults are the driver's own.
struct pool_properties {
    std::size_t max_bytes = 0;                ///< the driver's own limit, in steps of `pool_step()`; 0: none
    std::size_t release_threshold = no_limit; ///< reserved bytes kept when the host synchronises

    /// Memory freed on one stream may serve another that stands behind the free through events.
    bool reuse_follows_events = true;
    /// The same where the work before the free has passed when it is asked for.
    bool reuse_when_passed = true;
    /// The same at once, where nothing else is left: the driver makes the other stream wait.
    bool reuse_makes_streams_wait = true;

    /// Bit i: device i may read and write the pool's memory, too. `create_pool` answers `not_supported` where it cannot.
    std::uint64_t peers = 0;
};

/// Bytes.
struct pool_memory {
    std::size_t reserved = 0;
    std::size_t used = 0;
};

/// A device that has stream-ordered driver pools (`cudaMemPool_t`).
///
/// `pool_step()`: bytes; a pool grows by multiples of it (32 MiB on an H200), so that one allocation of n bytes takes
/// at most `round_up(n, pool_step())` from the device. `allocate_from` on a capturing stream answers
/// `capture_violation` and captures nothing: an allocation node would bypass every limit.
template <class D>
concept pool_device = device<D> && requires(D& d, const D& cd, void* p, std::size_t n, stream_handle s,
                                            pool_handle pool, const pool_properties& properties) {
    { cd.pool_step() }
    noexcept->std::same_as<std::size_t>;
    { d.create_pool(properties) }
    noexcept->std::same_as<result<pool_handle, status>>;
    { d.destroy_pool(pool) }
    noexcept->std::same_as<status>;
    { d.allocate_from(pool, n, s) }
    noexcept->std::same_as<result<void*, status>>;
    { d.deallocate_to(pool, p, s) }
    noexcept->std::same_as<status>; // cudaFreeAsync
    { d.trim_pool(pool, n) }
    noexcept->std::same_as<status>;
    { d.memory_of(pool) }
    noexcept->std::same_as<result<pool_memory, status>>;
};

} // namespace tenure
