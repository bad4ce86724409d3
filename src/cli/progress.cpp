#include "progress.hpp"

#include "terminal.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <unistd.h>

namespace tenure::cli {

progress::progress(std::size_t steps, bool wanted) : steps_(steps) {
    const char* const terminal = std::getenv("TERM");
    shown_ = wanted && steps > 0 && ::isatty(STDERR_FILENO) == 1 && terminal != nullptr &&
             std::string_view(terminal) != "dumb";
}

progress::~progress() {
    erase();
}

void progress::erase() noexcept {
    if (!drawn_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
}

void progress::begin(const std::string& step) {
    if (!shown_) return;
    constexpr std::size_t width = 30;
    const std::size_t filled = done_ * width / steps_;
    erase();
    const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
    std::string line = '[' + bar + "] " + std::to_string(done_) + '/' + std::to_string(steps_) + ' ' + step;
    // One row of the terminal and no more: what wraps cannot be erased. The last column is the cursor's.
    const std::size_t told = size_of_terminal(STDERR_FILENO).columns;
    line = shortened(line, std::max<std::size_t>(told == 0 ? 80 : told, 4) - 1);
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
    if (done_ < steps_) ++done_;
}

} // namespace tenure::cli
