#pragma once

/// \file
/// `line_reader`: the lines of a text file, plain or gzip-compressed, in bounded memory.
///
/// gzip is recognised by content, not by the file's name. Invariants:
///   1. At most two chunks and the longest line allowed are held, however long a line or however well it is compressed.
///   2. Every whole line before a truncation is returned before the error, so the error names the line that
///   is cut.
///      (Corrupt data is noticed up to one chunk ahead of the line that suffers from it.)
///   3. A truncated or corrupt gzip stream is never mistaken for the end of the file. What follows a member is another
///   member, or zeros up to the end, or corrupt.
///
/// Line ends are `\n` or `\r\n`; the last line needs none. Complexity: linear in the file. Thread-compatible.

#include "errors.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::cli {

/// Returns: `text` in double quotes, unprintable bytes escaped, cut to a length that fits a message.
std::string quoted(std::string_view text);

class line_reader {
  public:
    static constexpr std::size_t max_line = 4096; ///< bytes; a line of a trace has less than 100

    /// `longest`: bytes of a line that is still taken. Throws: `input_error` when the file cannot be opened.
    explicit line_reader(std::string path, std::size_t longest = max_line);

    /// Effects: reads the next line into `line` (valid until the next call), without its line end.
    /// Returns: false at the end of the file. Throws: `input_error`: read error, damaged gzip, line too long.
    bool next(std::string_view& line);

    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// Returns: the number of the line read last, counted from 1.
    [[nodiscard]] std::size_t line() const noexcept { return line_; }
    /// Returns: whether the line read last has no line end: the last of a file that may have been cut.
    [[nodiscard]] bool unended() const noexcept { return unended_; }
    /// Returns: an error that blames the line read last.
    [[nodiscard]] input_error error(const std::string& message) const { return {path_, line_, message}; }

  private:
    static constexpr std::size_t chunk = 65536;

    void refill();

    struct source;
    struct closer {
        void operator()(source* file) const noexcept;
    };
    std::string path_;
    std::size_t longest_;
    std::unique_ptr<source, closer> file_;
    std::vector<char> buffer_;
    std::size_t begin_ = 0; ///< unread bytes are buffer_[begin_, end_)
    std::size_t end_ = 0;
    std::size_t line_ = 0;
    bool at_end_ = false;
    bool unended_ = false;
    std::string failure_; ///< why the file ended before its time; empty if it did not
};

} // namespace tenure::cli
