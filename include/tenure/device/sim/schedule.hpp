#pragma once

/// \file
/// `sim::schedule`: streams, events and stream captures over virtual time.
///
/// Two orders are kept side by side. *Virtual time* answers queries and lets waits take long (`moment`).
/// *Happens-before* says what a program may rely on (`timelines`). A piece of work moves both.
///
///   1. Streams are independent of each other, the default stream too: it does not wait for others as the
///      legacy default stream does. That is the stricter model: code that is right here is right there.
///   2. A destroyed stream's work runs to its end. Its handle goes to the next stream made, its identity
///      never does.
///   3. Work on a capturing stream does not run: it extends a *branch*, a timeline of the capture's own,
///      whose moments count from the start of the graph.
///   4. An event recorded in a capture carries the capture: a stream that waits for it joins that capture.
///   5. A capture is invalid once something forbidden has touched it; it ends only with `end_capture`.
///
/// Calls are taken to be made in relaxed capture mode. What is forbidden even so invalidates the capture it
/// touches: querying or synchronising an event recorded in it, synchronising a stream in it, making one of
/// its streams wait for an event recorded outside, or in another capture.
///
/// Thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim/handle_table.hpp>
#include <tenure/device/sim/moment.hpp>
#include <tenure/device/sim/timelines.hpp>
#include <tenure/device/sim/violation_log.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure::sim {

/// How strictly a capture was begun. All behave alike here: the device's calls are made in relaxed mode.
enum class capture_mode : std::uint8_t { global, thread_local_, relaxed };

struct stream {
    std::uint64_t id = 0;      ///< identity, and number of its timeline
    std::uint64_t capture = 0; ///< the capture it is in, or 0
    timeline_id branch = 0;    ///< its timeline inside that capture
    moment ready;              ///< end of the work enqueued so far
    std::uint64_t unheld = 0;  ///< its position before `ready` came to depend on held work; while it does
    moment branch_ready;       ///< the same in its branch, from the start of the graph
    [[nodiscard]] timeline_id timeline() const noexcept { return capture != 0 ? branch : id; }
};

class schedule {
  public:
    static constexpr std::uint64_t default_stream_id = 1;

    explicit schedule(violation_log& log) : log_(log) {
        default_.id = default_stream_id;
        lines_.open(default_.id);
    }
    schedule(const schedule&) = delete;
    schedule& operator=(const schedule&) = delete;

    // --- time ---

    [[nodiscard]] nanoseconds now() const noexcept { return now_; }
    void advance_to(nanoseconds t) noexcept { now_ = std::max(now_, t); }

    /// Effects: the host waits for all work ever enqueued. What is being captured is none of it.
    status synchronize_device() {
        const status s = wait_until(device_ready_);
        if (s != status::ok) return s;
        vector_clock limits;
        for (const auto& [id, c] : captures_) {
            if (c.ended) continue;
            for (const timeline_id branch : c.branches) limits.raise({branch, 0});
        }
        // What is still held is work that this wait was told to leave out.
        const auto limit = [&](stream& held) {
            if (!held.ready.time(holds_)) limits.raise({held.id, held.unheld});
        };
        limit(default_);
        streams_.for_each(limit);
        std::for_each(held_orphans_.begin(), held_orphans_.end(), limit);
        lines_.observe_all(limits);
        return s;
    }

    // --- streams ---

    stream_handle create_stream() {
        stream s;
        s.id = ++last_id_;
        lines_.open(s.id);
        return streams_.insert(std::move(s));
    }

    void destroy_stream(stream_handle handle) {
        stream* s = handle == default_stream ? nullptr : streams_.find(handle);
        if (s == nullptr) return dead(handle, "destroyed");
        if (s->capture != 0) {
            log_.add("stream " + std::to_string(s->id) + " destroyed while it is captured");
            invalidate(s->capture);
        }
        lines_.close(s->id);
        if (!s->ready.time(holds_)) held_orphans_.push_back(*s);
        streams_.erase(handle);
    }

    /// Returns: the stream, or null for a dead handle.
    [[nodiscard]] stream* find(stream_handle handle) noexcept {
        return handle == default_stream ? &default_ : streams_.find(handle);
    }

    /// Returns: the stream, or null for a dead handle, which is then a violation: `what` was done to it.
    stream* use(stream_handle handle, const char* what) {
        stream* s = find(handle);
        if (s == nullptr) dead(handle, what);
        return s;
    }

    /// Effects: enqueues work of the given length. Returns: its point.
    point launch(stream& s, nanoseconds length) {
        if (s.capture != 0) {
            s.branch_ready.extend(length);
        } else {
            s.ready.at_least(now_);
            s.ready.extend(length);
            device_ready_.join(s.ready);
        }
        return lines_.advance(s.timeline());
    }

    /// `device_waits`: whether waiting for the whole device waits for this work, too.
    void hold(stream_handle handle, bool device_waits = true) {
        stream* s = use(handle, "given work");
        if (s == nullptr) return;
        if (s->capture != 0) return log_.add("held work cannot be captured");
        const std::size_t hold = holds_.begin();
        const std::uint64_t position = lines_.current(s->id).position;
        open_holds_[handle].push_back({hold, s->id, position, s->ready});
        if (s->ready.time(holds_)) s->unheld = position;
        s->ready.after_hold(hold);
        if (device_waits) device_ready_.join(s->ready);
        lines_.advance(s->id);
    }

    void finish(stream_handle handle) { finish_some(handle, std::numeric_limits<std::size_t>::max()); }
    void finish_oldest(stream_handle handle) { finish_some(handle, 1); }

    /// A capturing stream cannot be asked for its own identity. It gets one made of its handle, as on a GPU, which
    /// another stream may have in another capture.
    result<stream_state, status> describe(stream_handle handle) {
        constexpr std::uint64_t of_handle = std::uint64_t{1} << 62;
        const stream* s = use(handle, "described");
        if (s == nullptr) return status::invalid_value;
        if (s->capture == 0) return stream_state{s->id, 0};
        return stream_state{of_handle | to_address(handle), s->capture};
    }

    status synchronize(stream_handle handle) {
        stream* s = use(handle, "synchronised");
        if (s == nullptr) return status::invalid_value;
        if (s->capture != 0) {
            invalidate(s->capture);
            return status::capture_violation;
        }
        const status answer = wait_until(s->ready);
        if (answer == status::ok) lines_.observe(lines_.clock(s->id));
        return answer;
    }

    // --- events ---

    event_handle create_event() { return events_.insert(event{}); }

    status destroy_event(event_handle handle) {
        if (find_event(handle, "destroyed") == nullptr) return status::invalid_value;
        events_.erase(handle);
        return status::ok;
    }

    status record(event_handle handle, stream_handle on) {
        event* e = find_event(handle, "recorded");
        stream* s = use(on, "recorded");
        if (e == nullptr || s == nullptr) return status::invalid_value;
        if (s->capture != 0 && !captures_.at(s->capture).valid) return status::capture_violation;
        e->recorded = true;
        e->capture = s->capture;
        e->ready = s->capture != 0 ? s->branch_ready : s->ready;
        e->clock = lines_.clock(s->timeline());
        return status::ok;
    }

    status query(event_handle handle) {
        event* e = find_event(handle, "queried");
        if (e == nullptr) return status::invalid_value;
        if (e->recorded && e->capture != 0) {
            invalidate(e->capture);
            return status::capture_violation;
        }
        const std::optional<nanoseconds> t = e->ready.time(holds_);
        if (!t || *t > now_) return status::not_ready;
        lines_.observe(e->clock);
        return status::ok;
    }

    status synchronize(event_handle handle) {
        event* e = find_event(handle, "synchronised");
        if (e == nullptr) return status::invalid_value;
        if (e->recorded && e->capture != 0) {
            invalidate(e->capture);
            return status::capture_violation;
        }
        const status answer = wait_until(e->ready);
        if (answer == status::ok) lines_.observe(e->clock);
        return answer;
    }

    status wait(stream_handle handle, event_handle on) {
        stream* s = use(handle, "made to wait");
        event* e = find_event(on, "waited for");
        if (s == nullptr || e == nullptr) return status::invalid_value;
        if (!e->recorded) return status::ok;
        if (e->capture == 0 && s->capture == 0) {
            if (s->ready.time(holds_)) s->unheld = lines_.current(s->id).position;
            s->ready.join(e->ready);
            lines_.join(s->id, e->clock);
            return status::ok;
        }
        // From here on a capture is involved, and both sides must be in the same one.
        const capture* c = find_capture(e->capture);
        if (c != nullptr && c->valid && s->capture == 0 && handle != default_stream)
            join_capture(*s, e->capture);
        if (c == nullptr || !c->valid || s->capture != e->capture) {
            invalidate(e->capture);
            invalidate(s->capture);
            return status::capture_violation;
        }
        s->branch_ready.join(e->ready);
        lines_.join(s->branch, e->clock);
        return status::ok;
    }

    [[nodiscard]] std::size_t live_events() const noexcept { return events_.size(); }

    // --- captures ---

    /// Returns: identity of the new capture, 0 when there is none (a dead, default or already captured
    /// stream).
    std::uint64_t begin_capture(stream_handle handle) {
        stream* s = use(handle, "captured");
        if (s == nullptr) return 0;
        if (handle == default_stream || s->capture != 0) {
            log_.add(handle == default_stream ? "the default stream cannot be captured"
                                              : "stream " + std::to_string(s->id) + " is captured already");
            return 0;
        }
        const std::uint64_t id = ++last_id_;
        captures_[id];
        join_capture(*s, id);
        captures_[id].origin = s->branch;
        return id;
    }

    /// Effects: ends the capture that began on this stream; all its streams leave it.
    /// Returns: its identity, and whether it became a graph: nothing forbidden touched it, and every branch
    /// was joined back to the origin by an event.
    std::pair<std::uint64_t, bool> end_capture(stream_handle handle) {
        stream* s = use(handle, "captured");
        if (s == nullptr) return {0, false};
        if (s->capture == 0 || captures_.at(s->capture).origin != s->branch) {
            log_.add("end of a capture that did not begin on stream " + std::to_string(s->id));
            return {0, false};
        }
        const std::uint64_t id = s->capture;
        capture& c = captures_.at(id);
        for (const timeline_id branch : c.branches)
            if (!lines_.ordered(lines_.current(branch), c.origin)) c.valid = false;
        c.ended = true;
        c.length = s->branch_ready;
        for (const timeline_id branch : c.branches) lines_.forget(branch);
        streams_.for_each([id](stream& member) {
            if (member.capture != id) return;
            member.capture = 0;
            member.branch = 0;
            member.branch_ready = {};
        });
        return {id, c.valid};
    }

    /// Returns: whether this is a capture that ended valid: a graph that can run.
    [[nodiscard]] bool is_graph(std::uint64_t id) const {
        const auto it = captures_.find(id);
        return it != captures_.end() && it->second.ended && it->second.valid;
    }

    /// Effects: enqueues a whole graph as one piece of work. Requires: `is_graph(id)`. Returns: its point.
    point launch_graph(stream& s, std::uint64_t id) {
        return launch(s, captures_.at(id).length.time(holds_).value_or(nanoseconds{0}));
    }

    /// Effects: the capture that this stream is in becomes invalid.
    void invalidate(std::uint64_t id) {
        const auto it = captures_.find(id);
        if (it != captures_.end() && !it->second.ended) it->second.valid = false;
    }

    // --- for those who keep points ---

    [[nodiscard]] timelines& lines() noexcept { return lines_; }
    [[nodiscard]] bool passed(moment& m) const {
        const std::optional<nanoseconds> t = m.time(holds_);
        return t && *t <= now_;
    }

  private:
    struct event {
        bool recorded = false; ///< an event never recorded counts as passed
        std::uint64_t capture = 0;
        moment ready;
        vector_clock clock;
    };

    struct capture {
        bool valid = true;
        bool ended = false;
        timeline_id origin = 0;
        std::vector<timeline_id> branches;
        moment length;
    };

    struct open_hold {
        std::size_t hold;
        timeline_id stream;
        std::uint64_t position; ///< of the stream before it
        moment ready;           ///< of the stream before it
    };

    void dead(stream_handle handle, const char* what) {
        log_.add("stream handle " + hex(to_address(handle)) + " " + what + ", but it names no stream" +
                 (handle == default_stream ? " that this can be done to" : ""));
    }

    event* find_event(event_handle handle, const char* what) {
        event* e = events_.find(handle);
        if (e == nullptr)
            log_.add("event handle " + hex(to_address(handle)) + " " + what + ", but it names no event");
        return e;
    }

    capture* find_capture(std::uint64_t id) {
        const auto it = captures_.find(id);
        return it == captures_.end() || it->second.ended ? nullptr : &it->second;
    }

    void join_capture(stream& s, std::uint64_t id) {
        s.capture = id;
        s.branch = ++last_id_;
        s.branch_ready = {};
        captures_.at(id).branches.push_back(s.branch);
        // What the stream holds already is before whatever a graph launched on it does.
        lines_.open(s.branch, lines_.clock(s.id));
    }

    void finish_some(stream_handle handle, std::size_t most) {
        const auto it = open_holds_.find(handle);
        if (it == open_holds_.end()) return;
        std::vector<open_hold>& open = it->second;
        const std::size_t over = std::min(most, open.size());
        for (std::size_t i = 0; i < over; ++i) holds_.finish(open[i].hold, now_);
        open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(over));
        if (open.empty()) {
            open_holds_.erase(it);
        } else if (stream* const s = find(handle); s != nullptr && s->id == open.front().stream) {
            if (open.front().ready.time(holds_)) s->unheld = open.front().position;
        }
        (void)device_ready_.time(holds_); // drops the terms that are known now
        held_orphans_.erase(std::remove_if(held_orphans_.begin(), held_orphans_.end(),
                                           [this](stream& s) { return s.ready.time(holds_).has_value(); }),
                            held_orphans_.end());
    }

    status wait_until(moment& m) {
        const std::optional<nanoseconds> t = m.time(holds_);
        if (!t) return status::would_deadlock;
        advance_to(*t);
        return status::ok;
    }

    violation_log& log_;
    nanoseconds now_{0};
    std::uint64_t last_id_ = default_stream_id; ///< streams, captures and branches are numbered together
    stream default_;
    handle_table<stream_handle, stream> streams_{0x5'0000'0000};
    handle_table<event_handle, event> events_{0xe'0000'0000};
    std::unordered_map<std::uint64_t, capture> captures_;
    std::unordered_map<stream_handle, std::vector<open_hold>>
        open_holds_; ///< by handle: destroyed streams' too
    hold_list holds_;
    std::vector<stream> held_orphans_; ///< destroyed streams whose end depends on held work
    moment device_ready_;
    timelines lines_;
};

} // namespace tenure::sim
