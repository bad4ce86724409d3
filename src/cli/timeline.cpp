#include "timeline.hpp"

#include "errors.hpp"

#include <tenure/core/bits.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>

namespace tenure::cli {

namespace {

using numbers = std::vector<std::uint64_t>;

/// Collects states one by one and keeps, of each span of time, the one in which most was held.
class spans {
  public:
    spans(timeline& out, double first_s, double last_s)
        : out_(&out), first_(first_s), width_((last_s - first_s) / timeline::most_points) {}

    /// Requires: times do not fall.
    void add(double time_s, const numbers& held, const numbers& limits) {
        const std::uint64_t sum = std::accumulate(held.begin(), held.end(), std::uint64_t{0});
        const auto span = width_ > 0 ? static_cast<std::size_t>((time_s - first_) / width_) : 0;
        const bool same = !out_->time_s.empty() && span == span_;
        if (same && sum < sum_) return;
        span_ = span;
        sum_ = sum;
        if (!same) {
            out_->time_s.push_back(0);
            for (timeline::series& s : out_->arenas) {
                s.held.push_back(0);
                s.limit.push_back(timeline::no_value);
            }
        }
        out_->time_s.back() = time_s - first_;
        for (std::size_t i = 0; i < out_->arenas.size(); ++i) {
            out_->arenas[i].held.back() = held[i];
            out_->arenas[i].limit.back() = limits[i];
        }
    }

  private:
    timeline* out_;
    double first_;
    double width_;
    std::size_t span_ = 0;
    std::uint64_t sum_ = 0;
};

using json = nlohmann::json;

std::uint64_t number_or_none(const json& row, const char* key) {
    const json& value = row.at(key);
    return value.is_null() ? timeline::no_value : value.get<std::uint64_t>();
}

/// One line of `tenure top --json`.
void add_picture(timeline& t, std::map<std::string, std::pair<bool, std::size_t>>& places,
                 const json& picture, double time_s) {
    const std::size_t point = t.time_s.size();
    t.time_s.push_back(time_s);
    const auto widen = [point](timeline::series& s) {
        s.held.resize(point + 1, 0);
        s.limit.resize(point + 1, timeline::no_value);
    };
    const std::string process = std::to_string(picture.at("process").at("pid").get<std::uint64_t>());
    for (const json& row : picture.at("arenas")) {
        const bool arena = row.at("kind").get<std::string>() == "arena";
        const std::string path = row.at("path").get<std::string>();
        const auto [place, fresh] =
            places.try_emplace(process + ' ' + path, arena, arena ? t.arenas.size() : t.groups.size());
        std::vector<timeline::series>& all = place->second.first ? t.arenas : t.groups;
        if (fresh) all.push_back({path, {}, {}});
        timeline::series& s = all[place->second.second];
        widen(s);
        s.held[point] = number_or_none(row, place->second.first ? "own" : "used");
        s.limit[point] = number_or_none(row, "max");
    }
    for (auto* all : {&t.arenas, &t.groups})
        for (timeline::series& s : *all) widen(s);
}

timeline load_pictures(const std::string& path, std::ifstream& in) {
    timeline t;
    t.source = path;
    t.what = "held from the device";
    std::map<std::string, std::pair<bool, std::size_t>> places;
    std::string line;
    double first = 0;
    std::uint64_t process = 0;
    for (std::size_t number = 1; std::getline(in, line); ++number) {
        if (line.empty()) continue;
        try {
            const json picture = json::parse(line);
            if (picture.at("schema") != "tenure-arenas" || picture.at("version") != 1)
                throw input_error(path, number, "not a line of tenure top --json, version 1");
            const std::uint64_t pid = picture.at("process").at("pid").get<std::uint64_t>();
            if (process != 0 && pid != process)
                throw input_error(path, number, "another process; record one: tenure top PID --json");
            process = pid;
            const double time_s = picture.at("time_ns").get<double>() / 1e9;
            if (t.time_s.empty()) first = time_s;
            if (!t.time_s.empty() && time_s - first < t.time_s.back())
                throw input_error(path, number, "time goes backwards");
            add_picture(t, places, picture, time_s - first);
        } catch (const json::exception& e) {
            throw input_error(path, number, e.what());
        }
    }
    if (t.time_s.empty()) throw input_error(path, "no pictures in it");
    return t;
}

} // namespace

timeline timeline_of(const trace& t) {
    timeline out;
    out.source = t.name;
    out.what = "live, each block rounded up to 512 bytes";
    for (const std::string& name : t.arenas) out.arenas.push_back({name.empty() ? "all" : name, {}, {}});
    numbers held(t.arenas.size(), 0);
    numbers limits(t.arenas.size(), timeline::no_value);
    const auto seconds = [](std::uint64_t us) { return static_cast<double>(us) / 1e6; };
    spans points(out, seconds(t.events.front().t_us), seconds(t.events.back().t_us));
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
        case op::set_max: limits[e.arena] = e.bytes; break;
        case op::use:
        case op::work:
        case op::wait:
        case op::destroy: break;
        }
        points.add(seconds(e.t_us), held, limits);
    }
    return out;
}

timeline load_timeline(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (in && in.peek() == '{') return load_pictures(path, in);
    return timeline_of(load_trace(path));
}

} // namespace tenure::cli
