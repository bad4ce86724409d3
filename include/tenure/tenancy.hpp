#pragma once

/// \file
/// Layer `tenancy`: who pays.

#include <tenure/tenancy/account_directory.hpp>
#include <tenure/tenancy/account_ledger.hpp>
#include <tenure/tenancy/account_picture.hpp>
#include <tenure/tenancy/accounts.hpp>
#include <tenure/tenancy/arena.hpp>
#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/arena_core.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/arenas_text.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/capacity.hpp>
#include <tenure/tenancy/device_row.hpp>
#include <tenure/tenancy/environment.hpp>
#include <tenure/tenancy/hub.hpp>
#include <tenure/tenancy/hub_stock.hpp>
#include <tenure/tenancy/limits.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>
#include <tenure/tenancy/nvml.hpp>
#include <tenure/tenancy/page_reader.hpp>
#include <tenure/tenancy/process.hpp>
#include <tenure/tenancy/published_page.hpp>
#include <tenure/tenancy/publisher.hpp>
#include <tenure/tenancy/stock_shelf.hpp>
#include <tenure/tenancy/survivors.hpp>
