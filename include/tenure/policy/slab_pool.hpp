#pragma once

/// \file
/// `slab_pool`: equal-size slots per size class, for many small objects. Allocation and free are O(1) and never
/// fragment a slab; a slab serves one class until it is empty.
///
/// A `range_pool` over `layout::slab`; invariants, complexity and thread-safety are those of `range_pool`.

#include <tenure/layout/slab.hpp>
#include <tenure/policy/range_pool.hpp>

namespace tenure {

template <device Device>
class slab_pool : public range_pool<Device, range_stock<Device, layout::slab>> {
  public:
    using range_pool<Device, range_stock<Device, layout::slab>>::range_pool;
};

template <device Device>
slab_pool(Device&, pool_options = {}) -> slab_pool<Device>;

} // namespace tenure
