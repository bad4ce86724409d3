#pragma once

/// \file
/// `page_reader`: reads the pages that processes publish (`published_page.hpp`), in a folder that anybody may write to.
///
///     for (const page_key key : page_keys(folder))
///         if (!remove_if_stale(folder, key)) show(read_page_of(folder, key));
///
/// Invariants:
///   1. Nothing is trusted. What is no regular file, too large, owned by neither root nor the process's user, or says
///      another process than its name does, is no page of that process; no more than `page_layout::most_bytes` are ever held.
///   2. Nothing waits for others, but `patience` for the end of a write: neither a pipe in place of a page nor a writer that
///      was put to sleep can hold a reader up.
///   3. A page that is cut or taken away while it is read is an error, never a signal.
///
/// Complexity: linear in the page. Thread-safety: `page_reader` thread-compatible.

#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/device_row.hpp>
#include <tenure/tenancy/process.hpp>
#include <tenure/tenancy/published_page.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace tenure {

namespace detail {

inline std::string text_of(const std::uint64_t* words, std::size_t bytes) {
    std::string text(bytes, '\0');
    std::memcpy(text.data(), words, bytes);
    text.resize(std::min(text.find('\0'), bytes));
    return text;
}

} // namespace detail

/// What a page showed at one instant.
struct page_picture {
    process_identity process;
    std::uint64_t pid_namespace = 0;
    std::uint64_t time_ns = 0;         ///< since 1970; 0: nothing was written yet
    std::size_t total_rows = 0;        ///< in the process; more than `rows` if the page is too small
    std::size_t columns = 0;           ///< that the writer has, of those known here
    std::vector<arena_row> rows;       ///< values of columns that the writer does not have are `none`
    std::vector<device_row> devices{}; ///< the same
};

/// The writer has been in the middle of a write for longer than a reader waits: it has been stopped, or gets no CPU.
class page_is_busy : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// An open page, or what passes for one. Throws, all members: `std::system_error` if it cannot be read, `std::runtime_error`
/// if it is no page, of another version, or damaged.
class page_reader {
  public:
    /// How long `read` waits for the end of a write.
    static constexpr std::chrono::milliseconds patience{200};

    explicit page_reader(std::string path)
        : path_(std::move(path))
        // Who opens a pipe waits for its writer, unless told not to.
        , file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)) {
        struct stat s {};
        if (file_.number() < 0 || ::fstat(file_.number(), &s) != 0)
            throw std::system_error(errno, std::generic_category(), path_);
        if (!S_ISREG(s.st_mode) || s.st_size < off_t{page_layout::header_words * 8} ||
            s.st_size > off_t{page_layout::most_bytes})
            throw std::runtime_error(path_ + ": not a page of arenas");
        words_ = static_cast<std::size_t>(s.st_size) / 8;
        owner_ = s.st_uid;
    }

    /// Returns: whose file it is.
    [[nodiscard]] uid_t owner() const noexcept { return owner_; }

    /// Returns: the picture without rows and time: what is the same for the life of a page.
    [[nodiscard]] page_picture label() const {
        using namespace page_layout;
        std::array<std::uint64_t, header_words> head{};
        fetch(head.data(), 0, head.size());
        if (head[at_magic] != magic) throw std::runtime_error(path_ + ": not a page of arenas");
        if (head[at_version] != version)
            throw std::runtime_error(path_ + ": written by another version of tenure");
        page_picture picture;
        picture.process = {head[at_pid], head[at_started],
                           detail::text_of(head.data() + at_program, program_bytes)};
        picture.pid_namespace = head[at_namespace];
        return picture;
    }

    /// Throws: `page_is_busy`.
    [[nodiscard]] page_picture read() const {
        using namespace page_layout;
        page_picture picture = label();
        std::vector<std::uint64_t> copy(words_);
        const auto enough = std::chrono::steady_clock::now() + patience;
        while (!fetch_whole(copy)) {
            if (std::chrono::steady_clock::now() >= enough)
                throw page_is_busy(path_ + ": its writer has stopped in the middle");
            std::this_thread::sleep_for(std::chrono::milliseconds{1});
        }
        const std::size_t row = copy[at_row_words];
        const std::size_t rows = copy[at_rows];
        const std::size_t room = copy[at_capacity];
        if (row < fixed_row_words || row > words_ || room > (words_ - header_words) / row || rows > room)
            throw std::runtime_error(path_ + ": damaged");
        picture.time_ns = copy[at_time];
        picture.total_rows = std::max<std::size_t>(copy[at_total_rows], rows);
        picture.columns = std::min(row - fixed_row_words, arena_columns.size());
        for (std::size_t i = 0; i < rows; ++i) {
            const std::uint64_t* const from = copy.data() + header_words + i * row;
            arena_row r{.id = from[0],
                        .parent = from[1],
                        .depth = static_cast<std::uint32_t>(from[2]),
                        .kind = kind_of(from[2] >> 32),
                        .path = detail::text_of(from + 3, path_bytes)};
            read_values(r.values, from + fixed_row_words, picture.columns);
            picture.rows.push_back(std::move(r));
        }
        add_devices(picture, copy, header_words + room * row);
        return picture;
    }

  private:
    static row_kind kind_of(std::uint64_t number) noexcept {
        return number <= static_cast<std::uint64_t>(row_kind::account) ? static_cast<row_kind>(number)
                                                                       : row_kind::group;
    }

    /// `columns`: that the writer has; those that it does not have are `none`.
    static void read_values(std::span<std::uint64_t> values, const std::uint64_t* from,
                            std::size_t columns) noexcept {
        std::fill(values.begin(), values.end(), arena_row::none);
        std::copy_n(from, std::min(columns, values.size()), values.begin());
    }

    void add_devices(page_picture& picture, const std::vector<std::uint64_t>& copy, std::size_t begin) const {
        using namespace page_layout;
        const std::size_t each = copy[at_device_words];
        const std::size_t devices = copy[at_devices];
        if (devices == 0) return;
        if (each < fixed_device_words || each > words_ || devices > (words_ - begin) / each)
            throw std::runtime_error(path_ + ": damaged");
        for (std::size_t i = 0; i < devices; ++i) {
            const std::uint64_t* const from = copy.data() + begin + i * each;
            device_row d{.name = detail::text_of(from, device_name_bytes)};
            read_values(d.values, from + fixed_device_words, each - fixed_device_words);
            picture.devices.push_back(std::move(d));
        }
    }

    /// Effects: copies words of the page. Copied by the kernel and not mapped: a file that its owner cuts short is a short
    /// read here, and would be a SIGBUS in a mapping.
    void fetch(std::uint64_t* to, std::size_t at, std::size_t n) const {
        const ssize_t got = ::pread(file_.number(), to, n * 8, static_cast<off_t>(at * 8));
        if (got < 0) throw std::system_error(errno, std::generic_category(), path_);
        if (static_cast<std::size_t>(got) != n * 8) throw std::runtime_error(path_ + ": cut short");
    }

    /// Returns: whether nothing was written meanwhile.
    bool fetch_whole(std::vector<std::uint64_t>& copy) const {
        std::uint64_t before = 0;
        std::uint64_t after = 0;
        fetch(&before, page_layout::at_sequence, 1);
        if ((before & 1) != 0) return false;
        std::atomic_thread_fence(std::memory_order_acquire);
        fetch(copy.data(), 0, copy.size());
        std::atomic_thread_fence(std::memory_order_acquire);
        fetch(&after, page_layout::at_sequence, 1);
        return before == after;
    }

    const std::string path_;
    const detail::descriptor file_;
    std::size_t words_ = 0;
    uid_t owner_ = 0;
};

/// Returns: what the page shows, whoever made it. Throws: as `page_reader`.
inline page_picture read_page(const std::string& path) {
    return page_reader(path).read();
}

/// Returns: what the process shows, if the page is the process's own (invariant 1). Throws: as `page_reader`, and
/// `std::runtime_error` if it is not.
inline page_picture read_page_of(const std::string& folder, page_key key) {
    const std::string path = folder + '/' + page_name(key);
    const page_reader page(path);
    const std::optional<uid_t> user = process_user(key.pid);
    const page_picture label = page.label();
    if (!user || (page.owner() != 0 && page.owner() != *user) || label.process.pid != key.pid ||
        label.process.started != key.started || label.pid_namespace != pid_namespace())
        throw std::runtime_error(path + ": not a page of that process");
    return page.read();
}

/// Effects: takes the page away if its process has died. Returns: whether it has died.
inline bool remove_if_stale(const std::string& folder, page_key key) noexcept {
    try {
        if (process_start(key.pid) == key.started) return false;
        const std::string path = folder + '/' + page_name(key);
        const page_picture label = page_reader(path).label();
        if (label.process.pid == key.pid && label.process.started == key.started &&
            label.pid_namespace == pid_namespace())
            (void)::unlink(path.c_str());
    } catch (const std::exception&) { // no page: not ours to take away
    }
    return true;
}

} // namespace tenure
