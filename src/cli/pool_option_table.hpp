#pragma once

/// \file
/// The options that all pools of one layout over segments have in common.

#include "option_entry.hpp"

#include <tenure/policy/pool_options.hpp>

#include <vector>

namespace tenure::cli {

inline const std::vector<option_entry<pool_options>>& pool_option_table() {
    using options = pool_options;
    static const std::vector<option_entry<options>> table{
        bytes_option("segment_bytes", &options::segment_bytes, "what the pool grows by"),
        bytes_option("mark_bytes", &options::mark_bytes, "freed on one stream between two events on it"),
        switch_option("release_on_oom", &options::release_on_oom, "give free segments back before failing"),
        switch_option("synchronize_on_oom", &options::synchronize_on_oom,
                      "wait for other streams before failing"),
    };
    return table;
}

} // namespace tenure::cli
