#pragma once

/// \file
/// `sim::moment`: the virtual time at which enqueued work ends, which may not be known yet.
///
/// Work of a given length ends at a known time. *Held* work ends when somebody says so, and then everything
/// behind it moves. So a moment is a maximum of terms,
///
///     max(known time, end of hold 3 + 5 us, end of hold 8 + 0 us, ...)
///
/// which is closed under all that streams do: run one more piece (every term grows), wait for another stream
/// (the maximum of both).
///
/// Complexity: linear in the number of holds that are still open in it, nearly always none.
/// Thread-compatible.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tenure::sim {

using std::chrono::nanoseconds;

/// All holds ever begun, and when those that have ended did.
class hold_list {
  public:
    std::size_t begin() {
        ends_.emplace_back();
        return ends_.size() - 1;
    }
    void finish(std::size_t hold, nanoseconds when) { ends_[hold] = when; }
    [[nodiscard]] std::optional<nanoseconds> end(std::size_t hold) const { return ends_[hold]; }

  private:
    std::vector<std::optional<nanoseconds>> ends_;
};

class moment {
  public:
    /// Effects: not before `t`.
    void at_least(nanoseconds t) noexcept { known_ = std::max(known_, t); }

    /// Effects: later by `length`.
    void extend(nanoseconds length) noexcept {
        known_ += length;
        for (term& t : open_) t.after += length;
    }

    /// Effects: not before the end of `hold`.
    void after_hold(std::size_t hold) { raise({hold, nanoseconds{0}}); }

    /// Effects: not before `other`.
    void join(const moment& other) {
        at_least(other.known_);
        for (const term& t : other.open_) raise(t);
    }

    /// Returns: the time, or nothing while it depends on a hold that has not ended. Effects: forgets ended
    /// holds.
    [[nodiscard]] std::optional<nanoseconds> time(const hold_list& holds) {
        const auto ended = [&](const term& t) {
            const std::optional<nanoseconds> end = holds.end(t.hold);
            if (end) at_least(*end + t.after);
            return end.has_value();
        };
        open_.erase(std::remove_if(open_.begin(), open_.end(), ended), open_.end());
        if (!open_.empty()) return std::nullopt;
        return known_;
    }

  private:
    struct term {
        std::size_t hold = 0;
        nanoseconds after{0};
    };

    void raise(const term& other) {
        for (term& t : open_) {
            if (t.hold != other.hold) continue;
            t.after = std::max(t.after, other.after);
            return;
        }
        open_.push_back(other);
    }

    nanoseconds known_{0};
    std::vector<term> open_;
};

} // namespace tenure::sim
