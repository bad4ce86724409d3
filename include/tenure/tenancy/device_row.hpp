#pragma once

/// \file
/// `device_row`: a device as an operator sees it: what the process may have of it, and what others use. The table of its
/// columns is the one place where they are named; JSON, Prometheus text, the published page and `tenure top` go by it.
///
/// Who fills it is a `capacity_watch` (`capacity.hpp`) that was added to the view.
///
/// Plain values; thread-compatible.

#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/capacity.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenure {

/// The columns in their order, which is the order in a published page: a new one goes to the end.
enum class device_field : std::uint8_t {
    capacity,
    held,
    free,
    external,
    most_external,
    vanished,
    limit,
    headroom,
    processes,
    limited_by,
};

inline constexpr std::array device_columns = [] {
    constexpr column_kind level = column_kind::level;
    constexpr column_kind limit = column_kind::limit;
    constexpr column_unit bytes = column_unit::bytes;
    constexpr column_unit number = column_unit::number;
    return std::array<arena_column, 10>{{
        {"capacity", level, bytes, "what all arenas together may have, what they hold included"},
        {"held", level, bytes, "by the arenas, and by a hub between them and the device"},
        {"free", level, bytes, "for this process"},
        {"external", level, bytes, "used by others: context, other libraries, other processes"},
        {"most_external", level, bytes, "the most that was seen used by others"},
        {"vanished", level, bytes,
         "of the capacity of the start: requests up to it may fail with cause device"},
        {"limit", limit, bytes, "what the process could have if nobody else had anything"},
        {"headroom", limit, bytes, "left to what is not allocated through arenas"},
        {"processes", level, number, "that compute on the device, as far as they are shown"},
        {"limited_by", limit, number, "what sets the limit: 0 the device itself, 1 a MIG instance, 2 MPS"},
    }};
}();
static_assert(device_columns.size() == static_cast<std::size_t>(device_field::limited_by) + 1);

struct device_row {
    std::string name;
    std::array<std::uint64_t, device_columns.size()> values{}; ///< `arena_row::none`: not known

    [[nodiscard]] std::uint64_t& operator[](device_field f) noexcept {
        return values[static_cast<std::size_t>(f)];
    }
    [[nodiscard]] std::uint64_t operator[](device_field f) const noexcept {
        return values[static_cast<std::size_t>(f)];
    }

    friend bool operator==(const device_row&, const device_row&) = default;
};

inline device_row row_of(std::string_view name, const capacity_history& h) {
    using f = device_field;
    device_row row{.name = std::string(name)};
    row[f::capacity] = h.now.capacity;
    row[f::held] = h.now.held;
    row[f::free] = h.now.free;
    row[f::external] = h.now.external;
    row[f::most_external] = h.most_external;
    row[f::vanished] = h.vanished;
    row[f::limit] = h.now.limit;
    row[f::headroom] = h.now.headroom;
    row[f::processes] = h.now.processes == 0 ? arena_row::none : h.now.processes;
    row[f::limited_by] = static_cast<std::uint64_t>(h.now.limited_by);
    return row;
}

} // namespace tenure
