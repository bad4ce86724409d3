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
/// Invariants: a block that waits is in exactly one place, either deferred or with `events` marks in the queues. A stream
/// that can be neither marked nor waited for now stays among the block's uses, and is tried again later.
/// Complexity: a free costs an event a stream; polling costs one query a stream that has not passed.
/// Thread-safety: externally synchronised, by the heap's mutex.

#include "block.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/ordering/event_cache.hpp>

#include <cstddef>
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
        std::size_t unmarked = 0; // uses that stay, in front
        for (const stream_handle s : b->uses) {
            const result<event_handle, status> event = events_.mark(s);
            if (event) {
                queues_[s].push_back({*event, b});
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
            auto& queue = it->second;
            while (!queue.empty() && device_->query(queue.front().event) == status::ok) pop(queue, f);
            it = queue.empty() ? queues_.erase(it) : std::next(it);
        }
    }

    /// Effects: waits for all that is marked; f(block) for each. Returns: whether all has passed.
    template <class F>
    bool wait(F&& f) {
        for (auto& [stream, queue] : queues_) {
            while (!queue.empty()) {
                if (device_->synchronize(queue.front().event) != status::ok) return false;
                pop(queue, f);
            }
        }
        queues_.clear();
        return true;
    }

    /// Effects: f(block) for each block that waits, once for each of its marks.
    template <class F>
    void for_each(F&& f) const {
        for (const block* b : deferred_) f(*b);
        for (const auto& [stream, queue] : queues_)
            for (const mark& m : queue) f(*m.waiting);
    }

  private:
    struct mark {
        event_handle event;
        block* waiting;
    };

    template <class F>
    void pop(std::deque<mark>& queue, F&& f) {
        const mark m = queue.front();
        queue.pop_front();
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
    std::map<stream_handle, std::deque<mark>> queues_;
    std::vector<block*> deferred_;
    std::size_t waiting_ = 0; ///< number of blocks with marks
};

} // namespace tenure::torch
