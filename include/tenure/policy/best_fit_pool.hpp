#pragma once

/// \file
/// `best_fit_pool`: the smallest free block that fits, split and merged. It takes memory by `cudaMalloc` alone.
///
/// A `range_pool` over `layout::bitmap`, which finds a fitting block in constant time through a two-level bitmap of
/// size classes and takes the best of the first few of its class. `exact_best_fit_pool` searches exactly, in
/// logarithmic time; it is the reference that the fast one is measured against.
///
/// Invariants, complexity and thread-safety are those of `range_pool`.

#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/policy/range_pool.hpp>

namespace tenure {

template <device Device>
class best_fit_pool : public range_pool<Device, range_stock<Device, layout::bitmap>> {
  public:
    using range_pool<Device, range_stock<Device, layout::bitmap>>::range_pool;
};

template <device Device>
best_fit_pool(Device&, pool_options = {}) -> best_fit_pool<Device>;

template <device Device>
class exact_best_fit_pool : public range_pool<Device, range_stock<Device, layout::best_fit>> {
  public:
    using range_pool<Device, range_stock<Device, layout::best_fit>>::range_pool;
};

template <device Device>
exact_best_fit_pool(Device&, pool_options = {}) -> exact_best_fit_pool<Device>;

} // namespace tenure
