#pragma once

/// \file
/// Layer `core`: units, errors, bit arithmetic, small containers. Includes nothing of the other layers.

#include <tenure/core/address_ranges.hpp>
#include <tenure/core/asymmetric_fence.hpp>
#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/index_tree.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/pointer_map.hpp>
#include <tenure/core/prefetch.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/core/version.hpp>
