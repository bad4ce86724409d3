#pragma once

/// \file
/// `tenure top`: the arenas of running processes, from the pages that they publish (`tenancy/published_page.hpp`).
///
/// Pages of processes that have died are taken away when they are come across: the pid in the name is not alive, or was
/// started at another time. A page of another pid namespace, where pids mean something else, is left alone.

#include "compare.hpp"

#include <tenure/tenancy/published_page.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenure::cli {

/// The command line, word for word.
struct top_options {
    std::uint64_t pid = 0; ///< 0: all processes that publish
    bool once = false;
    bool json = false;
    double interval = 1; ///< seconds
    std::string folder = page_folder();
};

/// Returns: the pages in `folder` of processes that are alive, of `pid` alone unless it is 0, by pid.
/// Effects: takes stale ones away. Throws: `usage_error` if the folder cannot be read.
std::vector<page_picture> read_pages(const std::string& folder, std::uint64_t pid);

/// Returns: a table of one process's arenas. `before`: the same process a while ago, for rates.
std::string to_text(const page_picture& now, const std::optional<page_picture>& before);

/// Returns: `all_completed`. Throws: `usage_error` if there is nothing to show.
exit_code top(const top_options& options);

} // namespace tenure::cli
