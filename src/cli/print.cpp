#include "print.hpp"

#include "errors.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace tenure::cli {

bool print(std::string_view text) {
    errno = 0;
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0)
        return true;
    if (errno == EPIPE) return false;
    throw usage_error(std::string("cannot write to stdout: ") + std::strerror(errno != 0 ? errno : EIO));
}

} // namespace tenure::cli
