#include "timeline.hpp"

#include "errors.hpp"
#include "line_reader.hpp"

#include <tenure/core/bits.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace tenure::cli {

namespace {

using numbers = std::vector<std::uint64_t>;

std::uint64_t sum_of(const numbers& values) {
    return std::accumulate(values.begin(), values.end(), std::uint64_t{0}, saturating_add);
}

/// What was true at one time: by series.
struct state {
    struct part {
        numbers held;
        numbers limit;
    };
    part arenas;
    part groups;
};

/// Collects states one by one and keeps, of each span of time, the one in which most was held. Spans get wider as the run
/// gets longer.
class spans {
  public:
    explicit spans(timeline& out) : out_(&out) {}

    /// Requires: times do not fall; there are as many series as values.
    void add(double time_s, const state& now) {
        if (sums_.empty()) first_ = time_s;
        last_ = time_s;
        each(now, [](timeline::series& s, std::uint64_t held, std::uint64_t limit) {
            s.peak = std::max(s.peak, held);
            s.last_limit = limit;
        });
        const std::uint64_t sum = sum_of(now.arenas.held);
        const std::size_t span = span_at(time_s - first_);
        const bool same = width_ > 0 && !sums_.empty() && span == span_;
        if (same && sum < sums_.back()) return;
        if (!same) {
            if (sums_.size() == 2 * timeline::most_points) cut();
            sums_.push_back(0);
            out_->time_s.push_back(0);
        }
        span_ = span_at(time_s - first_);
        sums_.back() = sum;
        out_->time_s.back() = time_s - first_;
        for_all([&](timeline::series& s) { widen(s); });
        each(now, [](timeline::series& s, std::uint64_t held, std::uint64_t limit) {
            s.held.back() = held;
            s.limit.back() = limit;
        });
    }

    /// Effects: no more than `most_points` spans are left.
    void finish() {
        if (sums_.size() > timeline::most_points) cut();
    }

    [[nodiscard]] bool empty() const { return sums_.empty(); }
    [[nodiscard]] double last() const { return last_; }

  private:
    template <class Do>
    void for_all(Do what) {
        for (auto* all : {&out_->arenas, &out_->groups})
            for (timeline::series& s : *all) what(s);
    }

    template <class Do>
    void each(const state& now, Do what) {
        const auto part = [&](std::vector<timeline::series>& all, const state::part& values) {
            for (std::size_t i = 0; i < all.size(); ++i) what(all[i], values.held[i], values.limit[i]);
        };
        part(out_->arenas, now.arenas);
        part(out_->groups, now.groups);
    }

    void widen(timeline::series& s) const {
        s.held.resize(sums_.size(), 0);
        s.limit.resize(sums_.size(), timeline::no_value);
    }

    [[nodiscard]] std::size_t span_at(double since) const {
        return width_ > 0 ? static_cast<std::size_t>(since / width_) : 0;
    }

    /// Effects: spans of a width of which `most_points` reach from the first state to the last; of each the state with the
    /// highest sum.
    void cut() {
        width_ = (last_ - first_) / timeline::most_points;
        std::vector<std::size_t> kept;
        for (std::size_t i = 0; i < sums_.size(); ++i) {
            if (kept.empty() || span_at(out_->time_s[i]) != span_at(out_->time_s[kept.back()]))
                kept.push_back(i);
            else if (sums_[i] >= sums_[kept.back()])
                kept.back() = i;
        }
        const auto keep = [&kept](auto& values) {
            for (std::size_t k = 0; k < kept.size(); ++k) values[k] = values[kept[k]];
            values.resize(kept.size());
        };
        for_all([&](timeline::series& s) {
            widen(s);
            keep(s.held);
            keep(s.limit);
        });
        keep(out_->time_s);
        keep(sums_);
    }

    timeline* out_;
    double first_ = 0;
    double last_ = 0;
    double width_ = 0; ///< of a span, in seconds; 0: each state is one
    std::size_t span_ = 0;
    numbers sums_; ///< by point
};

using json = nlohmann::json;

/// Throws: `std::runtime_error`.
std::uint64_t whole_number(const json& row, const char* key) {
    const json& value = row.at(key);
    if (!value.is_number_unsigned()) throw std::runtime_error(std::string(key) + " is no whole number");
    return value.get<std::uint64_t>();
}

std::uint64_t number_or_none(const json& row, const char* key) {
    return row.at(key).is_null() ? timeline::no_value : whole_number(row, key);
}

/// Where the series of a record's arenas and groups are. One that is made again under its name goes on with its series; two
/// of one name at the same time have two.
class series_places {
  public:
    explicit series_places(timeline& out) : out_(&out) {}

    /// Returns: for each row of a picture, its series, which exists.
    std::vector<std::size_t> find(const json& rows) {
        std::set<std::uint64_t> alive;
        for (const json& row : rows) alive.insert(whole_number(row, "id"));
        std::vector<std::size_t> found;
        for (const json& row : rows) {
            const std::uint64_t id = whole_number(row, "id");
            const std::string path = row.at("path").get<std::string>();
            std::vector<timeline::series>& all = is_arena(row) ? out_->arenas : out_->groups;
            std::vector<place>& same_name = places_[{is_arena(row), path}];
            auto at =
                std::find_if(same_name.begin(), same_name.end(), [&](const place& p) { return p.id == id; });
            if (at == same_name.end())
                at = std::find_if(same_name.begin(), same_name.end(),
                                  [&](const place& p) { return alive.count(p.id) == 0; });
            if (at == same_name.end()) {
                const std::string number = std::to_string(same_name.size() + 1);
                at = same_name.insert(at, {id, all.size()});
                all.push_back({.name = number == "1" ? path : path + " #" + number, .kind = kind_of(row)});
            }
            at->id = id;
            found.push_back(at->series);
        }
        return found;
    }

    static std::string kind_of(const json& row) { return row.at("kind").get<std::string>(); }
    static bool is_arena(const json& row) { return kind_of(row) == "arena"; }

  private:
    struct place {
        std::uint64_t id = 0;
        std::size_t series = 0;
    };
    timeline* out_;
    std::map<std::pair<bool, std::string>, std::vector<place>> places_;
};

/// Returns: what one line of `tenure top --json` says.
state state_of(const timeline& t, const json& rows, const std::vector<std::size_t>& places) {
    const auto none = [](std::size_t n) {
        return state::part{numbers(n, 0), numbers(n, timeline::no_value)};
    };
    state now{none(t.arenas.size()), none(t.groups.size())};
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool arena = series_places::is_arena(rows[i]);
        state::part& part = arena ? now.arenas : now.groups;
        const std::uint64_t held = number_or_none(rows[i], arena ? "own" : "used");
        part.held[places[i]] = held == timeline::no_value ? 0 : held;
        part.limit[places[i]] = number_or_none(rows[i], "max");
    }
    return now;
}

timeline load_pictures(line_reader& lines, std::string_view line) {
    timeline t;
    t.source = lines.path();
    t.what = "held from the device";
    series_places places(t);
    spans points(t);
    std::uint64_t process = 0;
    do {
        if (line.empty()) continue;
        try {
            const json picture = json::parse(line);
            if (picture.at("schema") != "tenure-arenas" || picture.at("version") != 1)
                throw std::runtime_error("not a line of tenure top --json, version 1");
            const std::uint64_t pid = whole_number(picture.at("process"), "pid");
            if (process != 0 && pid != process)
                throw std::runtime_error("another process; record one: tenure top PID --json");
            process = pid;
            const std::uint64_t time_ns = whole_number(picture, "time_ns");
            if (time_ns == 0) continue; // when that was is not said
            const double time_s = static_cast<double>(time_ns) / 1e9;
            if (!points.empty() && time_s < points.last()) throw std::runtime_error("time goes backwards");
            if (picture.contains("more")) t.more = std::max(t.more, whole_number(picture, "more"));
            const json& rows = picture.at("arenas");
            const std::vector<std::size_t> where = places.find(rows);
            points.add(time_s, state_of(t, rows, where));
        } catch (const json::parse_error& e) {
            if (!lines.unended()) throw lines.error(e.what());
            t.warning = lines.error("the last line is cut, and left out").what();
        } catch (const std::exception& e) {
            throw lines.error(e.what());
        }
    } while (lines.next(line));
    if (points.empty()) throw input_error(lines.path(), "no pictures in it");
    points.finish();
    return t;
}

} // namespace

timeline timeline_of(const trace& t) {
    timeline out;
    out.source = t.name;
    out.what = "live, each block rounded up to 512 bytes";
    for (const std::string& name : t.arenas) out.arenas.push_back({.name = name.empty() ? "all" : name});
    state now;
    now.arenas = {numbers(t.arenas.size(), 0), numbers(t.arenas.size(), timeline::no_value)};
    numbers& held = now.arenas.held;
    spans points(out);
    for (const event& e : t.events) {
        const auto size = [&] { return round_up(t.blocks[e.id].bytes, 512); };
        switch (e.kind) {
        case op::allocate: held[e.arena] += size(); break;
        case op::free:
            if (!t.blocks[e.id].outlives_free) held[e.arena] -= size();
            break;
        case op::complete:
            if (t.blocks[e.id].outlives_free) held[e.arena] -= size();
            break;
        case op::set_max: now.arenas.limit[e.arena] = e.bytes; break;
        case op::use:
        case op::work:
        case op::stream_wait:
        case op::host_wait:
        case op::destroy: break;
        }
        points.add(static_cast<double>(e.t_us) / 1e6, now);
    }
    points.finish();
    return out;
}

timeline load_timeline(const std::string& path) {
    constexpr std::size_t longest = std::size_t{4} << 20; // some 4000 arenas
    line_reader lines(path, longest);
    std::string_view line;
    if (lines.next(line) && !line.empty() && line.front() == '{') return load_pictures(lines, line);
    return timeline_of(load_trace(path));
}

} // namespace tenure::cli
