#pragma once

/// \file
/// Options of `async_pool`.

#include <cstddef>

namespace tenure {

/// There is no release threshold among them: `async_pool` keeps what it has until it is trimmed. The driver's
/// own default, giving everything back whenever the host synchronises, makes every training step buy its
/// memory anew.
struct async_options {
    /// The driver's own limit, bytes; 0: none. Taken in steps of `pool_step()` (32 MiB on an H200), rounded
    /// up, so a pool limited to 1 byte may still hold 32 MiB. An exact limit is an arena's business; this one
    /// is for whoever wants the driver to enforce something too.
    std::size_t max_bytes = 0;
};

} // namespace tenure
