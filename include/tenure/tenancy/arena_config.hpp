#pragma once

/// \file
/// `arena_config`: a tree of names and limits as text, so that an operator can set them without changing the program.
///
///     TENURE_ARENAS=/etc/tenure/arenas.conf        a file
///     TENURE_ARENAS='gpu max=64GiB; gpu/org ...'   or the text itself
///
/// (That variable holds for every arena and group of a process by itself: `environment.hpp`.)
///
///     # one tenant a line (or up to a `;`): its path, then what it may have
///     gpu            max=64GiB
///     gpu/org        max=32GiB  min=8GiB  high=28GiB
///     gpu/org/alice  max=10GiB  weight=200  policy=remap
///     gpu/*          max=4GiB                              anybody else below gpu
///
/// A path names the levels from the root. What is above a tenant stands in an earlier line. A last part of `*` stands for
/// every child that has no line of its own. Sizes as `parse_bytes` reads them, or `none`.
///
/// Errors are `arena_config_error`, which say source, line and column and what was expected. A key given twice, a tenant given
/// twice, `min` above `max` and guarantees of children that do not fit are errors: nothing is guessed.
///
/// A text is taken for a file's name when it holds neither `=` nor `;` nor a line break: no line says anything without one.
///
/// A line for which nobody has ever asked is most often a name that is written wrongly: `unused` tells which they are.
///
/// Complexity: linear in the text, and in the entries for a look-up. Thread-safe once read: nothing changes but what was asked.

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/limits.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure {

/// `what()` is "SOURCE:LINE:COLUMN: message"; lines and columns from 1.
class arena_config_error : public std::runtime_error {
  public:
    arena_config_error(const std::string& source, std::size_t line, std::size_t column,
                       const std::string& message)
        : std::runtime_error(source + ':' + std::to_string(line) + ':' + std::to_string(column) + ": " +
                             message)
        , line_(line)
        , column_(column) {}
    [[nodiscard]] std::size_t line() const noexcept { return line_; }
    [[nodiscard]] std::size_t column() const noexcept { return column_; }

  private:
    std::size_t line_;
    std::size_t column_;
};

namespace detail {

/// Set once, by whichever thread; a copy says what it said.
class raised_flag {
  public:
    raised_flag() = default;
    raised_flag(const raised_flag& other) noexcept : up_(other.up()) {}
    raised_flag& operator=(const raised_flag& other) noexcept {
        up_.store(other.up(), std::memory_order_relaxed);
        return *this;
    }
    ~raised_flag() = default;
    void raise() const noexcept { up_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] bool up() const noexcept { return up_.load(std::memory_order_relaxed); }

  private:
    mutable std::atomic<bool> up_{false};
};

} // namespace detail

/// One line of a configuration.
struct arena_entry {
    std::string path; ///< names joined by '/'
    tenant_limits limits{};
    std::string policy; ///< a name for the program to understand; empty: its own choice
    std::size_t line = 0;
    /// Which of the limits the line gives; the others are the defaults.
    struct keys {
        bool min = false;
        bool high = false;
        bool max = false;
        bool weight = false;
    } given{};
    detail::raised_flag asked_for{}; ///< by `arena_config::find`, for a tenant of this path

    [[nodiscard]] std::string_view name() const noexcept {
        return std::string_view(path).substr(path.rfind('/') + 1); // npos + 1 is 0
    }
    [[nodiscard]] std::string_view parent() const noexcept {
        const std::size_t slash = path.rfind('/');
        return slash == std::string::npos ? std::string_view() : std::string_view(path).substr(0, slash);
    }
};

class arena_config {
  public:
    arena_config() = default;

    /// `source` stands in errors. Throws: `arena_config_error`, `std::bad_alloc`.
    static arena_config parse(std::string_view text, std::string source = "arenas") {
        return arena_config(text, std::move(source));
    }

    /// Throws: `std::runtime_error` if the file cannot be read, or holds nothing, not even a comment; as `parse`.
    static arena_config load(const std::string& file) {
        errno = 0;
        std::ifstream in(file, std::ios::binary);
        if (!in) throw std::runtime_error(file + ": " + std::strerror(errno != 0 ? errno : EIO));
        std::string text;
        try { // a folder opens, and throws when it is read
            text.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
        } catch (const std::ios_base::failure& e) {
            throw std::runtime_error(file + ": cannot be read: " + e.code().message());
        }
        if (in.bad()) throw std::runtime_error(file + ": cannot be read");
        if (text.empty()) throw std::runtime_error(file + ": is empty");
        return arena_config(text, file);
    }

    /// Returns: what `variable` says; without it, an empty configuration. Throws: as `load`.
    static arena_config from_environment(const char* variable = "TENURE_ARENAS") {
        const char* const text = std::getenv(variable);
        if (text == nullptr || *text == '\0') return {};
        const bool inlined = std::string_view(text).find_first_of("=;\n") != std::string_view::npos;
        return inlined ? parse(text, variable) : load(text);
    }

    /// Returns: the entries, parents before children.
    [[nodiscard]] const std::vector<arena_entry>& entries() const noexcept { return entries_; }
    [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }

    /// Returns: what was read: a file, or what stands in errors.
    [[nodiscard]] const std::string& source() const noexcept { return source_; }

    /// Returns: the tenant's own entry, else the `*` beside it, else null.
    [[nodiscard]] const arena_entry* find(std::string_view path) const noexcept {
        const arena_entry* found = nullptr;
        const std::size_t slash = path.rfind('/');
        const std::string_view above = slash == std::string_view::npos ? "" : path.substr(0, slash);
        for (const arena_entry& e : entries_) {
            if (e.name() == "*" && e.parent() == above) found = &e;
            if (e.path != path) continue;
            found = &e;
            break;
        }
        if (found != nullptr) found->asked_for.raise();
        return found;
    }

    /// Returns: the entries that `find` has never returned, nor `apply` used. Throws: `std::bad_alloc`.
    [[nodiscard]] std::vector<const arena_entry*> unused() const {
        std::vector<const arena_entry*> left;
        for (const arena_entry& e : entries_)
            if (!e.asked_for.up()) left.push_back(&e);
        return left;
    }

    /// Effects: gives the options of the arena, or group, `path` those limits that were configured for it; the name becomes
    /// the last part of `path`. Returns: whether there was an entry.
    template <class Options>
    bool apply(std::string_view path, Options& options) const {
        options.name = path.substr(path.rfind('/') + 1);
        const arena_entry* const e = find(path);
        if (e == nullptr) return false;
        if (e->given.min) options.min = e->limits.min;
        if (e->given.high) options.high = e->limits.high;
        if (e->given.max) options.max = e->limits.max;
        if (e->given.weight) options.weight = e->limits.weight;
        return true;
    }

  private:
    /// Where something stands in the text.
    struct place {
        std::size_t line = 1;
        std::size_t column = 1;
    };

    arena_config(std::string_view text, std::string source) : source_(std::move(source)) {
        constexpr std::string_view mark = "\xef\xbb\xbf"; // with which some editors begin a file in UTF-8
        if (text.substr(0, mark.size()) == mark) text.remove_prefix(mark.size());
        std::size_t line = 1;
        std::size_t column = 1;
        while (true) {
            const std::size_t end = text.find_first_of(";\n#");
            read_entry(text.substr(0, end), {line, column});
            if (end == std::string_view::npos) break;
            std::size_t next = end + 1;
            if (text[end] == '#') { // to the end of the line
                next = text.find('\n', end);
                if (next == std::string_view::npos) break;
                ++next;
            }
            if (text[next - 1] == '\n') {
                ++line;
                column = 1;
            } else {
                column += next;
            }
            text.remove_prefix(next);
        }
        check_guarantees();
    }

    [[noreturn]] void fail(place at, const std::string& message) const {
        throw arena_config_error(source_, at.line, at.column, message);
    }

    static std::string quoted(std::string_view text) { return '"' + std::string(text) + '"'; }

    /// Returns: the next word of `text`, taken off it with the space before; empty at the end.
    static std::string_view next_word(std::string_view& text, place& at) {
        constexpr std::string_view space = " \t\r";
        const std::size_t begin = std::min(text.find_first_not_of(space), text.size());
        text.remove_prefix(begin);
        at.column += begin;
        const std::string_view word = text.substr(0, text.find_first_of(space));
        text.remove_prefix(word.size());
        return word;
    }

    void read_entry(std::string_view text, place at) {
        const std::string_view path = next_word(text, at);
        if (path.empty()) return;
        arena_entry e;
        e.path = path;
        e.line = at.line;
        check_path(e, at);
        at.column += path.size();
        std::vector<std::string_view> seen;
        for (std::string_view word = next_word(text, at); !word.empty(); word = next_word(text, at)) {
            const std::size_t equals = word.find('=');
            if (equals == std::string_view::npos) fail(at, quoted(word) + ": expected key=value");
            const std::string_view key = word.substr(0, equals);
            if (std::find(seen.begin(), seen.end(), key) != seen.end())
                fail(at, quoted(key) + " is given twice");
            seen.push_back(key);
            set(e, key, word.substr(equals + 1), at, {at.line, at.column + equals + 1});
            at.column += word.size();
        }
        if (e.limits.min > e.limits.max) fail({at.line, 1}, quoted(e.path) + ": min is above max");
        entries_.push_back(std::move(e));
    }

    void check_path(const arena_entry& e, place at) const {
        std::size_t depth = 1;
        std::size_t begin = 0;
        while (true) {
            const std::size_t slash = e.path.find('/', begin);
            const std::string_view part = std::string_view(e.path).substr(begin, slash - begin);
            const place here{at.line, at.column + begin};
            if (part.empty()) fail(here, "a part of the path " + quoted(e.path) + " is empty");
            if (part.find('=') != std::string_view::npos)
                fail(here, quoted(part) + " is no name: a line begins with a tenant's path");
            if (std::any_of(part.begin(), part.end(), [](char c) {
                    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
                }))
                fail(here, "a control character in a name");
            if (part == "*" && slash != std::string::npos)
                fail(here, "* can only be the last part of a path");
            if (slash == std::string::npos) break;
            begin = slash + 1;
            ++depth;
        }
        if (depth > max_tenancy_depth)
            fail(at, quoted(e.path) + " is deeper than " + std::to_string(max_tenancy_depth) + " levels");
        for (const arena_entry& other : entries_)
            if (other.path == e.path)
                fail(at, quoted(e.path) + " was given in line " + std::to_string(other.line) + " already");
        const std::string_view above = e.parent();
        if (!above.empty() && std::none_of(entries_.begin(), entries_.end(),
                                           [&](const arena_entry& other) { return other.path == above; }))
            fail(at, quoted(above) + ", above " + quoted(e.path) + ", needs an earlier line");
    }

    void set(arena_entry& e, std::string_view key, std::string_view value, place at_key,
             place at_value) const {
        const auto bytes = [&]() -> std::size_t {
            if (value == "none") return no_limit;
            try {
                return parse_bytes(value);
            } catch (const invalid_byte_size& error) {
                fail(at_value, error.what());
            }
        };
        if (key == "max") {
            e.limits.max = bytes();
            e.given.max = true;
        } else if (key == "high") {
            e.limits.high = bytes();
            e.given.high = true;
        } else if (key == "min") {
            if (value == "none") fail(at_value, "min is a size; without one nothing is guaranteed");
            e.limits.min = bytes();
            e.given.min = true;
        } else if (key == "weight") {
            const char* const end = value.data() + value.size();
            const auto [rest, error] = std::from_chars(value.data(), end, e.limits.weight);
            if (error != std::errc{} || rest != end || e.limits.weight < 1 || e.limits.weight > 10000)
                fail(at_value, quoted(value) + ": a weight is a whole number from 1 to 10000");
            e.given.weight = true;
        } else if (key == "policy") {
            if (value.empty()) fail(at_value, "policy needs a name");
            e.policy = value;
        } else {
            fail(at_key, "unknown key " + quoted(key) + " (known: max min high weight policy)");
        }
    }

    /// What children are guaranteed must be there. `*` stands for nobody knows how many, so only for itself once.
    void check_guarantees() const {
        for (const arena_entry& e : entries_) {
            std::size_t sum = 0;
            for (const arena_entry& child : entries_) {
                if (child.parent() != e.path || child.path.find('/') == std::string::npos) continue;
                sum = child.limits.min > no_limit - sum ? no_limit : sum + child.limits.min;
                if (sum > e.limits.max)
                    fail({child.line, 1}, "the min of those below " + quoted(e.path) + " are " +
                                              format_bytes(sum) + ", more than its max of " +
                                              format_bytes(e.limits.max));
            }
        }
    }

    std::string source_;
    std::vector<arena_entry> entries_;
};

} // namespace tenure
