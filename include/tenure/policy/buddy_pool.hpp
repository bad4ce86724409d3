#pragma once

/// \file
/// `buddy_pool`: powers of two. Every block is aligned to its size, and neighbours that belong together merge in
/// O(log n); the price is what rounding up to a power of two wastes, up to half of a block.
///
/// A `range_pool` over `layout::buddy`; invariants, complexity and thread-safety are those of `range_pool`.

#include <tenure/layout/buddy.hpp>
#include <tenure/policy/range_pool.hpp>

namespace tenure {

template <device Device>
class buddy_pool : public range_pool<Device, range_stock<Device, layout::buddy>> {
  public:
    using range_pool<Device, range_stock<Device, layout::buddy>>::range_pool;
};

template <device Device>
buddy_pool(Device&, pool_options = {}) -> buddy_pool<Device>;

} // namespace tenure
