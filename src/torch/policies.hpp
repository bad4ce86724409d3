#pragma once

/// \file
/// `check_policy`: whether `policy=` and the options behind it make sense, before there is a device to make an arena on.
///
/// In a file of its own, since every policy's options are in it.

#include "options.hpp"

namespace tenure::torch {

/// Throws: `std::invalid_argument` if there is no such policy, or it has no such option. Touches no device.
void check_policy(const policy_choice& choice);

} // namespace tenure::torch
