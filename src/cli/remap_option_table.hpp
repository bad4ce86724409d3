#pragma once

/// \file
/// The options of `remap_pool`, as a command line sees them.

#include "option_entry.hpp"

#include <tenure/policy/remap/options.hpp>

#include <string_view>
#include <vector>

namespace tenure::cli {

inline const std::vector<option_entry<remap_options>>& remap_option_table() {
    using options = remap_options;
    static const std::vector<option_entry<options>> table{
        {"tight", "on|off",
         "start from small handles: less is held, growing costs more; to be given first (off)",
         [](options& o, std::string_view text) { o = is_on(text) ? options{}.tight() : options{}; }},
        bytes_option("least_handle_bytes", &options::least_handle_bytes, "the least size of large handles"),
        bytes_option("most_handle_bytes", &options::most_handle_bytes, "the most"),
        count_option("handles_per_pool", &options::handles_per_pool,
                     "a handle is at most this part of the pool"),
        count_option("handles_per_request", &options::handles_per_request,
                     "what is bought for one request may come in handles this part of it; 0: the size does "
                     "not matter"),
        count_option("purchases_per_pool", &options::purchases_per_pool,
                     "at least this part of the pool is bought at once; 0: what is missing"),
        bytes_option("least_purchase_bytes", &options::least_purchase_bytes, "and at least this much"),
        bytes_option("small_handle_bytes", &options::small_handle_bytes, "what small homes grow by"),
        count_option("slack_divisor", &options::slack_divisor,
                     "what the pool may hold over its peak: peak / this"),
        bytes_option("worth_showing_bytes", &options::worth_showing_bytes,
                     "what a handle shown again must save"),
        switch_option("show_in_order", &options::show_in_order,
                      "show handles that were bought one after the other, not few that just do"),
        count_option("patience_us", &options::patience_us,
                     "wait so long for other streams before that is exceeded"),
        count_option("max_views", &options::max_views, "views kept"),
        bytes_option("mark_bytes", &options::mark_bytes, "freed on one stream between two events on it"),
        switch_option("release_on_oom", &options::release_on_oom, "wait for the device before failing"),
        switch_option("synchronize_on_oom", &options::synchronize_on_oom,
                      "wait for other streams before failing"),
    };
    return table;
}

} // namespace tenure::cli
