#include "comparison.hpp"
#include "decimals.hpp"

#include <tenure/core/units.hpp>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

namespace {

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

/// "64471 blocks", or how many were wrong.
std::string verdict(const std::optional<verification>& v) {
    if (!v) return "-";
    if (v->good()) return std::to_string(v->blocks) + " blocks";
    return std::to_string(v->mismatches.size()) + (v->more ? "+" : "") + " WRONG";
}

std::vector<column> columns(const comparison& rows, bool with_peers) {
    const auto any = [&rows](auto&& of) { return std::any_of(rows.begin(), rows.end(), of); };
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
        {"warm", false,
         [](const comparison_row& r) {
             return r.result.warm_share ? decimals(*r.result.warm_share * 100, 2) + "%" : std::string("-");
         }},
    };
    if (any([](const comparison_row& r) { return r.on_gpu(); }))
        all.push_back({"modelled ms", false, [](const comparison_row& r) {
                           return milliseconds(static_cast<double>(r.result.times.total().modelled.count()) /
                                               1000);
                       }});
    all.push_back(
        {"ns/call", false, [](const comparison_row& r) { return decimals(r.result.ns_per_op, 0); }});
    all.push_back(
        {"refused", false, [](const comparison_row& r) { return std::to_string(r.result.oom_count); }});
    if (any([](const comparison_row& r) { return r.result.verified.has_value(); }))
        all.push_back(
            {"verified", false, [](const comparison_row& r) { return verdict(r.result.verified); }});
    if (!with_peers) return all;
    if (any([](const comparison_row& r) { return r.peer && r.peer->recorded; }))
        all.push_back({"| as recorded", false, [](const comparison_row& r) {
                           return r.peer ? against(r.peer->recorded, r.needed.live) : std::string("-");
                       }});
    if (!any([](const comparison_row& r) {
            return r.peer && (r.peer->native || r.peer->expandable || r.peer->malloc_async);
        }))
        return all;
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

struct head {
    std::string text;
    bool left;
};

/// Returns: the lines below their heads, columns aligned. `gap(i)`: whether a blank line stands before line i.
template <class Gap>
std::string render(const std::vector<head>& heads, const std::vector<std::vector<std::string>>& lines,
                   Gap gap) {
    std::vector<std::size_t> widths;
    for (std::size_t i = 0; i < heads.size(); ++i) {
        widths.push_back(heads[i].text.size());
        for (const std::vector<std::string>& line : lines) widths[i] = std::max(widths[i], line[i].size());
    }
    std::string text;
    std::string line;
    for (std::size_t i = 0; i < heads.size(); ++i) append(line, heads[i].text, widths[i], heads[i].left);
    finish(text, std::move(line));
    for (std::size_t r = 0; r < lines.size(); ++r) {
        if (gap(r)) text += "\n";
        line.clear();
        for (std::size_t i = 0; i < heads.size(); ++i) append(line, lines[r][i], widths[i], heads[i].left);
        finish(text, std::move(line));
    }
    return text;
}

} // namespace

std::string to_table(const comparison& rows) {
    const bool with_peers =
        std::any_of(rows.begin(), rows.end(), [](const comparison_row& r) { return r.peer.has_value(); });
    const std::vector<column> shown = columns(rows, with_peers);
    std::vector<head> heads;
    for (const column& c : shown) heads.push_back({c.head, c.left});
    std::vector<std::vector<std::string>> cells;
    for (const comparison_row& row : rows) {
        std::vector<std::string>& line = cells.emplace_back();
        for (const column& c : shown) line.push_back(c.cell(row));
    }
    // A little air between traces lets the eye compare policies.
    std::string text =
        render(heads, cells, [&](std::size_t r) { return r != 0 && rows[r].trace != rows[r - 1].trace; });
    const bool measured = std::any_of(rows.begin(), rows.end(), [](const comparison_row& r) {
        return r.peer && (r.peer->native || r.peer->expandable || r.peer->malloc_async);
    });
    if (measured) {
        text += "\nThe columns behind the bar: what PyTorch's allocators reserved for the same programs on "
                "an H200, and "
                "its ratio to the\nlive peak.\n";
    }
    return text;
}

std::string to_cost_table(const comparison& rows) {
    call_times all;
    for (const comparison_row& row : rows) all.add(row.result.times);
    const auto us = [](double ns) { return decimals(ns / 1000, 2); };
    std::vector<std::vector<std::string>> lines;
    std::vector<sim::call> kinds;
    for (const auto& [of, time] : all.rows()) {
        const double modelled = static_cast<double>(time.modelled.count()) / static_cast<double>(time.count);
        const double median = time.times.median_ns();
        lines.push_back({std::string(sim::to_string(of.kind)) + (of.growing ? " (growing)" : ""),
                         of.bytes == 0 ? "-" : format_bytes(of.bytes), std::to_string(time.count), us(median),
                         us(modelled), modelled > 0 ? decimals(median / modelled, 2) : "-",
                         milliseconds(static_cast<double>(time.real.count()) / 1000)});
        kinds.push_back(of.kind);
    }
    return render({{"driver call", true},
                   {"bytes up to", false},
                   {"count", false},
                   {"median us", false},
                   {"modelled us", false},
                   {"median/modelled", false},
                   {"total ms", false}},
                  lines, [&](std::size_t r) { return r != 0 && kinds[r] != kinds[r - 1]; });
}

} // namespace tenure::cli
