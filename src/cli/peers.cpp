#include "peers.hpp"

#include "trace_formats.hpp"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

namespace tenure::cli {

std::optional<peers> find_peers(const std::string& trace_path, const std::string& workload) {
    const std::filesystem::path path = std::filesystem::path(trace_path).parent_path() / "peers.csv";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return std::nullopt;

    line_reader lines(path.string());
    std::string_view line;
    if (!lines.next(line)) return std::nullopt;
    const std::string header(line);
    std::vector<std::string_view> names;
    split_fields(header, names);
    // Another program's file of that name is none of ours.
    const auto has = [&](std::string_view name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (!has("workload") ||
        !(has("native_reserved") || has("expandable_reserved") || has("mallocasync_reserved")))
        return std::nullopt;
    const auto column = [&](std::string_view name) {
        const auto at = std::find(names.begin(), names.end(), name);
        if (at == names.end()) throw lines.error("missing column " + std::string(name));
        return static_cast<std::size_t>(at - names.begin());
    };
    const std::size_t name_column = column("workload");
    const std::size_t native = column("native_reserved");
    const std::size_t expandable = column("expandable_reserved");
    const std::size_t malloc_async = column("mallocasync_reserved");
    // Only who recorded the trace knows it.
    const auto recorded =
        static_cast<std::size_t>(std::find(names.begin(), names.end(), "recorded_reserved") - names.begin());

    std::optional<peers> found;
    std::vector<std::string_view> fields;
    while (next_record(lines, line)) {
        split_fields(line, fields);
        if (fields.size() != names.size()) {
            throw lines.error("expected " + std::to_string(names.size()) + " fields, found " +
                              std::to_string(fields.size()) + ": " + quoted(line));
        }
        const auto bytes = [&](std::size_t at, const char* what) -> std::optional<std::uint64_t> {
            if (fields[at].empty()) return std::nullopt;
            return parse_number(lines, fields[at], what);
        };
        const peers row{bytes(native, "native_reserved"), bytes(expandable, "expandable_reserved"),
                        bytes(malloc_async, "mallocasync_reserved"),
                        recorded == names.size() ? std::nullopt : bytes(recorded, "recorded_reserved")};
        if (fields[name_column] == workload) found = row;
    }
    return found;
}

} // namespace tenure::cli
