#pragma once

/// \file
/// The policies of `policies.hpp`, erased: each is compiled once for all programs, in `bench_support`.
///
/// A call costs one indirect call more than through the concrete type, about a nanosecond; figures of `nothing`
/// show it. Where that matters (`latency`), programs use `policies.hpp` itself.

#include "support/policies.hpp"
#include "support/worlds.hpp"

#include <tenure/resource/any_resource.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cstddef>
#include <vector>

namespace bench {

/// Bytes: more than any benchmark needs, less than no limit: the limit is looked at.
inline constexpr std::size_t wide_limit = std::size_t{1} << 46;

/// A tenant whose limit is `max` bytes.
inline tenure::arena_options tenant_options(std::size_t max = wide_limit) {
    return {.name = "tenant", .max = max, .at_destruction = tenure::leftovers::release};
}

template <class Device>
struct subject {
    const char* name;
    tenure::any_resource (*make)(Device&);                         ///< the policy alone
    tenure::any_resource (*make_tenant)(Device&, std::size_t max); ///< in an arena with a limit, bytes
};

/// Returns: all policies, in the order of `for_each_policy`.
template <class Device>
const std::vector<subject<Device>>& subjects();

template <class World>
const std::vector<subject<typename World::device_type>>& subjects_for(const World&) {
    return subjects<typename World::device_type>();
}

/// The definition, for the one file that instantiates it for a device.
template <class Device>
std::vector<subject<Device>> make_subjects() {
    std::vector<subject<Device>> all;
    for_each_policy([&](auto entry) {
        using policy = decltype(entry);
        using pool = typename policy::template pool<Device>;
        using tenant = tenure::arena<policy::template pool, Device>;
        all.push_back({entry.name, [](Device& d) { return tenure::make_any_resource<pool>(d); },
                       [](Device& d, std::size_t max) {
                           return tenure::make_any_resource<tenant>(d, tenant_options(max));
                       }});
    });
    return all;
}

template <>
const std::vector<subject<idle_device>>& subjects();

} // namespace bench
