#pragma once

/// \file
/// `status`: what a device call answered, in the few words that change what an allocator does next.

#include <cstdint>

namespace tenure {

enum class status : std::uint8_t {
    ok,
    not_ready,         ///< a query: the work has not finished yet
    out_of_memory,     ///< the device has no memory for it; not sticky
    over_limit,        ///< a meter between policy and device refused: a tenant's limit, not the device
    invalid_value,     ///< an argument the device does not know (a foreign pointer, a dead handle)
    capture_violation, ///< not allowed while a stream capture is active
    not_supported,     ///< this device lacks the feature
    no_device,         ///< no driver, no device, or not usable in this process (after a fork)
    shutting_down,     ///< the driver is unloading: late frees are silent
    device_lost,       ///< a fault has ended the context: every call fails from now on, and frees are silent
    would_deadlock,    ///< simulated device: a wait for work that nothing will ever finish
    failed,            ///< anything else
};

/// Returns: whether there is no memory for it, on the device or under a limit; giving some back may help.
constexpr bool lacks_memory(status s) noexcept {
    return s == status::out_of_memory || s == status::over_limit;
}

constexpr const char* to_string(status s) noexcept {
    switch (s) {
    case status::ok: return "ok";
    case status::not_ready: return "not_ready";
    case status::out_of_memory: return "out_of_memory";
    case status::over_limit: return "over_limit";
    case status::invalid_value: return "invalid_value";
    case status::capture_violation: return "capture_violation";
    case status::not_supported: return "not_supported";
    case status::no_device: return "no_device";
    case status::shutting_down: return "shutting_down";
    case status::device_lost: return "device_lost";
    case status::would_deadlock: return "would_deadlock";
    case status::failed: return "failed";
    }
    return "unknown";
}

/// Returns: whether the device is out of this process's reach for good. What was held from it is gone or going,
/// nothing can be given back, and nobody is to blame for that.
constexpr bool beyond_reach(status s) noexcept {
    return s == status::no_device || s == status::shutting_down || s == status::device_lost;
}

} // namespace tenure
