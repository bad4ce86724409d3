#include "text_table.hpp"

#include "terminal.hpp"

#include <algorithm>
#include <numeric>

namespace tenure::cli {

namespace {

constexpr std::size_t space_between = 2;

} // namespace

text_table::fitted text_table::fit(std::size_t room, std::size_t least) const {
    std::vector<std::size_t> widths;
    std::vector<std::size_t> shown(columns_.size());
    std::iota(shown.begin(), shown.end(), std::size_t{0});
    for (std::size_t c = 0; c < columns_.size(); ++c) {
        widths.push_back(width_of(columns_[c].head));
        for (const auto& line : lines_) widths[c] = std::max(widths[c], width_of(line[c]));
    }
    fitted result;
    const auto others = [&] { // what all but the first take
        return std::accumulate(
            shown.begin() + 1, shown.end(), std::size_t{0},
            [&](std::size_t sum, std::size_t c) { return sum + space_between + widths[c]; });
    };
    const std::size_t narrowest = least == 0 ? widths.front() : std::min(least, widths.front());
    while (room != 0 && others() + narrowest > room) {
        const auto first = std::max_element(shown.begin(), shown.end(), [&](std::size_t a, std::size_t b) {
            return columns_[a].leaves < columns_[b].leaves;
        });
        if (columns_[*first].leaves == 0) break;
        result.left_out.push_back(columns_[*first].head);
        shown.erase(first);
    }
    if (room != 0 && others() + widths.front() > room)
        widths.front() = std::max(narrowest, room - std::min(room, others()));

    const auto add_line = [&](const auto& cell) {
        std::string line;
        for (const std::size_t c : shown) {
            const std::string text =
                c == 0 ? shortened(cell(c), std::max<std::size_t>(widths[c], 3)) : cell(c);
            const std::string padding(widths[c] - std::min(widths[c], width_of(text)), ' ');
            if (c != shown.front()) line.append(space_between, ' ');
            line += columns_[c].left ? text + padding : padding + text;
        }
        line.erase(line.find_last_not_of(' ') + 1);
        result.text += line + '\n';
    };
    add_line([&](std::size_t c) { return columns_[c].head; });
    for (std::size_t i = 0; i < lines_.size(); ++i) {
        if (std::binary_search(gaps_.begin(), gaps_.end(), i)) result.text += '\n';
        add_line([&](std::size_t c) { return lines_[i][c]; });
    }
    return result;
}

} // namespace tenure::cli
