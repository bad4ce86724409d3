#pragma once

/// \file
/// `ordered_mutex<Level>`: a mutex that knows its place in the order of locks. In debug builds a thread that locks
/// against the order ends the process at once, instead of deadlocking some day.
///
///     level   mutex                                   guards
///        5    `survivors`                             pools of destroyed arenas
///       10    `front_registry`                        which front ends live
///       20    `rack_list`                             racks of a front end
///       25    `depot`                                 bundles between its threads
///       30    the pools                               layout, pointer map, counters
///       40    `meter`                                 charges of a tree of arenas
///       45    `hub`, leaving                          memory on its way back to the driver
///       50    `hub`                                   memory that belongs to nobody
///
/// A thread may lock only levels above all that it holds. The device's own locks come after all of these.
/// Cost: with `NDEBUG` or `TENURE_NO_LOCK_ORDER` that of `std::mutex`; one answer in a program. Thread-safety: thread-safe.

#include <mutex>

#if !defined(NDEBUG) && !defined(TENURE_NO_LOCK_ORDER)
#include <cstdio>
#include <cstdlib>
#endif

namespace tenure {

enum class lock_level : int {
    survivors = 5,
    front_registry = 10,
    front = 20,
    depot = 25,
    pool = 30,
    meter = 40,
    hub_leaving = 45,
    hub = 50,
};

#if !defined(NDEBUG) && !defined(TENURE_NO_LOCK_ORDER)
namespace detail {
/// The levels that this thread holds, one bit each.
inline unsigned long& held_lock_levels() noexcept {
    thread_local unsigned long levels = 0;
    return levels;
}
} // namespace detail
#endif

template <lock_level Level>
class ordered_mutex {
  public:
    void lock() {
        enter();
        mutex_.lock();
    }
    void unlock() noexcept {
        mutex_.unlock();
        leave();
    }

  private:
#if !defined(NDEBUG) && !defined(TENURE_NO_LOCK_ORDER)
    static constexpr unsigned long bit = 1ul << static_cast<int>(Level);
    static void enter() noexcept {
        unsigned long& held = detail::held_lock_levels();
        if (held >= bit) {
            std::fprintf(stderr, "tenure: lock of level %d taken out of order\n", static_cast<int>(Level));
            std::abort();
        }
        held |= bit;
    }
    static void leave() noexcept {
        detail::held_lock_levels() &= ~bit;
    }
#else
    static void enter() noexcept {}
    static void leave() noexcept {}
#endif
    std::mutex mutex_;
};

} // namespace tenure
