#pragma once

/// \file
/// The options that all pools of one layout over segments have in common.

#include "policy_of.hpp"

#include <tenure/policy/pool_options.hpp>

#include <string_view>

namespace tenure::cli {

inline const std::vector<option_entry<pool_options>>& pool_option_table() {
    static const std::vector<option_entry<pool_options>> table{
        {"segment_bytes", "BYTES  what the pool grows by (256MiB)",
         [](pool_options& o, std::string_view v) { o.segment_bytes = parse_bytes(v); }},
        {"mark_bytes", "BYTES  freed on one stream between two events on it (1MiB)",
         [](pool_options& o, std::string_view v) { o.mark_bytes = parse_bytes(v); }},
        {"release_on_oom", "on|off  give free segments back before failing (on)",
         [](pool_options& o, std::string_view v) { o.release_on_oom = parse_switch(v); }},
        {"synchronize_on_oom", "on|off  wait for other streams before failing (off)",
         [](pool_options& o, std::string_view v) { o.synchronize_on_oom = parse_switch(v); }},
    };
    return table;
}

} // namespace tenure::cli
