#pragma once

/// \file
/// Policies by name: what `policy=` may say, the options of each, and how an arena with it is made.
///
/// Which there are says `../policies/with_policy.hpp`.

#include "arena_memory.hpp"
#include "options.hpp"

#include <tenure/device/device.hpp>
#include <tenure/policy/caching_options.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace tenure::torch {

[[nodiscard]] const char* policy_names() noexcept;

/// Throws: `std::invalid_argument` if there is no such policy, or it has no such option. Touches no device.
void check_policy(const policy_choice& choice);

/// Returns: an arena of at most `max` bytes with this policy. `configured`: what `caching` starts from.
/// Throws: `std::invalid_argument`, and what the arena's construction throws.
/// Instantiated for the devices that a program has in a file of its own, since every policy is in it.
template <device Device>
std::unique_ptr<arena_memory> make_arena_memory(const policy_choice& choice,
                                                const caching_options& configured, Device& device,
                                                const std::string& name, std::size_t max);

} // namespace tenure::torch
