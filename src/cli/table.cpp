#include "comparison.hpp"

#include <tenure/core/units.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

namespace {

std::string decimals(double n, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, n);
    return text;
}

std::string milliseconds(double us) {
    return decimals(us / 1000.0, us < 1e6 ? 2 : 0);
}

/// "3.36 GiB 1.104": bytes, and how they compare with what lived.
std::string against(const std::optional<std::uint64_t>& reserved, std::uint64_t live) {
    if (!reserved) return "-";
    if (live == 0) return format_bytes(*reserved);
    return format_bytes(*reserved) + " " +
           decimals(static_cast<double>(*reserved) / static_cast<double>(live), 3);
}

struct column {
    std::string head;
    bool left;
    std::string (*cell)(const comparison_row&);
};

std::vector<column> columns(bool with_peers) {
    std::vector<column> all{
        {"trace", true, [](const comparison_row& r) { return r.trace; }},
        {"policy", true, [](const comparison_row& r) { return r.policy; }},
        {"live peak", false, [](const comparison_row& r) { return format_bytes(r.result.live_peak); }},
        {"reserved peak", false,
         [](const comparison_row& r) { return format_bytes(r.result.reserved_peak); }},
        {"ratio", false,
         [](const comparison_row& r) {
             return r.result.live_peak == 0 ? std::string("-") : decimals(r.result.ratio(), 3);
         }},
        {"segments", false, [](const comparison_row& r) { return std::to_string(r.result.segments); }},
        {"driver calls", false,
         [](const comparison_row& r) {
             return std::to_string(
                 std::accumulate(r.result.driver_calls.begin(), r.result.driver_calls.end(), std::uint64_t{0},
                                 [](std::uint64_t sum, const auto& c) { return sum + c.second; }));
         }},
        {"driver ms", false, [](const comparison_row& r) { return milliseconds(r.result.driver_us); }},
        {"ns/call", false, [](const comparison_row& r) { return decimals(r.result.ns_per_op, 0); }},
        {"refused", false, [](const comparison_row& r) { return std::to_string(r.result.oom_count); }},
    };
    if (!with_peers) return all;
    all.push_back({"| torch native", false, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->native, r.needed.live) : std::string("-");
                   }});
    all.push_back({"torch expandable", false, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->expandable, r.needed.live) : std::string("-");
                   }});
    all.push_back({"cudaMallocAsync", false, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->malloc_async, r.needed.live) : std::string("-");
                   }});
    return all;
}

void append(std::string& line, const std::string& cell, std::size_t width, bool left) {
    if (!line.empty()) line += "  ";
    const std::string padding(width - cell.size(), ' ');
    line += left ? cell + padding : padding + cell;
}

void finish(std::string& text, std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
}

} // namespace

std::string to_table(const comparison& rows) {
    const bool with_peers =
        std::any_of(rows.begin(), rows.end(), [](const comparison_row& r) { return r.peer.has_value(); });
    const std::vector<column> shown = columns(with_peers);

    std::vector<std::vector<std::string>> cells;
    std::vector<std::size_t> widths;
    for (const column& c : shown) widths.push_back(c.head.size());
    for (const comparison_row& row : rows) {
        std::vector<std::string>& line = cells.emplace_back();
        for (std::size_t i = 0; i < shown.size(); ++i) {
            line.push_back(shown[i].cell(row));
            widths[i] = std::max(widths[i], line.back().size());
        }
    }

    std::string text;
    std::string line;
    for (std::size_t i = 0; i < shown.size(); ++i) append(line, shown[i].head, widths[i], shown[i].left);
    finish(text, std::move(line));
    for (std::size_t r = 0; r < cells.size(); ++r) {
        // A little air between traces lets the eye compare policies.
        if (r != 0 && rows[r].trace != rows[r - 1].trace) text += "\n";
        line.clear();
        for (std::size_t i = 0; i < shown.size(); ++i) append(line, cells[r][i], widths[i], shown[i].left);
        finish(text, std::move(line));
    }
    if (with_peers) {
        text += "\nThe columns behind the bar: what PyTorch's allocators reserved for the same programs on "
                "an H200, and "
                "its ratio to the\nlive peak.\n";
    }
    return text;
}

} // namespace tenure::cli
