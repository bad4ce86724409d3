#pragma once

/// \file
/// Layer `tenancy`: who pays.
///
/// What belongs here next: hierarchies of arenas (`min`, `high`, ancestors' limits), accounts (many tenants in one
/// pool), and scrubbing of memory that changes hands.

#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>
