#pragma once

/// \file
/// `meter`: how many bytes a tenant holds, and the most it may hold. Meters form trees.
///
///     "gpu"               max 100   charged 90 = 30 + max(40, 60)
///       "org"             charged 30
///         "org/alice"     own 20
///         "org/bob"       own 10
///       "batch"           min 60    charged 40
///
///     reserve(n) --> ticket --commit--> charged
///                      |
///                      +-- destroyed without commit: the charge goes back
///
/// Charge before you take: `reserve` charges, then the memory is taken, then the ticket is committed. A path that
/// fails in between, by return or by exception, cannot leak the charge, because the ticket is move-only and gives back
/// what was not committed.
///
/// A level is charged its own bytes and `max(charged, min)` of each child. So what a child takes within its `min` is
/// charged above it already, and no level above it can refuse that.
///
/// Invariants:
///   1. A charge is granted only if every level, from the tenant up to the root, then has `charged <= max`. Limits and
///      charges of a tree change under one lock, so this holds for every interleaving, exactly, to the byte.
///   2. A refused charge changes nothing: a large request that fails never makes a small one fail.
///   3. `charged` never goes below zero, and is exactly 0 when everything was given back (and nobody has a `min`).
///   4. The sum of the children's `min` is at most the level's `max` whenever a `min` is set.
///   5. A tree is at most `max_tenancy_depth` levels deep.
///
/// The lock costs nothing where it matters: a meter is asked when memory is taken from the device, which costs tens
/// of microseconds, never when a block is allocated. Complexity: `reserve`, `refund` and the end of a ticket O(depth).
///
/// A meter whose parent is destroyed first moves up to the parent's parent, or becomes a root.
///
/// Thread-safety: thread-safe, except construction and destruction. A ticket is thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/result.hpp>
#include <tenure/tenancy/limits.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure {

class meter;

/// Somebody who holds memory under a meter, some of which may be idle: an arena. See `meter::attach`.
class idle_holder {
  public:
    /// Effects: gives idle memory back until at most `bytes_to_keep` bytes are held, or no more can go; live blocks are
    /// not touched. Called with no lock held. Returns: bytes given back.
    virtual std::size_t give_idle(std::size_t bytes_to_keep) noexcept = 0;

    /// Returns: number of blocks freed so far; each may have made idle memory. Called with no lock held.
    [[nodiscard]] virtual std::uint64_t freed_blocks() const noexcept = 0;

  protected:
    ~idle_holder() = default;
};

/// How often memory may have become free below a level. While it does not change, idle memory and room only become less.
struct free_count {
    std::uint64_t blocks = 0;  ///< freed in the pools, see `idle_holder::freed_blocks`
    std::uint64_t refunds = 0; ///< in the tree, and limits that changed
    bool operator==(const free_count&) const = default;
};

/// Why a charge was refused. Sizes in bytes.
struct refusal {
    std::uint64_t level = 0; ///< id of the meter whose `max` refused
    bool ancestor = false;   ///< it was a level above the tenant
    short_text path;         ///< of that level
    std::size_t bytes = 0;   ///< that were asked for
    std::size_t missing = 0; ///< by how much they did not fit there
    std::size_t used = 0;    ///< `charged` of that level
    std::size_t min = 0;
    std::size_t max = 0;
    bool hopeless = false; ///< more than that level's `max` less the `min` of others ever allows
};

/// On cache lines of its own: what is charged to one tenant is not felt by another that only lies beside it.
class alignas(own_lines) meter {
  public:
    /// A charge that is not yet final.
    class ticket {
      public:
        ticket(ticket&& other) noexcept
            : meter_(std::exchange(other.meter_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
        ticket& operator=(ticket&& other) noexcept {
            std::swap(meter_, other.meter_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }
        ~ticket() {
            if (meter_ != nullptr) meter_->settle(bytes_, 0);
        }
        /// Effects: `used` bytes stay charged, the rest goes back. Requires: used <= what was reserved.
        void commit(std::size_t used) noexcept { std::exchange(meter_, nullptr)->settle(bytes_, used); }
        void commit() noexcept { commit(bytes_); }

      private:
        friend class meter;
        ticket(meter& m, std::size_t bytes) noexcept : meter_(&m), bytes_(bytes) {}
        meter* meter_;
        std::size_t bytes_;
    };

    /// A root.
    meter(std::string_view name, std::size_t max) : meter(nullptr, name, tenant_limits{.max = max}) {}
    meter(std::string_view name, const tenant_limits& limits) : meter(nullptr, name, limits) {}

    /// A child. Throws: `not_admitted` if the parent has no room for its `min`, or is too deep down already;
    /// `std::bad_alloc`.
    meter(meter& parent, std::string_view name, const tenant_limits& limits) : meter(&parent, name, limits) {}

    /// The same; null: a root.
    meter(meter* parent, std::string_view name, const tenant_limits& limits);

    meter(const meter&) = delete;
    meter& operator=(const meter&) = delete;

    /// Effects: its children move up to its parent. Requires: nothing is charged to itself any more.
    ~meter();

    // ---- charging ----

    /// Effects: charges `bytes` bytes if they fit in every level. Returns: the ticket, or `over_limit`; then nothing
    /// has changed, and `last_refusal` says which level refused.
    result<ticket, status> reserve(std::size_t bytes) noexcept { return reserve(bytes, false); }

    /// As `reserve`, but no charge that is not final yet refuses anybody: while tickets are open that may go back and
    /// make room, their ends are waited for, also of those that are opened meanwhile. (So may all that can be refused below:
    /// `set_min`, `set_parent`, `move_charge` and a construction with a `min` wait in the same way.)
    /// Requires: this thread has no ticket of this tree, and who has one takes no lock that this thread holds.
    result<ticket, status> reserve_settled(std::size_t bytes) noexcept { return reserve(bytes, true); }

    /// Effects: gives back a committed charge. Requires: it was charged to this meter.
    void refund(std::size_t bytes) noexcept;

    /// Effects: a committed charge of `from` becomes one of `to`, at one instant: no level that stands above both sees a
    /// change. Returns: `ok`; `over_limit`, then nothing has changed; `invalid_value` if they are of two trees.
    /// `as_of_right`: it is not refused, for taking such a move back.
    static status move_charge(meter& from, meter& to, std::size_t bytes, bool as_of_right = false) noexcept;

    /// Effects: charges `bytes` bytes, limits or not: for taking back what has just been given up.
    void charge_as_of_right(std::size_t bytes) noexcept;

    /// Returns: why this thread's last charge to this meter was refused, if it was, and nobody has made it forgotten.
    [[nodiscard]] std::optional<refusal> last_refusal() const noexcept;

    /// Effects: this thread's last refusal here answers no later question.
    void forget_refusal() const noexcept;

    /// Returns: bytes that could be charged at this instant, in every level; others may be faster.
    [[nodiscard]] std::size_t room() const noexcept;

    /// Returns: bytes that may be charged at the very most: the least `max` from here to the root.
    [[nodiscard]] std::size_t limit() const noexcept;

    // ---- limits, at any time ----

    /// Effects: from now on charges are held against `max`. Nothing is taken from the tenant.
    /// Returns: by how many bytes it is over the new limit.
    std::size_t set_max(std::size_t max) noexcept;

    /// Effects: the guarantee is `min` bytes from now on. Returns: `ok`, or `over_limit` if a level above has no
    /// room for it, or `min` is above `max`; then nothing has changed.
    status set_min(std::size_t min) noexcept;

    /// Returns: by how many bytes it is above it.
    std::size_t set_high(std::size_t high) noexcept;

    /// Requires: weight >= 1.
    void set_weight(unsigned weight) noexcept;

    // ---- the tree ----

    /// Effects: it and all below it stand under `parent` from now on. Returns: `ok`; `over_limit` if a level
    /// above the new place has no room; `invalid_value` if `parent` is of another tree or below this meter, or the tree
    /// would become too deep. Then nothing has changed.
    status set_parent(meter& parent) noexcept;

    /// Returns: a number that no meter has, nor whoever else was given one; never 0.
    [[nodiscard]] static std::uint64_t new_id() noexcept {
        static std::atomic<std::uint64_t> last{0};
        return ++last;
    }

    /// Returns: unique for the life of the process, never 0.
    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] std::string_view name() const noexcept { return name_; }
    /// Returns: names from the root, joined by '/'. Throws: `std::bad_alloc`.
    [[nodiscard]] std::string path() const;

    [[nodiscard]] meter_reading read() const noexcept;

    /// Returns: this meter and all below it, parents before children, at one instant. Throws: `std::bad_alloc`.
    [[nodiscard]] std::vector<tenant_picture> picture() const;

    // ---- what an arena tells and asks ----

    /// Effects: `holder`'s idle memory may be taken for others from now on.
    void attach(idle_holder& holder) noexcept;
    /// Effects: not any more; waits until nobody is at it. Requires: not called from within `give_idle`.
    void detach() noexcept;

    /// Effects: takes idle memory of other tenants below the level with this id (0, or one that does not stand above
    /// this meter: its root), by overage and weight, none of what lies under a `min`, until `missing` bytes are
    /// free for this tenant there. Requires: the caller holds no lock of a pool. Returns: bytes given back.
    std::size_t borrow(std::uint64_t level, std::size_t missing) noexcept;

    /// Returns: the counts below that level, for who found nothing there: if they did not change while it looked, then at
    /// some instant there was nothing. Requires: as `borrow`.
    [[nodiscard]] free_count count_frees(std::uint64_t level) noexcept;

    /// Effects: has idle memory at and below this meter given back, by overage and weight and none of what lies under a
    /// `min` below it, until `missing` bytes are. Returns: bytes given back.
    std::size_t give_up(std::size_t missing) noexcept;

    /// Effects: the same, but guarantees do not count, until at most `bytes_to_keep` bytes are used.
    std::size_t trim(std::size_t bytes_to_keep) noexcept;

    /// How often who takes idle memory that others are faster to use asks for more, before it gives up.
    static constexpr int most_rounds = 64;

    /// As `set_min`; where a level above has no room because of others' idle memory, that is taken.
    status admit_min(std::size_t min) noexcept;

    /// As `set_max`; idle memory at and below this meter is given back as far as it is over the limit.
    /// Returns: bytes by which it is still over.
    std::size_t enforce_max(std::size_t max) noexcept;

    /// Returns: whether this meter, or one above it, has been charged above its `high` since it was last asked, by this
    /// meter. One relaxed load, for the hot path.
    [[nodiscard]] bool pressed() const noexcept { return pressed_.load(std::memory_order_relaxed); }

    /// Effects: told of pressure at this level. Requires: set before the meter is charged.
    void on_high(high_callback callback) { on_high_ = std::move(callback); }

    /// Effects: for each level from here up that is above its `high`: calls its callback, and has idle memory below it
    /// given back until it is at `high`. Requires: the caller holds no lock.
    void relieve() noexcept;

    /// A thread's place in the line of requests that wait for memory.
    class place;

    /// Counts, for the readings.
    void count_failure(failure_cause cause) noexcept;
    void count_scrubbed(std::size_t bytes) noexcept;

  private:
    /// What all meters of a tree share, and what outlives each of them.
    struct alignas(own_lines) forest {
        ordered_mutex<lock_level::meter> mutex; ///< guards all of the tree; nothing is called under it
        std::condition_variable_any changed;    ///< something was given back, a ticket ended, a line moved
        unsigned sleepers = 0;                  ///< who wait for that
        std::uint64_t changes = 0;
        std::uint64_t refunds = 0;
        place* first_in_line = nullptr; ///< a list, in order of coming
        place* last_in_line = nullptr;
    };
    using locked = std::unique_lock<ordered_mutex<lock_level::meter>>;

    result<ticket, status> reserve(std::size_t bytes, bool settled) noexcept;
    void settle(std::size_t bytes, std::size_t used) noexcept;

    // What follows requires the lock.

    /// Returns: what its parent is charged for it.
    [[nodiscard]] std::size_t share() const noexcept { return std::max(state_.charged, state_.min); }
    [[nodiscard]] std::size_t overage() const noexcept {
        return state_.charged - std::min(state_.charged, state_.min);
    }

    struct obstacle {
        meter* level = nullptr; ///< null: there is none
        std::size_t added = 0;  ///< to that level
    };
    [[nodiscard]] obstacle obstacle_for(std::size_t bytes) noexcept;
    void add(std::size_t bytes) noexcept;
    void subtract(std::size_t bytes) noexcept;
    /// Effects: every level from `m` up is charged `after` instead of `before` for a child.
    static void carry(meter* m, std::size_t before, std::size_t after) noexcept;
    [[nodiscard]] bool grants_guarantee(std::size_t more) const noexcept;
    /// Returns: whether it would be none, should all charges that are not final go back.
    [[nodiscard]] static bool may_pass(const obstacle& o) noexcept;
    /// Effects: sleeps until something has changed in the tree.
    void sleep(locked& lock) noexcept;
    /// Returns: the least that its parent is ever charged for it, whatever it and those below it give back.
    [[nodiscard]] std::size_t guaranteed() const noexcept;
    void refuse(const obstacle& o, std::size_t bytes) noexcept;
    void note_pressure() noexcept;
    void notify() noexcept {
        ++forest_->refunds;
        notify_of_ticket();
    }
    void notify_of_ticket() noexcept {
        ++forest_->changes;
        if (forest_->sleepers != 0) forest_->changed.notify_all();
    }

    void link(meter* parent) noexcept;
    void unlink() noexcept;
    [[nodiscard]] std::size_t depth() const noexcept;
    [[nodiscard]] std::size_t height() const noexcept;
    [[nodiscard]] bool below(const meter& other) const noexcept;
    [[nodiscard]] meter& level_of(std::uint64_t id) noexcept;
    void write_path(std::string& out) const;
    template <class F>
    void for_each_below(F&& f) {
        f(*this);
        for (meter* c = first_child_; c != nullptr; c = c->next_) c->for_each_below(f);
    }
    [[nodiscard]] bool stuck() const noexcept { return waiting_ >= threads_; }
    [[nodiscard]] bool all_stuck() noexcept;
    /// The largest part of `candidate`'s charge that may go without touching a guarantee between it and this level.
    [[nodiscard]] std::size_t spare_of(const meter& candidate, const meter* asking) const noexcept;
    std::size_t take_idle(locked& lock, meter& level, std::size_t missing, const meter* except,
                          bool respect_min = true) noexcept;

    struct last_answer {
        std::uint64_t asked = 0;
        refusal why{};
    };
    static last_answer& last_of_thread() noexcept {
        thread_local last_answer answer;
        return answer;
    }

    const std::uint64_t id_ = new_id();
    const std::string name_;
    std::shared_ptr<forest> forest_;
    high_callback on_high_{};
    std::atomic<bool> pressed_{false};

    // Guarded by the lock.
    meter* parent_ = nullptr;
    meter* first_child_ = nullptr;
    meter* last_child_ = nullptr;
    meter* next_ = nullptr;
    meter* previous_ = nullptr;
    meter_reading state_;
    idle_holder* holder_ = nullptr;
    unsigned pins_ = 0;      ///< threads that are at its holder
    std::uint64_t mark_ = 0; ///< of the last `take_idle` to which its holder had no more to give
    unsigned waiting_ = 0;
    unsigned threads_ = 1;
};

} // namespace tenure

#include <tenure/tenancy/meter_charging.hpp> // definitions, in the order of the class
#include <tenure/tenancy/meter_reclaiming.hpp>
