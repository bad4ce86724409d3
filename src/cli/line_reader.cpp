#include "line_reader.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

namespace tenure::cli {

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

/// The bytes of a file as they were before gzip, if it is gzip.
struct line_reader::source {
    explicit source(int file) : descriptor(file), waiting(chunk) {}
    source(const source&) = delete;
    source& operator=(const source&) = delete;
    ~source() {
        if (inflating) inflateEnd(&stream);
        ::close(descriptor);
    }

    /// Returns: how many bytes of `room` were filled. Fewer than all: the end of the data, or `failure` says why not.
    std::size_t read(char* to, std::size_t room) {
        std::size_t got = 0;
        bool more = true;
        while (more && got < room && failure.empty()) {
            switch (now) {
            case state::start: begin(); break;
            case state::plain: more = copy(to, room, got); break;
            case state::member: inflate_some(to, room, got); break;
            case state::between: more = next_member(); break;
            }
        }
        return got;
    }

    std::string failure; ///< empty: none

  private:
    enum class state { start, plain, member, between };

    /// Effects: reads until `n` bytes wait. Returns: whether they do; if not, the file has ended or cannot be read.
    bool want(std::size_t n) {
        while (last - first < n && !ended) {
            std::memmove(waiting.data(), waiting.data() + first, last - first);
            last -= first;
            first = 0;
            const ssize_t r = ::read(descriptor, waiting.data() + last, waiting.size() - last);
            if (r < 0 && errno == EINTR) continue;
            if (r < 0) failure = std::string("cannot read: ") + std::strerror(errno);
            if (r <= 0) ended = true;
            if (r > 0) last += static_cast<std::size_t>(r);
        }
        return last - first >= n;
    }

    bool at_magic() { return want(2) && waiting[first] == 0x1f && waiting[first + 1] == 0x8b; }

    void begin() {
        now = state::plain;
        if (!at_magic()) return;
        if (inflateInit2(&stream, 15 + 16) != Z_OK) throw std::bad_alloc();
        inflating = true;
        now = state::member;
    }

    bool copy(char* to, std::size_t room, std::size_t& got) {
        if (!want(1)) return false;
        const std::size_t n = std::min(room - got, last - first);
        std::memcpy(to + got, waiting.data() + first, n);
        first += n;
        got += n;
        return true;
    }

    void inflate_some(char* to, std::size_t room, std::size_t& got) {
        if (!want(1)) {
            if (failure.empty()) failure = "truncated gzip data";
            return;
        }
        stream.next_in = waiting.data() + first;
        stream.avail_in = static_cast<uInt>(last - first);
        stream.next_out = reinterpret_cast<Bytef*>(to + got);
        stream.avail_out = static_cast<uInt>(room - got);
        const int code = inflate(&stream, Z_NO_FLUSH);
        first = last - stream.avail_in;
        got = room - stream.avail_out;
        if (code == Z_STREAM_END) now = state::between;
        if (code != Z_OK && code != Z_STREAM_END)
            failure = std::string("corrupt gzip data (") +
                      (stream.msg != nullptr ? stream.msg : "cannot be inflated") + ")";
    }

    /// Returns: whether there is one.
    bool next_member() {
        if (at_magic()) {
            if (inflateReset(&stream) != Z_OK) failure = "corrupt gzip data (no state)";
            now = state::member;
            return true;
        }
        while (want(1) && waiting[first] == 0) ++first;
        if (want(1) && failure.empty()) failure = "corrupt gzip data (what follows a member is no other)";
        return false;
    }

    int descriptor;
    std::vector<unsigned char> waiting; ///< as they are in the file: [first, last)
    std::size_t first = 0;
    std::size_t last = 0;
    bool ended = false;
    state now = state::start;
    z_stream stream{};
    bool inflating = false;
};

void line_reader::closer::operator()(source* file) const noexcept {
    delete file;
}

line_reader::line_reader(std::string path, std::size_t longest)
    : path_(std::move(path)), longest_(longest), buffer_(chunk + longest) {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) throw input_error(path_, std::string("cannot open: ") + std::strerror(errno));
    file_.reset(new source(file));
}

void line_reader::refill() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const std::size_t room = std::min(chunk, buffer_.size() - end_);
    const std::size_t got = file_->read(buffer_.data() + end_, room);
    end_ += got;
    if (got == room) return;
    at_end_ = true; // only the end of the data or an error makes a short read
    failure_ = file_->failure;
}

bool line_reader::next(std::string_view& line) {
    std::size_t searched = 0;
    for (;;) {
        const char* from = buffer_.data() + begin_;
        const std::size_t held = end_ - begin_;
        const void* found = searched < held ? std::memchr(from + searched, '\n', held - searched) : nullptr;
        const std::size_t length =
            found ? static_cast<std::size_t>(static_cast<const char*>(found) - from) : held;
        if (length > longest_) {
            throw input_error(path_, line_ + 1,
                              "line longer than " + std::to_string(longest_) + " bytes, begins " +
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
        unended_ = !found;
        begin_ += found ? length + 1 : length;
        line = {from, length};
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        return true;
    }
}

} // namespace tenure::cli
