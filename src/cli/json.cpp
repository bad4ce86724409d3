#include "comparison.hpp"

#include <nlohmann/json.hpp>

#include <chrono>

namespace tenure::cli {

namespace {

using json = nlohmann::ordered_json;

json or_null(const std::optional<std::uint64_t>& n) {
    return n ? json(*n) : json(nullptr);
}

json to_object(const refusal& r) {
    return {{"event", r.event},
            {"requested", r.requested},
            {"cause", to_string(r.cause)},
            {"limit", or_null(r.limit)},
            {"used", r.used}};
}

json to_object(const verification& v) {
    json wrong = json::array();
    for (const mismatch& m : v.mismatches) {
        wrong.push_back({{"block", m.block},
                         {"bytes", m.bytes},
                         {"address", m.address},
                         {"first_bad", m.first_bad},
                         {"bad_words", m.bad_words},
                         {"side_stream", m.side_stream},
                         {"owner", or_null(m.owner)}});
    }
    return {{"blocks", v.blocks},
            {"checks", v.checks},
            {"bytes", v.bytes},
            {"seconds", v.seconds},
            {"mismatches", std::move(wrong)},
            {"more", v.more}};
}

/// What only a GPU knows.
json gpu_object(const replay_result& r) {
    const auto us = [](std::chrono::nanoseconds t) { return static_cast<double>(t.count()) / 1000; };
    json calls = json::array();
    for (const auto& [of, time] : r.times.rows()) {
        const auto n = static_cast<double>(time.count);
        calls.push_back({{"call", sim::to_string(of.kind)},
                         {"bytes_up_to", of.bytes},
                         {"growing", of.met == call_case::growing},
                         {"passed", of.met == call_case::passed},
                         {"count", time.count},
                         {"median_ns", time.times.median_ns()},
                         {"mean_ns", static_cast<double>(time.real.count()) / n},
                         {"modelled_ns", static_cast<double>(time.modelled.count()) / n}});
    }
    return {{"modelled_us", us(r.times.total().modelled)},
            {"calls", std::move(calls)},
            {"verified", r.verified ? to_object(*r.verified) : json(nullptr)}};
}

json to_object(const comparison_row& row) {
    const replay_result& r = row.result;
    json calls = json::object();
    for (const auto& [name, count] : r.driver_calls) calls[name] = count;
    json object{{"trace", row.trace},
                {"policy", row.policy},
                {"device", row.device},
                {"limit", or_null(row.limit)},
                {"events", row.events},
                {"requested_peak", r.requested_peak},
                {"live_peak", r.live_peak},
                {"reserved_peak", r.reserved_peak},
                {"ratio", r.ratio()},
                {"segments", r.segments},
                {"driver_calls", std::move(calls)},
                {"driver_us", r.driver_us},
                {"growth_us", r.growth_us ? json(*r.growth_us) : json(nullptr)},
                {"warm_share", r.warm_share ? json(*r.warm_share) : json(nullptr)},
                {"ns_per_op", r.ns_per_op},
                {"oom_count", r.oom_count},
                {"first_oom", r.first_oom ? to_object(*r.first_oom) : json(nullptr)},
                {"completed", r.completed()}};
    if (row.on_gpu()) object["gpu"] = gpu_object(r);
    return object;
}

} // namespace

std::string to_json(const comparison& rows) {
    json all = json::array();
    for (const comparison_row& row : rows) all.push_back(to_object(row));
    // Names come from files and command lines and need not be UTF-8.
    return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

} // namespace tenure::cli
