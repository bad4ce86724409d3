#pragma once

/// \file
/// `asymmetric_fence`: a full memory barrier of which one side is free, because the other pays for both.
///
///     often (owner)                   seldom (visitor)
///       store mine                      store theirs
///       light()                         heavy()
///       load theirs                     load mine
///
/// At least one of the two loads sees the other's store, as with two full fences (Dekker). `heavy()` is the
/// system call membarrier(PRIVATE_EXPEDITED): when it returns, every running thread of the process has executed a full
/// barrier since it was called. If the owner's store came before that barrier, the visitor's load sees it; if not, the
/// owner's load comes after the barrier, and sees the visitor's store. `light()` then only keeps the compiler from
/// swapping the two.
///
/// Where the system has no membarrier, `is_light()` is false, and the owner must execute `full()` in place of
/// `light()`. ThreadSanitizer knows neither fences nor membarrier: `checked_by_tsan` tells code to use sequentially
/// consistent operations on the two flags instead.
///
/// Cost: `light()` nothing; `heavy()` 0.1 us with one running thread, a few us with many (an interrupt for each).
/// Thread-safety: thread-safe.

#include <atomic>

#if defined(__linux__) && __has_include(<linux/membarrier.h>)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__NR_membarrier)
#define TENURE_HAS_MEMBARRIER 1
#endif
#endif

namespace tenure {

class asymmetric_fence {
  public:
#if defined(__SANITIZE_THREAD__)
    static constexpr bool checked_by_tsan = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    static constexpr bool checked_by_tsan = true;
#else
    static constexpr bool checked_by_tsan = false;
#endif
#else
    static constexpr bool checked_by_tsan = false;
#endif

    /// Returns: whether `light()` is enough. The same answer for the life of the process; the first call registers the
    /// process with the system.
    [[nodiscard]] static bool is_light() noexcept {
        static const bool answer = register_process();
        return answer;
    }

    static void light() noexcept {
        std::atomic_signal_fence(std::memory_order_seq_cst);
    }

    static void full() noexcept {
        if constexpr (!checked_by_tsan) std::atomic_thread_fence(std::memory_order_seq_cst);
    }

    static void heavy() noexcept {
#if defined(TENURE_HAS_MEMBARRIER)
        if (is_light() && syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
#endif
        full();
    }

  private:
    static bool register_process() noexcept {
#if defined(TENURE_HAS_MEMBARRIER)
        if constexpr (!checked_by_tsan)
            return syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
        return false;
    }
};

} // namespace tenure
