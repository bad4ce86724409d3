#pragma once

/// \file
/// `sim_world`: the program's side of a replay on the simulated device: its streams, its work, its clock.
///
/// A trace numbers its streams; here each number becomes a stream of the device when it is first mentioned,
/// and again when it is mentioned after its destruction (with a handle that the device may well have
/// recycled):
///
///     number 3   -- destroyed -->   number 3        two streams with identities of their own,
///     identity 5                    identity 8      perhaps with one and the same handle
///
/// Invariants: the program keeps its side of the contract of `tenure::resource`.
///   1. A stream is really destroyed only when nobody needs it any more: no block that `record_use` named it
///   for is
///      still allocated, no free on it is still to be made.
///   2. Who frees a block on another stream than its own has ordered the two (`order`).
///
/// What the program itself asks of the device (waiting, ordering its streams) is not the allocator's doing:
/// such calls are made through `as_program`, which keeps them out of the counts.
///
/// A *hold* is work on a stream of its own that lasts until it is let go. It stands for "some stream still
/// uses this block, and is done at this very event": the traces say when, not why. On a GPU `cudaFree` would
/// wait for it; here it does not, because the event that ends the hold cannot come first.
///
/// Complexity: constant for everything but `settle` and `clear`. Externally synchronised.

#include "errors.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/device/sim_device.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace tenure::cli {

class sim_world {
  public:
    /// Of a stream, never reused; 0 is the default stream.
    using identity = std::uint32_t;

    sim_world(sim::device& device, std::uint32_t streams) : device_(&device), current_(streams, none) {
        lives_.push_back({default_stream, nullptr, 0, true, true});
        current_[0] = 0;
    }

    sim_world(const sim_world&) = delete;
    sim_world& operator=(const sim_world&) = delete;

    [[nodiscard]] identity identity_of(std::uint32_t number) {
        if (current_[number] == none) {
            current_[number] = static_cast<identity>(lives_.size());
            lives_.push_back({device_->create_stream(), nullptr, 0, true, true});
        }
        return current_[number];
    }
    /// Requires: the stream is not destroyed, or still needed.
    [[nodiscard]] stream_handle handle_of(identity id) const { return lives_[id].handle; }
    [[nodiscard]] stream_handle stream(std::uint32_t number) { return lives_[identity_of(number)].handle; }

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

    /// Effects: the number's next mention is a new stream.
    void destroy(std::uint32_t number) {
        life& l = lives_[identity_of(number)];
        current_[number] = none;
        l.wanted = false;
        as_program([&] { l.end = mark(l.handle); });
        end_if_unneeded(l);
    }

    /// Effects: the stream outlives its destruction until `unneeded` has been called as often.
    void needed(identity id) noexcept { ++lives_[id].users; }
    void unneeded(identity id) {
        --lives_[id].users;
        end_if_unneeded(lives_[id]);
    }

    /// Effects: what `to` does from now on comes after all that the stream `from`, destroyed or not, did so
    /// far.
    void order(identity from, std::uint32_t to) {
        const stream_handle later = stream(to);
        as_program([&] {
            const life& l = lives_[from];
            if (!l.wanted) return require(device_->wait(later, l.end), "ordering two streams");
            const event_handle now = mark(l.handle);
            require(device_->wait(later, now), "ordering two streams");
            require(device_->destroy_event(now), "destroying an event");
        });
    }

    /// Returns: the stream of a new hold. Requires: `let_go` before `settle`.
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
            for (const life& l : lives_) {
                if (l.exists)
                    require(device_->synchronize(l.handle), "waiting for a stream");
                else
                    require(device_->synchronize(l.end), "waiting for an event");
            }
            for (const stream_handle s : spare_) require(device_->synchronize(s), "waiting for a stream");
        });
    }

    /// Effects: destroys all streams and events of the program. Requires: `settle` was called.
    void clear() {
        for (life& l : lives_) {
            if (l.exists && l.handle != default_stream) device_->destroy_stream(l.handle);
            as_program([&] {
                if (l.end != nullptr) require(device_->destroy_event(l.end), "destroying an event");
            });
        }
        for (const stream_handle s : spare_) device_->destroy_stream(s);
        lives_.clear();
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

  private:
    static constexpr identity none = static_cast<identity>(-1);

    struct life {
        stream_handle handle = nullptr;
        event_handle end = nullptr; ///< marked when it was destroyed
        std::uint32_t users = 0;
        bool wanted = true; ///< by the program
        bool exists = true; ///< on the device
    };

    void end_if_unneeded(life& l) {
        if (l.wanted || l.users != 0 || !l.exists) return;
        device_->destroy_stream(l.handle);
        l.exists = false;
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
    std::vector<identity> current_;    ///< by the trace's number
    std::vector<life> lives_;          ///< by identity
    std::vector<stream_handle> spare_; ///< idle streams for holds
    std::array<std::uint64_t, sim::call_kinds> program_calls_{};
    std::chrono::nanoseconds program_time_{0};
};

} // namespace tenure::cli
