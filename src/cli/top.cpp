#include "top.hpp"

#include "errors.hpp"
#include "print.hpp"
#include "terminal.hpp"
#include "text_table.hpp"

#include <tenure/core/units.hpp>
#include <tenure/tenancy/arenas_text.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

namespace tenure::cli {

namespace {

using f = arena_field;

std::string bytes_or_dash(std::uint64_t n) {
    return n == arena_row::none ? "-" : format_bytes(n);
}

/// The time between two pictures, in seconds; 0 if there is none.
double seconds_between(const page_picture& a, const page_picture& b) {
    return b.time_ns <= a.time_ns ? 0 : static_cast<double>(b.time_ns - a.time_ns) / 1e9;
}

/// Returns: requests refused for good. Accounts have no ladder: what is refused is refused.
std::string failures(const arena_row& row) {
    if (row.kind == row_kind::accounts) return std::to_string(row[f::refused]);
    if (row.kind == row_kind::account) return std::to_string(row[f::at_max]);
    std::uint64_t n = 0;
    for (auto c = static_cast<std::size_t>(f::failed_arena_limit);
         c <= static_cast<std::size_t>(f::failed_driver); ++c)
        if (row.values[c] != arena_row::none) n += row.values[c];
    return std::to_string(n);
}

/// Returns: how fast a counter grows, a second; "-" if that is not known.
template <class Get>
std::string rate(const arena_row& row, const page_picture& now, const std::optional<page_picture>& before,
                 Get get) {
    if (!before || get(row) == arena_row::none) return "-";
    const double seconds = seconds_between(*before, now);
    const auto old = std::find_if(before->rows.begin(), before->rows.end(),
                                  [&](const arena_row& r) { return r.id == row.id; });
    if (seconds == 0 || old == before->rows.end()) return "-";
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.1f", static_cast<double>(get(row) - get(*old)) / seconds);
    return text.data();
}

/// Everything that could move a terminal's cursor is shown as '?': control characters, also those of two bytes that some
/// terminals take for an escape, and what is no UTF-8.
std::string printable(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t n = detail::utf8_length(text);
        const auto first = static_cast<unsigned char>(text[0]);
        const bool control = n == 0 || first < 0x20 || first == 0x7f ||
                             (first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
        out += control ? std::string_view("?") : text.substr(0, n);
        text.remove_prefix(std::max<std::size_t>(n, 1));
    }
    return out;
}

std::string text_of_device(const device_row& d) {
    using df = device_field;
    std::string text = "device " + printable(d.name) + ": capacity " + bytes_or_dash(d[df::capacity]) +
                       ", held " + bytes_or_dash(d[df::held]) + ", free " + bytes_or_dash(d[df::free]) +
                       ", external " + bytes_or_dash(d[df::external]) + " (most " +
                       bytes_or_dash(d[df::most_external]) + ")";
    if (d[df::vanished] != 0 && d[df::vanished] != arena_row::none)
        text += ", " + format_bytes(d[df::vanished]) + " of the capacity of the start gone";
    return text + '\n';
}

std::uint64_t now_ns() {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

bool same_process(const page_picture& a, const page_picture& b) {
    return a.process.pid == b.process.pid && a.process.started == b.process.started;
}

/// Returns: what the same process showed before; nothing if it did not.
std::optional<page_picture> find(const std::vector<page_picture>& pages, const page_picture& of) {
    const auto found =
        std::find_if(pages.begin(), pages.end(), [&](const page_picture& p) { return same_process(p, of); });
    return found == pages.end() ? std::nullopt : std::optional(*found);
}

} // namespace

page_look read_pages(const std::string& folder, std::uint64_t pid) {
    page_look look;
    std::vector<page_key> keys;
    try {
        keys = page_keys(folder);
    } catch (const std::system_error& e) {
        throw usage_error(e.what());
    }
    for (const page_key key : keys) {
        if ((pid != 0 && key.pid != pid) || remove_if_stale(folder, key)) continue;
        try {
            look.pages.push_back(read_page_of(folder, key));
        } catch (const page_is_busy&) {
            look.busy.push_back(key.pid);
        } catch (const std::exception&) { // it is taken away just now, is another user's, or no page
            look.unreadable.push_back(key);
        }
    }
    std::sort(look.pages.begin(), look.pages.end(),
              [](const page_picture& a, const page_picture& b) { return a.process.pid < b.process.pid; });
    return look;
}

std::string to_text(const page_picture& now, const std::optional<page_picture>& before, std::uint64_t now_ns,
                    std::size_t room) {
    // What a tenant has and may have stays longest.
    text_table table({{"ARENA", true},
                      {"USED"},
                      {"LIVE", false, 4},
                      {"RESERVED", false, 2},
                      {"PEAK", false, 3},
                      {"MIN", false, 6},
                      {"HIGH", false, 7},
                      {"MAX"},
                      {"CHARGES/s", false, 8},
                      {"REFUSED/s", false, 5},
                      {"FAILED", false, 1}});
    for (const arena_row& row : now.rows) {
        const std::size_t slash = row.path.rfind('/');
        const std::string name =
            row.depth == 0 || slash == std::string::npos ? row.path : row.path.substr(slash + 1);
        const std::string many =
            row[f::accounts] == arena_row::none ? "" : " (" + std::to_string(row[f::accounts]) + ")";
        table.add({std::string(2 * std::min<std::size_t>(row.depth, 16), ' ') + printable(name) + many,
                   bytes_or_dash(row[f::used]), bytes_or_dash(row[f::allocated]),
                   bytes_or_dash(row[f::reserved]), bytes_or_dash(row[f::peak]), bytes_or_dash(row[f::min]),
                   bytes_or_dash(row[f::high]), bytes_or_dash(row[f::max]),
                   rate(row, now, before, [](const arena_row& r) { return r[f::charges]; }),
                   rate(row, now, before, [](const arena_row& r) { return r[f::refused]; }), failures(row)});
    }
    std::string text = printable(now.process.program) + " (pid " + std::to_string(now.process.pid) + ")";
    // A process whose publisher waits for a lock, or is stopped, goes on showing what it showed last.
    constexpr std::uint64_t second = 1'000'000'000;
    if (now_ns > now.time_ns && now_ns - now.time_ns >= 2 * second)
        text += now.time_ns == 0
                    ? " has shown nothing yet"
                    : ", as it was " + std::to_string((now_ns - now.time_ns) / second) + " s ago";
    text += '\n';
    for (const device_row& d : now.devices) text += text_of_device(d);
    constexpr std::size_t shortest_name = 20;
    const auto [lines, left_out] = table.fit(room, shortest_name);
    text += lines;
    for (const std::string& head : left_out)
        text += (&head == left_out.data() ? "no room for " : ", ") + head;
    if (!left_out.empty()) text += '\n';
    if (now.total_rows > now.rows.size())
        text += "and " + std::to_string(now.total_rows - now.rows.size()) +
                " more, for which the page has no room\n";
    return text;
}

namespace {

/// What top has to say of the pages that it found.
std::string text_of(const std::vector<page_picture>& pages, const std::vector<page_picture>& before,
                    const top_options& options) {
    std::string text;
    const terminal_size size = size_of_terminal(STDOUT_FILENO);
    for (const page_picture& page : pages) {
        const std::optional<page_picture> old = find(before, page);
        if (!options.json)
            text += to_text(page, old, now_ns(), size.columns) + '\n';
        else if (page.time_ns != 0 && (!old || old->time_ns < page.time_ns))
            text += to_json(page.rows, page.process, page.time_ns, page.total_rows - page.rows.size(),
                            page.columns, page.devices) +
                    '\n';
    }
    // What is shown again and again stays in its place: it does not scroll.
    if (!options.json && !options.once && ::isatty(STDOUT_FILENO) == 1)
        text = "\033[H\033[J" + first_screen(text, size);
    return text;
}

/// Returns: whether none of the processes lives.
bool ended(const std::vector<page_picture>& pages) {
    return std::none_of(pages.begin(), pages.end(), [](const page_picture& p) {
        return process_start(p.process.pid) == p.process.started;
    });
}

[[noreturn]] void tell_nothing(const top_options& options, const page_look& look) {
    if (!look.busy.empty())
        throw usage_error(
            "process " + std::to_string(look.busy.front()) +
            " has stopped in the middle of a write of its page (it is stopped, or gets no CPU)");
    if (options.pid != 0 && !look.unreadable.empty()) {
        try {
            (void)read_page_of(options.folder, look.unreadable.front());
        } catch (const std::exception& e) {
            throw usage_error(e.what());
        }
    }
    throw usage_error(options.pid == 0
                          ? "no process publishes its arenas (set TENURE_PUBLISH=1 in its environment)"
                          : "process " + std::to_string(options.pid) +
                                " publishes no arenas (set TENURE_PUBLISH=1 in its environment)");
}

} // namespace

exit_code top(const top_options& options) {
    std::vector<page_picture> shown; // of each process the last picture
    for (bool first = true;; first = false) {
        const page_look look = read_pages(options.folder, options.pid);
        if (look.pages.empty() && first) tell_nothing(options, look);
        // A process that takes its page away and lives on has nothing more to show; one that is busy is looked at again.
        if (look.pages.empty() && options.pid != 0 && look.busy.empty() &&
            (ended(shown) || look.unreadable.empty()))
            return all_completed;
        if (!print(text_of(look.pages, shown, options))) return all_completed; // the reader wants no more
        if (options.once) return all_completed;
        std::vector<page_picture> next = look.pages;
        for (page_picture& old : shown) // those that were not seen this time are not new the next
            if (!find(next, old) && process_start(old.process.pid) == old.process.started)
                next.push_back(std::move(old));
        shown = std::move(next);
        std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
    }
}

} // namespace tenure::cli
