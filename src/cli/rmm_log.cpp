#include "trace_formats.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>

namespace tenure::cli {

namespace {

constexpr std::string_view rmm_header = "Thread,Time,Action,Pointer,Size,Stream";
constexpr std::uint64_t day_us = std::uint64_t{24} * 3600 * 1000000;

bool digits(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns: microseconds since midnight from `HH:MM:SS.ffffff`.
std::uint64_t parse_time(const line_reader& lines, std::string_view text) {
    const auto fail = [&]() -> input_error {
        return lines.error("Time is not HH:MM:SS.ffffff: " + quoted(text));
    };
    if (text.size() != 15 || text[2] != ':' || text[5] != ':' || text[8] != '.') throw fail();
    const std::array<std::string_view, 4> parts{text.substr(0, 2), text.substr(3, 2), text.substr(6, 2),
                                                text.substr(9)};
    std::array<std::uint64_t, 4> values{};
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!digits(parts[i])) throw fail();
        values[i] = parse_number(lines, parts[i], "Time");
    }
    if (values[0] > 23 || values[1] > 59 || values[2] > 60) throw fail(); // 60: a leap second
    return ((values[0] * 60 + values[1]) * 60 + values[2]) * 1000000 + values[3];
}

/// Returns: the value of `0x...`, or of bare hexadecimal digits.
std::uint64_t parse_hex(const line_reader& lines, std::string_view text, const char* what) {
    std::string_view number = text;
    if (number.substr(0, 2) == "0x") number.remove_prefix(2);
    if (number.empty() || number.front() == '-') {
        throw lines.error(std::string(what) + " is not a hexadecimal number: " + quoted(text));
    }
    return parse_number(lines, number, what, 16);
}

std::uint64_t parse_pointer(const line_reader& lines, std::string_view text) {
    return text == "(nil)" ? 0 : parse_hex(lines, text, "Pointer");
}

} // namespace

bool is_rmm_header(std::string_view header) {
    return header == rmm_header;
}

trace read_rmm_log(line_reader& lines, trace_builder builder) {
    enum { thread, time, action, pointer, size, stream, columns };
    std::unordered_map<std::uint64_t, std::uint64_t> live; // pointer -> id; pointers come back, ids do not
    std::uint64_t next_id = 0;
    std::uint64_t first_us = 0;
    std::uint64_t days_us = 0;
    std::uint64_t last_us = 0; // since midnight of the first day
    bool any = false;

    std::vector<std::string_view> fields;
    std::string_view line;
    while (next_record(lines, line)) {
        split_fields(line, fields);
        if (fields.size() != columns) {
            throw lines.error("expected 6 fields, found " + std::to_string(fields.size()) + ": " +
                              quoted(line));
        }
        std::uint64_t now_us = parse_time(lines, fields[time]) + days_us;
        if (!any) first_us = last_us = now_us;
        any = true;
        // Threads take the time before they queue up to write it, so neighbouring lines may be swapped by a
        // moment, at midnight too: the order of the lines is the order of the calls.
        if (now_us + day_us / 2 < last_us) {
            days_us += day_us;
            now_us += day_us;
        } else if (days_us != 0 && now_us > last_us + day_us / 2) {
            now_us -= day_us; // written late, from before midnight
        }
        now_us = last_us = std::max(now_us, last_us);

        const std::uint64_t address = parse_pointer(lines, fields[pointer]);
        raw_event e;
        e.t_us = now_us - first_us;
        e.bytes = parse_number(lines, fields[size], "Size");
        e.stream = parse_hex(lines, fields[stream], "Stream");
        if (fields[action] == "allocate") {
            e.kind = op::allocate;
            e.id = next_id;
            if (address != 0 && !live.emplace(address, next_id).second) {
                throw lines.error("pointer " + std::string(fields[pointer]) +
                                  " is handed out while it is live");
            }
            ++next_id;
        } else if (fields[action] == "free") {
            if (address == 0) continue;
            const auto known = live.find(address);
            if (known == live.end()) {
                throw lines.error("free of unknown pointer " + std::string(fields[pointer]) +
                                  " (not allocated in this log, or freed already)");
            }
            e.kind = op::free;
            e.id = known->second;
            live.erase(known);
        } else if (fields[action] == "allocate failure") {
            continue; // no block came of it, and nobody knows how long it would have lived
        } else {
            throw lines.error("unknown action " + quoted(fields[action]) +
                              " (known: allocate, free, allocate failure)");
        }
        const std::string wrong = builder.add(e);
        if (!wrong.empty()) throw lines.error(wrong);
    }
    if (builder.empty()) throw lines.error("no events behind the header");
    return builder.finish(false);
}

} // namespace tenure::cli
