#pragma once

/// \file
/// `trace_writer`: lines of the trace format, into a stream or a file.
///
///     t_us,op,id,bytes,stream[,arena]       header; the column `arena` only if an arena is named
///     0,a,0,4096,0                          microseconds since the first line
///     17,f,0,4096,0
///
/// Lines are collected in a buffer of 64 KiB, so that most of them cost no call of the stream.
///
///   1. A trace with a hole is worth nothing: after the first line that could not be written none follows,
///   and
///      `good` and `flush` are false from then on.
///   2. Nothing is lost in silence: a writer that ends with a trace that is not whole says so on stderr.
///
/// Thread-safety: thread-compatible.

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace tenure {

class trace_writer {
  public:
    /// Effects: writes to `out`, which must outlive the writer.
    /// Throws: `std::invalid_argument` if `arena` holds a comma or a line break.
    explicit trace_writer(std::ostream& out, std::string_view arena = {})
        : out_(&out), ending_(ending(arena)) {
        begin();
    }

    /// Effects: writes to a file, which is emptied first.
    /// Throws: `std::system_error` if it cannot be opened; `std::invalid_argument` as above.
    explicit trace_writer(const std::filesystem::path& file, std::string_view arena = {})
        : ending_(ending(arena)) {
        errno = 0;
        file_.open(file, std::ios::binary | std::ios::trunc);
        if (!file_) {
            throw std::system_error(errno != 0 ? errno : EIO, std::generic_category(),
                                    "cannot write the trace \"" + file.string() + "\"");
        }
        begin();
    }

    trace_writer(const trace_writer&) = delete;
    trace_writer& operator=(const trace_writer&) = delete;

    /// Effects: flushes.
    ~trace_writer() {
        if (!flush()) std::fprintf(stderr, "tenure: a trace is not whole: writing it has failed\n");
    }

    /// Effects: adds a line with the time of now.
    void line(char op, std::uint64_t id, std::size_t bytes, std::uint32_t stream) noexcept {
        if (failed_) return;
        const auto now = std::chrono::steady_clock::now();
        if (lines_++ == 0) first_ = now;
        if (buffer_.capacity() - buffer_.size() < longest_line + ending_.size()) hand_on();
        append(static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::microseconds>(now - first_).count()));
        buffer_ += ',';
        buffer_ += op;
        for (const std::uint64_t number : {id, std::uint64_t{bytes}, std::uint64_t{stream}}) {
            buffer_ += ',';
            append(number);
        }
        buffer_ += ending_;
    }

    /// Effects: ends the trace here, as one that is not whole.
    void fail() noexcept { failed_ = true; }

    /// Returns: whether every line so far is written or waits in the buffer.
    [[nodiscard]] bool good() const noexcept { return !failed_; }

    /// Effects: writes every line out. Returns: `good()`.
    bool flush() noexcept {
        hand_on();
        guard([this] { return static_cast<bool>(out().flush()); });
        return good();
    }

  private:
    static constexpr std::size_t buffer_bytes = std::size_t{64} << 10;
    static constexpr std::size_t longest_line = 4 * 20 + 5; ///< four numbers, four commas, one letter

    static std::string ending(std::string_view arena) {
        if (arena.find_first_of(",\r\n") != std::string_view::npos)
            throw std::invalid_argument("an arena's name in a trace may hold no comma and no line break");
        return arena.empty() ? "\n" : "," + std::string(arena) + "\n";
    }

    [[nodiscard]] std::ostream& out() noexcept { return out_ ? *out_ : file_; }

    void begin() {
        buffer_.reserve(buffer_bytes + longest_line + ending_.size());
        buffer_ += "t_us,op,id,bytes,stream";
        buffer_ += ending_.size() > 1 ? ",arena\n" : "\n";
    }

    void append(std::uint64_t number) noexcept {
        std::array<char, 20> digits;
        const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
        buffer_.append(digits.data(), static_cast<std::size_t>(end - digits.data()));
    }

    void hand_on() noexcept {
        guard([this] {
            return static_cast<bool>(
                out().write(buffer_.data(), static_cast<std::streamsize>(buffer_.size())));
        });
        buffer_.clear();
    }

    /// A stream may report a failure by its state or, where it was told to, by an exception.
    template <class Write>
    void guard(Write write) noexcept {
        if (failed_) return;
        try {
            failed_ = !write();
        } catch (...) {
            failed_ = true;
        }
    }

    std::ofstream file_;
    std::ostream* out_ = nullptr; ///< null: the file
    std::string ending_;          ///< of every line
    std::string buffer_;          ///< never grows
    std::chrono::steady_clock::time_point first_;
    std::uint64_t lines_ = 0;
    bool failed_ = false;
};

} // namespace tenure
