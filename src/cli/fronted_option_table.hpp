#pragma once

/// \file
/// The family of a pool with magazines in front of it.

#include "magazine_option_table.hpp"
#include "policy_of.hpp"

#include <vector>

namespace tenure::cli {

/// A pool with magazines in front of it, which `all` does not mean: it compares with the same pool without.
/// Requires: `of_pool` lives as long as the program.
template <template <class> class Fronted, class PoolOptions>
policy_family fronted_family_of(const char* name, const char* help,
                                const std::vector<option_entry<PoolOptions>>& of_pool) {
    static const auto table = fronted_option_table(of_pool);
    policy_family family = family_of<Fronted>(name, help, table);
    family.in_all = false;
    return family;
}

} // namespace tenure::cli
