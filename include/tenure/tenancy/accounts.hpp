#pragma once

/// \file
/// `accounts<Pool>` and `account`: many small tenants in one pool, each with a hard limit in bytes.
///
///     accounts<Pool> book{pool};                                    thousands of tenants, one pool
///     account org{book, {.name = "org", .max = 16_GiB}};
///     account alice{org, {.name = "alice", .max = 2_GiB}};          each a resource
///     void* p = alice.allocate(stream, n);
///
/// An arena owns its pool and charges what that *reserves*; it isolates, and costs a pool. An account shares the pool, is
/// charged for what it has *allocated*, and costs some 150 bytes. What is cached in the pool serves all of them and is
/// nobody's.
///
/// The charge of a block is `Rounding{}(bytes)`: bytes rounded up to a granule, which is exactly what a block takes in the
/// pools of one layout and in `remap_pool`. A pool that rounds further (`buddy_pool`) needs another `Rounding`, or it holds
/// that much more than was charged.
///
/// Every block has a word that names its account and size (see `block_table`), so that a free is checked before anything
/// happens: the account must own the block, or be above a closed account that does; the book is above all. A wrong one is reported as `wrong_arena`
/// with both names, and changes nothing.
///
/// The members of `resource` that describe memory (`usage`, `snapshot`, `trim`, `validate`) are those of the pool, because
/// the memory is; what the account holds is `reading()`. `failures` counts refusals of the accounts too.
///
/// Invariants: those of `account_ledger`, and
///   1. Memory is charged before the pool is asked and given back after the pool has it: what blocks take is never more than
///      what is charged.
///   2. Of several frees of one block at most one is accepted, also of racing ones: it takes the word by compare-exchange.
///
/// Cost: a pair is 2 loads and 2 stores on the thread's own shelf each way, and one instruction with a lock prefix on the
/// block's own word, which nobody else touches: some 30 ns more than the pool's own pair, at any depth. Nothing shared is
/// written while the thread's stock lasts. An account is 128 bytes: 96 in the ledger, 24 for this, 8 in the directory.
///
/// Requires: all blocks of the pool are allocated through its accounts. (Others cannot be freed here, and are called
/// `double_free`.) The pool outlives the accounts.
///
/// An operator sees a book as one row, and those accounts that the program adds to a view (`arenas_view.hpp`).
///
/// Thread-safety: thread-safe, except construction and destruction. A block may be freed by any thread, also after the one
/// that allocated it has ended.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/front/block_table.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/account_ledger.hpp>
#include <tenure/tenancy/account_picture.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/environment.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace tenure {

struct accounts_options {
    std::string name = "accounts"; ///< of the root, in errors
    std::size_t max = no_limit;    ///< bytes, of all accounts together

    /// Bytes that a thread may hold in advance for one account; 0: none, and every call takes the ledger's lock. 4 MiB: what
    /// a request of a small tenant allocates and frees in a turn, and little against a limit (a stock never takes more than
    /// an eighth of what is left of that).
    std::size_t stock_bytes = std::size_t{4} << 20;
};

struct account_options {
    std::string name = "account";
    std::size_t max = no_limit; ///< bytes
    /// `report`: blocks that are live when the account ends are a misuse, `live_at_destruction`; otherwise they are
    /// expected. With each they stay live and charged to what is above, until an account above, or the book, gives them back.
    leftovers at_destruction = leftovers::report;
};

/// What a block of n bytes takes where blocks are multiples of a granule.
struct granule_rounding {
    std::size_t operator()(std::size_t n) const noexcept { return round_up(n, layout::granule); }
};

/// What it takes in a pool of powers of two.
struct power_of_two_rounding {
    std::size_t operator()(std::size_t n) const noexcept {
        return n <= layout::granule ? layout::granule : std::size_t{1} << log2_ceil(n);
    }
};

namespace detail {
/// The words of blocks that belong to accounts: [ number of the account: 24 | bytes, as requested: 40 ], 0 for none.
inline constinit block_table account_blocks;

inline constexpr unsigned account_byte_bits = 40;
inline constexpr std::size_t account_max_bytes = (std::size_t{1} << account_byte_bits) - 1;
} // namespace detail

template <resource Pool, class Rounding>
class account;

template <resource Pool, class Rounding = granule_rounding>
class accounts {
  public:
    using pool_type = Pool;
    using rounding_type = Rounding;

    /// Throws: `std::bad_alloc`. Requires: the pool outlives this, this outlives its accounts.
    explicit accounts(Pool& pool, accounts_options options = {})
        : pool_(&pool), ledger_(std::move(options.name), options.max, options.stock_bytes) {
        shown_ = environment::instance().show(*this);
    }

    accounts(const accounts&) = delete;
    accounts& operator=(const accounts&) = delete;

    /// Returns: what all accounts together hold and may hold.
    [[nodiscard]] account_reading reading() const noexcept { return ledger_.reading(ledger_.root()); }

    /// Returns: the book as an operator sees it; nobody is stopped for it, see `account_ledger::glance`.
    /// Throws: `std::bad_alloc`.
    [[nodiscard]] account_picture glance() const {
        account_picture p{.key = &ledger_.root(), .kind = row_kind::accounts};
        p.path = ledger_.root().name;
        if constexpr (requires { pool_->node().path(); }) {
            p.arena = pool_->node().id();
            p.path = pool_->node().path() + '/' + p.path;
        }
        p.reading = ledger_.glance(ledger_.root());
        p.refused = ledger_.refused();
        p.open = ledger_.open_accounts();
        return p;
    }

    /// See `account::set_max`.
    std::size_t set_max(std::size_t max) noexcept { return ledger_.set_max(ledger_.root(), max); }

    /// Effects: takes back what threads have paid in advance. Returns: bytes.
    std::size_t drain() noexcept { return ledger_.drain(); }

    [[nodiscard]] bool validate() const noexcept { return ledger_.validate(); }
    [[nodiscard]] Pool& pool() const noexcept { return *pool_; }

    // ---- blocks that accounts have left ----

    /// Effects: frees a block of an account that is closed, wherever it stood. Any other pointer is a misuse, as in `account`.
    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        if (p == nullptr) return freed{};
        return take_block(ledger_.root(), stream, p, bytes,
                          [&](std::size_t n) { return pool_->try_deallocate(stream, p, n, alignment); });
    }
    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(stream, p, bytes, alignment); !r)
            report_misuse(r.error());
    }
    void release(void* p) noexcept {
        if (p == nullptr) return;
        const deallocate_result r = take_block(ledger_.root(), default_stream, p, any_size, [&](std::size_t) {
            pool_->release(p);
            return deallocate_result(freed{});
        });
        if (!r) report_misuse(r.error());
    }

  private:
    friend class account<Pool, Rounding>;

    static constexpr std::size_t any_size = no_limit;
    /// No block has this size, so that the pool says what is wrong with a pointer and frees nothing.
    static constexpr std::size_t impossible_size = no_limit - 1;

    static block_table& table() noexcept { return detail::account_blocks; }
    static constexpr std::uint64_t word_of(std::uint64_t id, std::size_t bytes) noexcept {
        return bytes <= detail::account_max_bytes ? id << detail::account_byte_bits | bytes : 0;
    }
    static constexpr std::uint64_t id_of(std::uint64_t word) noexcept {
        return word >> detail::account_byte_bits;
    }
    static constexpr std::size_t bytes_of(std::uint64_t word) noexcept {
        return word & detail::account_max_bytes;
    }
    static std::uint64_t read(const void* p) noexcept {
        const block_table::word* const w = table().find(p);
        return w == nullptr ? 0 : w->load(std::memory_order_relaxed);
    }

    /// Returns: whose charge ends with the block of that word, if `who` may end it.
    account_state* owner_of(account_state& who, std::uint64_t word) noexcept {
        if (id_of(word) == who.id) return &who;
        return ledger_.closed_below(who, id_of(word));
    }

    /// Effects: the block's word is nobody's, then free_in_pool(its bytes), then its charge ends.
    template <class F>
    deallocate_result take_block(account_state& who, stream_handle stream, void* p, std::size_t bytes,
                                 F&& free_in_pool) noexcept {
        std::uint64_t word = read(p);
        for (;;) {
            account_state* const owner = word == 0 ? nullptr : owner_of(who, word);
            if (owner == nullptr || !pool_->owns(p)) return classify(who, stream, p, bytes, word);
            if (bytes != any_size && bytes != bytes_of(word))
                return misuse{.kind = misuse_kind::size_mismatch,
                              .pointer = p,
                              .bytes = bytes,
                              .expected = bytes_of(word),
                              .owner = who.path()};
            if (!table().find(p)->compare_exchange_strong(word, 0, std::memory_order_relaxed)) continue;
            deallocate_result r = free_in_pool(bytes_of(word));
            if (r) ledger_.give(*owner, Rounding{}(bytes_of(word)));
            return r;
        }
    }

    /// Returns: what is wrong with a pointer that is no live block of `who`.
    misuse classify(const account_state& who, stream_handle stream, void* p, std::size_t bytes,
                    std::uint64_t word) const noexcept {
        misuse m{.pointer = p, .bytes = bytes, .owner = who.path()};
        if (word != 0 && id_of(word) != who.id) {
            account_directory::instance().with(id_of(word), [&](const account_state& a) {
                m.kind = misuse_kind::wrong_arena;
                m.real_owner = a.path();
            });
            if (m.kind == misuse_kind::wrong_arena) return m;
        }
        const deallocate_result r = pool_->try_deallocate(stream, p, impossible_size, default_alignment);
        if (r) return m; // it says nothing
        m.kind = r.error().kind == misuse_kind::size_mismatch ? misuse_kind::double_free : r.error().kind;
        m.driver_status = r.error().driver_status;
        m.real_owner = r.error().real_owner;
        return m;
    }

    Pool* pool_;
    account_ledger ledger_;
    environment::shown shown_; ///< ends first
};

template <resource Pool, class Rounding = granule_rounding>
class account {
    using book_type = accounts<Pool, Rounding>;

  public:
    using pool_type = Pool;

    /// Effects: opens an account at the top, or below another one. Requires: what it is opened in outlives it.
    /// Throws: `std::bad_alloc`.
    explicit account(accounts<Pool, Rounding>& book, account_options options = {})
        : account(book, book.ledger_.root(), std::move(options)) {}
    explicit account(account& parent, account_options options = {})
        : account(*parent.book_, *parent.state_, std::move(options)) {}

    account(const account&) = delete;
    account& operator=(const account&) = delete;

    /// Requires: no thread is inside a call. See `account_options::at_destruction`.
    ~account() {
        const short_text path = state_->path();
        const account_reading left = ledger().close(*state_);
        if (left.blocks != 0 && at_destruction_ == leftovers::report)
            report_misuse({.kind = misuse_kind::live_at_destruction,
                           .bytes = left.charged,
                           .expected = left.blocks,
                           .owner = path});
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        if (bytes - 1 < detail::account_max_bytes) [[likely]] {
            const std::size_t charge = Rounding{}(bytes);
            if (ledger().take_stocked(*state_, charge)) [[likely]] {
                charge_guard guard{*this, charge};
                void* const p = pool().allocate(stream, bytes, alignment);
                if (mark(p, bytes)) [[likely]]
                    return guard.keep(p);
                throw_failure(unmarkable(p, bytes).error());
            }
        }
        const allocate_result r = try_allocate(stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        if (bytes - 1 >= detail::account_max_bytes) [[unlikely]]
            return allocate_uncharged(stream, bytes, alignment);
        const std::size_t charge = Rounding{}(bytes);
        if (!ledger().take_stocked(*state_, charge)) [[unlikely]] {
            allocation_failure failure{.requested = bytes};
            if (!ledger().take(*state_, charge, failure)) return refused(failure, stream, bytes, alignment);
        }
        allocate_result r = pool().try_allocate(stream, bytes, alignment);
        if (r && mark(*r, bytes)) [[likely]]
            return r;
        ledger().give(*state_, charge);
        return r ? unmarkable(*r, bytes) : r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        if (bytes - 1 >= detail::account_max_bytes) {
            const allocate_result r = allocate_uncharged(default_stream, bytes, alignment);
            if (!r) throw_failure(r.error());
            return *r;
        }
        const std::size_t charge = Rounding{}(bytes);
        allocation_failure failure{.requested = bytes};
        if (!ledger().take(*state_, charge, failure)) {
            const allocate_result r = refused(failure, default_stream, bytes, alignment);
            throw_failure(r.error());
        }
        charge_guard guard{*this, charge};
        void* const p = pool().allocate_sync(bytes, alignment);
        if (mark(p, bytes)) return guard.keep(p);
        throw_failure(unmarkable(p, bytes).error());
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(stream, p, bytes, alignment); !r) [[unlikely]]
            report_misuse(r.error());
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        block_table::word* const w = book_type::table().find(p);
        std::uint64_t expected = book_type::word_of(state_->id, bytes);
        if (w == nullptr || w->load(std::memory_order_relaxed) != expected || p == nullptr ||
            !w->compare_exchange_strong(expected, 0, std::memory_order_relaxed)) [[unlikely]]
            return deallocate_slow(stream, p, bytes, alignment);
        deallocate_result r = pool().try_deallocate(stream, p, bytes, alignment);
        if (r) [[likely]]
            ledger().give(*state_, Rounding{}(bytes));
        return r;
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        if (p == nullptr) return;
        const deallocate_result r = book_->take_block(*state_, default_stream, p, bytes, [&](std::size_t n) {
            pool().deallocate_sync(p, n, alignment);
            return deallocate_result(freed{});
        });
        if (!r) report_misuse(r.error());
    }

    void release(void* p) noexcept {
        if (p == nullptr) return;
        const deallocate_result r =
            book_->take_block(*state_, default_stream, p, book_type::any_size, [&](std::size_t) {
                pool().release(p);
                return deallocate_result(freed{});
            });
        if (!r) report_misuse(r.error());
    }

    void record_use(void* p, stream_handle stream) noexcept {
        if (p == nullptr) return;
        const std::uint64_t word = book_type::read(p);
        if (word != 0 && book_->owner_of(*state_, word) != nullptr && pool().owns(p))
            return pool().record_use(p, stream);
        report_misuse(book_->classify(*state_, stream, p, 0, word));
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        return book_type::id_of(book_type::read(p)) == state_->id && pool().owns(const_cast<void*>(p));
    }

    [[nodiscard]] usage_counters usage() const {
        usage_counters u = pool().usage();
        u.failures += ledger().refused();
        return u;
    }
    std::size_t trim(std::size_t bytes_to_keep) { return pool().trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return pool().snapshot(); }
    [[nodiscard]] bool validate() const noexcept { return pool().validate() && ledger().validate(); }

    void release_captured(std::uint64_t capture) noexcept requires capture_resource<Pool> {
        pool().release_captured(capture);
    }

    // ---- the account ----

    /// Returns: names from the top to this one, joined by '/'.
    [[nodiscard]] short_text path() const noexcept { return state_->path(); }

    /// Returns: what the account, and those below it, hold and may hold.
    [[nodiscard]] account_reading reading() const noexcept { return ledger().reading(*state_); }

    /// Returns: the account as an operator sees it; nobody is stopped for it, see `account_ledger::glance`.
    /// Throws: `std::bad_alloc`.
    [[nodiscard]] account_picture glance() const {
        account_picture p = book_->glance();
        p.key = state_;
        p.kind = row_kind::account;
        p.refused.reset();
        p.open.reset();
        std::string names = state_->name;
        for (const account_state* a = state_->parent; a != nullptr; a = a->parent) {
            p.above.push_back(a);
            if (a->parent != nullptr) names = a->name + '/' + names;
        }
        p.path += '/' + names;
        p.reading = ledger().glance(*state_);
        p.blocks = p.reading.blocks;
        return p;
    }

    /// Effects: charges are held against `max` bytes from now on; nothing is taken away.
    /// Returns: by how many bytes the account is over it.
    std::size_t set_max(std::size_t max) noexcept { return ledger().set_max(*state_, max); }

  private:
    account(accounts<Pool, Rounding>& book, account_state& parent, account_options options)
        : book_(&book)
        , state_(&book.ledger_.open(parent, std::move(options.name), options.max))
        , at_destruction_(options.at_destruction) {}

    /// Gives a charge back unless it is kept.
    class charge_guard {
      public:
        charge_guard(account& a, std::size_t bytes) noexcept : account_(&a), bytes_(bytes) {}
        ~charge_guard() {
            if (account_ != nullptr) [[unlikely]]
                account_->ledger().give(*account_->state_, bytes_);
        }
        charge_guard(const charge_guard&) = delete;
        charge_guard& operator=(const charge_guard&) = delete;
        void* keep(void* p) noexcept {
            account_ = nullptr;
            return p;
        }

      private:
        account* account_;
        std::size_t bytes_;
    };

    [[nodiscard]] Pool& pool() const noexcept { return *book_->pool_; }
    [[nodiscard]] account_ledger& ledger() const noexcept { return book_->ledger_; }

    bool mark(void* p, std::size_t bytes) noexcept {
        block_table::word* const w = book_type::table().make(p);
        if (w == nullptr) [[unlikely]]
            return false;
        w->store(book_type::word_of(state_->id, bytes), std::memory_order_relaxed);
        return true;
    }

    /// No bytes, or more than any device has: the pool knows what to say.
    TENURE_NOINLINE allocate_result allocate_uncharged(stream_handle stream, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
        allocate_result r = pool().try_allocate(stream, bytes, alignment);
        return r && *r != nullptr ? unmarkable(*r, bytes) : r;
    }

    /// The pool gave a block that can have no word: it is more than 1 TiB, not at a granule, or host memory is missing.
    TENURE_NOINLINE allocate_result unmarkable(void* p, std::size_t bytes) noexcept {
        pool().release(p);
        return allocation_failure{.requested = bytes,
                                  .rounded = bytes,
                                  .cause = failure_cause::driver,
                                  .driver_status = status::failed,
                                  .arena = state_->path()};
    }

    TENURE_NOINLINE allocate_result refused(const allocation_failure& failure, stream_handle stream,
                                            std::size_t bytes, std::size_t alignment) noexcept {
        if (!is_power_of_two(alignment) || alignment > max_alignment)
            return pool().try_allocate(stream, bytes, alignment);
        return failure;
    }

    TENURE_NOINLINE deallocate_result deallocate_slow(stream_handle stream, void* p, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
        if (p == nullptr) return pool().try_deallocate(stream, p, bytes, alignment);
        return book_->take_block(*state_, stream, p, bytes, [&](std::size_t n) {
            return pool().try_deallocate(stream, p, n, alignment);
        });
    }

    accounts<Pool, Rounding>* book_;
    account_state* state_;
    const leftovers at_destruction_;
};

} // namespace tenure
