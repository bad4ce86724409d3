#pragma once

/// \file
/// `stock_shelf`: bytes that one thread has paid for in advance, by account.
///
///     shelf of a thread
///       section        who is in: the owner, or a visitor (see `owner_section`)
///       slots [128]    account | prepaid bytes | blocks out less blocks in
///
/// An account has one possible slot on a shelf, which its number chooses; another account in it has to leave first, and
/// takes what it has back to the ledger. So a shelf costs 4 KiB a thread, however many accounts there are.
///
/// Invariants:
///   1. Which account has a slot changes only under the ledger's mutex. So who holds that knows, without stopping anybody,
///      which shelves can hold bytes of an account: stopping the others would tell nothing.
///   2. The rest of a slot is changed by the owner inside its section, or by the holder of the mutex who is the owner or has
///      stopped it.
///
/// Thread-safety: as the invariants say.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/owner_section.hpp>
#include <tenure/front/rack.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tenure {

struct account_state;

struct alignas(32) stock_slot {
    std::atomic<account_state*> account{nullptr};
    owned_counter prepaid; ///< bytes
    owned_counter blocks;  ///< as a signed number
};

struct alignas(own_lines) stock_shelf {
    static constexpr std::size_t slot_count = 128;

    explicit stock_shelf(std::uint64_t thread_number) noexcept : thread(thread_number) {}
    stock_shelf(const stock_shelf&) = delete;
    stock_shelf& operator=(const stock_shelf&) = delete;

    [[nodiscard]] TENURE_ALWAYS_INLINE stock_slot& slot_of(std::uint32_t account) noexcept {
        return slots[account % slot_count];
    }

    owner_section section;
    const std::uint64_t thread; ///< number
    bool selected = false;      ///< the visitor's
    std::array<stock_slot, slot_count> slots;
};

namespace detail {
struct shelf_entry {
    std::uint64_t ledger = 0;
    stock_shelf* shelf = nullptr;
};
} // namespace detail

/// The shelves of the calling thread, by number of the ledger: a cache in front of the ledgers' own lists. Numbers are never
/// used again, so what is left of a dead ledger is never found.
class thread_shelves {
  public:
    [[nodiscard]] TENURE_ALWAYS_INLINE static stock_shelf* find(std::uint64_t ledger) noexcept {
        const entry& e = entries_[ledger % entries_.size()];
        return e.ledger == ledger ? e.shelf : nullptr;
    }
    static void set(std::uint64_t ledger, stock_shelf* shelf) noexcept {
        entries_[ledger % entries_.size()] = {ledger, shelf};
    }

  private:
    using entry = detail::shelf_entry;
    static inline constinit thread_local std::array<entry, 8> entries_{};
};

} // namespace tenure
