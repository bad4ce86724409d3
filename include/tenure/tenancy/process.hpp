#pragma once

/// \file
/// Who a process is: its pid, when it started, whose it is, and where its pid means something.
///
/// A pid is given again after a process has died; pid and start time together name one process, for as long as the machine
/// runs and within one pid namespace.
///
/// Linux: all of it is read from /proc. Where that is not mounted nothing is known, and nothing fails.
/// Complexity: a small file each. Thread-safety: thread-safe.

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace tenure {

/// Zero or empty: not known.
struct process_identity {
    std::uint64_t pid = 0;
    std::uint64_t started = 0; ///< when the process started, in clock ticks since the machine did
    std::string program{};
};

namespace detail {

/// Returns: the first kilobytes of a file; empty if it cannot be read.
inline std::string head_of(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return {};
    std::array<char, 4096> text{};
    const std::size_t n = std::fread(text.data(), 1, text.size(), file);
    std::fclose(file);
    return {text.data(), n};
}

} // namespace detail

/// Returns: when the process started, in clock ticks since the machine did; 0: there is no such process.
inline std::uint64_t process_start(std::uint64_t pid) {
    const std::string text = detail::head_of("/proc/" + std::to_string(pid) + "/stat");
    // The name in parentheses may hold anything; field 22 is the 20th behind it.
    std::string_view rest(text);
    const std::size_t name_end = rest.rfind(')');
    if (name_end == std::string_view::npos) return 0;
    rest.remove_prefix(name_end + 1);
    for (int field = 0; field < 20; ++field) {
        const std::size_t space = rest.find(' ');
        if (space == std::string_view::npos) return 0;
        rest.remove_prefix(space + 1);
    }
    std::uint64_t started = 0;
    std::from_chars(rest.data(), rest.data() + rest.size(), started);
    return started;
}

/// Returns: the effective user of the process, whose files it makes; nothing: there is no such process.
inline std::optional<uid_t> process_user(std::uint64_t pid) {
    const std::string text = detail::head_of("/proc/" + std::to_string(pid) + "/status");
    // "Uid:", then real, effective, saved and file system's. A line break in the program's name is escaped there.
    constexpr std::string_view key = "\nUid:\t";
    const std::size_t at = text.find(key);
    if (at == std::string::npos) return std::nullopt;
    const std::size_t effective = text.find('\t', at + key.size());
    if (effective == std::string::npos) return std::nullopt;
    uid_t user = 0;
    const auto [rest, error] = std::from_chars(text.data() + effective + 1, text.data() + text.size(), user);
    return error == std::errc{} ? std::optional(user) : std::nullopt;
}

/// Returns: a number for where this process's pids mean something: a pid namespace of a machine since its start, for the
/// first namespace has the same number on all; 0: not known.
inline std::uint64_t pid_namespace() {
    struct stat s {};
    if (::stat("/proc/self/ns/pid", &s) != 0) return 0;
    std::uint64_t machine = 0xcbf2'9ce4'8422'2325u; // FNV-1a
    for (const char c : detail::head_of("/proc/sys/kernel/random/boot_id"))
        machine = (machine ^ static_cast<unsigned char>(c)) * 0x100'0000'01b3u;
    return static_cast<std::uint64_t>(s.st_ino) ^ machine;
}

/// Returns: whether this process's pids are those that the machine's driver knows: it is in no container's pid namespace.
inline bool in_first_pid_namespace() {
    constexpr std::uint64_t first = 0xefff'fffc; // PROC_PID_INIT_INO, the same on every Linux
    struct stat s {};
    return ::stat("/proc/self/ns/pid", &s) == 0 && static_cast<std::uint64_t>(s.st_ino) == first;
}

/// Returns: this process.
inline process_identity this_process() {
    process_identity me;
    me.pid = static_cast<std::uint64_t>(::getpid());
    me.started = process_start(me.pid);
    me.program = detail::head_of("/proc/self/comm");
    if (!me.program.empty() && me.program.back() == '\n') me.program.pop_back();
    return me;
}

} // namespace tenure
