#pragma once

/// \file
/// `misuse_log`: while it lives, misuse is collected instead of printed.
///
/// One at a time. Thread-safety: reports may come from any thread; reading is for when they are quiet.

#include <tenure/core/error.hpp>

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure::test {

class misuse_log {
  public:
    misuse_log() : before_(set_misuse_handler(&collect)) { current() = this; }
    ~misuse_log() {
        set_misuse_handler(before_);
        current() = nullptr;
    }
    misuse_log(const misuse_log&) = delete;
    misuse_log& operator=(const misuse_log&) = delete;

    [[nodiscard]] std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return entries_.size();
    }
    [[nodiscard]] misuse operator[](std::size_t i) const {
        const std::lock_guard lock(mutex_);
        return entries_.at(i);
    }
    void clear() {
        const std::lock_guard lock(mutex_);
        entries_.clear();
    }
    /// Returns: all that was collected since the last call.
    [[nodiscard]] std::vector<misuse> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(entries_, {});
    }

  private:
    static misuse_log*& current() {
        static misuse_log* log = nullptr;
        return log;
    }
    static void collect(const misuse& m) noexcept {
        const std::lock_guard lock(current()->mutex_);
        current()->entries_.push_back(m);
    }

    misuse_handler before_;
    mutable std::mutex mutex_;
    std::vector<misuse> entries_;
};

} // namespace tenure::test
