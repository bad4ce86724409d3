#pragma once

/// \file
/// The options of a pool with magazines in front of it: those of the pool, and those of the magazines.

#include "option_entry.hpp"

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

} // namespace tenure::cli
