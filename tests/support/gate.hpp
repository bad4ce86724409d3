#pragma once

/// \file
/// `gate`: threads wait at it until it is opened.

#include <condition_variable>
#include <mutex>

namespace tenure::test {

class gate {
  public:
    void open() {
        const std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return open_; });
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

} // namespace tenure::test
