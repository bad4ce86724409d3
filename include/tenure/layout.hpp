#pragma once

/// \file
/// Layer `layout`: where in a range a block goes. Includes `core` only.

#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/buddy.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/first_fit.hpp>
#include <tenure/layout/fit.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/range_table.hpp>
#include <tenure/layout/size_classes.hpp>
#include <tenure/layout/slab.hpp>
#include <tenure/layout/slab_classes.hpp>
