#pragma once

/// \file
/// `lane_marks`: memory that moves from one stream to another (`cross_stream_reuse`).
///
/// When a stream misses, it asks the others. A lane that is asked records an event on its stream and sets its
/// free memory aside in a *moving* lane. When the event has passed, nothing in flight can touch that memory
/// any more, and it becomes `shared`. Until then its old owner may still take from it, and takes all of it
/// back on a miss.
///
///     lane --asked: record event--> moving --event passed--> shared
///      ^                              |
///      +---------- own miss ----------+
///
/// An event is recorded only in a call that names the stream, or on the default stream, which always lives: a
/// stream that may have been destroyed is never touched. Other streams are marked at their next call; and, so
/// that little is left behind when a stream dies without one, whenever `mark_bytes` are free and unmarked.
///
/// Invariants:
///   1. Everything in a moving lane was freed before its event was recorded.
///   2. A lane has at most one moving lane, and each moving lane has one entry here.
///
/// Cost: an event per `mark_bytes` freed on a stream other than the default one, or when somebody misses; a
/// query per marked lane a poll. Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/device/device.hpp>
#include <tenure/ordering/event_cache.hpp>
#include <tenure/policy/caching/lane_table.hpp>

#include <algorithm>
#include <cstddef>

namespace tenure::caching {

template <device Device>
class lane_marks {
  public:
    /// `mark_bytes`: bytes, see above.
    lane_marks(Device& device, event_cache<Device>& events, lane_table& lanes,
               std::size_t mark_bytes) noexcept
        : device_(&device), events_(&events), lanes_(&lanes), mark_bytes_(mark_bytes) {}

    lane_marks(const lane_marks&) = delete;
    lane_marks& operator=(const lane_marks&) = delete;

    ~lane_marks() {
        for (const mark& m : marks_) events_->release(m.event);
    }

    /// Effects: all lanes with free memory but `asker` are to be marked: the default stream's
    /// (`lane_of_default`) at once, others when `mark_if_due` is called for them. Throws: `std::bad_alloc`.
    template <class Layout>
    void ask_others(lane_id asker, lane_id lane_of_default, Layout& blocks) {
        lanes_->for_each_home([&](lane_id l) {
            if (l != asker && lane_table::free_bytes(l, blocks) != 0) lanes_->want(l, true);
        });
        if (lane_of_default != lane_table::none) mark_if_due(lane_of_default, default_stream, blocks);
    }

    /// To be called in a call that names `stream`, which is not capturing and whose own lane this is.
    /// Effects: sets the lane's free memory aside if somebody has asked for it, or there is much. A refusing
    /// driver changes nothing. Throws: `std::bad_alloc`, changing nothing.
    template <class Layout>
    void mark_if_due(lane_id l, stream_handle stream, Layout& blocks) {
        const std::size_t unmarked = lane_table::free_bytes(l, blocks);
        const bool much = stream != default_stream && unmarked >= mark_bytes_;
        if (unmarked == 0 || !(much || lanes_->wanted(l))) return;
        if (lanes_->moving(l) != lane_table::none) {
            // The same event, recorded again, comes later on the same stream: it covers what it covered, too.
            // But what it covered waits longer then, so this is done only for at least as much.
            if (unmarked < lane_table::free_bytes(lanes_->moving(l), blocks)) return;
            if (device_->record(mark_of(l).event, stream) != status::ok) return;
        } else {
            marks_.reserve(marks_.size() + 1);
            if (lanes_->add_moving(l) == lane_table::none) return;
            const result<event_handle, status> event = events_->mark(stream);
            if (!event) return lanes_->drop_moving(l);
            marks_.push_back({l, *event});
        }
        lanes_->want(l, false);
        recolor(l, lanes_->moving(l), blocks);
    }

    /// Effects: what was marked before work that has passed becomes shared. Returns: whether there was any.
    template <class Layout>
    bool poll(Layout& blocks) noexcept {
        return settle_where(blocks, [this](event_handle e) { return device_->query(e) == status::ok; });
    }

    /// The same, but waits for the work. What the device refuses to wait for stays.
    template <class Layout>
    bool synchronize(Layout& blocks) noexcept {
        return settle_where(blocks, [this](event_handle e) { return device_->synchronize(e) == status::ok; });
    }

    /// Effects: the lane takes back what moves, and what is shared beside its own, so that all of it merges.
    template <class Layout>
    void take_back(lane_id l, Layout& blocks) noexcept {
        for (std::size_t i = 0; i < marks_.size(); ++i) {
            if (marks_[i].owner != l) continue;
            recolor(lanes_->moving(l), l, blocks);
            finish(i);
            break;
        }
        for (const bool small : {true, false})
            blocks.absorb(lane_table::domain_of(l, small), lane_table::domain_of(lane_table::shared, small));
    }

  private:
    struct mark {
        lane_id owner;
        event_handle event;
    };

    mark& mark_of(lane_id l) noexcept {
        return *std::find_if(marks_.begin(), marks_.end(), [l](const mark& m) { return m.owner == l; });
    }

    template <class Layout>
    static void recolor(lane_id from, lane_id to, Layout& blocks) noexcept {
        for (const bool small : {true, false})
            blocks.recolor(lane_table::domain_of(from, small), lane_table::domain_of(to, small));
    }

    template <class Layout, class Passed>
    bool settle_where(Layout& blocks, Passed passed) noexcept {
        bool any = false;
        for (std::size_t i = 0; i < marks_.size();) {
            if (!passed(marks_[i].event)) {
                ++i;
                continue;
            }
            recolor(lanes_->moving(marks_[i].owner), lane_table::shared, blocks);
            finish(i);
            any = true;
        }
        return any;
    }

    void finish(std::size_t i) noexcept {
        events_->release(marks_[i].event);
        lanes_->drop_moving(marks_[i].owner);
        marks_[i] = marks_.back();
        marks_.pop_back();
    }

    Device* device_;
    event_cache<Device>* events_;
    lane_table* lanes_;
    std::size_t mark_bytes_;
    own_lines_vector<mark> marks_;
};

} // namespace tenure::caching
