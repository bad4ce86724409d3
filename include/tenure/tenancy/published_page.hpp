#pragma once

/// \file
/// The page through which a process shows its arenas to others: a file in /dev/shm that it writes and they read.
///
///     /dev/shm/tenure-<pid>-<started>        words of 64 bits
///       [ header: 24 words ][ row 0 ][ row 1 ] ... [ row capacity - 1 ][ device 0 ] ... [ device 7 ]
///
///     header  0 magic            4 pid                8 rows here             11-18 program, 64 bytes
///             1 version          5 started            9 rows in all           19 devices here
///             2 words a row      6 pid namespace     10 time, ns since 1970   20 words a device
///             3 rows, capacity   7 sequence: odd while the page is being written
///     row     0 id   1 parent   2 kind << 32 | depth   3-14 path, 96 bytes   15- the columns of `arena_row`
///     device  0-7 name, 64 bytes   8- the columns of `device_row`
///
/// Invariants:
///   1. A reader that saw the same even sequence before and after has a picture of one instant (a seqlock). The writer
///      never waits for a reader, and readers cannot write.
///   2. A page whose pid is not alive, or was started at another time, is stale: its process has died without
///      taking it away. The name says so without opening the page; where pids mean something else (another pid namespace,
///      another machine that shares the folder) nobody can say so.
///   3. Within a version columns are only added, at the end: a reader takes those it knows.
///   4. All memory of the page is there before it is written to: a full file system is an error in the constructor, never a
///      SIGBUS later.
///
/// Here is the writer; who reads: `page_reader.hpp`. POSIX; start times and pid namespaces are Linux's.
/// Complexity: linear in the rows. Thread-safety: `page_writer` thread-compatible, one writer a page.

#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/device_row.hpp>
#include <tenure/tenancy/process.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
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
inline constexpr std::size_t device_name_bytes = 64;
inline constexpr std::size_t fixed_device_words = device_name_bytes / 8;
inline constexpr std::size_t device_words = fixed_device_words + device_columns.size();
inline constexpr std::size_t most_devices = 8;                   // of a page
inline constexpr std::size_t most_bytes = std::size_t{16} << 20; // of a page: 44 000 rows
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
    at_program,
    at_devices = at_program + program_bytes / 8,
    at_device_words
};
} // namespace page_layout

/// Where a process of a folder's pages was and when: what the page's name says.
struct page_key {
    std::uint64_t pid = 0;
    std::uint64_t started = 0;
    friend bool operator==(const page_key&, const page_key&) = default;
};

/// Returns: where pages are: `TENURE_PUBLISH_DIR`, else /dev/shm.
inline std::string page_folder() {
    const char* const folder = std::getenv("TENURE_PUBLISH_DIR");
    return folder != nullptr && *folder != '\0' ? folder : "/dev/shm";
}

inline std::string page_name(page_key key) {
    return "tenure-" + std::to_string(key.pid) + '-' + std::to_string(key.started);
}

/// Returns: what the name of a page says; nothing if it is no page's name.
inline std::optional<page_key> parse_page_name(std::string_view name) {
    constexpr std::string_view prefix = "tenure-";
    if (name.substr(0, prefix.size()) != prefix) return std::nullopt;
    const char* const end = name.data() + name.size();
    std::uint64_t pid = 0;
    std::uint64_t started = 0;
    const auto [dash, no_pid] = std::from_chars(name.data() + prefix.size(), end, pid);
    if (no_pid != std::errc{} || dash == end || *dash != '-') return std::nullopt;
    const auto [rest, no_start] = std::from_chars(dash + 1, end, started);
    if (no_start != std::errc{} || rest != end) return std::nullopt;
    return page_key{pid, started};
}

/// Returns: what the names in the folder say, of pages and of whatever else has such a name.
/// Throws: `std::system_error` if the folder cannot be read.
inline std::vector<page_key> page_keys(const std::string& folder) {
    const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir(folder.c_str()), &::closedir);
    if (!files) throw std::system_error(errno, std::generic_category(), folder);
    std::vector<page_key> keys;
    while (const dirent* const entry = ::readdir(files.get()))
        if (const auto key = parse_page_name(entry->d_name)) keys.push_back(*key);
    return keys;
}

namespace detail {

/// A page as its writer maps it.
class mapping {
  public:
    using word = std::atomic<std::uint64_t>;
    static_assert(word::is_always_lock_free && sizeof(word) == 8);

    mapping(int descriptor, std::size_t bytes)
        : address_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)), bytes_(bytes) {
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

/// Returns: the folder, which the program's `chdir` does not move.
inline std::string absolute_folder(std::string folder) {
    if (!folder.empty() && folder.front() == '/') return folder;
    const std::unique_ptr<char, void (*)(void*)> here(::getcwd(nullptr, 0), &std::free);
    if (!here) throw std::system_error(errno, std::generic_category(), "getcwd");
    return std::string(here.get()) + '/' + folder;
}

/// Effects: makes the file, and locks it for whoever has the descriptor. One of that name that nobody has locked is of the
/// program that this process was before `exec`, and is taken away.
/// Returns: the descriptor, or -1 and `errno`: EEXIST if another writer of this process has it.
inline int make_locked(const std::string& file) noexcept {
    for (bool again = false;; again = true) {
        const int made = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (made >= 0) {
            if (::flock(made, LOCK_EX | LOCK_NB) == 0) return made;
            ::close(made);
            errno = EEXIST;
            return -1;
        }
        if (errno != EEXIST || again) return -1;
        const descriptor old(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        if (old.number() < 0 || ::flock(old.number(), LOCK_EX | LOCK_NB) != 0) {
            errno = EEXIST;
            return -1;
        }
        ::unlink(file.c_str());
    }
}

/// Effects: the file has all its memory. Returns: 0 or an error.
inline int reserve(int descriptor, std::size_t bytes) noexcept {
    rlimit most{};
    if (::getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur < bytes) return EFBIG; // would be a signal
    int error = 0;
    do error = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
    while (error == EINTR);
    return error;
}

} // namespace detail

class page_writer {
  public:
    /// Effects: makes the page of this process, readable by its user alone. Throws: `std::system_error`, also if there is one.
    explicit page_writer(std::string folder = page_folder(), std::size_t capacity = 256)
        : me_(this_process())
        , file_(detail::absolute_folder(std::move(folder)) + '/' + page_name({me_.pid, me_.started}))
        , capacity_(capacity)
        , descriptor_(capacity > most_rows() ? -1 : detail::make_locked(file_)) {
        using namespace page_layout;
        if (capacity > most_rows()) fail(EFBIG);
        const std::size_t bytes = (other_words() + capacity * row_words) * 8;
        if (descriptor_.number() < 0) fail(errno);
        try {
            if (const int error = detail::reserve(descriptor_.number(), bytes); error != 0) fail(error);
            page_ = std::make_unique<detail::mapping>(descriptor_.number(), bytes);
        } catch (...) {
            ::unlink(file_.c_str());
            throw;
        }
        const auto set = [&](std::size_t at, std::uint64_t value) {
            page_->words()[at].store(value, std::memory_order_relaxed);
        };
        set(at_row_words, row_words);
        set(at_capacity, capacity);
        set(at_device_words, device_words);
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
    void write(std::span<const arena_row> rows, std::uint64_t time_ns,
               std::span<const device_row> devices = {}) noexcept {
        using namespace page_layout;
        detail::mapping::word* const words = page_->words();
        const std::size_t shown = std::min(rows.size(), capacity_);
        words[at_sequence].store(++sequence_, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);
        detail::mapping::word* at = words + header_words;
        for (const arena_row& row : rows.first(shown)) {
            at[0].store(row.id, std::memory_order_relaxed);
            at[1].store(row.parent, std::memory_order_relaxed);
            at[2].store(static_cast<std::uint64_t>(row.kind) << 32 | row.depth, std::memory_order_relaxed);
            store_path(at + 3, row.path);
            store_values(at + fixed_row_words, row.values);
            at += row_words;
        }
        at = words + header_words + capacity_ * row_words;
        const std::size_t devices_shown = std::min(devices.size(), most_devices);
        for (const device_row& d : devices.first(devices_shown)) {
            detail::store_text(at, device_name_bytes, d.name);
            store_values(at + fixed_device_words, d.values);
            at += device_words;
        }
        words[at_devices].store(devices_shown, std::memory_order_relaxed);
        words[at_rows].store(shown, std::memory_order_relaxed);
        words[at_total_rows].store(rows.size(), std::memory_order_relaxed);
        words[at_time].store(time_ns, std::memory_order_relaxed);
        words[at_sequence].store(++sequence_, std::memory_order_release);
    }

    [[nodiscard]] const std::string& file() const noexcept { return file_; }
    [[nodiscard]] const process_identity& process() const noexcept { return me_; }

  private:
    /// Words before the rows.
    static constexpr std::size_t other_words() noexcept {
        using namespace page_layout;
        return header_words + most_devices * device_words;
    }
    static constexpr std::size_t most_rows() noexcept {
        return (page_layout::most_bytes / 8 - other_words()) / page_layout::row_words;
    }

    [[noreturn]] void fail(int error) const {
        throw std::system_error(error, std::generic_category(), "cannot publish in " + file_);
    }

    static void store_values(detail::mapping::word* words, std::span<const std::uint64_t> values) noexcept {
        for (const std::uint64_t v : values) (words++)->store(v, std::memory_order_relaxed);
    }

    /// What there is no room for shows as "...".
    static void store_path(detail::mapping::word* words, std::string_view path) noexcept {
        using page_layout::path_bytes;
        if (path.size() <= path_bytes) return detail::store_text(words, path_bytes, path);
        constexpr std::string_view more = "...";
        std::array<char, path_bytes> cut{};
        std::copy_n(path.begin(), path_bytes - more.size(), cut.begin());
        std::copy(more.begin(), more.end(), cut.end() - more.size());
        detail::store_text(words, path_bytes, {cut.data(), cut.size()});
    }

    const process_identity me_;
    const std::string file_;
    const std::size_t capacity_;
    const detail::descriptor descriptor_; ///< with the lock: the page is somebody's
    std::unique_ptr<detail::mapping> page_;
    std::uint64_t sequence_ = 0;
};

} // namespace tenure
