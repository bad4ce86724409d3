#include "terminal.hpp"

#include <algorithm>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tenure::cli {

namespace {

bool begins_character(char c) noexcept {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

/// Returns: how many rows of a terminal the line takes.
std::size_t rows_of(std::string_view line, std::size_t columns) noexcept {
    return columns == 0 ? 1 : std::max<std::size_t>((width_of(line) + columns - 1) / columns, 1);
}

} // namespace

terminal_size size_of_terminal(int descriptor) noexcept {
    winsize size{};
    if (::isatty(descriptor) != 1 || ::ioctl(descriptor, TIOCGWINSZ, &size) != 0) return {};
    return {size.ws_col, size.ws_row};
}

std::size_t width_of(std::string_view text) noexcept {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string shortened(std::string_view text, std::size_t room) {
    if (width_of(text) <= room) return std::string(text);
    std::size_t end = 0;
    for (std::size_t left = room - 3; end < text.size(); ++end)
        if (begins_character(text[end]) && left-- == 0) break;
    return std::string(text.substr(0, end)) + "...";
}

std::string first_screen(std::string_view text, terminal_size size) {
    if (size.rows == 0) return std::string(text);
    // The cursor stands in the row below the last.
    const std::size_t room = std::max<std::size_t>(size.rows, 2) - 1;
    std::size_t rows = 0;
    std::size_t lines = 0;
    std::size_t kept = 0; // where the lines end behind which there is room for one more
    std::size_t lines_kept = 0;
    for (std::size_t at = 0; at < text.size(); ++lines) {
        const std::size_t end = std::min(text.find('\n', at), text.size() - 1);
        rows += rows_of(text.substr(at, end - at), size.columns);
        at = end + 1;
        if (rows >= room) continue;
        kept = at;
        lines_kept = lines + 1;
    }
    if (rows <= room) return std::string(text);
    return std::string(text.substr(0, kept)) + "... and " + std::to_string(lines - lines_kept) +
           " lines more\n";
}

} // namespace tenure::cli
