#pragma once

/// \file
/// Layer `front`: how a thread gets a block without a lock.

#include <tenure/front/block_table.hpp>
#include <tenure/front/block_word.hpp>
#include <tenure/front/depot.hpp>
#include <tenure/front/front_accounts.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/fronted_pools.hpp>
#include <tenure/front/hit_path.hpp>
#include <tenure/front/magazine.hpp>
#include <tenure/front/magazine_options.hpp>
#include <tenure/front/magazines.hpp>
#include <tenure/front/miss_path.hpp>
#include <tenure/front/owner_section.hpp>
#include <tenure/front/parking.hpp>
#include <tenure/front/rack.hpp>
#include <tenure/front/rack_list.hpp>
#include <tenure/front/thread_racks.hpp>
#include <tenure/front/transits.hpp>
