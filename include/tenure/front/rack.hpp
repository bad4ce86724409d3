#pragma once

/// \file
/// `rack`: the magazines that one thread has for one stream of one front end.
///
///     rack
///       section      who is in: the owner, or a visitor (see `owner_section`)
///       live, parked the words of its blocks
///       magazines    free blocks by size
///       counters     what its thread has handed out and taken back
///
/// Invariants, for whoever is inside:
///   1. A block in a magazine has the word `parked` of this rack. (An entry whose block has another word is what is left
///      of a racing double free; it is dropped when it comes up.)
///   2. `parked_granules` is the sum over all entries.
///
/// Thread-safety: members are the owner's and, while the section is stopped, the visitor's, except counters, which
/// everybody may read.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/block_word.hpp>
#include <tenure/front/magazine.hpp>
#include <tenure/front/owner_section.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tenure {

/// A number with one writer and any number of readers.
class owned_counter {
  public:
    TENURE_ALWAYS_INLINE void add(std::uint64_t n) noexcept {
        value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
    }
    TENURE_ALWAYS_INLINE void subtract(std::uint64_t n) noexcept { add(std::uint64_t{0} - n); }
    [[nodiscard]] std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

  private:
    std::atomic<std::uint64_t> value_{0};
};

/// What went out to the application and came back, as requested.
struct front_traffic {
    owned_counter bytes_out;
    owned_counter bytes_in;
    owned_counter blocks_out;
    owned_counter blocks_in;
};

/// On cache lines of its own: its thread writes it at every hit.
struct alignas(own_lines) rack {
    /// Throws: `std::bad_alloc`.
    rack(std::uint64_t rack_number, std::uint64_t thread_number, stream_handle stream_of_rack,
         std::uint64_t identity, bool asks, std::size_t limit)
        : ask_device(asks)
        , live_word(block_word::of(rack_number, block_word::state::live, 0).bits())
        , parked_word(block_word::of(rack_number, block_word::state::parked, 0).bits())
        , granule_limit(limit)
        , stream_id(identity)
        , number(rack_number)
        , thread(thread_number)
        , stream(stream_of_rack) {}

    rack(const rack&) = delete;
    rack& operator=(const rack&) = delete;

    // What a hit touches.
    owner_section section;
    const bool ask_device; ///< whether the handle must be asked for its identity
    const std::uint64_t live_word;
    const std::uint64_t parked_word;
    magazine_set magazines;
    owned_counter parked_granules;
    std::uint64_t granule_limit; ///< the owner's
    front_traffic traffic;

    // What a miss touches.
    const std::uint64_t stream_id; ///< identity; the handle may come to name another stream
    const std::uint64_t number;    ///< unique in the life of the process
    const std::uint64_t thread;
    const stream_handle stream;
    bool selected = false; ///< the visitor's

    /// Returns: whether the rack of that number is known to be one of the same stream and front end.
    [[nodiscard]] bool is_peer(std::uint64_t other) const noexcept {
        return peers_[other % peers_.size()] == other;
    }
    void note_peer(std::uint64_t other) noexcept { peers_[other % peers_.size()] = other; }

    /// Returns: whether an allocation of this size has missed before, as far as one remembers; from now on, it has.
    bool has_missed(std::uint32_t granules) noexcept {
        std::uint32_t& last = missed_[granules % missed_.size()];
        const bool before = last == granules;
        last = granules;
        return before;
    }

  private:
    std::array<std::uint64_t, 16> peers_{};
    std::array<std::uint32_t, 256> missed_{};
};

} // namespace tenure
