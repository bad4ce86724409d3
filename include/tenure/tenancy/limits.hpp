#pragma once

/// \file
/// What a tenant may hold, what it holds, and what happened to it: plain values, in the words of cgroup v2.
///
///     0 ........ min ............ high ............ max
///     guaranteed |   may be had   |   under pressure |  refused
///
/// | limit | meaning |
/// |---|---|
/// | `min` | guaranteed: kept free for this tenant in every level above it. Checked when it is set |
/// | `high` | pressure: above it caches are trimmed and `on_high` is told. It never fails a request |
/// | `max` | hard: never passed by a charge |
/// | `weight` | when idle memory must be taken from several tenants, one of twice the weight keeps twice as much above its `min` |
///
/// Sizes in bytes. Plain values; thread-compatible.

#include <tenure/core/error.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace tenure {

/// The most levels of a tree of tenants, the root included. Deep enough for organisation / team / user / job / step
/// with room to spare, and small enough that a charge, which visits every level, stays short.
inline constexpr std::size_t max_tenancy_depth = 16;

struct tenant_limits {
    std::size_t min = 0;
    std::size_t high = no_limit;
    std::size_t max = no_limit;
    unsigned weight = 100; ///< at least 1
};

/// A picture of a meter, taken at one instant. Bytes unless the name says otherwise.
struct meter_reading {
    std::size_t charged = 0; ///< its own bytes, and `max(charged, min)` of each child; final or not
    std::size_t peak = 0;    ///< the most that was ever charged for good
    std::size_t max = no_limit;
    std::uint64_t charges = 0; ///< number granted to it
    std::uint64_t refused = 0; ///< number refused to it, by whichever level

    std::size_t min = 0;
    std::size_t high = no_limit;
    unsigned weight = 100;
    std::size_t own = 0;  ///< charged to itself, without its children
    std::size_t used = 0; ///< charged to itself and all below it, without guarantees that nobody uses
    std::size_t open = 0; ///< of `used`: charged, but not yet taken from the device

    std::uint64_t at_high = 0; ///< number of charges that left it above `high`
    std::uint64_t at_max = 0;  ///< number of charges that its own `max` refused, to itself or to one below it
    std::size_t reclaimed = 0; ///< idle bytes that were taken from it for others, since construction
    std::size_t borrowed = 0;  ///< idle bytes that others gave for it, since construction
    std::uint64_t waits = 0;   ///< number of requests that waited for memory
    std::uint64_t waited_ns = 0; ///< for how long, in nanoseconds, together
    std::uint64_t deadlocks = 0; ///< number of waits refused because nobody was left who could end them
    std::size_t scrubbed = 0;    ///< bytes filled with zero before it got them, since construction
    std::array<std::uint64_t, 8> failures{}; ///< number of requests refused for good, by `failure_cause`
};

/// What `on_high` is told. Sizes in bytes.
struct pressure {
    short_text level; ///< path of the tenant that is above its `high`
    std::size_t charged = 0;
    std::size_t high = no_limit;
    std::size_t max = no_limit;
};

/// Called with no lock held, from the thread whose request passed `high`; it may free and allocate. May be called by
/// several threads at once. What it throws is dropped.
using high_callback = std::function<void(const pressure&)>;

/// Called with no lock held when an allocation is about to fail for memory. It may free blocks. May be called by several
/// threads at once. Returns: whether trying again makes sense. What it throws counts as no.
using pressure_callback = std::function<bool(const allocation_failure&)>;

/// Whether and how a request waits at a limit instead of failing.
struct wait_options {
    /// The longest that one request waits, in real time. 0: it fails at once, the default, because a hidden wait can
    /// deadlock with collectives.
    std::chrono::nanoseconds limit{0};

    /// How many threads allocate or free in this arena. When so many of them wait, the arena will free nothing, and is
    /// counted as stuck. Too large a number makes deadlocks last until `limit`; too small a number refuses requests that
    /// another thread would have made room for.
    unsigned threads = 1;
};

/// One tenant in a picture of a tree.
struct tenant_picture {
    std::uint64_t id = 0;     ///< of the meter; unique for the life of the process
    std::uint64_t parent = 0; ///< its parent's id; 0: a root
    std::size_t depth = 0;    ///< 0: a root
    std::string name;
    std::string path;   ///< names from the root, joined by '/'
    bool arena = false; ///< it has a pool of its own; otherwise it is a group
    meter_reading reading;
};

/// Thrown when a tenant cannot be given the guarantee or the place in the tree that it asks for.
class not_admitted : public std::runtime_error {
  public:
    explicit not_admitted(const std::string& text) : std::runtime_error(text) {}
};

} // namespace tenure
