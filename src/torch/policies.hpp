#pragma once

/// \file
/// Policies by name: what `policy=` may say, the options of each, and how an arena with it is made.
///
/// | name | what it is |
/// |---|---|
/// | `remap` | `device_pool`: `remap_pool`, or PyTorch's scheme on devices without virtual memory |
/// | `caching` | PyTorch's scheme, with the keys of `PYTORCH_ALLOC_CONF` that belong to it |
/// | `best_fit` | best fit over large segments |
/// | `async` | `cudaMallocAsync` on a pool of its own |
/// | `fronted_remap`, `fronted_caching`, `fronted_best_fit` | these with magazines of each thread in front |
///
/// Option names are those of `tenure compare`: the tables are the same.

#include "arena_memory.hpp"
#include "options.hpp"

#include <tenure/device/device.hpp>
#include <tenure/policy/caching_options.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace tenure::torch {

inline constexpr const char* policy_names =
    "remap caching best_fit async fronted_remap fronted_caching fronted_best_fit";

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
