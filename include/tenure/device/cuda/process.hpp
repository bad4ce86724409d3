#pragma once

/// \file
/// Whether this process can still talk to the driver: `process_state()`.
///
///     ok  --fork-->  no_device       in the child: the parent's context cannot be used there
///     ok  --exit-->  shutting_down   once exit has come to what was made before CUDA started
///
/// In both cases CUDA answers with an error at best, and crashes at worst, while destructors of pools still want to
/// give memory back. So the models of a device look here first and make no call at all.
///
/// Exit runs handlers and destructors in the reverse order of their registration. `watch_process` is called when a
/// device is made, which is after CUDA has started: what was made later than the first device (its pools, too, if they
/// are function statics) is destroyed before the state changes and may call the driver; what was made earlier finds
/// the state changed; CUDA's own teardown comes after it.
///
/// Cost: one relaxed load. Thread-safety: thread-safe.

#include <tenure/core/status.hpp>

#include <pthread.h>

#include <atomic>
#include <cstdlib>

namespace tenure::cuda {

namespace detail {
inline std::atomic<status> process_state{status::ok};
} // namespace detail

/// Returns: `ok`, or what a call to the device is to answer instead of being made.
inline status process_state() noexcept {
    return detail::process_state.load(std::memory_order_relaxed);
}

/// Effects: from now on the end of this process, and a fork of it, are noticed. Requires: CUDA has started.
inline void watch_process() noexcept {
    static const bool watching = [] {
        (void)std::atexit([] { detail::process_state = status::shutting_down; });
        (void)pthread_atfork(nullptr, nullptr, [] { detail::process_state = status::no_device; });
        return true;
    }();
    static_cast<void>(watching);
}

} // namespace tenure::cuda
