#pragma once

/// \file
/// The pools that a thread reaches through magazines, by name: `fronted_remap_pool`, `fronted_caching_pool`,
/// `fronted_best_fit_pool`. Each is `magazines` over the pool, and takes that pool's options, or both sets of options.
///
///     fronted_remap_pool<cuda::device> pool(gpu);
///     arena<fronted_remap_pool, cuda::device> tenant(gpu, {.name = "alice", .max = 8_GiB});

#include <tenure/front/magazines.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>

namespace tenure {

template <device Device>
class fronted_best_fit_pool : public magazines<best_fit_pool<Device>> {
  public:
    using magazines<best_fit_pool<Device>>::magazines;
};

template <device Device>
class fronted_caching_pool : public magazines<caching_pool<Device>> {
  public:
    using magazines<caching_pool<Device>>::magazines;
};

template <vmm_device Device>
class fronted_remap_pool : public magazines<remap_pool<Device>> {
  public:
    using magazines<remap_pool<Device>>::magazines;
};

} // namespace tenure
