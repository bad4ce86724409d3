#pragma once

/// \file
/// `thread_racks`: the racks of the calling thread, by front end and stream.
///
/// A hash table of the thread's own, at most half full, so that a hit is one multiplication and, nearly always, one
/// comparison. Entries of racks that are gone stay until the table grows: their front end's number does not come
/// again, and within a living front end an entry is removed by the thread that removes the rack.
///
/// The end of the thread hands the contents of its racks back (`front_registry`). Afterwards the thread has no racks
/// and gets none, and goes to the pools directly: destructors of other thread-local objects may still free blocks.
///
/// Thread-safety: every thread has its own.

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/front_registry.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace tenure {

struct rack;

namespace detail {
struct alignas(32) rack_entry {
    std::uint64_t front = 0; ///< 0: free
    stream_handle stream = nullptr;
    rack* where = nullptr;
};
struct rack_table {
    rack_entry* entries;
    std::size_t mask;
    unsigned shift;
    bool ended;
    std::size_t size;
    std::uint64_t thread;
};
} // namespace detail

class thread_racks {
  public:
    /// Returns: the thread's rack, or null. `front` is the number of a front end.
    [[nodiscard]] TENURE_ALWAYS_INLINE static rack* find(std::uint64_t front, stream_handle stream) noexcept {
        const state& s = state_;
        const std::size_t at = home(s, front, stream);
        const entry& e = s.entries[at];
        if (e.front == front && e.stream == stream) [[likely]]
            return e.where;
        return find_further(front, stream, at);
    }

    /// The same, but also null where the entry is not at its first place.
    [[nodiscard]] TENURE_ALWAYS_INLINE static rack* find_at_once(std::uint64_t front,
                                                                 stream_handle stream) noexcept {
        const state& s = state_;
        const entry& e = s.entries[home(s, front, stream)];
        return e.front == front && e.stream == stream ? e.where : nullptr;
    }

    /// Returns: the thread's number; 0: it can have no racks any more.
    [[nodiscard]] static std::uint64_t thread() noexcept {
        if (state_.thread == 0 && !state_.ended) {
            static thread_local const at_end hook;
            (void)&hook;
            state_.thread = front_registry::instance().new_number();
        }
        return state_.thread;
    }

    /// Effects: from now on `find` gives this rack; null: none. Returns: whether host memory was there.
    /// Requires: `thread() != 0`.
    static bool set(std::uint64_t front, stream_handle stream, rack* where) noexcept {
        if (entry* const e = slot(state_, front, stream); e->front != 0) {
            e->where = where;
            return true;
        }
        if (where == nullptr) return true;
        if (2 * (state_.size + 1) >= state_.mask + 1 && !grow()) return false;
        *slot(state_, front, stream) = {front, stream, where};
        ++state_.size;
        return true;
    }

  private:
    using entry = detail::rack_entry;
    using state = detail::rack_table;
    struct at_end {
        ~at_end() {
            const std::uint64_t thread = state_.thread;
            if (state_.entries != nothing_.data()) delete[] state_.entries;
            state_ = {nothing_.data(), 1, 63, true, 0, 0};
            front_registry::instance().thread_ends(thread);
        }
    };

    TENURE_ALWAYS_INLINE static std::size_t home(const state& s, std::uint64_t front,
                                                 stream_handle stream) noexcept {
        // Numbers of front ends are spread over all bits already.
        return static_cast<std::size_t>((to_address(stream) ^ front) * 0x9e3779b97f4a7c15u >> s.shift);
    }

    TENURE_NOINLINE static rack* find_further(std::uint64_t front, stream_handle stream,
                                              std::size_t at) noexcept {
        const state& s = state_;
        for (std::size_t i = at;; ++i) {
            const entry& e = s.entries[i & s.mask];
            if (e.front == 0) return nullptr;
            if (e.front == front && e.stream == stream) return e.where;
        }
    }

    static entry* slot(const state& s, std::uint64_t front, stream_handle stream) noexcept {
        for (std::size_t i = home(s, front, stream);; ++i) {
            entry& e = s.entries[i & s.mask];
            if (e.front == 0 || (e.front == front && e.stream == stream)) return &e;
        }
    }

    /// Effects: drops what is dead, and makes room.
    static bool grow() noexcept {
        std::size_t alive = 0;
        for (std::size_t i = 0; i <= state_.mask; ++i) {
            entry& e = state_.entries[i];
            if (e.front == 0) continue;
            if (e.where != nullptr && !front_registry::instance().lives(e.front)) e.where = nullptr;
            if (e.where != nullptr) ++alive;
        }
        std::size_t slots = 16;
        while (slots < 4 * (alive + 1)) slots *= 2;
        state larger = state_;
        larger.entries = new (std::nothrow) entry[slots];
        if (larger.entries == nullptr) return false;
        larger.mask = slots - 1;
        larger.shift = 64 - log2_floor(slots);
        larger.size = alive;
        for (std::size_t i = 0; i <= state_.mask; ++i)
            if (const entry& e = state_.entries[i]; e.where != nullptr) *slot(larger, e.front, e.stream) = e;
        if (state_.entries != nothing_.data()) delete[] state_.entries;
        state_ = larger;
        return true;
    }

    static inline constinit std::array<entry, 2> nothing_{}; ///< never written to
    static inline constinit thread_local state state_{nothing_.data(), 1, 63, false, 0, 0};
};

} // namespace tenure
