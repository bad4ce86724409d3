#pragma once

/// \file
/// `cuda::descriptor`: a file descriptor that somebody owns, and how to hand one to another process.
///
///     process A: send_descriptors(socket, {a, b})  ---- SCM_RIGHTS ---->  process B: receive_descriptors(socket, 2)
///
/// The receiver gets descriptors of its own: the sender may close its copies at once. The socket is a connected
/// Unix-domain one (`socketpair`, or a path both know).
///
/// Invariant: a descriptor is closed exactly once, by whoever owns it last.
///
/// Cost: a system call for up to `most_descriptors`. Thread-safety: thread-compatible; a socket belongs to one thread a
/// direction at a time.

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace tenure::cuda {

class descriptor {
  public:
    descriptor() noexcept = default;
    /// Effects: owns `number` from now on; -1 is none.
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor() {
        if (number_ >= 0) (void)::close(number_);
    }
    [[nodiscard]] int get() const noexcept { return number_; }
    [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }

  private:
    int number_ = -1;
};

/// The kernel passes no more in one message; more are sent in several.
inline constexpr std::size_t most_descriptors = 250;

/// Effects: sends the descriptors over the connected Unix-domain socket. Returns: whether all were sent.
inline bool send_descriptors(int socket, std::span<const int> numbers) noexcept {
    alignas(cmsghdr) char control[CMSG_SPACE(most_descriptors * sizeof(int))];
    while (!numbers.empty()) {
        const std::size_t n = numbers.size() < most_descriptors ? numbers.size() : most_descriptors;
        char one = 0; // a message needs a byte
        iovec data{&one, 1};
        msghdr message{};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(n * sizeof(int));
        std::memset(control, 0, sizeof control);
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(n * sizeof(int));
        std::memcpy(CMSG_DATA(header), numbers.data(), n * sizeof(int));
        ssize_t sent = -1;
        do sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent != 1) return false;
        numbers = numbers.subspan(n);
    }
    return true;
}

/// Returns: the next `count` descriptors that the other side sends, waiting for them; fewer if it hangs up.
/// Throws: `std::bad_alloc`.
inline std::vector<descriptor> receive_descriptors(int socket, std::size_t count) {
    alignas(cmsghdr) char control[CMSG_SPACE(most_descriptors * sizeof(int))];
    std::vector<descriptor> received;
    received.reserve(count + most_descriptors);
    while (received.size() < count) {
        char one = 0;
        iovec data{&one, 1};
        msghdr message{};
        message.msg_iov = &data;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        ssize_t got = -1;
        do got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
        while (got < 0 && errno == EINTR);
        if (got != 1) break;
        const cmsghdr* const header = CMSG_FIRSTHDR(&message);
        if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) break;
        const std::size_t n = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < n; ++i) {
            int number = -1;
            std::memcpy(&number, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            received.emplace_back(number);
        }
    }
    return received;
}

} // namespace tenure::cuda
