#pragma once

/// \file
/// `arena_row`: one tenant as an operator sees it, as a row of numbers; and the table of its columns, which is the one place
/// where they are named. JSON, Prometheus text, the published page and `tenure top` all go by it.
///
/// What a column says is in its `help`. Absent is `arena_row::none`: a limit that is not set, or what a row of that kind does
/// not know: only an arena has a pool of its own, only accounts have stocks.
///
/// Plain values; thread-compatible.

#include <tenure/core/error.hpp>
#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/limits.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace tenure {

/// How a number behaves in time.
enum class column_kind : std::uint8_t {
    level,   ///< goes up and down
    counter, ///< only grows
    limit,   ///< is set
};

/// What it counts.
enum class column_unit : std::uint8_t { bytes, number, nanoseconds };

struct arena_column {
    const char* name;
    column_kind kind;
    column_unit unit;
    const char* help;
};

/// What a row is of.
enum class row_kind : std::uint8_t {
    group,    ///< levels of a tree
    arena,    ///< has a pool
    accounts, ///< a book of accounts in somebody's pool; its bytes are what their blocks take
    account,  ///< one of them, which the program has chosen to show
};

constexpr const char* to_string(row_kind k) noexcept {
    switch (k) {
    case row_kind::group: return "group";
    case row_kind::arena: return "arena";
    case row_kind::accounts: return "accounts";
    case row_kind::account: return "account";
    }
    return "unknown";
}

/// The columns in their order, which is the order in a published page: a new one goes to the end.
enum class arena_field : std::uint8_t {
    used,
    charged,
    own,
    peak,
    min,
    high,
    max,
    weight,
    charges,
    refused,
    at_high,
    at_max,
    reclaimed,
    borrowed,
    waits,
    waited,
    deadlocks,
    scrubbed,
    failed_arena_limit,
    failed_ancestor_limit,
    failed_device,
    failed_fragmentation,
    failed_stream_pending,
    failed_capture,
    failed_driver,
    requested,
    allocated,
    reserved,
    pending,
    blocks,
    stocked,
    accounts,
};

inline constexpr std::array arena_columns = [] {
    constexpr column_kind level = column_kind::level;
    constexpr column_kind counter = column_kind::counter;
    constexpr column_kind limit = column_kind::limit;
    constexpr column_unit bytes = column_unit::bytes;
    constexpr column_unit number = column_unit::number;
    return std::array<arena_column, 32>{{
        {"used", level, bytes,
         "held from the device, by it and all below it; of accounts what their blocks take"},
        {"charged", level, bytes,
         "used, with guarantees of those below that nobody uses; of accounts with stocks"},
        {"own", level, bytes, "held from the device by itself"},
        {"peak", level, bytes, "the most that was ever charged"},
        {"min", limit, bytes, "guaranteed"},
        {"high", limit, bytes, "pressure begins above"},
        {"max", limit, bytes, "hard limit"},
        {"weight", limit, number, "share above min when idle memory is taken"},
        {"charges", counter, number, "charges granted"},
        {"refused", counter, number,
         "charges refused, by whichever level; the ladder may still have served the request"},
        {"at_high", counter, number, "charges that left it above high"},
        {"at_max", counter, number, "charges that its own max refused"},
        {"reclaimed", counter, bytes, "idle memory taken from it for others"},
        {"borrowed", counter, bytes, "idle memory that others gave for it"},
        {"waits", counter, number, "requests that waited for memory"},
        {"waited", counter, column_unit::nanoseconds, "time that requests waited"},
        {"deadlocks", counter, number, "waits refused because nobody could end them"},
        {"scrubbed", counter, bytes, "filled with zero before it got them"},
        {"failed_arena_limit", counter, number, "requests refused for good: its own max"},
        {"failed_ancestor_limit", counter, number, "requests refused for good: the max of a level above"},
        {"failed_device", counter, number, "requests refused for good: the device has no memory"},
        {"failed_fragmentation", counter, number, "requests refused for good: no free block is large enough"},
        {"failed_stream_pending", counter, number,
         "requests refused for good: work of other streams has to pass"},
        {"failed_capture", counter, number, "requests refused for good: a graph capture forbids it"},
        {"failed_driver", counter, number, "requests refused for good: the driver failed"},
        {"requested", level, bytes, "in live blocks, as asked"},
        {"allocated", level, bytes, "in live blocks, as rounded"},
        {"reserved", level, bytes, "held by its pool: live, cached and pending blocks"},
        {"pending", level, bytes, "freed, waiting for work on other streams"},
        {"blocks", level, number, "live blocks"},
        {"stocked", level, bytes, "paid in advance by threads, and taken back before anybody is refused"},
        {"accounts", level, number, "accounts that are open in the book"},
    }};
}();
static_assert(arena_columns.size() == static_cast<std::size_t>(arena_field::accounts) + 1);

struct arena_row {
    static constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

    std::uint64_t id = 0;     ///< unique for the life of the process
    std::uint64_t parent = 0; ///< id of the row above it; 0: none
    std::uint32_t depth = 0;  ///< 0: at the top
    row_kind kind = row_kind::group;
    std::string path; ///< names from the root, joined by '/'
    std::array<std::uint64_t, arena_columns.size()> values{};

    [[nodiscard]] std::uint64_t& operator[](arena_field f) noexcept {
        return values[static_cast<std::size_t>(f)];
    }
    [[nodiscard]] std::uint64_t operator[](arena_field f) const noexcept {
        return values[static_cast<std::size_t>(f)];
    }

    friend bool operator==(const arena_row&, const arena_row&) = default;
};

/// Effects: fills in what only the pool knows.
inline void set_usage(arena_row& row, const usage_counters& u) noexcept {
    using f = arena_field;
    row[f::requested] = u.requested.current;
    row[f::allocated] = u.allocated.current;
    row[f::reserved] = u.reserved.current;
    row[f::pending] = u.pending;
    row[f::blocks] = u.blocks.current;
}

/// Returns: the tenant as a row, without what only a pool knows.
inline arena_row row_of(const tenant_picture& t) {
    using f = arena_field;
    arena_row row{.id = t.id,
                  .parent = t.parent,
                  .depth = static_cast<std::uint32_t>(t.depth),
                  .kind = t.arena ? row_kind::arena : row_kind::group,
                  .path = t.path};
    row.values.fill(arena_row::none);
    const meter_reading& m = t.reading;
    row[f::used] = m.used;
    row[f::charged] = m.charged;
    row[f::own] = m.own;
    row[f::peak] = m.peak;
    row[f::min] = m.min;
    row[f::high] = m.high;
    row[f::max] = m.max; // `no_limit` is `none`
    row[f::weight] = m.weight;
    row[f::charges] = m.charges;
    row[f::refused] = m.refused;
    row[f::at_high] = m.at_high;
    row[f::at_max] = m.at_max;
    row[f::reclaimed] = m.reclaimed;
    row[f::borrowed] = m.borrowed;
    row[f::waits] = m.waits;
    row[f::waited] = m.waited_ns;
    row[f::deadlocks] = m.deadlocks;
    row[f::scrubbed] = m.scrubbed;
    const auto failed = [&](failure_cause c) { return m.failures[static_cast<std::size_t>(c)]; };
    row[f::failed_arena_limit] = failed(failure_cause::arena_limit);
    row[f::failed_ancestor_limit] = failed(failure_cause::ancestor_limit);
    row[f::failed_device] = failed(failure_cause::device);
    row[f::failed_fragmentation] = failed(failure_cause::fragmentation);
    row[f::failed_stream_pending] = failed(failure_cause::stream_pending);
    row[f::failed_capture] = failed(failure_cause::capture);
    row[f::failed_driver] = failed(failure_cause::driver);
    return row;
}
static_assert(no_limit == arena_row::none);

} // namespace tenure
