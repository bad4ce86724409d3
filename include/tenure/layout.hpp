#pragma once

/// \file
/// Layer `layout`: where in a range a block goes. Includes `core`.

#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/buddy.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/slab.hpp>
