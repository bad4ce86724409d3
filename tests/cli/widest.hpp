#pragma once

/// \file
/// `widest`: how wide a text is that a terminal shows.

#include "cli/terminal.hpp"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace tenure::test {

/// Returns: characters in the widest line of the text, whose last one need not be ended.
inline std::size_t widest(std::string_view text) {
    std::size_t most = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        most = std::max(most, cli::width_of(text.substr(at, end - at)));
        at = end + 1;
    }
    return most;
}

} // namespace tenure::test
