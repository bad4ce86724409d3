#pragma once

/// \file
/// Layer `tenancy`: who pays.
///
/// What belongs here next: hierarchies of arenas (`min`, `high`, ancestors' limits) and scrubbing of memory that
/// changes hands.

#include <tenure/tenancy/account_directory.hpp>
#include <tenure/tenancy/account_ledger.hpp>
#include <tenure/tenancy/accounts.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>
#include <tenure/tenancy/stock_shelf.hpp>
