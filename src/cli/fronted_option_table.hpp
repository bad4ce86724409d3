#pragma once

/// \file
/// The options of a pool with magazines in front of it: those of the pool, and those of the magazines.

#include "policy_of.hpp"

#include <tenure/front/magazine_options.hpp>

#include <string_view>
#include <vector>

namespace tenure::cli {

template <class PoolOptions>
std::vector<option_entry<magazines_options<PoolOptions>>>
fronted_option_table(const std::vector<option_entry<PoolOptions>>& of_pool) {
    using options = magazines_options<PoolOptions>;
    std::vector<option_entry<options>> all;
    for (const option_entry<PoolOptions>& e : of_pool)
        all.push_back(
            {e.name, e.value, e.help, [&e](options& o, std::string_view text) { e.set(o.pool, text); }});
    for (const option_entry<magazine_options>& e :
         {switch_option("magazines", &magazine_options::enabled, "keep free blocks a thread and stream"),
          bytes_option("max_parked_bytes", &magazine_options::max_parked_bytes,
                       "what one thread keeps of a stream"),
          bytes_option("max_parked_block", &magazine_options::max_block_bytes,
                       "larger blocks go to the pool")})
        all.push_back(
            {e.name, e.value, e.help, [e](options& o, std::string_view text) { e.set(o.magazines, text); }});
    return all;
}

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
