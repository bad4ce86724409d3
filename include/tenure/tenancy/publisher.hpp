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
/// allocate notice nothing but that the tree's lock and then each pool's are taken for a moment, for their counters. Not asked
/// to, it costs one look at the environment. Pages that dead processes of this user have left are taken away first.
///
/// A page that cannot be made (no /dev/shm, no room, another publisher in this process) is said on stderr once, and the
/// program goes on without.
///
/// A child of `fork` publishes nothing, and may destroy what it has inherited. Locks that the publisher's thread held at the
/// fork stay held there, though, like those of any other thread: a child that does not `exec` had better not use the arenas.
/// Thread-safety: thread-safe, except construction and destruction.

#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/page_reader.hpp>
#include <tenure/tenancy/published_page.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <signal.h>
#include <unistd.h>

namespace tenure {

enum class publish { if_asked, always, never };

struct publisher_options {
    publish when = publish::if_asked;        ///< asked: TENURE_PUBLISH=1
    std::chrono::milliseconds interval{100}; ///< at least 1 ms is taken; what a person calls at once
    std::size_t rows = 256;                  ///< room in the page: 98 KB
    std::string folder = page_folder();
};

class publisher {
  public:
    /// Requires: the view outlives the publisher.
    /// Throws: `std::invalid_argument` if TENURE_PUBLISH is neither 0 nor 1 nor empty.
    explicit publisher(const arenas_view& view, publisher_options options = {})
        : view_(&view), interval_(std::max(options.interval, std::chrono::milliseconds{1})) {
        if (options.when == publish::never || (options.when == publish::if_asked && !is_asked())) return;
        try {
            for (const page_key key : page_keys(options.folder)) (void)remove_if_stale(options.folder, key);
            page_.emplace(options.folder, options.rows);
            write();
            worker_ = std::make_unique<worker>();
            const signals_blocked here; // the program's signals are for its own threads
            worker_->thread = std::thread([this] { run(*worker_); });
        } catch (const std::exception& e) {
            const auto* const failed = dynamic_cast<const std::system_error*>(&e);
            const bool is_there = failed != nullptr && failed->code() == std::errc::file_exists;
            if (!is_there || options.when != publish::if_asked)
                std::fprintf(stderr, "tenure: arenas are not published: %s\n", e.what());
            worker_.reset();
            page_.reset();
        }
    }

    publisher(const publisher&) = delete;
    publisher& operator=(const publisher&) = delete;

    ~publisher() {
        if (!worker_) return;
        if (static_cast<std::uint64_t>(::getpid()) != page_->process().pid) {
            // Its thread is the parent's. A condition for which it waits cannot be destroyed here, ever.
            (void)worker_.release();
            return;
        }
        {
            const std::lock_guard lock(worker_->mutex);
            worker_->stop = true;
        }
        worker_->stopped.notify_one();
        worker_->thread.join();
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
    struct worker {
        std::mutex mutex; ///< guards `stop`
        std::condition_variable stopped;
        bool stop = false;
        std::thread thread;
    };

    /// While it lives, this thread gets no signals, nor do those that it makes.
    struct signals_blocked {
        signals_blocked() noexcept {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
        }
        ~signals_blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
        signals_blocked(const signals_blocked&) = delete;
        signals_blocked& operator=(const signals_blocked&) = delete;
        sigset_t before;
    };

    void run(worker& me) noexcept {
        std::unique_lock lock(me.mutex);
        while (!me.stopped.wait_for(lock, interval_, [&me] { return me.stop; })) {
            lock.unlock();
            write();
            lock.lock();
        }
    }

    void write() noexcept {
        try {
            const auto now = std::chrono::system_clock::now().time_since_epoch();
            const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
            const std::vector<arena_row> rows = view_->read();
            page_->write(rows, static_cast<std::uint64_t>(ns), view_->read_devices());
        } catch (...) { // no host memory: the page shows what it did before
        }
    }

    const arenas_view* view_;
    const std::chrono::milliseconds interval_;
    std::optional<page_writer> page_;
    std::unique_ptr<worker> worker_; ///< none: nothing is published
};

} // namespace tenure
