#pragma once

/// \file
/// `stream_waits`: which streams stand behind which, as far as somebody has said so.
///
/// CUDA tells nobody who waits for whom. A program that knows says so here (it made the calls itself, or a framework tells
/// of them), and the pools of the device then pass memory on from stream to stream with no event of their own, without
/// asking the driver, and before any work has passed:
///
///     free on A  ...  recorded(e, A)  ...  waited(B, e)  ...  allocate on B        B may have it at once
///     free on A  ...  has_waited(for A)  ...  allocate on C                        so may every stream
///
/// Saying nothing is always right; it costs memory. Saying what did not happen is a race in the program.
///
/// Model: vector clocks (C. Fidge, 1988; F. Mattern, 1989). A clock counts *stamps*: each free takes the next one of the
/// process. What the book keeps of an event and of a stream is, for each other stream, the stamp below which that one's
/// frees come before it.
///
/// Threads. A call of CUDA and the word about it are two steps, and other threads act between them. So a record is taken
/// to come after no more than what its thread knew of beforehand: every call of a pool, and every word said here, brings
/// the thread up to date (`enter`), and only stamps taken until then count. What one stream learned through a wait counts
/// for a record on it only if the recording thread was brought up to date after the word about the wait; and of an event
/// that is waited for a record counts only if the waiting thread was brought up to date after the word about that record.
/// Between a call of CUDA and the word about it a thread must call no pool. Threads that record one event on different
/// streams while others wait for it must agree on which record is meant, as they must with CUDA itself.
///
/// The book is about the streams of one device. Pools that are given streams of other devices must not be told that the
/// host has waited for all.
///
/// Invariants:
///   1. A stamp below `before(later, earlier)` belongs to a free whose work on `earlier` comes before all that is
///      enqueued on `later` from now on.
///   2. A stamp below `passed(s)` belongs to a free whose work on `s` the host has seen pass.
///   3. Where host memory is short, or the book is full (some 1024 streams, 65536 events), knowledge is lost, never made up.
///
/// Streams are named by their identity (`stream_state::id`), events by their handle: say `forget` when one is destroyed, or
/// recorded where nothing is known about its place (in a capture, by another process).
///
/// Cost: until the first word, a relaxed load a call of a pool. After it, an atomic increment a free. The lock is taken
/// for each stream and each pending block of a pool at its first allocation after a word, and by frees of a stream that has
/// not allocated since the last one. A word is linear in the streams known. Thread-safety: thread-safe. Its lock is the
/// innermost: it is taken under those of pools and takes none.

#include <tenure/core/handles.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure {

class stream_waits {
  public:
    using stream_id = std::uint64_t;
    using stamp = std::uint64_t;

    /// Below no bound.
    static constexpr stamp never = std::numeric_limits<stamp>::max();

    stream_waits() = default;
    stream_waits(const stream_waits&) = delete;
    stream_waits& operator=(const stream_waits&) = delete;

    // ---- what the program has done. Requires: said by the thread that did it, which has called no pool in between ----

    /// `event` was recorded on the stream.
    void recorded(event_handle event, stream_id stream) noexcept;

    /// The stream was made to wait for `event`.
    void waited(stream_id stream, event_handle event) noexcept;

    /// Both at once: all that `earlier` held comes before what `later` does from now on.
    void ordered(stream_id earlier, stream_id later) noexcept;

    /// Nothing is known about the event any more.
    void forget(event_handle event) noexcept;

    /// What the host is about to see pass. Between this and `has_waited` the thread may do anything.
    class host_wait {
      public:
        /// Returns: whether nothing will be known after it.
        [[nodiscard]] bool empty() const noexcept { return streams.empty() && all == 0; }

      private:
        friend stream_waits;
        std::vector<std::pair<stream_id, stamp>> streams;
        stamp all = 0;
    };
    [[nodiscard]] host_wait about_to_wait(event_handle event) const noexcept;
    [[nodiscard]] host_wait about_to_wait_for(stream_id stream) const noexcept;
    [[nodiscard]] host_wait about_to_wait_for_all() const noexcept;

    /// The host has seen it pass.
    void has_waited(const host_wait& w) noexcept;

    // ---- what pools ask ----

    /// Returns: whether a word was ever said.
    [[nodiscard]] bool told() const noexcept { return changes_.load(std::memory_order_relaxed) != 0; }

    /// Returns: a number that grows with each word, 0 before the first.
    [[nodiscard]] std::uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }

    /// Effects: the thread knows of all frees so far.
    static void enter() noexcept { known_to_thread() = next_stamp().load(std::memory_order_acquire); }

    /// To be called in the course of a free. Returns: its stamp; `never` before the first word.
    stamp freed() noexcept {
        if (!told()) return never;
        const stamp mine = next_stamp().fetch_add(1, std::memory_order_acq_rel);
        known_to_thread() = mine + 1;
        return mine;
    }

    /// See the invariants. Returns: 0 if nothing is known.
    [[nodiscard]] stamp before(stream_id later, stream_id earlier) const noexcept;
    [[nodiscard]] stamp passed(stream_id stream) const noexcept;

    /// Returns: a stamp below which all of the stream's frees come before some record on it.
    [[nodiscard]] stamp recorded_up_to(stream_id stream) const noexcept;

  private:
    using index = std::uint32_t;

    struct fact {
        stamp before = 0;
        stamp learned = 0; ///< known to threads that know of this stamp
    };
    struct clock {
        stream_id id = 0;
        stamp recorded = 0;
        stamp passed = 0;
        std::vector<fact> known; ///< by index of the other stream
    };
    struct limit {
        index stream = 0;
        stamp before = 0;
    };
    using picture = std::vector<limit>;
    struct record {
        picture before;
        stamp told = 0; ///< known to threads that know of this stamp
    };

    static constexpr std::size_t most_streams = 1024;
    static constexpr std::size_t most_events = 65536;

    static std::atomic<stamp>& next_stamp() noexcept {
        static std::atomic<stamp> next{1};
        return next;
    }
    static stamp& known_to_thread() noexcept {
        thread_local stamp known = 0;
        return known;
    }

    /// Effects: one word more is said, under the lock; `says(known)`, where the thread knew of all frees below `known`.
    /// If host memory is short, `loses()` instead.
    template <class Says, class Loses>
    void say(Says&& says, Loses&& loses) noexcept {
        const std::lock_guard lock(mutex_);
        if (clocks_.size() + 2 > most_streams) lose_streams();
        try {
            says(known_to_thread());
        } catch (...) {
            loses();
        }
        changes_.fetch_add(1, std::memory_order_release);
        enter();
    }

    index index_of(stream_id id) {
        if (const auto it = indices_.find(id); it != indices_.end()) return it->second;
        clocks_.reserve(clocks_.size() + 1);
        indices_.emplace(id, static_cast<index>(clocks_.size()));
        clocks_.push_back({id, 0, 0, {}});
        return static_cast<index>(clocks_.size() - 1);
    }

    [[nodiscard]] const clock* find(stream_id id) const noexcept {
        const auto it = indices_.find(id);
        return it == indices_.end() ? nullptr : &clocks_[it->second];
    }

    /// Returns: what a thread that knew of all frees below `known` may believe of the event, or null: another thread may
    /// have recorded it again between this one's wait and the word about that.
    [[nodiscard]] const record* find_record(event_handle event, stamp known) const noexcept {
        const auto it = events_.find(event);
        return it == events_.end() || it->second.told >= known ? nullptr : &it->second;
    }

    /// Returns: what comes before a record that a thread made on the stream, if it knew of all frees below `known`.
    picture picture_of(index stream, stamp known) const {
        picture seen;
        const clock& c = clocks_[stream];
        seen.reserve(c.known.size() + 1);
        for (index other = 0; other < c.known.size(); ++other)
            if (c.known[other].before != 0 && c.known[other].learned < known && other != stream)
                seen.push_back({other, c.known[other].before});
        if (known != 0) seen.push_back({stream, known});
        return seen;
    }

    void learn(index stream, const picture& seen) {
        clock& c = clocks_[stream];
        if (c.known.size() < clocks_.size()) c.known.resize(clocks_.size());
        const stamp now = next_stamp().fetch_add(1, std::memory_order_acq_rel);
        for (const limit& b : seen)
            if (b.stream != stream && b.before > c.known[b.stream].before)
                c.known[b.stream] = {b.before, now};
    }

    [[nodiscard]] host_wait host_wait_of(const picture& seen) const {
        host_wait w;
        w.streams.reserve(seen.size());
        for (const limit& b : seen) w.streams.emplace_back(clocks_[b.stream].id, b.before);
        return w;
    }

    void note_record(index stream, stamp known) noexcept {
        clocks_[stream].recorded = std::max(clocks_[stream].recorded, known);
    }

    void lose_streams() noexcept {
        indices_.clear();
        clocks_.clear();
        events_.clear();
    }

    mutable std::mutex mutex_; ///< guards what follows
    std::unordered_map<stream_id, index> indices_;
    std::vector<clock> clocks_;
    std::unordered_map<event_handle, record> events_;
    stamp all_passed_ = 0;
    std::atomic<std::uint64_t> changes_{0};
};

inline void stream_waits::recorded(event_handle event, stream_id stream) noexcept {
    say(
        [&](stamp known) {
            const index s = index_of(stream);
            if (events_.size() >= most_events && !events_.contains(event)) events_.clear();
            picture seen = picture_of(s, known);
            const stamp now = next_stamp().fetch_add(1, std::memory_order_acq_rel);
            events_.insert_or_assign(event, record{std::move(seen), now});
            note_record(s, known);
        },
        [&] { events_.erase(event); });
}

inline void stream_waits::waited(stream_id stream, event_handle event) noexcept {
    say(
        [&](stamp known) {
            if (const record* const r = find_record(event, known)) {
                const picture seen = r->before;
                learn(index_of(stream), seen);
            }
        },
        [] {});
}

inline void stream_waits::ordered(stream_id earlier, stream_id later) noexcept {
    say(
        [&](stamp known) {
            const index e = index_of(earlier);
            note_record(e, known);
            learn(index_of(later), picture_of(e, known));
        },
        [] {});
}

inline void stream_waits::forget(event_handle event) noexcept {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
}

inline stream_waits::host_wait stream_waits::about_to_wait(event_handle event) const noexcept {
    const std::lock_guard lock(mutex_);
    host_wait w;
    try {
        if (const record* const r = find_record(event, known_to_thread())) w = host_wait_of(r->before);
    } catch (...) {
        w = {};
    }
    return w;
}

inline stream_waits::host_wait stream_waits::about_to_wait_for(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    host_wait w;
    try {
        if (const auto it = indices_.find(stream); it != indices_.end())
            w = host_wait_of(picture_of(it->second, known_to_thread()));
        else
            w.streams.emplace_back(stream, known_to_thread());
    } catch (...) {
        w = {};
    }
    return w;
}

inline stream_waits::host_wait stream_waits::about_to_wait_for_all() const noexcept {
    host_wait w;
    w.all = known_to_thread();
    return w;
}

inline void stream_waits::has_waited(const host_wait& w) noexcept {
    say(
        [&](stamp) {
            all_passed_ = std::max(all_passed_, w.all);
            for (const auto& [id, bound] : w.streams) {
                clock& c = clocks_[index_of(id)];
                c.passed = std::max(c.passed, bound);
            }
        },
        [] {});
}

inline stream_waits::stamp stream_waits::before(stream_id later, stream_id earlier) const noexcept {
    const std::lock_guard lock(mutex_);
    const clock* const c = find(later);
    const auto it = indices_.find(earlier);
    return c == nullptr || it == indices_.end() || it->second >= c->known.size()
               ? 0
               : c->known[it->second].before;
}

inline stream_waits::stamp stream_waits::passed(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    const clock* const c = find(stream);
    return std::max(all_passed_, c == nullptr ? 0 : c->passed);
}

inline stream_waits::stamp stream_waits::recorded_up_to(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    const clock* const c = find(stream);
    return c == nullptr ? 0 : c->recorded;
}

/// A device that keeps such a book for its pools.
template <class D>
concept tells_waits = requires(D& d) {
    { d.waits() }
    noexcept->std::same_as<stream_waits&>;
};

} // namespace tenure
