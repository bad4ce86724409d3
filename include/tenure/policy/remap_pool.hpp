#pragma once

/// \file
/// `remap_pool`: no fragmentation to speak of. Where no free range is large enough, free memory is shown in a row
/// behind new addresses, and only what is missing is bought.
///
/// A `range_pool` over `remap_stock`: physical memory in handles of a few dozen MiB, first fit at home, and *views* that
/// show the free end of one handle, whole free ones and the free beginning of another as one stretch. See
/// `remap/blocks.hpp` for where blocks lie, `remap/stock.hpp` for how memory is got, `backing/windows.hpp` for the
/// driver's part.
///
/// What follows from views instead of moves: no request unmaps anything, so none waits for work; a stream reuses its own
/// memory through another view in its own order; and a loop whose sizes recur makes no driver call once each shape has
/// been shown.
///
/// Invariants, complexity and thread-safety are those of `range_pool`. Requires a device with virtual memory management.

#include <tenure/policy/range_pool.hpp>
#include <tenure/policy/remap/options.hpp>
#include <tenure/policy/remap/stock.hpp>

namespace tenure {

template <vmm_device Device>
class remap_pool : public range_pool<Device, remap_stock<Device>> {
  public:
    using range_pool<Device, remap_stock<Device>>::range_pool;
};

template <vmm_device Device>
remap_pool(Device&, remap_options = {}) -> remap_pool<Device>;

} // namespace tenure
