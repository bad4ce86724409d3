#pragma once

/// \file
/// `pool_options`: options of the pools that are a layout over segments (`best_fit_pool`, `buddy_pool`, `slab_pool`).

#include <tenure/core/units.hpp>

#include <cstddef>

namespace tenure {

struct pool_options {
    /// Bytes: the pool grows by at least this much at a time while the device (or the arena) grants it; if
    /// not, by half, and so on down to what the request needs. Blocks merge only inside a segment, so few
    /// large segments fragment less than many small ones: on the recorded traces best fit reserves 1.31 times
    /// the live peak with 256 MiB against 1.35 with 64 MiB (geometric means), and larger ones gain no more.
    std::size_t segment_bytes = std::size_t{256} << 20;

    /// Bytes freed on one stream between two events on it; see `stream_order`. Smaller: memory of a destroyed stream
    /// is bounded tighter. Larger: fewer events. 1 MiB makes an event (0.26 us) rare against what such a block is
    /// used for. The default stream needs none.
    std::size_t mark_bytes = std::size_t{1} << 20;

    /// On a miss that the device refuses, give wholly free segments back and try again. Costs `cudaFree`, which waits
    /// for the device.
    bool release_on_oom = true;

    /// When memory is only waiting for work on other streams: wait for that work on the host rather than fail. Off,
    /// because a hidden wait can deadlock with collectives.
    bool synchronize_on_oom = false;
};

} // namespace tenure
