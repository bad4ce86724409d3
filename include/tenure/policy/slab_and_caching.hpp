#pragma once

/// \file
/// `slab_and_caching`: the usual `binned`: slabs for what is small, PyTorch's scheme for what is large. A
/// name with one parameter, so that an `arena` can take it: `arena<slab_and_caching, Device>`.

#include <tenure/policy/binned.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/slab_pool.hpp>

namespace tenure {

template <class Device>
using slab_and_caching = binned<slab_pool<Device>, caching_pool<Device>>;

} // namespace tenure
