#pragma once

/// \file
/// The options of `async_pool`.

#include "option_entry.hpp"

#include <tenure/policy/async_options.hpp>

#include <vector>

namespace tenure::cli {

inline const std::vector<option_entry<async_options>>& async_option_table() {
    using options = async_options;
    static const std::vector<option_entry<options>> table{
        bytes_option("max_bytes", &options::max_bytes, "the driver's own limit, in its steps; 0: none"),
        switch_option("reuse_follows_events", &options::reuse_follows_events,
                      "on streams that stand behind the free"),
        switch_option("reuse_when_passed", &options::reuse_when_passed,
                      "on any stream once the work before the free is over"),
        switch_option("reuse_makes_streams_wait", &options::reuse_makes_streams_wait,
                      "on a GPU: on any stream, which then waits"),
    };
    return table;
}

} // namespace tenure::cli
