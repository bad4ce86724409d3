#pragma once

/// \file
/// `owner_section`: keeps a visitor out while the owner is in, and the owner out while a visitor is, without an
/// instruction with a lock prefix on the owner's side.
///
///     owner                              visitor (holds a mutex that all visitors take)
///       try_enter: inside = 1              stop
///                  light fence             heavy fence, once for any number of sections
///                  stopped? -> leave       wait until inside == 0
///       ... a dozen instructions ...       ... everything ...
///       leave:     inside = 0              resume
///
/// What makes it correct: the two fences are one `asymmetric_fence`, so that the owner sees `stop` or the visitor sees
/// `inside`. `leave` releases and the visitor's wait acquires; `resume` releases and `try_enter` acquires: each side
/// sees what the other did before. The owner never waits: who may not enter takes another way. It must not call
/// anything between `try_enter` and `leave`, so a visitor waits for a few nanoseconds, or for the owner's next time
/// slice.
///
/// `retire` keeps the owner out for good. `ask_for_visit` keeps it out until it calls `accept_visit`, so that its next
/// call takes the other way once.
///
/// Thread-safety: `try_enter`, `leave`, `accept_visit` by the owner's thread; `stop`, `wait`, `resume` by one visitor at
/// a time; the rest by any thread.

#include <tenure/core/asymmetric_fence.hpp>
#include <tenure/core/inlining.hpp>

#include <atomic>
#include <cstdint>
#include <thread>

namespace tenure {

class owner_section {
  public:
    owner_section() noexcept : closed_(asymmetric_fence::is_light() ? 0u : needs_fence) {}

    owner_section(const owner_section&) = delete;
    owner_section& operator=(const owner_section&) = delete;

    /// Returns: whether the owner is inside, and has to `leave`.
    [[nodiscard]] TENURE_ALWAYS_INLINE bool try_enter() noexcept {
        inside_.store(1, enter_order);
        asymmetric_fence::light();
        if (closed_.load(check_order) == 0) [[likely]]
            return true;
        return try_enter_fenced();
    }

    /// The same, but also fails where the owner would have to execute a fence.
    [[nodiscard]] TENURE_ALWAYS_INLINE bool try_enter_lightly() noexcept {
        inside_.store(1, enter_order);
        asymmetric_fence::light();
        if (closed_.load(check_order) == 0) [[likely]]
            return true;
        leave();
        return false;
    }

    TENURE_ALWAYS_INLINE void leave() noexcept { inside_.store(0, std::memory_order_release); }

    void stop() noexcept { closed_.fetch_or(stopped, std::memory_order_seq_cst); }

    /// Requires: `stop`, then a heavy fence, were executed. Effects: waits until the owner is outside.
    void wait() const noexcept {
        for (int spins = 0; inside_.load(check_order) != 0; ++spins)
            if (spins > 64) std::this_thread::yield();
    }

    void resume() noexcept { closed_.fetch_and(~stopped, std::memory_order_release); }

    void retire() noexcept { closed_.fetch_or(retired, std::memory_order_seq_cst); }
    [[nodiscard]] bool is_retired() const noexcept {
        return (closed_.load(std::memory_order_acquire) & retired) != 0;
    }

    void ask_for_visit() noexcept { closed_.fetch_or(visit_wanted, std::memory_order_relaxed); }

    /// Returns: whether a visit was wanted.
    bool accept_visit() noexcept {
        if ((closed_.load(std::memory_order_relaxed) & visit_wanted) == 0) return false;
        closed_.fetch_and(~visit_wanted, std::memory_order_relaxed);
        return true;
    }

  private:
    static constexpr std::uint32_t stopped = 1;
    static constexpr std::uint32_t retired = 2;
    static constexpr std::uint32_t visit_wanted = 4;
    static constexpr std::uint32_t needs_fence = 8; ///< the asymmetric fence is not to be had here

    static constexpr std::memory_order enter_order =
        asymmetric_fence::checked_by_tsan ? std::memory_order_seq_cst : std::memory_order_relaxed;
    static constexpr std::memory_order check_order =
        asymmetric_fence::checked_by_tsan ? std::memory_order_seq_cst : std::memory_order_acquire;

    [[nodiscard]] TENURE_NOINLINE bool try_enter_fenced() noexcept {
        asymmetric_fence::full();
        if ((closed_.load(check_order) & ~needs_fence) == 0) return true;
        leave();
        return false;
    }

    std::atomic<std::uint32_t> inside_{0};
    std::atomic<std::uint32_t> closed_;
};

} // namespace tenure
