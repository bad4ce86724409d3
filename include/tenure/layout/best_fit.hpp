#pragma once

/// \file
/// `best_fit`: the smallest free block that holds the request. The reference that other layouts are measured against.

#include <tenure/layout/fit.hpp>
#include <tenure/layout/layout.hpp>

namespace tenure::layout {

using best_fit = basic_fit<fit_rule::best>;

static_assert(layout<best_fit>);

} // namespace tenure::layout
