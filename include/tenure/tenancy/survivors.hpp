#pragma once

/// \file
/// `survivors`: pools of destroyed arenas whose blocks live on (`leftovers::reparent`), until the last block is freed.
///
/// Complexity: linear in the pools. Thread-safety: thread-safe.

#include <tenure/core/error.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure {

/// A pool without an arena.
class survivor {
  public:
    virtual ~survivor() = default;
    virtual deallocate_result free_on(stream_handle stream, void* p, std::size_t bytes,
                                      std::size_t alignment) noexcept = 0;
    virtual void free_on_own_stream(void* p) noexcept = 0;
    [[nodiscard]] virtual bool has(const void* p) const noexcept = 0;
    [[nodiscard]] virtual std::size_t live_blocks() const = 0;
};

class survivors {
  public:
    /// Throws: `std::bad_alloc`; then `s` is destroyed.
    void add(std::shared_ptr<survivor> s) {
        const std::lock_guard lock(mutex_);
        pools_.push_back(std::move(s));
    }

    /// Returns: the pool in which `p` is live, or null.
    [[nodiscard]] std::shared_ptr<survivor> owner_of(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = std::find_if(pools_.begin(), pools_.end(), [p](const auto& s) { return s->has(p); });
        return it == pools_.end() ? nullptr : *it;
    }

    /// Effects: `s` is destroyed if nothing in it is live any more.
    void drop_if_empty(std::shared_ptr<survivor> s) {
        if (s->live_blocks() != 0) return;
        const std::lock_guard lock(mutex_);
        pools_.erase(std::remove(pools_.begin(), pools_.end(), s), pools_.end());
        // It is destroyed by the last to hold it, after the lock is gone.
    }

    [[nodiscard]] std::size_t count() const {
        const std::lock_guard lock(mutex_);
        return pools_.size();
    }

  private:
    mutable ordered_mutex<lock_level::survivors> mutex_;
    std::vector<std::shared_ptr<survivor>> pools_;
};

} // namespace tenure
