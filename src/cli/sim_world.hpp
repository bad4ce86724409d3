#pragma once

/// \file
/// `sim_world`: the program's side of a replay on the simulated device: its streams, its work, its clock.
///
/// A trace numbers its streams; here each number becomes a stream of the device when it is first mentioned,
/// and again when it is mentioned after its destruction (with a handle that the device may well have
/// recycled).
///
/// What the program itself asks of the device (waiting, ordering its streams) is not the allocator's doing:
/// such calls are made through `as_program`, which keeps them out of the counts.
///
/// A *hold* is work on a stream of its own that lasts until it is let go. It stands for "some stream still
/// uses this block, and is done at this very event": the traces say when, not why. On a GPU `cudaFree` would
/// wait for it; here it does not, because the event that ends the hold cannot come first.
///
/// Externally synchronised.

#include "errors.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/device/sim_device.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

class sim_world {
  public:
    sim_world(sim::device& device, std::uint32_t streams) : device_(&device), streams_(streams) {
        streams_[0] = {default_stream, 0, true};
    }

    sim_world(const sim_world&) = delete;
    sim_world& operator=(const sim_world&) = delete;

    /// Identity of a stream, never reused; 0 is the default stream.
    using identity = std::uint32_t;

    [[nodiscard]] stream_handle stream(std::uint32_t number) { return living(number).handle; }
    [[nodiscard]] identity identity_of(std::uint32_t number) { return living(number).id; }

    /// Effects: it is `t_us` now, or later: driver calls and waiting take time, too.
    void advance_to(std::uint64_t t_us) {
        device_->advance_to(std::chrono::microseconds(static_cast<std::int64_t>(t_us)));
    }

    void launch(std::uint32_t number, std::uint64_t us) {
        device_->launch(stream(number), std::chrono::microseconds(static_cast<std::int64_t>(us)));
    }

    void wait_for(std::uint32_t number) {
        const stream_handle s = stream(number);
        as_program([&] { require(device_->synchronize(s), "waiting for a stream"); });
    }

    void destroy(std::uint32_t number) {
        stream_entry& s = living(number);
        as_program([&] { last_words_.emplace_back(s.id, mark(s.handle)); });
        device_->destroy_stream(s.handle);
        s.alive = false;
    }

    /// Effects: what `to` does from now on comes after all that the stream `from` (living or destroyed) did
    /// so far.
    void order(identity from, std::uint32_t to) {
        const stream_handle later = stream(to);
        if (streams_[to].id == from) return;
        as_program([&] {
            for (const auto& [id, end] : last_words_) {
                if (id == from) return require(device_->wait(later, end), "ordering two streams");
            }
            for (const stream_entry& s : streams_) {
                if (!s.alive || s.id != from) continue;
                const event_handle now = mark(s.handle);
                require(device_->wait(later, now), "ordering two streams");
                require(device_->destroy_event(now), "destroying an event");
                return;
            }
        });
    }

    /// Returns: the stream of a new hold. Requires: `let_go` before the device is destroyed.
    [[nodiscard]] stream_handle hold() {
        if (spare_.empty()) spare_.push_back(device_->create_stream());
        const stream_handle s = spare_.back();
        spare_.pop_back();
        device_->hold(s, false);
        return s;
    }

    void let_go(stream_handle held) {
        device_->finish(held);
        spare_.push_back(held); // its work is over: the next hold begins with an empty stream
    }

    /// Effects: the host waits until all the program's work is over. Requires: nothing is held.
    void settle() {
        as_program([&] {
            for (const stream_entry& s : streams_)
                if (s.alive) require(device_->synchronize(s.handle), "waiting for a stream");
            for (const stream_handle s : spare_) require(device_->synchronize(s), "waiting for a stream");
            for (const auto& [id, end] : last_words_)
                require(device_->synchronize(end), "waiting for an event");
        });
    }

    /// Effects: destroys all streams and events of the program. Requires: `settle` was called.
    void clear() {
        as_program([&] {
            for (const auto& [id, end] : last_words_)
                require(device_->destroy_event(end), "destroying an event");
        });
        last_words_.clear();
        for (stream_entry& s : streams_) {
            if (s.alive && s.id != 0) device_->destroy_stream(s.handle);
            s.alive = false;
        }
        for (const stream_handle s : spare_) device_->destroy_stream(s);
        spare_.clear();
    }

    /// Returns: the device's calls so far that were not the program's own.
    [[nodiscard]] std::array<std::uint64_t, sim::call_kinds> allocator_calls() const {
        std::array<std::uint64_t, sim::call_kinds> counts = device_->call_counts();
        for (std::size_t i = 0; i < counts.size(); ++i) counts[i] -= program_calls_[i];
        return counts;
    }
    /// Returns: the modelled time in those calls.
    [[nodiscard]] std::chrono::nanoseconds allocator_time() const {
        return device_->driver_time() - program_time_;
    }

    [[nodiscard]] sim::device& device() noexcept { return *device_; }

  private:
    struct stream_entry {
        stream_handle handle = nullptr;
        identity id = 0;
        bool alive = false;
    };

    stream_entry& living(std::uint32_t number) {
        stream_entry& s = streams_[number];
        if (!s.alive) s = {device_->create_stream(), ++last_identity_, true};
        return s;
    }

    event_handle mark(stream_handle s) {
        const result<event_handle, status> e = device_->create_event();
        if (!e) throw replay_error(std::string("creating an event: ") + to_string(e.error()));
        require(device_->record(*e, s), "recording an event");
        return *e;
    }

    template <class F>
    void as_program(F&& calls) {
        const auto before = device_->call_counts();
        const auto since = device_->driver_time();
        calls();
        const auto after = device_->call_counts();
        for (std::size_t i = 0; i < after.size(); ++i) program_calls_[i] += after[i] - before[i];
        program_time_ += device_->driver_time() - since;
    }

    static void require(status s, const char* what) {
        if (s != status::ok) throw replay_error(std::string(what) + ": " + to_string(s));
    }

    sim::device* device_;
    std::vector<stream_entry> streams_; ///< by the trace's number
    identity last_identity_ = 0;
    std::vector<std::pair<identity, event_handle>> last_words_; ///< ends of destroyed streams
    std::vector<stream_handle> spare_;                          ///< idle streams for holds
    std::array<std::uint64_t, sim::call_kinds> program_calls_{};
    std::chrono::nanoseconds program_time_{0};
};

} // namespace tenure::cli
