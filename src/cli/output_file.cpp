#include "output_file.hpp"

#include "errors.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tenure::cli {

namespace {

[[noreturn]] void fail(const std::string& path, int error) {
    throw usage_error(path + ": cannot write: " + std::strerror(error));
}

} // namespace

output_file::output_file(std::string path) : path_(std::move(path)), target_(path_) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::file_status there = fs::status(path_, ignored);
    if (fs::is_directory(there)) fail(path_, EISDIR);
    if (fs::exists(there) && !fs::is_regular_file(there)) {
        descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
        if (descriptor_ < 0) fail(path_, errno);
        return;
    }
    if (fs::exists(there)) {
        if (::access(path_.c_str(), W_OK) != 0) fail(path_, errno);
        const fs::path real = fs::canonical(path_, ignored);
        if (!real.empty()) target_ = real.string();
    }
    pending_ = target_ + "." + std::to_string(::getpid()) + ".tmp";
    make_pending(); // it can be made; who interrupts the program from now on finds nothing
    ::close(std::exchange(descriptor_, -1));
    ::unlink(pending_.c_str());
}

void output_file::make_pending() {
    descriptor_ = ::open(pending_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor_ < 0) fail(path_, errno);
    struct stat old {};
    if (::stat(target_.c_str(), &old) == 0) (void)::fchmod(descriptor_, old.st_mode & 07777);
}

output_file::~output_file() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    if (!pending_.empty()) ::unlink(pending_.c_str());
}

void output_file::write(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(path_, errno);
        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
}

void output_file::commit(std::string_view bytes) {
    if (!pending_.empty()) make_pending();
    write(bytes); // what is left of a failure goes with the object
    if (!pending_.empty() && ::rename(pending_.c_str(), target_.c_str()) != 0) {
        if (errno != EBUSY && errno != EPERM && errno != EACCES) fail(path_, errno);
        ::unlink(pending_.c_str());
        pending_.clear();
        ::close(descriptor_);
        descriptor_ = ::open(target_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (descriptor_ < 0) fail(path_, errno);
        write(bytes);
    }
    if (::close(std::exchange(descriptor_, -1)) != 0) fail(path_, errno);
}

} // namespace tenure::cli
