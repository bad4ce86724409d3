#include "comparison.hpp"
#include "decimals.hpp"
#include "text_table.hpp"

#include <tenure/core/units.hpp>

#include <algorithm>
#include <numeric>
#include <optional>
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
    text_table::column shown;
    std::string (*cell)(const comparison_row&);
};

/// Says which columns there was no room for; nothing where there was.
std::string without(const std::vector<std::string>& left_out) {
    if (left_out.empty()) return {};
    std::string text = "\nFor want of width without:";
    for (const std::string& head : left_out)
        text += (&head == left_out.data() ? " " : ", ") + head.substr(head.find_first_not_of("| "));
    return text + ". A wider terminal, a pipe and --json have them.\n";
}

/// "64471 blocks", or how many were wrong.
std::string verdict(const std::optional<verification>& v) {
    if (!v) return "-";
    if (v->good()) return std::to_string(v->blocks) + " blocks";
    return std::to_string(v->mismatches.size()) + (v->more ? "+" : "") + " WRONG";
}

/// Which leave first where there is little room: what a policy costs, before what it holds and what others hold.
std::vector<column> columns(const comparison& rows, bool with_peers) {
    const auto any = [&rows](auto&& of) { return std::any_of(rows.begin(), rows.end(), of); };
    std::vector<column> all{
        {{"trace", true, 0}, [](const comparison_row& r) { return r.trace; }},
        {{"policy", true, 0}, [](const comparison_row& r) { return r.policy; }},
        {{"live peak", false, 6}, [](const comparison_row& r) { return format_bytes(r.result.live_peak); }},
        {{"reserved peak", false, 0},
         [](const comparison_row& r) { return format_bytes(r.result.reserved_peak); }},
        {{"ratio", false, 0},
         [](const comparison_row& r) {
             return r.result.live_peak == 0 ? std::string("-") : decimals(r.result.ratio(), 3);
         }},
        {{"segments", false, 12}, [](const comparison_row& r) { return std::to_string(r.result.segments); }},
        {{"driver calls", false, 11},
         [](const comparison_row& r) {
             return std::to_string(
                 std::accumulate(r.result.driver_calls.begin(), r.result.driver_calls.end(), std::uint64_t{0},
                                 [](std::uint64_t sum, const auto& c) { return sum + c.second; }));
         }},
        {{"driver ms", false, 8}, [](const comparison_row& r) { return milliseconds(r.result.driver_us); }},
        {{"warm", false, 10},
         [](const comparison_row& r) {
             return r.result.warm_share ? decimals(*r.result.warm_share * 100, 2) + "%" : std::string("-");
         }},
    };
    if (any([](const comparison_row& r) { return r.on_gpu(); }))
        all.push_back({{"modelled ms", false, 13}, [](const comparison_row& r) {
                           return milliseconds(static_cast<double>(r.result.times.total().modelled.count()) /
                                               1000);
                       }});
    all.push_back(
        {{"ns/call", false, 9}, [](const comparison_row& r) { return decimals(r.result.ns_per_op, 0); }});
    all.push_back(
        {{"refused", false, 0}, [](const comparison_row& r) { return std::to_string(r.result.oom_count); }});
    if (any([](const comparison_row& r) { return r.result.verified.has_value(); }))
        all.push_back(
            {{"verified", false, 0}, [](const comparison_row& r) { return verdict(r.result.verified); }});
    if (!with_peers) return all;
    if (any([](const comparison_row& r) { return r.peer && r.peer->recorded; }))
        all.push_back({{"| as recorded", false, 1}, [](const comparison_row& r) {
                           return r.peer ? against(r.peer->recorded, r.needed.live) : std::string("-");
                       }});
    if (!any([](const comparison_row& r) {
            return r.peer && (r.peer->native || r.peer->expandable || r.peer->malloc_async);
        }))
        return all;
    all.push_back({{"| torch native", false, 2}, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->native, r.needed.live) : std::string("-");
                   }});
    all.push_back({{"torch expandable", false, 3}, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->expandable, r.needed.live) : std::string("-");
                   }});
    all.push_back({{"cudaMallocAsync", false, 4}, [](const comparison_row& r) {
                       return r.peer ? against(r.peer->malloc_async, r.needed.live) : std::string("-");
                   }});
    return all;
}

} // namespace

std::string to_table(const comparison& rows, std::size_t room) {
    const bool with_peers =
        std::any_of(rows.begin(), rows.end(), [](const comparison_row& r) { return r.peer.has_value(); });
    const std::vector<column> all = columns(rows, with_peers);
    std::vector<text_table::column> heads;
    for (const column& c : all) heads.push_back(c.shown);
    text_table table(std::move(heads));
    for (std::size_t r = 0; r < rows.size(); ++r) {
        // A little air between traces lets the eye compare policies.
        if (r != 0 && rows[r].trace != rows[r - 1].trace) table.leave_a_gap();
        std::vector<std::string> cells;
        for (const column& c : all) cells.push_back(c.cell(rows[r]));
        table.add(std::move(cells));
    }
    const auto [lines, left_out] = table.fit(room);
    std::string text = lines;
    const bool measured = std::any_of(rows.begin(), rows.end(), [](const comparison_row& r) {
        return r.peer && (r.peer->native || r.peer->expandable || r.peer->malloc_async);
    });
    if (measured && std::find(left_out.begin(), left_out.end(), "| torch native") == left_out.end())
        text += "\nThe columns behind the bar: what PyTorch's allocators reserved for the same programs on "
                "an H200, and "
                "its ratio to the\nlive peak.\n";
    return text + without(left_out);
}

namespace {

const char* case_of(call_case met) {
    switch (met) {
    case call_case::plain: break;
    case call_case::growing: return " (growing)";
    case call_case::passed: return " (passed)";
    }
    return "";
}

} // namespace

std::string to_cost_table(const comparison& rows, std::size_t room) {
    call_times all;
    for (const comparison_row& row : rows) all.add(row.result.times);
    const auto us = [](double ns) { return decimals(ns / 1000, 2); };
    text_table table({{.head = "driver call", .left = true},
                      {.head = "bytes up to"},
                      {.head = "count", .leaves = 1},
                      {.head = "median us"},
                      {.head = "modelled us"},
                      {.head = "median/modelled", .leaves = 3}, // can be told from the two before it
                      {.head = "total ms", .leaves = 2}});
    std::optional<sim::call> kind;
    for (const auto& [of, time] : all.rows()) {
        const double modelled = static_cast<double>(time.modelled.count()) / static_cast<double>(time.count);
        const double median = time.times.median_ns();
        if (kind && *kind != of.kind) table.leave_a_gap();
        kind = of.kind;
        table.add({std::string(sim::to_string(of.kind)) + case_of(of.met),
                   of.bytes == 0 ? "-" : format_bytes(of.bytes), std::to_string(time.count), us(median),
                   us(modelled), modelled > 0 ? decimals(median / modelled, 2) : "-",
                   milliseconds(static_cast<double>(time.real.count()) / 1000)});
    }
    const auto [lines, left_out] = table.fit(room);
    return lines + without(left_out);
}

} // namespace tenure::cli
