#include "top.hpp"

#include "errors.hpp"

#include <tenure/core/units.hpp>
#include <tenure/tenancy/arenas_text.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include <unistd.h>

namespace tenure::cli {

namespace {

namespace fs = std::filesystem;
using f = arena_field;

std::string bytes_or_dash(std::uint64_t n) {
    return n == arena_row::none ? "-" : format_bytes(n);
}

/// The time between two pictures, in seconds; 0 if there is none.
double seconds_between(const page_picture& a, const page_picture& b) {
    return b.time_ns <= a.time_ns ? 0 : static_cast<double>(b.time_ns - a.time_ns) / 1e9;
}

std::uint64_t failures(const arena_row& row) {
    std::uint64_t n = 0;
    for (auto c = static_cast<std::size_t>(f::failed_arena_limit);
         c <= static_cast<std::size_t>(f::failed_driver); ++c)
        if (row.values[c] != arena_row::none) n += row.values[c];
    return n;
}

/// Returns: how fast a counter grows, a second; "-" if that is not known.
template <class Get>
std::string rate(const arena_row& row, const page_picture& now, const std::optional<page_picture>& before,
                 Get get) {
    if (!before) return "-";
    const double seconds = seconds_between(*before, now);
    const auto old = std::find_if(before->rows.begin(), before->rows.end(),
                                  [&](const arena_row& r) { return r.id == row.id; });
    if (seconds == 0 || old == before->rows.end()) return "-";
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", static_cast<double>(get(row) - get(*old)) / seconds);
    return text.data();
}

/// Everything that could move a terminal's cursor is shown as '?'.
std::string printable(std::string text) {
    for (char& c : text)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    return text;
}

/// A page that is read while its process takes it away, or that is no page, is left out.
std::optional<page_picture> try_read(const fs::path& file) {
    try {
        return read_page(file.string());
    } catch (const std::exception&) {
        return std::nullopt;
    }
}

/// Effects: takes the page away if its process is dead and this is a place where that can be told.
void remove_if_stale(const fs::path& file, std::uint64_t pid, std::uint64_t started) {
    if (process_start(pid) == started) return;
    const std::optional<page_picture> page = try_read(file);
    if (page && page->pid_namespace == pid_namespace()) (void)::unlink(file.c_str());
}

} // namespace

std::vector<page_picture> read_pages(const std::string& folder, std::uint64_t pid) {
    std::vector<page_picture> pages;
    std::error_code error;
    fs::directory_iterator files(folder, error);
    if (error) throw usage_error(folder + ": " + error.message());
    for (const fs::directory_entry& entry : files) {
        const auto name = parse_page_name(entry.path().filename().string());
        if (!name || (pid != 0 && name->first != pid)) continue;
        if (process_start(name->first) != name->second) {
            remove_if_stale(entry.path(), name->first, name->second);
            continue;
        }
        std::optional<page_picture> page = try_read(entry.path());
        if (page && page->pid_namespace == pid_namespace()) pages.push_back(std::move(*page));
    }
    std::sort(pages.begin(), pages.end(),
              [](const page_picture& a, const page_picture& b) { return a.process.pid < b.process.pid; });
    return pages;
}

std::string to_text(const page_picture& now, const std::optional<page_picture>& before) {
    constexpr std::size_t columns = 11;
    using line = std::array<std::string, columns>;
    std::vector<line> lines{{"ARENA", "USED", "LIVE", "RESERVED", "PEAK", "MIN", "HIGH", "MAX", "CHARGES/s",
                             "REFUSED/s", "FAILED"}};
    for (const arena_row& row : now.rows) {
        const std::size_t slash = row.path.rfind('/');
        const std::string name =
            row.depth == 0 || slash == std::string::npos ? row.path : row.path.substr(slash + 1);
        lines.push_back({std::string(2 * std::min<std::size_t>(row.depth, 16), ' ') + printable(name),
                         bytes_or_dash(row[f::used]), bytes_or_dash(row[f::allocated]),
                         bytes_or_dash(row[f::reserved]), bytes_or_dash(row[f::peak]),
                         bytes_or_dash(row[f::min]), bytes_or_dash(row[f::high]), bytes_or_dash(row[f::max]),
                         rate(row, now, before, [](const arena_row& r) { return r[f::charges]; }),
                         rate(row, now, before, [](const arena_row& r) { return r[f::refused]; }),
                         std::to_string(failures(row))});
    }
    std::array<std::size_t, columns> widths{};
    for (const line& l : lines)
        for (std::size_t c = 0; c < columns; ++c) widths[c] = std::max(widths[c], l[c].size());
    std::string text = printable(now.process.program) + " (pid " + std::to_string(now.process.pid) + ")\n";
    for (const line& l : lines) {
        for (std::size_t c = 0; c < columns; ++c) {
            const std::string space(widths[c] - l[c].size(), ' ');
            text += c == 0 ? l[c] + space : "  " + space + l[c];
        }
        text += '\n';
    }
    if (now.total_rows > now.rows.size())
        text += "and " + std::to_string(now.total_rows - now.rows.size()) +
                " more, for which the page has no room\n";
    return text;
}

exit_code top(const top_options& options) {
    std::vector<page_picture> before;
    for (bool first = true;; first = false) {
        const std::vector<page_picture> pages = read_pages(options.folder, options.pid);
        if (pages.empty() && (first || options.pid != 0)) {
            if (!first) return all_completed; // the process has ended
            throw usage_error(
                options.pid == 0
                    ? "no process publishes its arenas (set TENURE_PUBLISH=1 where it has a publisher)"
                    : "process " + std::to_string(options.pid) +
                          " publishes no arenas (set TENURE_PUBLISH=1 where it has a publisher)");
        }
        std::string text;
        if (!options.json && !options.once && ::isatty(STDOUT_FILENO) == 1) text = "\033[H\033[J";
        for (const page_picture& page : pages) {
            if (options.json) {
                text += to_json(page.rows, page.process, page.time_ns) + '\n';
                continue;
            }
            const auto old = std::find_if(before.begin(), before.end(), [&](const page_picture& p) {
                return p.process.pid == page.process.pid && p.process.started == page.process.started;
            });
            text += to_text(page, old == before.end() ? std::nullopt : std::optional(*old)) + '\n';
        }
        if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
            return all_completed; // the reader wants no more
        if (options.once) return all_completed;
        before = pages;
        std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
    }
}

} // namespace tenure::cli
