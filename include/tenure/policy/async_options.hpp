#pragma once

/// \file
/// Options of `async_pool`.

#include <cstddef>
#include <cstdint>

namespace tenure {

/// There is no release threshold among them: `async_pool` keeps what it has until it is trimmed. The driver's
/// own default, giving everything back whenever the host synchronises, makes every training step buy its
/// memory anew.
struct async_options {
    /// The driver's own limit, bytes; 0: none. Taken in steps of `pool_step()` (32 MiB on an H200), rounded
    /// up, so a pool limited to 1 byte may still hold 32 MiB. An exact limit is an arena's business; this one
    /// is for whoever wants the driver to enforce something too.
    std::size_t max_bytes = 0;

    /// In which ways the driver may give memory that one stream has freed to another; its own defaults. Without the first
    /// two, memory changes streams only through `trim`; without the last, no stream ever waits for another but where the
    /// program says so, and a pool at its limit fails instead.
    bool reuse_follows_events = true; ///< the other stream stands behind the free through events
    bool reuse_when_passed = true;    ///< the work before the free has passed when memory is asked for
    bool reuse_makes_streams_wait =
        true; ///< nothing else is left: the driver puts the other stream behind the free

    /// Bit i: device i may read and write the pool's memory, too (`cudaMemPoolSetAccess`). A device that cannot reach this
    /// one's memory is an error at construction.
    std::uint64_t peers = 0;
};

} // namespace tenure
