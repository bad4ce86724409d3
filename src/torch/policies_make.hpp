#pragma once

/// \file
/// What `policies.hpp` declares. Included where it is instantiated for a device.

#include "policies.hpp"

#include "../policies/with_policy.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace tenure::torch {

template <device Device>
std::unique_ptr<arena_memory> make_arena_memory(const policy_choice& choice,
                                                const caching_options& configured, Device& device,
                                                const std::string& name, std::size_t max) {
    return policies::with_policy(
        choice, configured,
        [&]<template <class> class Policy>(const auto& options) -> std::unique_ptr<arena_memory> {
            return std::make_unique<arena_memory_of<Policy, Device>>(device, name, max, options);
        });
}

inline void check_policy_options(const policy_choice& choice) {
    policies::with_policy(choice, {}, []<template <class> class Policy>(const auto&) {});
}

} // namespace tenure::torch
