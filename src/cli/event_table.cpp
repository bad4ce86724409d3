#include "trace_formats.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string>

namespace tenure::cli {

namespace {

enum column : std::size_t { t_us, op_letter, id, bytes, stream, arena, columns };

constexpr std::array<std::string_view, columns> column_names{"t_us", "op", "id", "bytes", "stream", "arena"};
constexpr std::size_t absent = static_cast<std::size_t>(-1);

/// Where each column stands in a line.
using column_places = std::array<std::size_t, columns>;

column_places read_header(const line_reader& lines, std::string_view header) {
    std::vector<std::string_view> fields;
    split_fields(header, fields);
    column_places places;
    places.fill(absent);
    for (std::size_t i = 0; i < fields.size(); ++i) {
        const auto* known = std::find(column_names.begin(), column_names.end(), fields[i]);
        // An unknown column alone would be one more message; a file that has no known column is no trace at
        // all, and the missing column says so.
        if (known == column_names.end()) continue;
        std::size_t& place = places[static_cast<std::size_t>(known - column_names.begin())];
        if (place != absent) throw lines.error("column " + std::string(fields[i]) + " appears twice");
        place = i;
    }
    for (std::size_t c = 0; c < columns; ++c) {
        if (c != arena && places[c] == absent) {
            throw lines.error("missing column " + std::string(column_names[c]) +
                              " (a trace begins with t_us,op,id,bytes,stream[,arena]; this file with " +
                              quoted(header) + ")");
        }
    }
    for (const std::string_view field : fields) {
        if (std::find(column_names.begin(), column_names.end(), field) == column_names.end()) {
            throw lines.error("unknown column " + quoted(field) + " (known: t_us op id bytes stream arena)");
        }
    }
    return places;
}

std::optional<op> parse_op(std::string_view text) {
    if (text.size() != 1) return std::nullopt;
    switch (text.front()) {
    case 'a': return op::allocate;
    case 'f': return op::free;
    case 'c': return op::complete;
    case 'u': return op::use;
    case 'k': return op::work;
    case 'w': return op::stream_wait;
    case 'y': return op::host_wait;
    case 'd': return op::destroy;
    case 'm': return op::set_max;
    default: return std::nullopt;
    }
}

constexpr bool needs_id(op o) {
    return o == op::allocate || o == op::free || o == op::complete || o == op::use || o == op::stream_wait;
}
constexpr bool needs_bytes(op o) {
    return o == op::allocate || o == op::work || o == op::set_max;
}
constexpr bool needs_stream(op o) {
    return o != op::set_max;
}

} // namespace

void split_fields(std::string_view line, std::vector<std::string_view>& fields) {
    fields.clear();
    for (std::size_t from = 0;;) {
        const std::size_t comma = line.find(',', from);
        fields.push_back(line.substr(from, comma == std::string_view::npos ? comma : comma - from));
        if (comma == std::string_view::npos) return;
        from = comma + 1;
    }
}

std::uint64_t parse_number(const line_reader& lines, std::string_view text, const char* what, int base) {
    std::uint64_t number = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (code == std::errc::result_out_of_range) {
        throw lines.error(std::string(what) + " is out of range: " + quoted(text));
    }
    if (code != std::errc{} || end != text.data() + text.size()) {
        const bool negative = text.size() > 1 && text.front() == '-';
        throw lines.error(std::string(what) + (negative ? " is negative: " : " is not a whole number: ") +
                          quoted(text));
    }
    return number;
}

bool next_record(line_reader& lines, std::string_view& line) {
    if (!lines.next(line)) return false;
    if (!line.empty()) return true;
    const input_error blank = lines.error("blank line between events");
    while (lines.next(line)) {
        if (!line.empty()) throw blank;
    }
    return false;
}

trace read_event_table(line_reader& lines, std::string_view header, trace_builder builder) {
    const column_places places = read_header(lines, header);
    const bool has_arenas = places[arena] != absent;
    const std::size_t width = has_arenas ? columns : columns - 1;

    std::vector<std::string_view> fields;
    std::string_view line;
    while (next_record(lines, line)) {
        split_fields(line, fields);
        if (fields.size() != width) {
            throw lines.error("expected " + std::to_string(width) + " fields, found " +
                              std::to_string(fields.size()) + ": " + quoted(line));
        }
        const auto field = [&](column c) { return fields[places[c]]; };
        const auto number = [&](column c, bool needed) {
            if (!needed && field(c).empty()) return std::uint64_t{0};
            return parse_number(lines, field(c), column_names[c].data(), 10);
        };

        const std::optional<op> kind = parse_op(field(op_letter));
        if (!kind)
            throw lines.error("unknown op " + quoted(field(op_letter)) + " (known: a f c u k w y d m)");
        raw_event e;
        e.kind = *kind;
        e.t_us = number(t_us, true);
        e.id = number(id, needs_id(*kind));
        e.bytes = number(bytes, needs_bytes(*kind));
        e.stream = number(stream, needs_stream(*kind));
        if (has_arenas) e.arena = field(arena);
        const std::string wrong = builder.add(e);
        if (!wrong.empty()) throw lines.error(wrong);
    }
    if (builder.empty()) throw lines.error("no events behind the header");
    return builder.finish(has_arenas);
}

} // namespace tenure::cli
