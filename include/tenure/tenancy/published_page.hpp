#pragma once

/// \file
/// The page through which a process shows its arenas to others: a file in /dev/shm that it writes and they read.
///
///     /dev/shm/tenure-<pid>-<started>        words of 64 bits
///       [ header: 24 words ][ row 0 ][ row 1 ] ...
///
///     header  0 magic            4 pid                8 rows here             11-18 program, 64 bytes
///             1 version          5 started            9 rows in all           19-23 zero
///             2 words a row      6 pid namespace     10 time, ns since 1970
///             3 rows, capacity   7 sequence: odd while the page is being written
///     row     0 id   1 parent   2 depth << 1 | arena   3-14 path, 96 bytes   15- the columns of `arena_row`
///
/// Invariants:
///   1. A reader that saw the same even sequence before and after has a picture of one instant (a seqlock). The writer
///      never waits for a reader, and readers cannot write.
///   2. A page whose pid is not alive, or was started at another time, is stale: its process has died without
///      taking it away. The name says so without opening the page.
///   3. Within a version columns are only added, at the end: a reader takes those it knows.
///
/// POSIX; start times and pid namespaces are Linux's. Complexity: linear in the rows. Thread-safety: `page_writer`
/// thread-compatible, one writer a page; reading from anywhere.

#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/arenas_text.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenure {

namespace page_layout {
inline constexpr std::uint64_t magic = 0x5241'4552'554e'4554u; // "TENUREAR"
inline constexpr std::uint64_t version = 1;
inline constexpr std::size_t header_words = 24;
inline constexpr std::size_t path_bytes = 96;
inline constexpr std::size_t program_bytes = 64;
inline constexpr std::size_t fixed_row_words = 3 + path_bytes / 8;
inline constexpr std::size_t row_words = fixed_row_words + arena_columns.size();
enum : std::size_t {
    at_magic,
    at_version,
    at_row_words,
    at_capacity,
    at_pid,
    at_started,
    at_namespace,
    at_sequence,
    at_rows,
    at_total_rows,
    at_time,
    at_program
};
} // namespace page_layout

/// Returns: when the process started, in clock ticks since the machine did; 0: there is no such process.
inline std::uint64_t process_start(std::uint64_t pid) {
    std::FILE* const file = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "re");
    if (file == nullptr) return 0;
    std::array<char, 1024> text{};
    const std::size_t n = std::fread(text.data(), 1, text.size() - 1, file);
    std::fclose(file);
    // The name in parentheses may hold anything; field 22 is the 20th behind it.
    std::string_view rest(text.data(), n);
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

/// Returns: a number for the namespace in which this process's pids mean something; 0: not known.
inline std::uint64_t pid_namespace() noexcept {
    struct stat s {};
    return ::stat("/proc/self/ns/pid", &s) == 0 ? static_cast<std::uint64_t>(s.st_ino) : 0;
}

/// Returns: this process.
inline process_identity this_process() {
    process_identity me;
    me.pid = static_cast<std::uint64_t>(::getpid());
    me.started = process_start(me.pid);
    if (std::FILE* const file = std::fopen("/proc/self/comm", "re")) {
        std::array<char, 64> name{};
        const std::size_t n = std::fread(name.data(), 1, name.size(), file);
        std::fclose(file);
        me.program.assign(name.data(), n);
        if (!me.program.empty() && me.program.back() == '\n') me.program.pop_back();
    }
    return me;
}

/// Returns: where pages are: `TENURE_PUBLISH_DIR`, else /dev/shm.
inline std::string page_folder() {
    const char* const folder = std::getenv("TENURE_PUBLISH_DIR");
    return folder != nullptr && *folder != '\0' ? folder : "/dev/shm";
}

inline std::string page_name(std::uint64_t pid, std::uint64_t started) {
    return "tenure-" + std::to_string(pid) + '-' + std::to_string(started);
}

/// Returns: pid and start time that the name of a page says; nothing if it is no page's name.
inline std::optional<std::pair<std::uint64_t, std::uint64_t>> parse_page_name(std::string_view name) {
    constexpr std::string_view prefix = "tenure-";
    if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
    const char* const end = name.data() + name.size();
    std::uint64_t pid = 0;
    std::uint64_t started = 0;
    const auto [dash, no_pid] = std::from_chars(name.data() + prefix.size(), end, pid);
    if (no_pid != std::errc{} || dash == end || *dash != '-') return std::nullopt;
    const auto [rest, no_start] = std::from_chars(dash + 1, end, started);
    if (no_start != std::errc{} || rest != end) return std::nullopt;
    return std::pair{pid, started};
}

namespace detail {

/// A mapped page.
class mapping {
  public:
    using word = std::atomic<std::uint64_t>;
    static_assert(word::is_always_lock_free && sizeof(word) == 8);

    mapping(int descriptor, std::size_t bytes, int protection)
        : address_(::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0)), bytes_(bytes) {
        if (address_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    }
    ~mapping() { ::munmap(address_, bytes_); }
    mapping(const mapping&) = delete;
    mapping& operator=(const mapping&) = delete;
    [[nodiscard]] word* words() const noexcept { return static_cast<word*>(address_); }

  private:
    void* address_;
    std::size_t bytes_;
};

class descriptor {
  public:
    explicit descriptor(int number) noexcept : number_(number) {}
    ~descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    descriptor(const descriptor&) = delete;
    descriptor& operator=(const descriptor&) = delete;
    [[nodiscard]] int number() const noexcept { return number_; }

  private:
    int number_;
};

inline void store_text(mapping::word* words, std::size_t bytes, std::string_view text) noexcept {
    for (std::size_t w = 0; w < bytes / 8; ++w) {
        std::uint64_t value = 0;
        if (w * 8 < text.size())
            std::memcpy(&value, text.data() + w * 8, std::min<std::size_t>(8, text.size() - w * 8));
        words[w].store(value, std::memory_order_relaxed);
    }
}

inline std::string text_of(const std::uint64_t* words, std::size_t bytes) {
    std::string text(bytes, '\0');
    std::memcpy(text.data(), words, bytes);
    text.resize(std::min(text.find('\0'), bytes));
    return text;
}

} // namespace detail

class page_writer {
  public:
    /// Effects: makes the page of this process, readable by its user alone. Throws: `std::system_error`.
    explicit page_writer(std::string folder = page_folder(), std::size_t capacity = 256)
        : me_(this_process())
        , file_(std::move(folder) + '/' + page_name(me_.pid, me_.started))
        , capacity_(capacity) {
        using namespace page_layout;
        const std::size_t bytes = (header_words + capacity * row_words) * 8;
        const detail::descriptor file(
            ::open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (file.number() < 0)
            throw std::system_error(errno, std::generic_category(), "cannot publish in " + file_);
        try {
            if (::ftruncate(file.number(), static_cast<off_t>(bytes)) != 0)
                throw std::system_error(errno, std::generic_category(), "cannot publish in " + file_);
            page_.reset(new detail::mapping(file.number(), bytes, PROT_READ | PROT_WRITE));
        } catch (...) {
            ::unlink(file_.c_str());
            throw;
        }
        const auto set = [&](std::size_t at, std::uint64_t value) {
            page_->words()[at].store(value, std::memory_order_relaxed);
        };
        set(at_row_words, row_words);
        set(at_capacity, capacity);
        set(at_pid, me_.pid);
        set(at_started, me_.started);
        set(at_namespace, pid_namespace());
        detail::store_text(page_->words() + at_program, program_bytes - 1, me_.program);
        set(at_version, version);
        page_->words()[at_magic].store(magic, std::memory_order_release); // now it is a page
    }

    page_writer(const page_writer&) = delete;
    page_writer& operator=(const page_writer&) = delete;

    /// Effects: takes the page away, unless this is a fork of its process.
    ~page_writer() {
        if (static_cast<std::uint64_t>(::getpid()) == me_.pid) ::unlink(file_.c_str());
    }

    /// Effects: the page shows these rows, as far as there is room, taken at `time_ns` nanoseconds since 1970.
    void write(std::span<const arena_row> rows, std::uint64_t time_ns) noexcept {
        using namespace page_layout;
        detail::mapping::word* const words = page_->words();
        const std::size_t shown = std::min(rows.size(), capacity_);
        words[at_sequence].store(++sequence_, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        detail::mapping::word* at = words + header_words;
        for (const arena_row& row : rows.first(shown)) {
            at[0].store(row.id, std::memory_order_relaxed);
            at[1].store(row.parent, std::memory_order_relaxed);
            at[2].store(std::uint64_t{row.depth} << 1 | (row.arena ? 1 : 0), std::memory_order_relaxed);
            detail::store_text(at + 3, path_bytes, row.path);
            for (std::size_t c = 0; c < row.values.size(); ++c)
                at[fixed_row_words + c].store(row.values[c], std::memory_order_relaxed);
            at += row_words;
        }
        words[at_rows].store(shown, std::memory_order_relaxed);
        words[at_total_rows].store(rows.size(), std::memory_order_relaxed);
        words[at_time].store(time_ns, std::memory_order_relaxed);
        words[at_sequence].store(++sequence_, std::memory_order_release);
    }

    [[nodiscard]] const std::string& file() const noexcept { return file_; }
    [[nodiscard]] const process_identity& process() const noexcept { return me_; }

  private:
    const process_identity me_;
    const std::string file_;
    const std::size_t capacity_;
    std::unique_ptr<detail::mapping> page_;
    std::uint64_t sequence_ = 0;
};

/// What a page showed at one instant.
struct page_picture {
    process_identity process;
    std::uint64_t pid_namespace = 0;
    std::uint64_t time_ns = 0;   ///< since 1970; 0: nothing was written yet
    std::size_t total_rows = 0;  ///< in the process; more than `rows` if the page is too small
    std::vector<arena_row> rows; ///< values of columns that the writer does not have are `none`
};

/// Returns: what the page shows. Throws: `std::system_error` if it cannot be read; `std::runtime_error` if it is no page,
/// of another version, or its writer has stopped in the middle.
inline page_picture read_page(const std::string& path) {
    using namespace page_layout;
    const detail::descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat s {};
    if (file.number() < 0 || ::fstat(file.number(), &s) != 0)
        throw std::system_error(errno, std::generic_category(), path);
    const std::size_t words = static_cast<std::size_t>(s.st_size) / 8;
    if (!S_ISREG(s.st_mode) || words < header_words)
        throw std::runtime_error(path + ": not a page of arenas");
    const detail::mapping page(file.number(), words * 8, PROT_READ);
    const detail::mapping::word* const at = page.words();
    if (at[at_magic].load(std::memory_order_acquire) != magic)
        throw std::runtime_error(path + ": not a page of arenas");
    if (at[at_version].load(std::memory_order_relaxed) != version)
        throw std::runtime_error(path + ": written by another version of tenure");

    std::vector<std::uint64_t> copy(words);
    for (int tries = 0; tries < 1000; ++tries) {
        const std::uint64_t before = at[at_sequence].load(std::memory_order_acquire);
        for (std::size_t w = 0; w < words; ++w) copy[w] = at[w].load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        const std::uint64_t after = at[at_sequence].load(std::memory_order_relaxed);
        if (before != after || (before & 1) != 0) {
            std::this_thread::yield();
            continue;
        }
        const std::size_t row = copy[at_row_words];
        const std::size_t rows = copy[at_rows];
        if (row < fixed_row_words || row > words || rows > (words - header_words) / row)
            throw std::runtime_error(path + ": damaged");
        page_picture picture;
        picture.process = {copy[at_pid], copy[at_started],
                           detail::text_of(copy.data() + at_program, program_bytes)};
        picture.pid_namespace = copy[at_namespace];
        picture.time_ns = copy[at_time];
        picture.total_rows = copy[at_total_rows];
        for (std::size_t i = 0; i < rows; ++i) {
            const std::uint64_t* const from = copy.data() + header_words + i * row;
            arena_row r{.id = from[0],
                        .parent = from[1],
                        .depth = static_cast<std::uint32_t>(from[2] >> 1),
                        .arena = (from[2] & 1) != 0,
                        .path = detail::text_of(from + 3, path_bytes)};
            r.values.fill(arena_row::none);
            std::copy_n(from + fixed_row_words, std::min(row - fixed_row_words, r.values.size()),
                        r.values.begin());
            picture.rows.push_back(std::move(r));
        }
        return picture;
    }
    throw std::runtime_error(path + ": its writer has stopped in the middle");
}

} // namespace tenure
