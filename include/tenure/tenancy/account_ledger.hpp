#pragma once

/// \file
/// `account_ledger`: a tree of accounts, what each holds and the most it may hold, and the stocks that make that cheap.
///
///     root  max 64 GiB            charged: its own blocks, its stocks, and all that is below
///      `- org  max 16 GiB
///          |- alice  max 2 GiB <--- stock of thread 1, of thread 2, ...      paid in advance, at every level
///          `- bob    max 2 GiB
///
/// `take` charges before memory is taken, `give` after it went back. Both are a few instructions on the calling thread's own
/// shelf while the stock lasts: no lock, no shared atomic, no instruction with a lock prefix. A stock is at most
/// `stock_bytes`, and at most an eighth of what its account and those above it have left when it is bought.
///
/// Invariants:
///   1. `charged <= max` at every level whenever a charge is granted, for every interleaving, to the byte: stocks are charged.
///   2. Nobody is refused while a stock below the level that is full holds bytes: all those stocks are stopped at one
///      instant and taken back first. A refusal changes nothing but its counter.
///   3. Blocks, stocks and charges add up: after everything was given back and `drain`, every charge is exactly 0.
///      No slot is anybody's whose account, or a level above it, is over a limit that was lowered.
///   4. A closed account stays until its last block is given back and nothing is below it.
///
/// What a refusal costs others: only threads that have bought for an account below the level that is full are
/// stopped, for as long as it takes to read their slots.
///
/// Cost: `sizeof(account_state)`, a name longer than 15 characters, and 8 bytes an account; 4 KiB a thread.
/// Complexity: the depth of the tree when a stock is bought, threads x 128 slots when it is taken back. Thread-safety:
/// thread-safe, except construction and destruction. Threads may end before or after the ledger does.

#include <tenure/core/asymmetric_fence.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/thread_racks.hpp>
#include <tenure/tenancy/account_directory.hpp>
#include <tenure/tenancy/stock_shelf.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tenure {

/// A picture of one account, taken at one instant. Bytes unless the name says otherwise.
struct account_reading {
    std::size_t charged = 0; ///< of it and all below, `stocked` included
    std::size_t stocked = 0; ///< paid in advance by threads, free to be taken back
    std::size_t peak = 0;    ///< the most that was ever charged; stocks included, so an upper bound
    std::size_t max = no_limit;
    std::uint64_t refused = 0; ///< number of charges that this level refused
    std::uint64_t blocks = 0;  ///< number of live blocks of this account, not of those below

    [[nodiscard]] std::size_t used() const noexcept { return charged - stocked; }
};

class account_ledger {
  public:
    /// `root_name` stands in errors where the root refused. Throws: `std::bad_alloc`.
    account_ledger(std::string root_name, std::size_t max, std::size_t stock_bytes)
        : stock_bytes_(stock_bytes) {
        root_.ledger = this;
        root_.name = std::move(root_name);
        root_.max = max;
        account_directory::instance().enter(root_);
        try {
            front_registry::instance().enter({number_, this, [](void* self, std::uint64_t thread) noexcept {
                                                  static_cast<account_ledger*>(self)->thread_ends(thread);
                                              }});
        } catch (...) {
            account_directory::instance().leave(root_);
            throw;
        }
    }

    account_ledger(const account_ledger&) = delete;
    account_ledger& operator=(const account_ledger&) = delete;

    /// Requires: every account was closed, and no thread is inside a call. Blocks may still be out.
    ~account_ledger() {
        front_registry::instance().leave(number_);
        account_directory::instance().leave(root_);
        while (account_state* const a = account_directory::instance().leave_any(*this)) delete a;
    }

    [[nodiscard]] account_state& root() noexcept { return root_; }
    [[nodiscard]] const account_state& root() const noexcept { return root_; }

    /// Returns: a new account below `parent`. Throws: `std::bad_alloc`, changing nothing.
    account_state& open(account_state& parent, std::string name, std::size_t max) {
        auto a = std::make_unique<account_state>();
        a->ledger = this;
        a->parent = &parent;
        a->name = std::move(name);
        a->max = max;
        const std::lock_guard lock(mutex_);
        account_directory::instance().enter(*a);
        ++parent.children;
        ++open_;
        return *a.release();
    }

    /// Effects: the account is its owner's no more. Returns: what it still holds itself. Requires: no other thread
    /// uses the account.
    account_reading close(account_state& a) noexcept {
        const std::lock_guard lock(mutex_);
        (void)take_back([&](const account_state& s) { return &s == &a; }, true);
        a.closed = true;
        --open_;
        const account_reading left = read(a);
        end_if_empty(a);
        return left;
    }

    /// Effects: charges the account, and all above it, with `bytes` bytes for one block. Returns: whether they fit.
    [[nodiscard]] TENURE_ALWAYS_INLINE bool take_stocked(account_state& a, std::size_t bytes) noexcept {
        stock_shelf* const shelf = thread_shelves::find(number_);
        if (shelf == nullptr || !shelf->section.try_enter()) return false;
        stock_slot& slot = shelf->slot_of(a.id);
        const std::uint64_t prepaid = slot.prepaid.value();
        const bool enough = slot.account.load(std::memory_order_relaxed) == &a && prepaid >= bytes;
        if (enough) [[likely]] {
            slot.prepaid.subtract(bytes);
            slot.blocks.add(1);
        }
        shelf->section.leave();
        return enough;
    }

    /// The same, whatever it takes. Returns: whether they fit; if not, `failure` describes the level that refuses.
    TENURE_NOINLINE bool take(account_state& a, std::size_t bytes, allocation_failure& failure) noexcept {
        if (take_stocked(a, bytes)) return true;
        const std::uint64_t thread = thread_racks::thread();
        const std::lock_guard lock(mutex_);
        stock_slot* const slot = slot_for(a, thread);
        for (;;) {
            const std::size_t prepaid = slot == nullptr ? 0 : slot->prepaid.value();
            if (prepaid >= bytes) {
                slot->prepaid.subtract(bytes);
                break;
            }
            const std::size_t needed = bytes - prepaid;
            account_state* const full = level_without(a, needed);
            if (full == nullptr) {
                const std::size_t extra = slot == nullptr ? 0 : affordable_stock(a, needed);
                charge(a, needed + extra);
                if (slot != nullptr) slot->prepaid.subtract(prepaid - extra);
                break;
            }
            // What is taken back may be all that was missing, or another level's turn comes.
            if (take_back([&](const account_state& s) { return s.is_within(*full); }, false) == 0) {
                ++full->refused;
                describe(a, *full, bytes, failure);
                return false;
            }
        }
        slot == nullptr ? void(++a.blocks) : slot->blocks.add(1);
        return true;
    }

    /// Effects: gives back what `take` charged.
    TENURE_ALWAYS_INLINE void give(account_state& a, std::size_t bytes) noexcept {
        stock_shelf* const shelf = thread_shelves::find(number_);
        if (shelf != nullptr && shelf->section.try_enter()) [[likely]] {
            stock_slot& slot = shelf->slot_of(a.id);
            const bool fits = slot.account.load(std::memory_order_relaxed) == &a && bytes <= stock_bytes_ &&
                              slot.prepaid.value() + bytes <= stock_bytes_;
            if (fits) [[likely]] {
                slot.prepaid.add(bytes);
                slot.blocks.subtract(1);
            }
            shelf->section.leave();
            if (fits) [[likely]]
                return;
        }
        give_slow(a, bytes);
    }

    [[nodiscard]] account_reading reading(const account_state& a) const noexcept {
        const std::lock_guard lock(mutex_);
        account_reading r = read(a);
        std::uint64_t blocks = r.blocks;
        visit([&](const account_state& s) { return s.is_within(a); },
              [&](const stock_slot& slot, const account_state& s) {
                  r.stocked += slot.prepaid.value();
                  if (&s == &a) blocks += slot.blocks.value();
              });
        r.blocks = blocks;
        return r;
    }

    /// As `reading`, for who only looks: no thread is stopped, so `stocked` and `blocks` are sums of numbers that change
    /// meanwhile. Never more stocked than charged, never fewer than no blocks.
    [[nodiscard]] account_reading glance(const account_state& a) const noexcept {
        const std::lock_guard lock(mutex_);
        account_reading r = read(a);
        auto blocks = static_cast<std::int64_t>(r.blocks);
        for (const auto& shelf : shelves_)
            for (const stock_slot& slot : shelf->slots) {
                const account_state* const s = slot.account.load(std::memory_order_relaxed);
                if (s == nullptr || !s->is_within(a)) continue;
                r.stocked += slot.prepaid.value();
                if (s == &a) blocks += static_cast<std::int64_t>(slot.blocks.value());
            }
        r.stocked = std::min(r.stocked, r.charged);
        r.blocks = static_cast<std::uint64_t>(std::max<std::int64_t>(blocks, 0));
        return r;
    }

    /// Returns: number of accounts that are open.
    [[nodiscard]] std::size_t open_accounts() const noexcept {
        const std::lock_guard lock(mutex_);
        return open_;
    }

    /// Effects: charges are held against `max` from now on. Returns: by how many bytes the account is over it, its
    /// stocks taken back.
    std::size_t set_max(account_state& a, std::size_t max) noexcept {
        const std::lock_guard lock(mutex_);
        a.max = max;
        if (a.charged > max) (void)take_back([&](const account_state& s) { return s.is_within(a); }, true);
        return a.charged > max ? a.charged - max : 0;
    }

    /// Effects: takes back all stocks. Returns: how many bytes they were.
    std::size_t drain() noexcept {
        const std::lock_guard lock(mutex_);
        return take_back([](const account_state&) { return true; }, false);
    }

    /// Returns: number of charges refused, at any level.
    [[nodiscard]] std::uint64_t refused() const noexcept {
        const std::lock_guard lock(mutex_);
        return refused_;
    }

    /// Returns: a closed account of that number below `above`, of which a block is out; so it stays while that is so.
    [[nodiscard]] account_state* closed_below(const account_state& above, std::uint64_t id) noexcept {
        const std::lock_guard lock(mutex_);
        account_state* found = nullptr;
        account_directory::instance().with(id, [&](account_state& a) {
            if (a.ledger == this && a.closed && a.is_within(above)) found = &a;
        });
        return found;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        bool good = true;
        for (const auto& shelf : shelves_)
            for (const stock_slot& slot : shelf->slots) {
                const account_state* const a = slot.account.load(std::memory_order_relaxed);
                good = good && (a == nullptr
                                    ? slot.prepaid.value() == 0
                                    : a->ledger == this && !a->closed && slot.prepaid.value() <= a->charged &&
                                          &shelf->slots[a->id % stock_shelf::slot_count] == &slot);
            }
        return good;
    }

  private:
    static account_reading read(const account_state& a) noexcept {
        return {.charged = a.charged,
                .peak = a.peak,
                .max = a.max,
                .refused = a.refused,
                .blocks = static_cast<std::uint64_t>(a.blocks)};
    }

    TENURE_NOINLINE void give_slow(account_state& a, std::size_t bytes) noexcept {
        const std::uint64_t thread = thread_racks::thread();
        const std::lock_guard lock(mutex_);
        stock_slot* const slot = a.closed ? nullptr : slot_for(a, thread);
        if (slot == nullptr) {
            --a.blocks;
            refund(a, bytes);
            return end_if_empty(a);
        }
        slot->blocks.subtract(1);
        const std::size_t prepaid = slot->prepaid.value() + bytes;
        const std::size_t kept = prepaid <= stock_bytes_ ? prepaid : std::min(prepaid, stock_bytes_ / 2);
        slot->prepaid.add(kept - slot->prepaid.value());
        refund(a, prepaid - kept);
    }

    // ---- levels; all of this under the mutex ----

    static bool fits(const account_state& a, std::size_t bytes) noexcept {
        return a.charged <= a.max && bytes <= a.max - a.charged;
    }

    /// Returns: the lowest level at which `bytes` more do not fit, or null.
    static account_state* level_without(account_state& a, std::size_t bytes) noexcept {
        account_state* level = &a;
        while (level != nullptr && fits(*level, bytes)) level = level->parent;
        return level;
    }

    /// Returns: bytes to buy beyond `needed`, which fit.
    [[nodiscard]] std::size_t affordable_stock(const account_state& a, std::size_t needed) const noexcept {
        if (needed > stock_bytes_) return 0;
        std::size_t stock = stock_bytes_ / 2;
        for (const account_state* level = &a; level != nullptr; level = level->parent)
            stock = std::min(stock, (level->max - level->charged - needed) / 8);
        return stock;
    }

    static void charge(account_state& a, std::size_t bytes) noexcept {
        for (account_state* level = &a; level != nullptr; level = level->parent) {
            level->charged += bytes;
            level->peak = std::max(level->peak, level->charged);
        }
    }

    static void refund(account_state& a, std::size_t bytes) noexcept {
        for (account_state* level = &a; level != nullptr; level = level->parent) level->charged -= bytes;
    }

    void describe(const account_state& a, const account_state& full, std::size_t bytes,
                  allocation_failure& failure) noexcept {
        ++refused_;
        failure.rounded = bytes;
        failure.cause = &full == &a ? failure_cause::arena_limit : failure_cause::ancestor_limit;
        failure.driver_status = status::over_limit;
        failure.arena = full.path();
        failure.used = full.charged;
        failure.max = full.max;
    }

    /// Effects: a closed account without blocks or children is gone, and so, maybe, is what is above it.
    void end_if_empty(account_state& a) noexcept {
        account_state* level = &a;
        while (level != nullptr && level->closed && level->charged == 0 && level->children == 0) {
            account_state* const above = level->parent;
            --above->children;
            account_directory::instance().leave(*level);
            delete level;
            level = above;
        }
    }

    // ---- stocks; all of this under the mutex ----

    /// Returns: the slot of the account on the calling thread's shelf, or null if it can have none: also while a level is
    /// over a limit that was lowered, so that what is freed then lowers the charge and is not spent again.
    stock_slot* slot_for(account_state& a, std::uint64_t thread) noexcept {
        if (level_without(a, 0) != nullptr) return nullptr;
        stock_shelf* const shelf = shelf_for(thread);
        if (shelf == nullptr) return nullptr;
        stock_slot& slot = shelf->slot_of(a.id);
        if (slot.account.load(std::memory_order_relaxed) != &a) {
            (void)settle(slot); // the thread is here, so it is not in its section
            slot.account.store(&a, std::memory_order_relaxed);
        }
        return &slot;
    }

    stock_shelf* shelf_for(std::uint64_t thread) noexcept {
        if (thread == 0 || stock_bytes_ == 0) return nullptr;
        if (stock_shelf* const known = thread_shelves::find(number_)) return known;
        auto it = std::find_if(shelves_.begin(), shelves_.end(),
                               [thread](const auto& s) { return s->thread == thread; });
        if (it == shelves_.end()) {
            try {
                shelves_.push_back(std::make_unique<stock_shelf>(thread));
            } catch (...) { // host memory
                return nullptr;
            }
            it = std::prev(shelves_.end());
        }
        thread_shelves::set(number_, it->get());
        return it->get();
    }

    /// Effects: what the slot holds goes back to its account, which keeps the slot. Returns: bytes.
    static std::size_t empty(stock_slot& slot, account_state& a) noexcept {
        const std::size_t bytes = slot.prepaid.value();
        slot.prepaid.subtract(bytes);
        a.blocks += static_cast<std::int64_t>(slot.blocks.value());
        slot.blocks.subtract(slot.blocks.value());
        refund(a, bytes);
        return bytes;
    }

    /// The same, but the slot is nobody's afterwards.
    static std::size_t settle(stock_slot& slot) noexcept {
        account_state* const a = slot.account.load(std::memory_order_relaxed);
        if (a == nullptr) return 0;
        const std::size_t bytes = empty(slot, *a);
        slot.account.store(nullptr, std::memory_order_relaxed);
        return bytes;
    }

    /// Effects: f(slot, account) for each slot of an account for which wanted(account), with all those shelves' owners
    /// outside at one instant.
    template <class Wanted, class F>
    void visit(Wanted&& wanted, F&& f) const noexcept {
        const auto each = [&](stock_shelf& shelf, auto&& g) {
            for (stock_slot& slot : shelf.slots)
                if (account_state* const a = slot.account.load(std::memory_order_relaxed))
                    if (wanted(*a)) g(slot, *a);
        };
        bool any = false;
        for (const auto& shelf : shelves_) {
            shelf->selected = false;
            each(*shelf, [&](stock_slot&, account_state&) { shelf->selected = true; });
            if (!shelf->selected) continue;
            shelf->section.stop();
            any = true;
        }
        if (!any) return;
        asymmetric_fence::heavy();
        for (const auto& shelf : shelves_)
            if (shelf->selected) shelf->section.wait();
        for (const auto& shelf : shelves_)
            if (shelf->selected) each(*shelf, f);
        for (const auto& shelf : shelves_)
            if (shelf->selected) shelf->section.resume();
    }

    template <class Wanted>
    std::size_t take_back(Wanted&& wanted, bool and_slots) noexcept {
        std::size_t bytes = 0;
        visit(wanted, [&](stock_slot& slot, account_state& a) {
            bytes += and_slots ? settle(slot) : empty(slot, a);
        });
        return bytes;
    }

    void thread_ends(std::uint64_t thread) noexcept {
        const std::lock_guard lock(mutex_);
        thread_shelves::set(number_, nullptr);
        const auto it = std::find_if(shelves_.begin(), shelves_.end(),
                                     [thread](const auto& s) { return s->thread == thread; });
        if (it == shelves_.end()) return;
        for (stock_slot& slot : (*it)->slots) (void)settle(slot);
        shelves_.erase(it);
    }

    const std::uint64_t number_ = front_registry::instance().new_number();
    const std::size_t stock_bytes_;
    mutable std::mutex
        mutex_; ///< guards what follows; of the library's own, only the directory's is taken under it
    account_state root_;
    std::vector<std::unique_ptr<stock_shelf>> shelves_;
    std::uint64_t refused_ = 0;
    std::size_t open_ = 0; ///< number of accounts
};

} // namespace tenure
