#pragma once

/// \file
/// `arena_registry`: which arenas are alive, so that a pointer freed in the wrong one can be named.
///
/// Asked only when a free has failed already; the hot path never comes here. Invariant: an arena is in the list from
/// the end of its construction to the beginning of its destruction. The registry is never destroyed, because arenas
/// may outlive any static object.
///
/// Complexity: linear in the arenas. Thread-safety: thread-safe. Its lock is taken before any arena's own.

#include <tenure/core/error.hpp>

#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

namespace tenure {

class arena_registry {
  public:
    struct member {
        const void* arena;
        bool (*owns)(const void* arena, const void* pointer) noexcept;
        short_text name;
    };

    static arena_registry& instance() {
        static arena_registry* const registry = new arena_registry;
        return *registry;
    }

    /// Throws: `std::bad_alloc`.
    void enter(const member& m) {
        const std::lock_guard lock(mutex_);
        members_.push_back(m);
    }

    void leave(const void* arena) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(members_, [arena](const member& m) { return m.arena == arena; });
    }

    /// Requires: the caller holds no lock of any arena. Returns: the name of the arena, other than `asking`, in which
    /// `pointer` is live.
    [[nodiscard]] std::optional<short_text> owner_of(const void* pointer, const void* asking) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const member& m : members_)
            if (m.arena != asking && m.owns(m.arena, pointer)) return m.name;
        return std::nullopt;
    }

  private:
    arena_registry() = default;
    mutable std::mutex mutex_;
    std::vector<member> members_;
};

} // namespace tenure
