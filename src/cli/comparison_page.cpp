#include "comparison_page.hpp"

#include "advice.hpp"
#include "decimals.hpp"
#include "html.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/core/version.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace tenure::cli {

namespace {

using json = nlohmann::ordered_json;

/// The rows of one trace, and what is said about them.
struct chapter {
    std::string id; ///< of its section
    advice answer;
    std::vector<const comparison_row*> rows;

    [[nodiscard]] const comparison_row& first() const { return *rows.front(); }
};

std::vector<chapter> chapters_of(const comparison& rows) {
    std::vector<chapter> all;
    std::size_t at = 0;
    for (advice& a : advise(rows)) {
        chapter& c = all.emplace_back();
        c.id = "trace-" + std::to_string(all.size());
        c.answer = std::move(a);
        do c.rows.push_back(&rows[at++]);
        while (at < rows.size() && rows[at].trace == c.first().trace && rows[at].policy != c.first().policy);
    }
    return all;
}

struct peer_figure {
    std::string name;
    std::uint64_t reserved;
};

std::vector<peer_figure> peers_of(const comparison_row& row) {
    std::vector<peer_figure> all;
    if (!row.peer) return all;
    const auto add = [&all](const char* name, const std::optional<std::uint64_t>& bytes) {
        if (bytes) all.push_back({name, *bytes});
    };
    add("as recorded", row.peer->recorded);
    add("PyTorch native", row.peer->native);
    add("PyTorch expandable", row.peer->expandable);
    add("cudaMallocAsync", row.peer->malloc_async);
    return all;
}

std::string ratio_text(std::uint64_t reserved, std::uint64_t live) {
    return live == 0 ? "-" : decimals(static_cast<double>(reserved) / static_cast<double>(live), 3);
}

// --- bars -----------------------------------------------------------------------------------------------------------

std::string bars(const chapter& c) {
    struct bar {
        std::string name;
        std::uint64_t reserved;
        std::string kind; ///< class of the list's item
    };
    std::vector<bar> all;
    for (const comparison_row* r : c.rows) {
        const bool best = r == c.answer.best;
        all.push_back({r->policy + (best ? " \u2713" : ""), r->result.reserved_peak,
                       best                    ? "best"
                       : r->result.completed() ? ""
                                               : "refused"});
    }
    for (const peer_figure& p : peers_of(c.first())) all.push_back({p.name, p.reserved, "peer"});
    std::stable_sort(all.begin(), all.end(),
                     [](const bar& a, const bar& b) { return a.reserved < b.reserved; });
    const std::uint64_t most = std::max({all.back().reserved, c.answer.needed, std::uint64_t{1}});
    const auto part = [most](std::uint64_t n) {
        return decimals(100 * static_cast<double>(n) / static_cast<double>(most), 2) + '%';
    };
    std::string html = "<ul class=\"bars\" style=\"--live-at:" + part(c.answer.needed) + "\">\n";
    for (const bar& b : all) {
        html += "<li class=\"" + b.kind + "\"><span class=\"name\" title=\"" + escaped(b.name) + "\">" +
                escaped(b.name) +
                "</span><span class=\"track\"><span class=\"fill\" style=\"width:" + part(b.reserved) +
                "\"></span></span><span class=\"value\">" + format_bytes(b.reserved) + " \u00b7 " +
                (b.kind == "refused" ? "refused" : ratio_text(b.reserved, c.answer.needed)) +
                "</span></li>\n";
    }
    return html + "</ul>\n";
}

// --- the table ------------------------------------------------------------------------------------------------------

std::string cell(const std::string& text, const std::string& value) {
    return "<td data-value=\"" + value + "\">" + text + "</td>";
}

std::string byte_cell(std::uint64_t n) {
    return cell(format_bytes(n), std::to_string(n));
}

std::string number_cell(double n, int digits) {
    return cell(decimals(n, digits), decimals(n, 6));
}

std::string no_cell() {
    return "<td data-value=\"\">-</td>";
}

std::string saved_cell(const chapter& c, std::uint64_t reserved) {
    if (!c.answer.baseline) return no_cell();
    const auto less = static_cast<std::int64_t>(*c.answer.baseline) - static_cast<std::int64_t>(reserved);
    const auto size = static_cast<std::size_t>(less < 0 ? -less : less);
    return cell((less < 0 ? "\u2212" : "") + format_bytes(size), std::to_string(less));
}

std::string ratio_cell(std::uint64_t reserved, std::uint64_t live) {
    if (live == 0) return no_cell();
    return number_cell(static_cast<double>(reserved) / static_cast<double>(live), 3);
}

std::string row_of(const chapter& c, const comparison_row& r) {
    const replay_result& x = r.result;
    const std::uint64_t calls =
        std::accumulate(x.driver_calls.begin(), x.driver_calls.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const auto& k) { return sum + k.second; });
    return std::string("<tr") + (&r == c.answer.best ? " class=\"best\"" : "") + "><th scope=\"row\">" +
           escaped(r.policy) + "</th><td class=\"left\">" + escaped(r.trace) + "</td>" +
           byte_cell(x.reserved_peak) +
           (x.completed() ? ratio_cell(x.reserved_peak, x.live_peak) : no_cell()) +
           (x.completed() ? saved_cell(c, x.reserved_peak) : no_cell()) + byte_cell(x.live_peak) +
           cell(std::to_string(x.segments), std::to_string(x.segments)) +
           cell(std::to_string(calls), std::to_string(calls)) + number_cell(x.driver_us / 1000, 2) +
           (x.warm_share ? number_cell(*x.warm_share * 100, 2) : no_cell()) + number_cell(x.ns_per_op, 0) +
           cell(std::to_string(x.oom_count), std::to_string(x.oom_count)) + "</tr>\n";
}

std::string table(const std::vector<chapter>& all) {
    static constexpr std::array<const char*, 10> numbers{
        "reserved peak", "ratio",     "saved",  "live peak", "segments",
        "driver calls",  "driver ms", "warm %", "ns/call",   "refused"};
    std::string html = "<div class=\"scroll\" role=\"region\" aria-label=\"All figures\" tabindex=\"0\">"
                       "<table class=\"sortable\"><thead><tr><th scope=\"col\">policy</th>"
                       "<th scope=\"col\" class=\"left\">trace</th>";
    for (const char* name : numbers)
        html += "<th scope=\"col\" data-kind=\"number\">" + std::string(name) + "</th>";
    html += "</tr></thead>\n<tbody>\n";
    for (const chapter& c : all) {
        for (const comparison_row* r : c.rows) html += row_of(c, *r);
        for (const peer_figure& p : peers_of(c.first())) {
            html += "<tr class=\"peer\"><th scope=\"row\">" + escaped(p.name) + "</th><td class=\"left\">" +
                    escaped(c.first().trace) + "</td>" + byte_cell(p.reserved) +
                    ratio_cell(p.reserved, c.answer.needed) + saved_cell(c, p.reserved) +
                    byte_cell(c.answer.needed);
            for (int i = 0; i < 6; ++i) html += no_cell();
            html += "</tr>\n";
        }
    }
    return html + "</tbody></table></div>\n<p id=\"sorted\" class=\"soft\" role=\"status\"></p>\n";
}

// --- what the script draws ------------------------------------------------------------------------------------------

/// A picture as cells of equally many bytes. See `draw_map` in comparison.js.
json map_of(const memory_picture& p, std::uint64_t bytes_a_cell) {
    constexpr std::uint64_t levels = 8;
    std::string cells;
    json edges = json::array();
    std::uint64_t filled = 0;
    std::uint64_t live = 0;
    std::uint64_t waiting = 0;
    const auto finish_cell = [&] {
        const auto level = [&](std::uint64_t n) {
            const std::uint64_t nearest = (n * levels + bytes_a_cell / 2) / bytes_a_cell;
            return n == 0 ? 0 : std::max<std::uint64_t>(nearest, 1);
        };
        const std::uint64_t a = level(live);
        const std::uint64_t b = std::min(level(waiting), levels - a);
        cells += static_cast<char>('0' + a);
        cells += static_cast<char>('0' + b);
        filled = live = waiting = 0;
    };
    const bool few = p.boundaries.size() <= 600; // more edges than that would hide what lies between
    std::size_t next_edge = 0;
    for (std::size_t i = 0; i < p.runs.size(); ++i) {
        if (next_edge < p.boundaries.size() && p.boundaries[next_edge] == i) {
            if (few) edges.push_back(cells.size() / 2);
            ++next_edge;
        }
        for (std::uint64_t left = p.runs[i].bytes; left > 0;) {
            const std::uint64_t now = std::min(left, bytes_a_cell - filled);
            if (p.runs[i].what == memory_picture::state::live) live += now;
            if (p.runs[i].what == memory_picture::state::waiting) waiting += now;
            filled += now;
            left -= now;
            if (filled == bytes_a_cell) finish_cell();
        }
    }
    if (filled > bytes_a_cell / 2) finish_cell();
    for (std::uint64_t i = 0; i < (p.unplaced + bytes_a_cell / 2) / bytes_a_cell; ++i) cells += "xx";
    return {{"cells", cells}, {"edges", edges}};
}

std::string figures_of(const memory_picture& p) {
    std::string text = format_bytes(p.live) + " live";
    if (p.rounding != 0) text += " (" + format_bytes(p.rounding) + " of it rounding)";
    if (p.waiting != 0) text += ", " + format_bytes(p.waiting) + " waiting for a stream";
    if (p.free != 0)
        text += ", " + format_bytes(p.free) + " free in " + std::to_string(p.free_pieces) +
                " pieces, the largest " + format_bytes(p.largest_free);
    if (p.unplaced != 0) text += ", " + format_bytes(p.unplaced) + " reserved that the driver does not show";
    return text;
}

/// The span list of a policy, without those at which nothing changes.
json changes_of(const footprint& f) {
    json all = json::array();
    for (std::size_t i = 0; i < f.spans.size(); ++i) {
        const footprint::span& s = f.spans[i];
        if (i > 0 && s.reserved_low == f.spans[i - 1].reserved_low &&
            s.reserved_high == f.spans[i - 1].reserved_high)
            continue;
        all.push_back({i, s.reserved_low, s.reserved_high});
    }
    return all;
}

json to_object(const chapter& c) {
    // Where a request was refused less lived: the first that carried all out says what the program needs.
    const comparison_row* whole = c.rows.front();
    for (const comparison_row* r : c.rows)
        if (r->result.completed() && !whole->result.completed()) whole = r;
    json event = json::array();
    json t_us = json::array();
    json low = json::array();
    json high = json::array();
    if (whole->result.course) {
        const std::uint64_t begin =
            whole->result.course->spans.empty() ? 0 : whole->result.course->spans.front().t_us;
        for (const footprint::span& s : whole->result.course->spans) {
            event.push_back(s.event);
            t_us.push_back(s.t_us - begin);
            low.push_back(s.live_low);
            high.push_back(s.live_high);
        }
    }
    // One scale for all policies of a trace: a longer map is more memory.
    std::uint64_t most = 1;
    for (const comparison_row* r : c.rows) most = std::max(most, r->result.reserved_peak);
    std::uint64_t bytes_a_cell = 512;
    while (most / bytes_a_cell > 2600) bytes_a_cell *= 2;

    json rows = json::array();
    std::size_t best = c.rows.size();
    for (std::size_t i = 0; i < c.rows.size(); ++i) {
        const comparison_row& r = *c.rows[i];
        if (&r == c.answer.best) best = i;
        json row{{"policy", r.policy}, {"peak", r.result.reserved_peak}, {"refused", r.result.oom_count}};
        if (r.result.course) {
            row["reserved"] = changes_of(*r.result.course);
            row["peak_event"] = r.result.course->peak_event;
            if (r.result.course->pictured) row["map"] = map_of(r.result.course->at_peak, bytes_a_cell);
        }
        rows.push_back(std::move(row));
    }
    json peer = json::array();
    for (const peer_figure& p : peers_of(c.first()))
        peer.push_back({{"name", p.name}, {"reserved", p.reserved}});
    return {{"id", c.id},
            {"name", c.answer.trace},
            {"events", c.first().events},
            {"end_us", c.first().duration_us},
            {"needed", c.answer.needed},
            {"best", best < c.rows.size() ? json(best) : json(nullptr)},
            {"baseline", c.answer.baseline ? json(*c.answer.baseline) : json(nullptr)},
            {"cell_bytes", bytes_a_cell},
            {"event", std::move(event)},
            {"t_us", std::move(t_us)},
            {"live", {std::move(low), std::move(high)}},
            {"rows", std::move(rows)},
            {"peers", std::move(peer)}};
}

std::string section(const chapter& c, std::uint64_t bytes_a_cell) {
    std::string html =
        "<section id=\"" + c.id + "\">\n<h2>" + escaped(c.answer.trace) + "</h2>\n<p>" +
        escaped(c.answer.text()) + "</p>\n<h3>Live and reserved bytes</h3>\n" +
        "<fieldset class=\"axis\"><legend class=\"soft\"></legend></fieldset>\n"
        "<div class=\"chart\"></div>\n<p class=\"readout soft\" role=\"status\" aria-live=\"polite\">"
        "Grey: live. Point at the chart, or use the arrow keys, to read values.</p>\n"
        "<fieldset class=\"legend\" aria-label=\"Policies shown\"></fieldset>\n";
    const bool pictured = std::any_of(c.rows.begin(), c.rows.end(), [](const comparison_row* r) {
        return r->result.course && r->result.course->pictured;
    });
    if (pictured) {
        html += "<h3>Where memory lay at the peak</h3>\n<p class=\"soft\"><span class=\"swatch "
                "live\"></span>live "
                "<span class=\"swatch free\"></span>free <span class=\"swatch waiting\"></span>freed, "
                "waiting for a stream. "
                "Each cell is " +
                format_bytes(bytes_a_cell) +
                ", in address order; a line begins a segment. The moment: of those at which "
                "nearly the most was reserved, the one with most live.</p>\n<div class=\"map\">\n";
        for (std::size_t i = 0; i < c.rows.size(); ++i) {
            const comparison_row& r = *c.rows[i];
            if (!r.result.course || !r.result.course->pictured) continue;
            const std::string figures = figures_of(r.result.course->at_peak);
            html += "<div><strong>" + escaped(r.policy) + "</strong><br><span class=\"numbers\">" +
                    format_bytes(r.result.course->peak_reserved) + "</span></div><div><canvas data-row=\"" +
                    std::to_string(i) + "\" role=\"img\" aria-label=\"" +
                    escaped("map of " + r.policy + ": " + figures) + "\"></canvas><div class=\"numbers\">" +
                    escaped(figures) + "</div></div>\n";
        }
        html += "</div>\n";
    }
    return html + "</section>\n";
}

} // namespace

std::string to_page(const comparison& rows, const std::string& device) {
    const std::vector<chapter> all = chapters_of(rows);
    std::vector<advice> answers;
    for (const chapter& c : all) answers.push_back(c.answer);
    html_page page((all.size() == 1 ? all.front().answer.trace : std::to_string(all.size()) + " traces") +
                   " - tenure compare");
    page.add(
        "<h1>Which policy, and how much memory does it save?</h1>\n<p class=\"answer\">" +
        escaped(summary_of(answers)) + "</p>\n<p class=\"soft\">tenure " TENURE_VERSION_STRING ", " +
        escaped(device.empty() ? "simulated device with the costs measured on an H200" : device) +
        (rows.front().limit ? ", each in an arena of at most " + format_bytes(*rows.front().limit) : "") +
        ". The upright line in the bars is what the program has live at its peak; ratio is reserved by live. "
        "Hatched bars were measured outside of this comparison: what the allocator reserved while the trace "
        "was "
        "recorded, or PyTorch's allocators for the same program on an H200.</p>\n");
    if (all.size() > 1) {
        page.add("<nav aria-label=\"Traces\"><ul>");
        for (const chapter& c : all)
            page.add("<li><a href=\"#" + c.id + "\">" + escaped(c.answer.trace) + "</a></li>");
        page.add("<li><a href=\"#figures\">all figures</a></li></ul></nav>\n");
    }
    page.add("<div class=\"cards\">\n");
    for (const chapter& c : all)
        page.add("<div class=\"card\"><h3>" + escaped(c.answer.trace) + "</h3>\n" + bars(c) + "</div>\n");
    page.add("</div>\n");

    json data{{"version", 1}, {"tenure", TENURE_VERSION_STRING}, {"traces", json::array()}};
    for (const chapter& c : all) {
        json& trace = data["traces"].emplace_back(to_object(c));
        page.add(section(c, trace["cell_bytes"].get<std::uint64_t>()));
    }
    page.add(
        "<section id=\"figures\">\n<h2>All figures</h2>\n<p class=\"soft\">Click a head to sort. Saved: less "
        "than " +
        escaped(all.front().answer.baseline ? "what " + all.front().answer.baseline_name : "nothing known") +
        ". Driver time is the allocator's; warm is its part of the program's time in the second half.</p>\n" +
        table(all) + "</section>\n");
    page.add_data("comparison", data.dump(-1, ' ', false, json::error_handler_t::replace));
    page.add_script(comparison_js);
    return page.finish();
}

} // namespace tenure::cli
