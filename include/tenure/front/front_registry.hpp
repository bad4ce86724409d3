#pragma once

/// \file
/// `front_registry`: the front ends that live, so that a thread that ends can hand back what it keeps of them.
///
/// While a thread's end is told to a front end, that cannot be destroyed: its destructor first leaves the registry,
/// which waits. Front ends have numbers that are never used again, so what a thread remembers of a dead one means
/// nothing and does no harm.
///
/// The registry itself is never destroyed: threads end after `main` does.
/// Complexity: linear in the front ends, at the end of a thread. Thread-safety: thread-safe.

#include <tenure/core/ordered_mutex.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tenure {

class front_registry {
  public:
    struct member {
        std::uint64_t number = 0;
        void* front = nullptr;
        void (*thread_ends)(void* front, std::uint64_t thread) noexcept = nullptr;
    };

    static front_registry& instance() {
        static front_registry* const registry = new front_registry;
        return *registry;
    }

    /// Returns: a number that nothing else in the process has had or will have.
    std::uint64_t new_number() noexcept { return next_.fetch_add(1, std::memory_order_relaxed); }

    /// Returns: the same for a front end, spread over all 64 bits, so that it can be used as it is in a hash.
    std::uint64_t new_front_number() noexcept { return new_number() * 0xd1b54a32d192ed03u; }

    /// Throws: `std::bad_alloc`.
    void enter(const member& m) {
        const std::lock_guard lock(mutex_);
        members_.push_back(m);
    }

    void leave(std::uint64_t number) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(members_, [number](const member& m) { return m.number == number; });
    }

    [[nodiscard]] bool lives(std::uint64_t number) const noexcept {
        const std::lock_guard lock(mutex_);
        return std::any_of(members_.begin(), members_.end(),
                           [number](const member& m) { return m.number == number; });
    }

    void thread_ends(std::uint64_t thread) noexcept {
        const std::lock_guard lock(mutex_);
        for (const member& m : members_) m.thread_ends(m.front, thread);
    }

  private:
    front_registry() = default;

    mutable ordered_mutex<lock_level::front_registry> mutex_; ///< guards `members_`
    std::vector<member> members_;
    std::atomic<std::uint64_t> next_{1};
};

} // namespace tenure
