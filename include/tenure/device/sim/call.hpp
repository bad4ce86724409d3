#pragma once

/// \file
/// `sim::call`: the kinds of call that a device is asked for, one for each expression of the device concepts
/// (the two `synchronize` are two kinds). Dense, so that counters are arrays indexed by it.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tenure::sim {

enum class call : std::uint8_t {
    allocate,
    deallocate,
    memory,
    describe,
    create_event,
    destroy_event,
    record,
    query,
    synchronize_event,
    synchronize_stream,
    synchronize_device,
    wait,
    create_pool,
    destroy_pool,
    allocate_from,
    deallocate_to,
    trim_pool,
    memory_of,
    own_stream,
    fill_zero,
    reserve_address,
    free_address,
    create_memory,
    release_memory,
    map,
    set_access,
    unmap,
};

inline constexpr std::size_t call_kinds = static_cast<std::size_t>(call::unmap) + 1;

constexpr std::size_t index(call c) noexcept {
    return static_cast<std::size_t>(c);
}

/// Returns: whether the call belongs to `vmm_device`.
constexpr bool is_vmm(call c) noexcept {
    return c >= call::reserve_address;
}

constexpr const char* to_string(call c) noexcept {
    constexpr std::array<const char*, call_kinds> names{
        "allocate",           "deallocate",   "memory",        "describe",          "create_event",
        "destroy_event",      "record",       "query",         "synchronize_event", "synchronize_stream",
        "synchronize_device", "wait",         "create_pool",   "destroy_pool",      "allocate_from",
        "deallocate_to",      "trim_pool",    "memory_of",     "own_stream",        "fill_zero",
        "reserve_address",    "free_address", "create_memory", "release_memory",    "map",
        "set_access",         "unmap"};
    return index(c) < call_kinds ? names[index(c)] : "unknown";
}

} // namespace tenure::sim
