#pragma once

/// \file
/// `pending_frees`: blocks that torch has freed while other streams still use them (`record_stream`).
///
///     stream 7   [event, block a] [event, block b] ...     in the order of their marks; polled from the front
///     stream 9   [event, block b] ...
///     deferred   c, d                                      wait for the end of a capture before they can be marked
///
/// A block is complete when the marks of all streams that used it have passed. While a capture is active nothing is
/// marked, polled or waited for; frees are deferred.
///
/// Where the program says who waits for whom (`stream_waits`), a mark has also passed as soon as the block's own stream is
/// known to stand behind it: the block goes back to that stream, and the device need not be asked. That holds for blocks
/// of arenas: what a private pool has may go into a graph, whose replays stand behind nothing.
///
/// Invariants: a block that waits is in exactly one place, either deferred or with `events` marks in the queues. A stream
/// that can be neither marked nor waited for now stays among the block's uses, and is tried again later.
/// Complexity: a free costs an event a stream; polling costs one query a stream that has not passed, and a look at the book
/// if a word was said since the last one.
/// Thread-safety: externally synchronised, by the heap's mutex.

#include "block.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/ordering/event_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

namespace tenure::torch {

template <device Device>
class pending_frees {
  public:
    explicit pending_frees(Device& device) noexcept : device_(&device), events_(device) {}

    [[nodiscard]] bool empty() const noexcept { return waiting_ == 0 && deferred_.empty(); }
    [[nodiscard]] bool any_marked() const noexcept { return waiting_ != 0; }

    void defer(block* b) { deferred_.push_back(b); }

    /// Returns: what was deferred; it is the caller's to add again.
    std::vector<block*> take_deferred() noexcept { return std::exchange(deferred_, {}); }

    /// Effects: from now on `b` waits for what the streams that use it hold now. Returns: whether it has to wait.
    bool add(block* b) {
        for (const stream_handle s : b->uses) {
            if (const auto state = device_->describe(s); !state || !state->capturing()) continue;
            defer(b);
            return true;
        }
        const stream_waits::stamp freed = stamp_of_free();
        std::size_t unmarked = 0; // uses that stay, in front
        for (const stream_handle s : b->uses) {
            const result<event_handle, status> event = events_.mark(s);
            if (event) {
                queues_[s].marks.push_back({*event, b, place_of(*b, s, freed)});
                if (b->events++ == 0) ++waiting_;
            } else if (wait_for_device() != status::ok) { // then everything would have passed
                b->uses[unmarked++] = s;
            }
        }
        b->uses.resize(unmarked);
        if (b->events == 0 && unmarked != 0) defer(b);
        return b->events != 0 || unmarked != 0;
    }

    /// Effects: f(block) for each block whose uses have all passed.
    template <class F>
    void poll(F&& f) {
        for (auto it = queues_.begin(); it != queues_.end();) {
            queue& q = it->second;
            while (!q.marks.empty() && front_has_passed(q)) pop(q, f);
            it = q.marks.empty() ? queues_.erase(it) : std::next(it);
        }
    }

    /// Effects: waits for all that is marked; f(block) for each. Returns: whether all has passed.
    template <class F>
    bool wait(F&& f) {
        for (auto& [stream, q] : queues_) {
            while (!q.marks.empty()) {
                if (device_->synchronize(q.marks.front().event) != status::ok) return false;
                pop(q, f);
            }
        }
        queues_.clear();
        return true;
    }

    /// Effects: f(block) for each block that waits, once for each of its marks.
    template <class F>
    void for_each(F&& f) const {
        for (const block* b : deferred_) f(*b);
        for (const auto& [stream, q] : queues_)
            for (const mark& m : q.marks) f(*m.waiting);
    }

  private:
    using stamp = stream_waits::stamp;
    using stream_id = stream_waits::stream_id;

    /// Where a mark lies, for the book.
    struct place {
        stamp freed = stream_waits::never; ///< no word makes it pass
        stream_id user = 0;
        stream_id owner = 0;  ///< the block's own stream
        bool follows = false; ///< whether it is enough that `owner` stands behind
    };
    struct mark {
        event_handle event;
        block* waiting;
        place at;
    };
    struct queue {
        std::deque<mark> marks{};
        std::uint64_t looked = 0; ///< the number of words at which the front was looked up in the book last
    };

    stamp stamp_of_free() noexcept {
        if constexpr (tells_waits<Device>) return device_->waits().freed();
        return stream_waits::never;
    }

    place place_of(const block& b, stream_handle user, stamp freed) noexcept {
        place at;
        if (freed == stream_waits::never) return at;
        const auto u = device_->describe(user);
        if (!u || u->capturing()) return at;
        at.freed = freed;
        at.user = u->id;
        if (b.slot == nullptr) return at;
        const auto o = device_->describe(b.stream);
        at.follows = o && !o->capturing();
        if (at.follows) at.owner = o->id;
        return at;
    }

    bool front_has_passed(queue& q) {
        const mark& m = q.marks.front();
        if constexpr (tells_waits<Device>) {
            if (const std::uint64_t words = device_->waits().changes(); words != q.looked) {
                q.looked = words;
                if (is_told(m)) return true;
            }
        }
        return device_->query(m.event) == status::ok;
    }

    /// Returns: whether the book says that the mark has passed, or that the block's stream stands behind it.
    bool is_told(const mark& m) noexcept {
        if (m.at.freed == stream_waits::never) return false;
        stream_waits& book = device_->waits();
        if (book.passed(m.at.user) > m.at.freed) return true;
        if (!m.at.follows || book.before(m.at.owner, m.at.user) <= m.at.freed) return false;
        const auto now = device_->describe(m.waiting->stream); // what is captured on it stands behind nothing
        return now && !now->capturing() && now->id == m.at.owner;
    }

    template <class F>
    void pop(queue& q, F&& f) {
        const mark m = q.marks.front();
        q.marks.pop_front();
        q.looked = 0;
        events_.release(m.event);
        if (--m.waiting->events != 0) return;
        --waiting_;
        if (m.waiting->uses.empty())
            f(m.waiting);
        else
            defer(m.waiting);
    }

    status wait_for_device() noexcept {
        if constexpr (requires { device_->synchronize(); }) return device_->synchronize();
        return status::not_supported;
    }

    Device* device_;
    event_cache<Device> events_;
    std::map<stream_handle, queue> queues_;
    std::vector<block*> deferred_;
    std::size_t waiting_ = 0; ///< number of blocks with marks
};

} // namespace tenure::torch
