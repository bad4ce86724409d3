#pragma once

/// \file
/// `shift`: threads that prepare each for itself, begin together and work until told to stop.
///
///     body(worker, i)  the i-th thread: prepares, then worker.begin(), then units of work while
///                      worker.goes_on(); worker.end(units) takes its time. After that it may clean up.
///
/// Each thread's rate is its own units over its own time, so that one which starts or ends late does not
/// change what the others' work counts for; the rate of all is their sum.

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace bench {

class shift {
  public:
    shift(unsigned threads, std::chrono::nanoseconds length)
        : ready_(static_cast<std::ptrdiff_t>(threads) + 1), length_(length) {}

    class worker {
      public:
        explicit worker(shift& s) noexcept : shift_(s) {}
        worker(const worker&) = delete;
        worker& operator=(const worker&) = delete;
        ~worker() { begin(); } // whoever failed while preparing must not keep the others waiting

        void begin() {
            if (begun_) return;
            begun_ = true;
            shift_.ready_.arrive_and_wait();
            since_ = clock::now();
        }
        [[nodiscard]] bool goes_on() const noexcept { return shift_.on_.load(std::memory_order_relaxed); }
        /// Effects: does nothing until the shift is over, and disturbs nobody meanwhile.
        void sleep() const noexcept { shift_.on_.wait(true, std::memory_order_relaxed); }
        void end(std::uint64_t units) {
            const std::chrono::duration<double> time = clock::now() - since_;
            const std::lock_guard lock(shift_.mutex_);
            shift_.rate_ += static_cast<double>(units) / time.count();
        }

      private:
        shift& shift_;
        std::chrono::steady_clock::time_point since_{};
        bool begun_ = false;
    };

    /// Effects: runs `body(worker, i)` on each of `threads` threads for the length of the shift.
    /// Returns: units a second, all threads together. Throws: what a body threw.
    template <class Body>
    static double work(unsigned threads, std::chrono::nanoseconds length, Body body) {
        shift s(threads, length);
        std::vector<std::thread> all;
        for (unsigned i = 0; i < threads; ++i) {
            all.emplace_back([&s, &body, i] {
                worker w(s);
                try {
                    body(w, i);
                } catch (...) {
                    const std::lock_guard lock(s.mutex_);
                    s.error_ = std::current_exception();
                }
            });
        }
        s.ready_.arrive_and_wait();
        std::this_thread::sleep_for(s.length_);
        s.on_.store(false, std::memory_order_relaxed);
        s.on_.notify_all();
        for (std::thread& t : all) t.join();
        if (s.error_) std::rethrow_exception(s.error_);
        return s.rate_;
    }

  private:
    using clock = std::chrono::steady_clock;

    std::barrier<> ready_;
    std::chrono::nanoseconds length_;
    alignas(64) std::atomic<bool> on_{true};
    alignas(64) std::mutex mutex_;
    double rate_ = 0;
    std::exception_ptr error_;
};

} // namespace bench
