#pragma once

/// \file
/// Layer `policy`: the pools that a user names.

#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/binned.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/device_pool.hpp>
#include <tenure/policy/graph_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/policy/slab_and_caching.hpp>
#include <tenure/policy/slab_pool.hpp>
#include <tenure/policy/unmapped_guard.hpp>
