#pragma once

/// \file
/// `meter`, second half of its definitions: idle memory of others, pressure, and the line of those who wait. Included by
/// `meter.hpp` only.
///
/// Idle memory is taken from the holder with the largest `overage / weight`, down to the level of the next one, then in
/// turns. Only what lies above a `min` counts as overage. Memory goes back in whole segments: where the last of them
/// reaches below the `min`, the guarantee still stays charged in every level above, so its owner gets it back for
/// the asking. A holder is asked with no lock held and pinned meanwhile, so that it cannot go away. Whoever takes idle memory holds no lock of a
/// pool, and a holder that gives some holds only its own: two arenas that take from each other cannot block each other.

#include <tenure/core/units.hpp>
#include <tenure/tenancy/meter.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>

namespace tenure {

// ---- holders ----

inline void meter::attach(idle_holder& holder) noexcept {
    const locked lock(forest_->mutex);
    holder_ = &holder;
}

inline void meter::detach() noexcept {
    locked lock(forest_->mutex);
    holder_ = nullptr; // from here on nobody comes
    while (pins_ != 0) sleep(lock);
}

// ---- idle memory ----

inline std::size_t meter::spare_of(const meter& candidate, const meter* asking) const noexcept {
    if (&candidate == this) return candidate.state_.own;
    std::size_t spare = std::min(candidate.state_.own, candidate.overage());
    for (const meter* m = candidate.parent_; m != nullptr && m != this && spare != 0; m = m->parent_) {
        if (asking != nullptr && (asking == m || asking->below(*m))) break; // so does all above it
        spare = std::min(spare, m->overage());
    }
    return spare;
}

inline std::size_t meter::take_idle(locked& lock, meter& level, std::size_t missing, const meter* except,
                                    bool respect_min) noexcept {
    constexpr std::size_t least_part = std::size_t{2} << 20; // what devices give memory in
    static std::atomic<std::uint64_t> marks{0};
    const std::uint64_t mark = ++marks;
    std::size_t taken = 0;
    // Long doubles have room for the products; what rounding there is only decides ties.
    const auto ratio = [](std::size_t spare, const meter& m) {
        return static_cast<long double>(spare) / static_cast<long double>(m.state_.weight);
    };
    while (taken < missing) {
        meter* best = nullptr;
        std::size_t spare_of_best = 0;
        long double highest = 0;
        long double second = 0;
        level.for_each_below([&](meter& m) {
            if (&m == except || m.holder_ == nullptr || m.mark_ >= mark) return; // empty since this began
            const std::size_t spare = respect_min ? level.spare_of(m, except) : m.state_.own;
            const long double r = ratio(spare, m);
            if (r > highest) {
                second = highest;
                highest = r;
                best = &m;
                spare_of_best = spare;
            } else {
                second = std::max(second, r);
            }
        });
        if (best == nullptr) break;
        // Down to where the next one stands; both are asked in turns from there on.
        const auto level_with_next =
            static_cast<std::size_t>(second * static_cast<long double>(best->state_.weight));
        const std::size_t part =
            std::max(spare_of_best - std::min(spare_of_best, level_with_next), least_part);
        const std::size_t wanted = std::min({spare_of_best, missing - taken, part});
        ++best->pins_;
        const std::size_t keep = best->state_.own - wanted;
        idle_holder& holder = *best->holder_;
        lock.unlock();
        const std::size_t given = holder.give_idle(keep);
        lock.lock();
        --best->pins_;
        // More than `keep` is left, so it has no more to give. Otherwise others took of it too, and it is asked again.
        if (given < wanted && best->state_.own > keep) best->mark_ = std::max(best->mark_, mark);
        if (except != nullptr) best->state_.reclaimed += given;
        taken += given; // what the refunds have told the waiting already
        if (forest_->sleepers != 0) forest_->changed.notify_all(); // `detach`
    }
    return taken;
}

inline std::size_t meter::borrow(std::uint64_t level, std::size_t missing) noexcept {
    locked lock(forest_->mutex);
    const std::size_t taken = take_idle(lock, level_of(level), missing, this);
    state_.borrowed += taken;
    return taken;
}

inline free_count meter::count_frees(std::uint64_t level) noexcept {
    std::vector<std::pair<meter*, const idle_holder*>> all;
    locked lock(forest_->mutex);
    free_count count{.blocks = 0, .refunds = forest_->refunds};
    try {
        level_of(level).for_each_below([&](meter& m) {
            if (m.holder_ != nullptr) all.emplace_back(&m, m.holder_);
        });
    } catch (...) { // no host memory: refunds alone are counted
        return count;
    }
    for (const auto& [m, holder] : all) ++m->pins_;
    lock.unlock();
    for (const auto& [m, holder] : all) count.blocks += holder->freed_blocks();
    lock.lock();
    for (const auto& [m, holder] : all) --m->pins_;
    if (forest_->sleepers != 0) forest_->changed.notify_all(); // `detach`
    return count;
}

inline std::size_t meter::give_up(std::size_t missing) noexcept {
    locked lock(forest_->mutex);
    return take_idle(lock, *this, missing, nullptr);
}

inline std::size_t meter::trim(std::size_t bytes_to_keep) noexcept {
    locked lock(forest_->mutex);
    const std::size_t used = state_.used;
    return used <= bytes_to_keep ? 0 : take_idle(lock, *this, used - bytes_to_keep, nullptr, false);
}

inline status meter::admit_min(std::size_t min) noexcept {
    std::optional<free_count> before;
    status s = set_min(min);
    for (int round = 0; round < most_rounds && s == status::over_limit; ++round) {
        const std::optional<refusal> why = last_refusal();
        if (!why || why->hopeless) return s; // no matter of room
        const bool none = borrow(why->level, why->missing) == 0;
        s = set_min(min);
        if (s != status::over_limit) return s;
        std::optional<free_count> now;
        if (none) now = count_frees(why->level);
        if (none && before == now) return s;
        before = now;
    }
    return s;
}

inline std::size_t meter::enforce_max(std::size_t max) noexcept {
    const std::size_t over = set_max(max);
    if (over == 0) return 0;
    (void)give_up(over);
    const std::size_t charged = read().charged;
    return charged > max ? charged - max : 0;
}

// ---- pressure ----

inline void meter::relieve() noexcept {
    pressed_.store(false, std::memory_order_relaxed);
    locked lock(forest_->mutex);
    std::array<meter*, max_tenancy_depth> levels{};
    std::size_t n = 0;
    for (meter* m = this; m != nullptr; m = m->parent_)
        if (m->state_.charged > m->state_.high) levels[n++] = m;
    for (std::size_t i = 0; i < n; ++i) {
        meter& level = *levels[i];
        if (level.state_.charged <= level.state_.high) continue; // one below it gave enough
        if (level.on_high_) {
            pressure p{.level = short_text(level.name_),
                       .charged = level.state_.charged,
                       .high = level.state_.high,
                       .max = level.state_.max};
            lock.unlock();
            try {
                p.level = short_text(level.path());
                level.on_high_(p);
            } catch (...) { // pressure is news, not a question
            }
            lock.lock();
            if (level.state_.charged <= level.state_.high) continue;
        }
        (void)take_idle(lock, level, level.state_.charged - level.state_.high, nullptr);
    }
}

// ---- the line ----

inline bool meter::all_stuck() noexcept {
    bool all = true;
    for_each_below([&](const meter& m) { all = all && (m.state_.own == 0 || m.stuck()); });
    return all;
}

/// A place in the line of one level. Who stands first among those who wait for a level tries, the others sleep. Who
/// does not wait is not held back by those who do.
///
/// An arena is stuck while as many of its threads wait as it has. A place is refused if every tenant that holds memory
/// below the level, the asking one included, is stuck then: nobody would be left to give anything back. In a circle of
/// waiting threads, each waits for a level whose holders are all stuck; so the last thread to come would close it, and
/// it is refused. Hence no circle ever closes.
///
/// What a tenant frees goes to its own cache first, of which the tree learns nothing. So the first in line looks again
/// every `poll`, besides when something was given back.
///
/// Thread-compatible; it stays with the thread that made it.
class meter::place {
  public:
    static constexpr std::chrono::microseconds poll{500};

    /// Effects: stands in line, last, for room below the level with this id. `threads`: see `wait_options`.
    place(meter& asking, std::uint64_t level, unsigned threads) noexcept : asking_(&asking) {
        const locked lock(forest_of(asking).mutex);
        ++asking.waiting_;
        ++asking.state_.waits;
        asking.threads_ = std::max(threads, 1u);
        forest& f = *asking.forest_;
        previous_ = f.last_in_line;
        (previous_ == nullptr ? f.first_in_line : previous_->next_) = this;
        f.last_in_line = this;
        enter(level);
    }
    place(const place&) = delete;
    place& operator=(const place&) = delete;

    ~place() {
        const locked lock(forest_of(*asking_).mutex);
        forest& f = *asking_->forest_;
        (previous_ == nullptr ? f.first_in_line : previous_->next_) = next_;
        (next_ == nullptr ? f.last_in_line : next_->previous_) = previous_;
        --asking_->waiting_;
        const auto waited = std::chrono::steady_clock::now() - since_;
        asking_->state_.waited_ns +=
            static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(waited).count());
        asking_->notify();
    }

    /// Effects: stands in the line of another level from now on, if it is another, at the place of its coming.
    void turn_to(std::uint64_t level) noexcept {
        const locked lock(forest_of(*asking_).mutex);
        if (asking_->level_of(level).id_ != level_) enter(level);
    }

    /// Returns: false where waiting would end in a deadlock.
    [[nodiscard]] bool granted() const noexcept { return granted_; }

    /// Effects: sleeps until it is worth trying. Returns: false if `end` came before.
    bool await(std::chrono::steady_clock::time_point end) noexcept {
        forest& f = *asking_->forest_;
        locked lock(f.mutex);
        bool polled = false;
        for (;;) {
            const auto now = std::chrono::steady_clock::now();
            if (now >= end) return false;
            const bool first = stands_first();
            if (first && (polled || f.changes != seen_)) {
                seen_ = f.changes;
                return true;
            }
            ++f.sleepers;
            const auto until = first ? std::min(end, now + poll) : end;
            polled = f.changed.wait_until(lock, until) == std::cv_status::timeout && first;
            --f.sleepers;
        }
    }

  private:
    static forest& forest_of(meter& m) noexcept { return *m.forest_; }

    void enter(std::uint64_t level) noexcept {
        meter& l = asking_->level_of(level);
        level_ = l.id_;
        granted_ = !l.all_stuck();
        if (!granted_) ++asking_->state_.deadlocks;
        asking_->notify();
    }

    [[nodiscard]] bool stands_first() const noexcept {
        for (const place* p = previous_; p != nullptr; p = p->previous_)
            if (p->level_ == level_) return false;
        return true;
    }

    meter* asking_;
    std::uint64_t level_ = 0;
    bool granted_ = false;
    std::uint64_t seen_ = no_limit;
    place* previous_ = nullptr;
    place* next_ = nullptr;
    const std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

} // namespace tenure
