#include "line_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <zlib.h>

namespace tenure::cli {

namespace {

gzFile handle(void* file) noexcept {
    return static_cast<gzFile>(file);
}

} // namespace

std::string quoted(std::string_view text) {
    constexpr std::size_t shown = 48;
    std::string out = "\"";
    for (const char c : text.substr(0, shown)) {
        if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
            out += c;
        } else {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\x%02x",
                          static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += escaped;
        }
    }
    return out + (text.size() > shown ? "...\"" : "\"");
}

void line_reader::closer::operator()(void* file) const noexcept {
    gzclose_r(handle(file));
}

line_reader::line_reader(std::string path) : path_(std::move(path)), buffer_(chunk + max_line) {
    errno = 0;
    file_.reset(gzopen(path_.c_str(), "rb"));
    if (!file_)
        throw input_error(path_, std::string("cannot open: ") + std::strerror(errno != 0 ? errno : ENOMEM));
    gzbuffer(handle(file_.get()), chunk);
}

void line_reader::refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    errno = 0;
    const auto room = static_cast<unsigned>(std::min(chunk, buffer_.size() - end_));
    const int got = gzread(handle(file_.get()), buffer_.data() + end_, room);
    if (got > 0) end_ += static_cast<std::size_t>(got);
    if (got == static_cast<int>(room)) return;

    at_end_ = true; // only the end of the data or an error makes a short read
    int code = Z_OK;
    const char* text = gzerror(handle(file_.get()), &code);
    switch (code) {
    case Z_OK:
    case Z_STREAM_END: break;
    case Z_ERRNO: failure_ = std::string("cannot read: ") + std::strerror(errno != 0 ? errno : EIO); break;
    case Z_BUF_ERROR: failure_ = "truncated gzip data"; break;
    default: failure_ = std::string("corrupt gzip data (") + text + ")"; break;
    }
}

bool line_reader::next(std::string_view& line) {
    std::size_t searched = 0;
    for (;;) {
        const char* from = buffer_.data() + begin_;
        const std::size_t held = end_ - begin_;
        const void* found = searched < held ? std::memchr(from + searched, '\n', held - searched) : nullptr;
        const std::size_t length =
            found ? static_cast<std::size_t>(static_cast<const char*>(found) - from) : held;
        if (length > max_line) {
            throw input_error(path_, line_ + 1,
                              "line longer than " + std::to_string(max_line) + " bytes, begins " +
                                  quoted({from, length}));
        }
        if (!found && !at_end_) {
            searched = held;
            refill();
            continue;
        }
        if (!found && !failure_.empty()) throw input_error(path_, line_ + 1, failure_);
        if (!found && held == 0) return false;
        ++line_;
        begin_ += found ? length + 1 : length;
        line = {from, length};
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        return true;
    }
}

} // namespace tenure::cli
