#pragma once

/// \file
/// `world_device`: the device that the contract's suite runs on: the simulated one, or, in a program compiled with
/// TENURE_TEST_ON_GPU, a GPU that answers to the same names.

#if defined(TENURE_TEST_ON_GPU)

#include "cuda/contract/gpu_under_test.hpp"

namespace tenure::test {
using world_device = gpu_under_test;
inline constexpr bool world_is_simulated = false;
} // namespace tenure::test

#else

#include <tenure/device/sim_device.hpp>

namespace tenure::test {
using world_device = sim::device;
inline constexpr bool world_is_simulated = true;
} // namespace tenure::test

#endif
