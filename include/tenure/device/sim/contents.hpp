#pragma once

/// \file
/// `sim::contents`: what is written in the memory, as far as a test of residual data needs to know: which tag each byte
/// carries, or none where it is zero.
///
///     fresh from the driver     zero
///     written                   the writer's tag
///     filled with zero          zero
///     back at the driver        zero, as memory of an H200 is that comes back from its driver
///
/// By physical byte; what is written at one address is read at every address that shows the same memory. The order is
/// that of the calls; whether work stands behind other work is the overlap checker's business.
///
/// Complexity: logarithmic, plus the ranges touched. Thread-compatible.

#include <tenure/device/sim/interval_map.hpp>

#include <cstddef>
#include <cstdint>
#include <set>

namespace tenure::sim {

class contents {
  public:
    void write(extent e, std::uint64_t tag) { tags_.assign(e, tag); }
    void clear(extent e) { tags_.erase(e); }

    /// Effects: adds the tags that bytes of `e` carry to `found`.
    void read(extent e, std::set<std::uint64_t>& found) const {
        tags_.for_each(e, [&](extent, std::uint64_t tag) { found.insert(tag); });
    }

  private:
    interval_map<std::uint64_t> tags_;
};

} // namespace tenure::sim
