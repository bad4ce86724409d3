#pragma once

/// \file
/// `program_world<Machine>`: the program's side of a replay: its streams, its work, and who stands behind whom.
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
///   3. `make_wait` and `wait_for` say in `device().waits()` what they did, after it. `order` and `settle` say
///   nothing.
///
/// A *hold* is work that lasts until it is let go. It stands for "some stream still uses this block, and is done at this very
/// event": the traces say when, not on which stream. Holds that end in the order they began share a stream
/// (`block::holder`), so that there are no more of these than the program must have had.
///
/// A machine is a device and the hands that work it:
///
/// | expression | what it does |
/// |---|---|
/// | `m.device()` | where the program records, orders and waits; it `tells_waits`, and the program does |
/// | `m.as_program(f)` | runs `f`, whose calls of the device are not the allocator's |
/// | `m.create_stream()`, `m.destroy_stream(s)` | a stream that waits for no other by itself |
/// | `m.launch(s, t)` | work of the length t on s |
/// | `m.hold(s)`, `m.finish_oldest(s)` | work on s, until the oldest of it is finished |
/// | `m.advance_to(t)` | it is t after the begin, or later |
/// | `m.before_waiting()` | the host is about to wait for some work |
///
/// Complexity: constant for everything but `settle` and `clear`. Externally synchronised.

#include "errors.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace tenure::cli {

template <class Machine>
class program_world {
  public:
    /// Of a stream, never reused; 0 is the default stream.
    using identity = std::uint32_t;

    program_world(Machine& machine, std::uint32_t streams) : machine_(&machine), current_(streams, none) {
        lives_.push_back({default_stream, nullptr, 0, true, true});
        current_[0] = 0;
    }

    program_world(const program_world&) = delete;
    program_world& operator=(const program_world&) = delete;

    [[nodiscard]] identity identity_of(std::uint32_t number) {
        if (current_[number] == none) {
            current_[number] = static_cast<identity>(lives_.size());
            lives_.push_back({machine_->create_stream(), nullptr, 0, true, true});
        }
        return current_[number];
    }
    /// Requires: the stream is not destroyed, or still needed.
    [[nodiscard]] stream_handle handle_of(identity id) const { return lives_[id].handle; }
    [[nodiscard]] stream_handle stream(std::uint32_t number) { return lives_[identity_of(number)].handle; }

    /// Effects: it is `t_us` now, or later: driver calls and waiting take time, too.
    void advance_to(std::uint64_t t_us) {
        machine_->advance_to(std::chrono::microseconds(static_cast<std::int64_t>(t_us)));
    }

    void launch(std::uint32_t number, std::uint64_t us) {
        machine_->launch(stream(number), std::chrono::microseconds(static_cast<std::int64_t>(us)));
    }

    /// Effects: the host waits for all that the stream did so far, and says so.
    void wait_for(std::uint32_t number) {
        const stream_handle s = stream(number);
        machine_->before_waiting();
        machine_->as_program([&] {
            const stream_waits::host_wait w = machine_->device().waits().about_to_wait_for(id_of(s));
            require(machine_->device().synchronize(s), "waiting for a stream");
            machine_->device().waits().has_waited(w);
        });
    }

    /// Effects: what the stream does from now on comes after all that the stream `earlier` did so far, and the
    /// program says so.
    void make_wait(std::uint32_t number, std::uint32_t earlier) {
        const stream_handle s = stream(number);
        order(identity_of(earlier), s);
        machine_->as_program([&] { machine_->device().waits().ordered(id_of(stream(earlier)), id_of(s)); });
    }

    /// Effects: the number's next mention is a new stream.
    void destroy(std::uint32_t number) {
        life& l = lives_[identity_of(number)];
        current_[number] = none;
        l.wanted = false;
        machine_->as_program([&] { l.end = mark(l.handle); });
        end_if_unneeded(l);
    }

    /// Effects: the stream outlives its destruction until `unneeded` has been called as often.
    void needed(identity id) noexcept { ++lives_[id].users; }
    void unneeded(identity id) {
        --lives_[id].users;
        end_if_unneeded(lives_[id]);
    }

    /// Effects: what `later` does from now on comes after all that the stream `from`, destroyed or not, did so
    /// far.
    void order(identity from, stream_handle later) {
        machine_->as_program([&] {
            const life& l = lives_[from];
            if (!l.wanted) return require(machine_->device().wait(later, l.end), "ordering two streams");
            const event_handle now = mark(l.handle);
            require(machine_->device().wait(later, now), "ordering two streams");
            require(machine_->device().destroy_event(now), "destroying an event");
        });
    }

    /// Effects: a hold begins. Returns: its stream. Requires: `let_go` before `settle`.
    [[nodiscard]] stream_handle hold(std::uint32_t holder) {
        while (holders_.size() <= holder) holders_.push_back(machine_->create_stream());
        machine_->hold(holders_[holder]);
        return holders_[holder];
    }

    /// Effects: the oldest hold on the stream ends.
    void let_go(stream_handle held) { machine_->finish_oldest(held); }

    /// Effects: the host waits until all the program's work is over. Requires: nothing is held.
    void settle() {
        machine_->as_program([&] {
            for (const life& l : lives_) {
                if (l.exists)
                    require(machine_->device().synchronize(l.handle), "waiting for a stream");
                else
                    require(machine_->device().synchronize(l.end), "waiting for an event");
            }
            for (const stream_handle s : holders_)
                require(machine_->device().synchronize(s), "waiting for a stream");
        });
    }

    /// Effects: destroys all streams and events of the program. Requires: `settle` was called.
    void clear() {
        for (life& l : lives_) {
            if (l.exists && l.handle != default_stream) machine_->destroy_stream(l.handle);
            machine_->as_program([&] {
                if (l.end != nullptr) require(machine_->device().destroy_event(l.end), "destroying an event");
            });
        }
        for (const stream_handle s : holders_) machine_->destroy_stream(s);
        lives_.clear();
        holders_.clear();
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
        machine_->destroy_stream(l.handle);
        l.exists = false;
    }

    stream_waits::stream_id id_of(stream_handle s) {
        const result<stream_state, status> known = machine_->device().describe(s);
        if (!known) throw replay_error(std::string("describing a stream: ") + to_string(known.error()));
        return known->id;
    }

    event_handle mark(stream_handle s) {
        const result<event_handle, status> e = machine_->device().create_event();
        if (!e) throw replay_error(std::string("creating an event: ") + to_string(e.error()));
        require(machine_->device().record(*e, s), "recording an event");
        return *e;
    }

    static void require(status s, const char* what) {
        if (s != status::ok) throw replay_error(std::string(what) + ": " + to_string(s));
    }

    Machine* machine_;
    std::vector<identity> current_;      ///< by the trace's number
    std::vector<life> lives_;            ///< by identity
    std::vector<stream_handle> holders_; ///< by `block::holder`
};

} // namespace tenure::cli
