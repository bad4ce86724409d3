#pragma once

/// \file
/// `tenure top`: the arenas of running processes, from the pages that they publish (`tenancy/published_page.hpp`).
///
/// Invariants:
///   1. A page is shown as that of the process that its name says, or not at all (`tenancy/page_reader.hpp`).
///   2. A process has ended when it is not alive. One that is alive and cannot be read just now is looked at again: a record
///      does not end before its process, its reader or its disk does, and only the first two are success.
///   3. A record has each picture once, so its times rise.
///
/// Pages of processes that have died are taken away when they are come across. A page of another pid namespace, where pids
/// mean something else, is left alone.

#include "compare.hpp"

#include <tenure/tenancy/page_reader.hpp>

#include <chrono>
#include <cstddef>
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

/// The pages of a folder at one time.
struct page_look {
    std::vector<page_picture> pages;  ///< by pid
    std::vector<std::uint64_t> busy;  ///< processes that have stopped in the middle of a write, or get no CPU
    std::vector<page_key> unreadable; ///< of processes that are alive
};

/// Returns: what processes that are alive show, `pid` alone unless it is 0. Effects: takes stale pages away.
/// Throws: `usage_error` if the folder cannot be read.
page_look read_pages(const std::string& folder, std::uint64_t pid);

/// Returns: a table of one process's arenas. `before`: the same process a while ago, for rates. `now_ns`: the time, since
/// 1970, to tell how old the picture is; 0: it is not told. `room`: characters in a line of the table, 0: no end; for what
/// there is none is left out, and that is said.
std::string to_text(const page_picture& picture, const std::optional<page_picture>& before,
                    std::uint64_t now_ns = 0, std::size_t room = 0);

/// Returns: `all_completed`. Throws: `usage_error` if there is nothing to show.
exit_code top(const top_options& options);

} // namespace tenure::cli
