#pragma once

/// \file
/// `arena_options`: an arena's name, limits and manners. Plain values; thread-compatible.

#include <tenure/tenancy/limits.hpp>

#include <cstddef>
#include <string>

namespace tenure {

/// What happens to blocks that are live when their arena is destroyed. The work on them must be over, as far as the
/// policy's destructor asks for that.
enum class leftovers {
    report, ///< it is a misuse: `live_at_destruction`, with the number of blocks and bytes; the memory goes back
    release, ///< it is expected: the memory goes back
    reparent, ///< they live on in the group above, which is charged for them and frees them (`arena_group::release`).
              ///< Without a group above: as `report`
};

struct arena_options {
    std::string name = "arena";  ///< in every error, as the last part of the path
    std::size_t min = 0;         ///< bytes, see `tenant_limits`, all four
    std::size_t high = no_limit; ///< bytes
    std::size_t max = no_limit;  ///< bytes
    unsigned weight = 100;
    leftovers at_destruction = leftovers::report;
    pressure_callback on_pressure{};
    high_callback on_high{};
    wait_options wait{};

    [[nodiscard]] tenant_limits limits() const noexcept {
        return {.min = min, .high = high, .max = max, .weight = weight};
    }
};

} // namespace tenure
