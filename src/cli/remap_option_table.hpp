#pragma once

/// \file
/// The options of `remap_pool`, as a command line sees them.

#include "policy_of.hpp"

#include <tenure/policy/remap/options.hpp>

#include <vector>

namespace tenure::cli {

const std::vector<option_entry<remap_options>>& remap_option_table();

} // namespace tenure::cli
