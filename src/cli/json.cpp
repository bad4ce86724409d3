#include "comparison.hpp"

#include <nlohmann/json.hpp>

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

json to_object(const comparison_row& row) {
    const replay_result& r = row.result;
    json calls = json::object();
    for (const auto& [name, count] : r.driver_calls) calls[name] = count;
    return {{"trace", row.trace},
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
            {"ns_per_op", r.ns_per_op},
            {"oom_count", r.oom_count},
            {"first_oom", r.first_oom ? to_object(*r.first_oom) : json(nullptr)},
            {"completed", r.completed()}};
}

} // namespace

std::string to_json(const comparison& rows) {
    json all = json::array();
    for (const comparison_row& row : rows) all.push_back(to_object(row));
    // Names come from files and command lines and need not be UTF-8.
    return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

} // namespace tenure::cli
