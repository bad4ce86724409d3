#pragma once

/// \file
/// `misuse_log`: while it lives, misuse of any thread is collected instead of printed. One at a time.
///
/// Thread-safety: thread-safe.

#include <tenure/core/error.hpp>

#include <mutex>
#include <utility>
#include <vector>

namespace tenure::test {

class misuse_log {
  public:
    misuse_log() : before_(set_misuse_handler(&note)) { take(); }
    ~misuse_log() { set_misuse_handler(before_); }
    misuse_log(const misuse_log&) = delete;
    misuse_log& operator=(const misuse_log&) = delete;

    /// Returns: what was reported since the last call.
    static std::vector<misuse> take() {
        const std::lock_guard lock(mutex());
        return std::exchange(entries(), {});
    }

  private:
    static void note(const misuse& m) noexcept {
        const std::lock_guard lock(mutex());
        entries().push_back(m);
    }
    static std::mutex& mutex() {
        static std::mutex m;
        return m;
    }
    static std::vector<misuse>& entries() {
        static std::vector<misuse> e;
        return e;
    }

    misuse_handler before_;
};

} // namespace tenure::test
