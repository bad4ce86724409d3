#pragma once

/// \file
/// `sim::timelines`: happens-before between the streams and the host.
///
///     stream 2   --1----2----3--(event)--4-->          clock of stream 3 after its wait: {2: 3}
///     stream 3   --1------------------(wait)--2-->     so its work 2 stands after works 1 to 3 of stream 2
///     host       ----------(query ok)------------>     and what the host has seen is before all later work
///
/// Only orders that a program can rely on count. Work that merely *happened* to be over, by the virtual
/// clock, orders nothing until the host has learned of it through a query or a wait.
///
///   1. `seen`: what the host knows to be over. The host has one clock for all its threads: a thread that
///      learned something is taken to have told the others, as a lock between them does.
///   2. Work enqueued now stands after all that the host has seen, so clocks hold only entries beyond it.
///   3. A timeline that is closed and wholly seen is forgotten; its work stands before everything.
///
/// Rule 3 keeps programs that make thousands of short-lived streams cheap. Closed timelines that nobody ever
/// waits for are dropped by `sweep` as soon as nobody can ask for them.
///
/// Complexity: joins are linear in the clocks' entries, the rest constant on average. Thread-compatible.

#include <tenure/device/sim/vector_clock.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

namespace tenure::sim {

class timelines {
  public:
    /// Effects: begins a timeline that stands after `past`. Requires: `id` is new.
    void open(timeline_id id, const vector_clock& past = {}) { lines_[id].past = past; }

    /// Effects: nothing more will be enqueued on it.
    void close(timeline_id id) {
        const auto it = lines_.find(id);
        if (it == lines_.end() || it->second.closed) return;
        it->second.closed = true;
        ++closed_;
        forget_if_seen(it);
    }

    /// Effects: its work stands before everything from now on (captured work that will never run by itself).
    void forget(timeline_id id) {
        close(id);
        if (lines_.erase(id) != 0) --closed_;
    }

    /// Effects: enqueues one piece of work. Returns: its point. Requires: open.
    point advance(timeline_id id) { return {id, ++lines_.at(id).position}; }

    /// Returns: everything enqueued so far. For a forgotten timeline: nothing (position 0).
    [[nodiscard]] point current(timeline_id id) const {
        const auto it = lines_.find(id);
        return {id, it == lines_.end() ? 0 : it->second.position};
    }

    /// Returns: all that an event recorded now would stand after.
    [[nodiscard]] vector_clock clock(timeline_id id) {
        line& l = lines_.at(id);
        drop_redundant(l.past);
        vector_clock all = l.past;
        if (l.position > l.seen) all.raise({id, l.position});
        return all;
    }

    /// Effects: later work of `id` stands after `clock`. Requires: open.
    void join(timeline_id id, const vector_clock& clock) {
        line& l = lines_.at(id);
        l.past.join(clock);
        drop_redundant(l.past);
    }

    /// Effects: the host has learned that all before `clock` is over.
    void observe(const vector_clock& clock) {
        for (const point& p : clock.entries()) {
            const auto it = lines_.find(p.timeline);
            if (it == lines_.end()) continue;
            it->second.seen = std::max(it->second.seen, p.position);
            forget_if_seen(it);
        }
    }

    /// Effects: the host has learned that everything is over, on the timelines in `limits` only up to there.
    void observe_all(const vector_clock& limits) {
        std::unordered_set<timeline_id> limited;
        for (const point& p : limits.entries()) limited.insert(p.timeline);
        for (auto it = lines_.begin(); it != lines_.end();) {
            if (limited.count(it->first) == 0) it->second.seen = it->second.position;
            const bool over = it->second.closed && it->second.seen == it->second.position;
            closed_ -= over ? 1 : 0;
            it = over ? lines_.erase(it) : std::next(it);
        }
        observe(limits);
        for (auto& [id, l] : lines_) drop_redundant(l.past);
    }

    /// Returns: whether the host knows that `p` is over.
    [[nodiscard]] bool seen(point p) const {
        const auto it = lines_.find(p.timeline);
        return it == lines_.end() || it->second.seen >= p.position;
    }

    /// Returns: whether work enqueued on `id` now would stand after `p`.
    [[nodiscard]] bool ordered(point p, timeline_id id) const {
        if (p.timeline == id || seen(p)) return true;
        const auto it = lines_.find(id);
        return it != lines_.end() && it->second.past.at(p.timeline) >= p.position;
    }

    /// Returns: number of timelines that are closed but not wholly seen.
    [[nodiscard]] std::size_t closed() const noexcept { return closed_; }

    /// Effects: forgets closed timelines that are not in `asked_for`: nobody can ask for their order.
    void sweep(const std::unordered_set<timeline_id>& asked_for) {
        for (auto it = lines_.begin(); it != lines_.end();) {
            if (it->second.closed && asked_for.count(it->first) == 0) {
                it = lines_.erase(it);
                --closed_;
            } else {
                ++it;
            }
        }
        for (auto& [id, l] : lines_) drop_redundant(l.past);
    }

  private:
    struct line {
        std::uint64_t position = 0;
        std::uint64_t seen = 0;
        vector_clock past; ///< of other timelines, beyond what the host has seen
        bool closed = false;
    };
    using iterator = std::unordered_map<timeline_id, line>::iterator;

    void forget_if_seen(iterator it) {
        if (!it->second.closed || it->second.seen < it->second.position) return;
        lines_.erase(it);
        --closed_;
    }

    void drop_redundant(vector_clock& clock) const {
        clock.erase_if([this](const point& p) { return seen(p); });
    }

    std::unordered_map<timeline_id, line> lines_;
    std::size_t closed_ = 0;
};

} // namespace tenure::sim
