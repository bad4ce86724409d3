#pragma once

/// \file
/// `publisher`: shows a view's arenas to `tenure top` and other readers, while it lives and if it is asked to.
///
///     arenas_view view;
///     publisher shown(view, {.when = publish::always});
///
/// `environment` has one for every process with TENURE_PUBLISH=1, which shows all arenas there are; a process has one page, so
/// another that would do the same does nothing.
///
/// Asked to, it writes the page (`published_page.hpp`) ten times a second from a thread of its own; the threads that
/// allocate notice nothing but that a pool's lock is taken for its counters. Not asked to, it costs one look at the
/// environment.
///
/// A page that cannot be made (no /dev/shm, no room) is said on stderr once, and the program goes on without.
/// Thread-safety: thread-safe, except construction and destruction. A child of `fork` publishes nothing.

#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/published_page.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#include <signal.h>
#include <unistd.h>

namespace tenure {

enum class publish { if_asked, always, never };

struct publisher_options {
    publish when = publish::if_asked;        ///< asked: TENURE_PUBLISH=1
    std::chrono::milliseconds interval{100}; ///< at least 1 ms; what a person calls at once
    std::size_t rows = 256;                  ///< room in the page: 93 KB
    std::string folder = page_folder();
};

class publisher {
  public:
    /// Requires: the view outlives the publisher.
    /// Throws: `std::invalid_argument` if TENURE_PUBLISH is neither 0 nor 1 nor empty.
    explicit publisher(const arenas_view& view, publisher_options options = {})
        : view_(&view), interval_(options.interval) {
        if (options.when == publish::never || (options.when == publish::if_asked && !is_asked())) return;
        try {
            page_.emplace(options.folder, options.rows);
            write();
            thread_ = std::thread([this] { run(); });
        } catch (const std::exception& e) {
            const auto* const failed = dynamic_cast<const std::system_error*>(&e);
            const bool is_there = failed != nullptr && failed->code() == std::errc::file_exists;
            if (!is_there || options.when != publish::if_asked)
                std::fprintf(stderr, "tenure: arenas are not published: %s\n", e.what());
            page_.reset();
        }
    }

    publisher(const publisher&) = delete;
    publisher& operator=(const publisher&) = delete;

    ~publisher() {
        if (!thread_.joinable()) return;
        if (static_cast<std::uint64_t>(::getpid()) != page_->process().pid) {
            thread_.detach(); // of the parent: here there is none
            return;
        }
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        stopped_.notify_one();
        thread_.join();
    }

    /// Returns: the page, or an empty path if there is none.
    [[nodiscard]] std::string file() const { return page_ ? page_->file() : std::string(); }

    /// Returns: whether the environment asks to publish. Throws: `std::invalid_argument`.
    static bool is_asked() {
        const char* const text = std::getenv("TENURE_PUBLISH");
        const std::string_view asked = text == nullptr ? "" : text;
        if (asked.empty() || asked == "0") return false;
        if (asked == "1") return true;
        throw std::invalid_argument("TENURE_PUBLISH=\"" + std::string(asked) + "\": write 0 or 1");
    }

  private:
    void run() noexcept {
        sigset_t all; // the program's signals are for its own threads
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        std::unique_lock lock(mutex_);
        while (!stopped_.wait_for(lock, interval_, [this] { return stop_; })) {
            lock.unlock();
            write();
            lock.lock();
        }
    }

    void write() noexcept {
        try {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
            page_->write(view_->read(), static_cast<std::uint64_t>(ns));
        } catch (...) { // no host memory: the page shows what it did before
        }
    }

    const arenas_view* view_;
    const std::chrono::milliseconds interval_;
    std::optional<page_writer> page_;
    std::mutex mutex_; ///< guards `stop_`
    std::condition_variable stopped_;
    bool stop_ = false;
    std::thread thread_;
};

} // namespace tenure
