#pragma once

/// \file
/// What a terminal shows: how much room it has, and how much of it a text takes. A text's width is its number of characters of
/// UTF-8: no name here is expected to have wider or combining ones.

#include <cstddef>
#include <string>
#include <string_view>

namespace tenure::cli {

/// In characters; 0: no end.
struct terminal_size {
    std::size_t columns = 0;
    std::size_t rows = 0;
};

/// Returns: the size now of the terminal at the descriptor; no end where there is no terminal, or it does not tell.
terminal_size size_of_terminal(int descriptor) noexcept;

/// Returns: how many characters the text has.
std::size_t width_of(std::string_view text) noexcept;

/// Returns: the text; if it has more than `room` characters, its beginning and "...", `room` in all. Requires: room >= 3.
std::string shortened(std::string_view text, std::size_t room);

/// Returns: the lines that a terminal of this size can show at once; if those are not all, the last one says how many
/// more there are. Requires: each line of the text is ended.
std::string first_screen(std::string_view text, terminal_size size);

} // namespace tenure::cli
