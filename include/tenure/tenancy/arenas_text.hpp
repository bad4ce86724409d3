#pragma once

/// \file
/// Rows of arenas as text for machines: `to_json`, by the schema docs/schema/arenas-1.json, and `to_prometheus`, in the
/// text format 0.0.4 of its exposition.
///
/// Both go by the table of columns (`arena_row.hpp`): a column `used` in bytes is `"used"` in JSON and
/// `tenure_arena_used_bytes` for Prometheus; one of a device (`device_row.hpp`) is `tenure_device_free_bytes`; counters end
/// in `_total` there, nanoseconds become seconds. What is absent is null in JSON and left out for Prometheus.
///
/// Names are bytes, and both formats are UTF-8: what is none in a name is U+FFFD there. Two arenas of one name are told apart
/// by `id`, which is also a label.
///
/// Complexity: linear. Thread-safety: functions of values.

#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/capacity.hpp>
#include <tenure/tenancy/device_row.hpp>
#include <tenure/tenancy/process.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace tenure {

namespace detail {

/// Returns: the length of the character in front, as UTF-8 has it (Unicode 15, table 3-7); 0: that is none.
inline std::size_t utf8_length(std::string_view text) noexcept {
    const auto byte = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned>(static_cast<unsigned char>(text[i])) : 0u;
    };
    const auto follows = [&](std::size_t i, unsigned least = 0x80, unsigned most = 0xbf) {
        return byte(i) >= least && byte(i) <= most;
    };
    const unsigned first = byte(0);
    if (first < 0x80) return text.empty() ? 0 : 1;
    if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef)
        return follows(1, first == 0xe0 ? 0xa0 : 0x80, first == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
    if (first >= 0xf0 && first <= 0xf4)
        return follows(1, first == 0xf0 ? 0x90 : 0x80, first == 0xf4 ? 0x8f : 0xbf) && follows(2) &&
                       follows(3)
                   ? 4
                   : 0;
    return 0;
}

/// Returns: the text with each byte that belongs to no character of UTF-8 as U+FFFD.
inline std::string as_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const std::size_t n = utf8_length(text);
        out += n == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, n);
        text.remove_prefix(n == 0 ? 1 : n);
    }
    return out;
}

inline void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    for (const char c : as_utf8(text)) {
        const auto code = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            (out += '\\') += c;
        } else if (code < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
            out += escaped;
        } else {
            out += c;
        }
    }
    out += '"';
}

inline void append_number(std::string& out, std::uint64_t n) {
    n == arena_row::none ? out += "null" : out += std::to_string(n);
}

inline void append_key(std::string& out, const char* name) {
    ((out += ",\"") += name) += "\":";
}

inline void append_device(std::string& out, const device_row& d, bool first) {
    out += first ? R"({"name":)" : R"(,{"name":)";
    append_json_string(out, d.name);
    for (std::size_t c = 0; c < device_columns.size(); ++c) {
        append_key(out, device_columns[c].name);
        if (c == static_cast<std::size_t>(device_field::limited_by) && d.values[c] != arena_row::none)
            append_json_string(out, to_string(static_cast<capacity_limit>(d.values[c])));
        else
            append_number(out, d.values[c]);
    }
    out += '}';
}

/// A label's value: quotes, backslashes and line breaks escaped.
inline std::string prometheus_label(std::string_view text) {
    std::string out;
    for (const char c : as_utf8(text)) {
        if (c == '\\' || c == '"') out += '\\';
        c == '\n' ? out += "\\n" : out += c;
    }
    return out;
}

} // namespace detail

/// Returns: one JSON object without line breaks. `time_ns`: when the rows were taken, nanoseconds since 1970; 0: not said.
/// `more`: how many rows of the process are not among them. `columns`: how many are known; the others are left out.
inline std::string to_json(std::span<const arena_row> rows, const process_identity& process,
                           std::uint64_t time_ns = 0, std::size_t more = 0,
                           std::size_t columns = arena_columns.size(),
                           std::span<const device_row> devices = {}) {
    std::string out = R"({"schema":"tenure-arenas","version":1,"time_ns":)";
    out += std::to_string(time_ns);
    out += R"(,"process":{"pid":)" + std::to_string(process.pid);
    out += R"(,"started":)" + std::to_string(process.started);
    out += R"(,"program":)";
    detail::append_json_string(out, process.program);
    out += R"(},"devices":[)";
    for (const device_row& d : devices) detail::append_device(out, d, &d == devices.data());
    out += R"(],"more":)" + std::to_string(more);
    out += R"(,"arenas":[)";
    for (const arena_row& row : rows) {
        if (&row != rows.data()) out += ',';
        out += R"({"id":)" + std::to_string(row.id) + R"(,"parent":)";
        row.parent == 0 ? out += "null" : out += std::to_string(row.parent);
        out += R"(,"depth":)" + std::to_string(row.depth);
        ((out += R"(,"kind":")") += to_string(row.kind)) += R"(","path":)";
        detail::append_json_string(out, row.path);
        for (std::size_t c = 0; c < columns; ++c) {
            detail::append_key(out, arena_columns[c].name);
            detail::append_number(out, row.values[c]);
        }
        out += '}';
    }
    out += "]}";
    return out;
}

namespace detail {

/// Effects: one metric for each column, a sample for each row that has a value. `labels(row)`: what stands between braces.
template <class Row, std::size_t N, class Labels>
void append_metrics(std::string& out, const std::string& prefix, const std::array<arena_column, N>& columns,
                    std::span<const Row> rows, Labels&& labels) {
    for (std::size_t c = 0; c < columns.size(); ++c) {
        const arena_column& column = columns[c];
        const bool counter = column.kind == column_kind::counter;
        std::string metric = prefix + column.name;
        if (column.unit == column_unit::bytes) metric += "_bytes";
        if (column.unit == column_unit::nanoseconds) metric += "_seconds";
        if (counter) metric += "_total";
        out += "# HELP " + metric + ' ' + column.help + '\n';
        out += "# TYPE " + metric + (counter ? " counter\n" : " gauge\n");
        for (const Row& row : rows) {
            const std::uint64_t value = row.values[c];
            if (value == arena_row::none) continue;
            out += metric + '{' + labels(row) + "} ";
            if (column.unit == column_unit::nanoseconds) {
                char seconds[32];
                std::snprintf(seconds, sizeof seconds, "%llu.%09llu",
                              static_cast<unsigned long long>(value / 1'000'000'000),
                              static_cast<unsigned long long>(value % 1'000'000'000));
                out += seconds;
            } else {
                out += std::to_string(value);
            }
            out += '\n';
        }
    }
}

} // namespace detail

/// Returns: all metrics, each line ended; those of devices only if there are any.
inline std::string to_prometheus(std::span<const arena_row> rows, const process_identity& process,
                                 std::span<const device_row> devices = {}) {
    const std::string pid = "pid=\"" + std::to_string(process.pid) + '"';
    std::string out;
    detail::append_metrics(out, "tenure_arena_", arena_columns, rows, [&](const arena_row& row) {
        return "arena=\"" + detail::prometheus_label(row.path) + "\",kind=\"" + to_string(row.kind) +
               "\",id=\"" + std::to_string(row.id) + "\"," + pid;
    });
    if (devices.empty()) return out;
    detail::append_metrics(out, "tenure_device_", device_columns, devices, [&](const device_row& d) {
        return "device=\"" + detail::prometheus_label(d.name) + "\"," + pid;
    });
    return out;
}

} // namespace tenure
