#include "advice.hpp"

#include "decimals.hpp"

#include <tenure/core/units.hpp>

#include <algorithm>
#include <cmath>
#include <map>

namespace tenure::cli {

namespace {

std::string percent(double part, double whole) {
    return decimals(100 * part / whole, 0) + "%";
}

bool within_a_percent(std::uint64_t bytes, std::uint64_t least) {
    return bytes - least <= least / 100;
}

const comparison_row* best_of(const std::vector<const comparison_row*>& rows) {
    std::optional<std::uint64_t> least;
    for (const comparison_row* r : rows)
        if (r->result.completed())
            least = std::min(least.value_or(r->result.reserved_peak), r->result.reserved_peak);
    const comparison_row* best = nullptr;
    for (const comparison_row* r : rows) {
        if (!r->result.completed() || !within_a_percent(r->result.reserved_peak, *least)) continue;
        if (best == nullptr || r->result.driver_us < best->result.driver_us) best = r;
    }
    return best;
}

void find_baseline(advice& a, const std::vector<const comparison_row*>& rows) {
    const std::optional<peers>& peer = rows.front()->peer;
    if (peer && peer->recorded) {
        a.baseline = peer->recorded;
        a.baseline_name = "its own allocator reserved while it was recorded";
        return;
    }
    if (peer && peer->native) {
        a.baseline = peer->native;
        a.baseline_name = "PyTorch's allocator reserved for it on a GPU";
        return;
    }
    for (const comparison_row* r : rows) {
        if (r->policy != "caching" || !r->result.completed()) continue;
        a.baseline = r->result.reserved_peak;
        a.baseline_name = "PyTorch's scheme (caching) holds";
        return;
    }
}

} // namespace

std::optional<std::int64_t> advice::saved() const {
    if (best == nullptr || !baseline) return std::nullopt;
    return static_cast<std::int64_t>(*baseline) - static_cast<std::int64_t>(best->result.reserved_peak);
}

std::string advice::text() const {
    if (best == nullptr) {
        return trace + ": no policy carried it out without a refusal; it has " + format_bytes(needed) +
               " live at its peak.";
    }
    const std::uint64_t held = best->result.reserved_peak;
    std::string line = trace + ": " + best->policy + " holds least, " + format_bytes(held) + " for " +
                       format_bytes(needed) + " live at the peak";
    if (!baseline) return line + "; the trace does not say what its own allocator reserved.";
    const std::int64_t less = *saved();
    if (less > 0) {
        return line + ", and saves " + format_bytes(static_cast<std::size_t>(less)) + " (" +
               percent(static_cast<double>(less), static_cast<double>(*baseline)) + ") of the " +
               format_bytes(*baseline) + " that " + baseline_name + '.';
    }
    return line + "; no less than the " + format_bytes(*baseline) + " that " + baseline_name + '.';
}

std::vector<advice> advise(const comparison& rows) {
    std::vector<advice> all;
    for (std::size_t begin = 0; begin < rows.size();) {
        std::vector<const comparison_row*> one;
        std::size_t end = begin;
        // Two traces of one name are two programs: the second begins where a policy comes again.
        while (end < rows.size() && rows[end].trace == rows[begin].trace &&
               (end == begin || rows[end].policy != rows[begin].policy))
            one.push_back(&rows[end++]);
        advice& a = all.emplace_back();
        a.trace = rows[begin].trace;
        a.needed = rows[begin].needed.live;
        a.best = best_of(one);
        find_baseline(a, one);
        begin = end;
    }
    return all;
}

std::string summary_of(const std::vector<advice>& all) {
    if (all.size() == 1) return all.front().text();
    std::map<std::string, std::size_t> wins;
    double log_ratio = 0;
    double log_before = 0;
    std::size_t counted = 0;
    for (const advice& a : all) {
        if (a.best == nullptr) continue;
        ++wins[a.best->policy];
        if (!a.baseline || a.needed == 0) continue;
        log_ratio +=
            std::log(static_cast<double>(a.best->result.reserved_peak) / static_cast<double>(a.needed));
        log_before += std::log(static_cast<double>(*a.baseline) / static_cast<double>(a.needed));
        ++counted;
    }
    if (wins.empty()) return "No policy carried any of the traces out without a refusal.";
    const auto most = std::max_element(wins.begin(), wins.end(),
                                       [](const auto& x, const auto& y) { return x.second < y.second; });
    std::string line = most->first + " holds least for " + std::to_string(most->second) + " of " +
                       std::to_string(all.size()) + " traces";
    if (counted == 0) return line + '.';
    const auto n = static_cast<double>(counted);
    const double now = std::exp(log_ratio / n);
    const double before = std::exp(log_before / n);
    line += "; the best policy of each reserves " + decimals(now, 3) +
            " times what is live at the peak, where the allocators they are compared with reserve " +
            decimals(before, 3) + " times (geometric means)";
    return before > now ? line + ": " + percent(before - now, before) + " less memory." : line + '.';
}

std::string to_answer(const comparison& rows) {
    const std::vector<advice> all = advise(rows);
    std::string text;
    for (const advice& a : all) text += a.text() + '\n';
    if (all.size() > 1) text += summary_of(all) + '\n';
    return text;
}

} // namespace tenure::cli
