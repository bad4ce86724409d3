#include "report.hpp"

#include "errors.hpp"
#include "html.hpp"
#include "output_file.hpp"
#include "print.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>

#include <algorithm>
#include <array>
#include <cstdio>

namespace tenure::cli {

namespace {

constexpr double width = 960;
constexpr double left = 90; // of the plot, inside the drawing

std::string fixed(double x) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", x);
    return text.data();
}

/// The edge of a series' area. There are more series than colours: those of one colour differ in it.
struct edge {
    const char* dashes; ///< for `stroke-dasharray`; null: no edge
    const char* style;  ///< the same, of an outline
};

edge edge_of(std::size_t which) {
    static constexpr std::array<edge, 4> edges{
        {{nullptr, nullptr}, {"6 3", "dashed"}, {"1 3", "dotted"}, {"none", "solid"}}};
    return edges[which / series_colours % edges.size()];
}

/// What stands beside a series' name.
std::string key_of(std::size_t which) {
    std::string style = std::string("background:") + series_colour(which);
    if (const edge e = edge_of(which); e.style != nullptr) style += std::string(";outline:2px ") + e.style;
    return "<span class=\"key\" style=\"" + style + "\"></span>";
}

/// The smallest power of two of which four reach `most`.
std::uint64_t step_for(std::uint64_t most) {
    std::uint64_t step = 1;
    while (step * 4 < most && step < (std::uint64_t{1} << 60)) step *= 2;
    return step;
}

struct time_unit {
    const char* name;
    double seconds;
};

time_unit unit_for(double seconds) {
    if (seconds < 300) return {"s", 1};
    return seconds < 3 * 3600 ? time_unit{"min", 60} : time_unit{"h", 3600};
}

/// A drawing with time to the right and bytes up.
class chart {
  public:
    chart(const timeline& t, std::uint64_t most, double height, const std::string& label)
        : t_(t)
        , seconds_(std::max(t.time_s.back(), 1e-9))
        , step_(step_for(std::max<std::uint64_t>(most, 1)))
        , top_(static_cast<double>(most) * 1.05 + 1)
        , height_(height) {
        svg_ = "<svg viewBox=\"0 0 " + fixed(width) + ' ' + fixed(height_ + 30) +
               "\" role=\"img\" aria-label=\"" + escaped(label) + "\">\n";
        for (std::uint64_t b = 0; static_cast<double>(b) <= top_;) {
            const std::string y_text = fixed(y(b));
            svg_ += "<line class=\"grid\" x1=\"" + fixed(left) + "\" x2=\"" + fixed(width) + "\" y1=\"" +
                    y_text + "\" y2=\"" + y_text + "\"/><text x=\"" + fixed(left - 6) + "\" y=\"" +
                    fixed(y(b) + 4) + "\" text-anchor=\"end\">" + format_bytes(b) + "</text>\n";
            if (step_ > timeline::no_value - b) break; // the largest number there is
            b += step_;
        }
        const time_unit unit = unit_for(seconds_);
        for (int i = 0; i <= 4; ++i) {
            std::array<char, 32> text{};
            std::snprintf(text.data(), text.size(), "%.4g %s", seconds_ * i / 4 / unit.seconds, unit.name);
            svg_ += "<text x=\"" + fixed(left + (width - left - 20) * i / 4) + "\" y=\"" +
                    fixed(height_ + 20) + "\" text-anchor=\"middle\">" + text.data() + "</text>";
        }
    }

    /// Effects: fills what lies between two series, as steps.
    void band(const std::vector<std::uint64_t>& low, const std::vector<std::uint64_t>& high,
              std::size_t which, const std::string& title) {
        std::string forth = "M" + point(0, high[0]);
        std::string back;
        for (std::size_t i = 1; i < high.size(); ++i) forth += step(i, high[i]);
        for (std::size_t i = low.size(); i-- > 1;)
            back += 'L' + point(i, low[i]) + 'L' + point(i, low[i - 1]);
        back += 'L' + point(0, low[0]);
        svg_ +=
            "<path d=\"" + forth + back + "Z\" fill=\"" + series_colour(which) + "\" fill-opacity=\"0.75\"";
        if (const edge e = edge_of(which); e.dashes != nullptr)
            svg_ += std::string(" stroke=\"currentColor\" stroke-dasharray=\"") + e.dashes + '"';
        svg_ += "><title>" + escaped(title) + "</title></path>\n";
    }

    /// Effects: draws a limit where there is one.
    void limit(const std::vector<std::uint64_t>& values, const char* stroke, const std::string& title) {
        std::string path;
        bool down = false;
        for (std::size_t i = 0; i < values.size(); ++i) {
            const bool shown = values[i] != timeline::no_value;
            if (shown && !down) path += 'M' + point(i, values[i]);
            if (shown && down) path += step(i, values[i]);
            if (!shown && down) path += 'H' + fixed(x(i));
            down = shown;
        }
        if (path.empty()) return;
        if (down) path += 'H' + fixed(width - 20);
        svg_ += "<path class=\"limit\" stroke=\"" + std::string(stroke) + "\" d=\"" + path + "\"><title>" +
                escaped(title) + "</title></path>\n";
    }

    std::string finish() { return svg_ + "</svg>\n"; }

  private:
    [[nodiscard]] double x(std::size_t i) const {
        return left + (width - left - 20) * t_.time_s[i] / seconds_;
    }
    [[nodiscard]] double y(std::uint64_t bytes) const {
        return height_ - (height_ - 5) * static_cast<double>(bytes) / top_;
    }
    [[nodiscard]] std::string point(std::size_t i, std::uint64_t bytes) const {
        return fixed(x(i)) + ' ' + fixed(y(bytes));
    }
    [[nodiscard]] std::string step(std::size_t i, std::uint64_t bytes) const {
        return 'H' + fixed(x(i)) + 'V' + fixed(y(bytes));
    }

    const timeline& t_;
    double seconds_;
    std::uint64_t step_;
    double top_;
    double height_;
    std::string svg_;
};

std::uint64_t highest(const std::vector<std::uint64_t>& values) {
    std::uint64_t most = 0;
    for (const std::uint64_t v : values)
        if (v != timeline::no_value) most = std::max(most, v);
    return most;
}

std::string last_limit(const timeline::series& s) {
    return s.last_limit == timeline::no_value ? "none" : format_bytes(s.last_limit);
}

/// All arenas, one upon the other.
std::string stacked(const timeline& t) {
    std::vector<std::vector<std::uint64_t>> sums{std::vector<std::uint64_t>(t.time_s.size(), 0)};
    for (const timeline::series& s : t.arenas) {
        std::vector<std::uint64_t> sum = sums.back();
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = saturating_add(sum[i], s.held[i]);
        sums.push_back(std::move(sum));
    }
    const std::uint64_t held = highest(sums.back());
    std::uint64_t most = held;
    // A limit far above all that was held would leave nothing to be seen.
    for (const timeline::series& g : t.groups)
        if (highest(g.limit) / 4 <= held) most = std::max(most, highest(g.limit));
    chart c(t, most, 320, "all arenas");
    for (std::size_t i = 0; i < t.arenas.size(); ++i)
        c.band(sums[i], sums[i + 1], i, t.arenas[i].name + ", at most " + format_bytes(t.arenas[i].peak));
    for (const timeline::series& g : t.groups)
        if (highest(g.limit) <= most) c.limit(g.limit, "currentColor", "max of " + g.name);
    return c.finish();
}

std::string alone(const timeline& t, std::size_t i) {
    const timeline::series& s = t.arenas[i];
    chart c(t, std::max(highest(s.held), highest(s.limit)), 110, s.name);
    c.band(std::vector<std::uint64_t>(s.held.size(), 0), s.held, i, s.name);
    c.limit(s.limit, "currentColor", "max of " + s.name);
    return c.finish();
}

/// What the page does not show.
std::string missing(const timeline& t) {
    std::string text;
    if (t.more != 0)
        text += "<p>The process has up to " + std::to_string(t.more) +
                " more arenas and groups, for which its page had no room.</p>\n";
    if (!t.warning.empty()) text += "<p>" + escaped(t.warning) + "</p>\n";
    return text;
}

} // namespace

std::string to_html(const timeline& t) {
    html_page page(t.source + " - tenure report");
    page.add("<h1>" + escaped(t.source) + "</h1>\n<p>Bytes of each arena: " + escaped(t.what) +
             ". Dashed: limits. Each of " + std::to_string(t.time_s.size()) +
             " points is the state of its span in which most was held by all arenas together.</p>\n" +
             missing(t) + stacked(t) +
             "<div class=\"scroll\"><table><thead><tr><th>arena</th><th>most held</th><th>max at the end</th>"
             "</tr></thead><tbody>\n");
    const auto row = [&page](const std::string& name, const timeline::series& s) {
        page.add("<tr><td>" + name + "</td><td>" + format_bytes(s.peak) + "</td><td>" + last_limit(s) +
                 "</td></tr>\n");
    };
    for (std::size_t i = 0; i < t.arenas.size(); ++i) row(key_of(i) + escaped(t.arenas[i].name), t.arenas[i]);
    for (const timeline::series& g : t.groups) row(escaped(g.name) + " (" + escaped(g.kind) + ")", g);
    page.add("</tbody></table></div>\n");
    if (t.arenas.size() > 1 ||
        highest(t.arenas.empty() ? std::vector<std::uint64_t>{} : t.arenas[0].limit) != 0)
        for (std::size_t i = 0; i < t.arenas.size(); ++i)
            page.add("<h2>" + escaped(t.arenas[i].name) + "</h2>\n" + alone(t, i));
    return page.finish();
}

exit_code report(const report_options& options) {
    const timeline t = load_timeline(options.run);
    if (!t.warning.empty()) std::fprintf(stderr, "tenure: %s\n", t.warning.c_str());
    if (options.output == "-") {
        (void)print(to_html(t));
        return all_completed;
    }
    output_file(options.output).commit(to_html(t));
    return all_completed;
}

} // namespace tenure::cli
