#pragma once

/// \file
/// `meter`: how many bytes a tenant holds, and the most it may hold.
///
///     reserve(n) --> ticket --commit--> charged
///                      |
///                      +-- destroyed without commit: the charge goes back
///
/// Charge before you take: `reserve` charges, then the memory is taken, then the ticket is committed. A path that
/// fails in between, by return or by exception, cannot leak the charge, because the ticket is move-only and gives back
/// what was not committed.
///
/// Invariants:
///   1. A charge is granted only if `charged + n <= max` at that instant; `max` and `charged` change under one lock,
///      so this holds for every interleaving of charges and `set_max`, exactly, to the byte.
///   2. A refused charge changes nothing: a large request that fails never makes a small one fail.
///   3. `charged` never goes below zero, and is exactly 0 when everything was given back.
///
/// The lock costs nothing where it matters: a meter is asked when memory is taken from the device, which costs tens
/// of microseconds, never when a block is allocated.
///
/// Thread-safety: thread-safe. A ticket is thread-compatible.

#include <tenure/core/error.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace tenure {

/// A picture of a meter, taken at one instant. Bytes unless the name says otherwise.
struct meter_reading {
    std::size_t charged = 0; ///< final or not
    std::size_t peak = 0;    ///< the most that was ever charged for good
    std::size_t max = no_limit;
    std::uint64_t charges = 0; ///< number granted
    std::uint64_t refused = 0; ///< number refused
};

class meter {
  public:
    /// A charge that is not yet final.
    class ticket {
      public:
        ticket(ticket&& other) noexcept
            : meter_(std::exchange(other.meter_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
        ticket& operator=(ticket&& other) noexcept {
            std::swap(meter_, other.meter_);
            std::swap(bytes_, other.bytes_);
            return *this;
        }
        ~ticket() {
            if (meter_ != nullptr) meter_->settle(bytes_, 0);
        }
        /// Effects: `used` bytes stay charged, the rest goes back. Requires: used <= what was reserved.
        void commit(std::size_t used) noexcept { std::exchange(meter_, nullptr)->settle(bytes_, used); }
        void commit() noexcept { commit(bytes_); }

      private:
        friend class meter;
        ticket(meter& m, std::size_t bytes) noexcept : meter_(&m), bytes_(bytes) {}
        meter* meter_;
        std::size_t bytes_;
    };

    meter(std::string_view name, std::size_t max) : name_(name), reading_{.max = max} {}

    meter(const meter&) = delete;
    meter& operator=(const meter&) = delete;

    /// Effects: charges `bytes` bytes if they fit. Returns: the ticket, or `over_limit`; then nothing has changed.
    result<ticket, status> reserve(std::size_t bytes) noexcept {
        const std::lock_guard lock(mutex_);
        // Taking nothing is always allowed, also above a `max` that was lowered.
        if (bytes != 0 && (reading_.charged > reading_.max || bytes > reading_.max - reading_.charged)) {
            ++reading_.refused;
            return status::over_limit;
        }
        ++reading_.charges;
        reading_.charged += bytes;
        open_ += bytes;
        return ticket(*this, bytes);
    }

    /// Effects: gives back a committed charge. Requires: it was charged.
    void refund(std::size_t bytes) noexcept {
        const std::lock_guard lock(mutex_);
        reading_.charged -= bytes;
    }

    /// Effects: from now on charges are held against `max`. Nothing is taken from the tenant.
    /// Returns: by how many bytes it is over the new limit.
    std::size_t set_max(std::size_t max) noexcept {
        const std::lock_guard lock(mutex_);
        reading_.max = max;
        return reading_.charged > max ? reading_.charged - max : 0;
    }

    [[nodiscard]] meter_reading read() const noexcept {
        const std::lock_guard lock(mutex_);
        return reading_;
    }

    [[nodiscard]] std::string_view name() const noexcept { return name_; }

  private:
    /// The end of a ticket for `bytes` bytes: `used` of them stay charged.
    void settle(std::size_t bytes, std::size_t used) noexcept {
        const std::lock_guard lock(mutex_);
        open_ -= bytes;
        reading_.charged -= bytes - used;
        reading_.peak = std::max(reading_.peak, reading_.charged - open_);
    }

    std::string name_;
    mutable ordered_mutex<lock_level::meter> mutex_; ///< guards what follows; nothing is called under it
    meter_reading reading_;
    std::size_t open_ = 0; ///< bytes of `charged` that are not final yet
};

} // namespace tenure
