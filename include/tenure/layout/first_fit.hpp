#pragma once

/// \file
/// `first_fit`: the lowest free block that holds the request.
///
/// What lives long gathers at low addresses, where holes are filled first, and what is free gathers above it in large
/// pieces. Best fit leaves a small rest at each place instead, and long-lived blocks keep these apart. That address-ordered
/// first fit breaks memory up as little as best fit does, or less, is known from programs on the host (Wilson, Johnstone,
/// Neely, Boles: Dynamic Storage Allocation, A Survey and Critical Review, 1995). In a pool whose free memory can be shown
/// elsewhere it is the better of the two by a quarter of what is lost (docs/policies/remap.md).

#include <tenure/layout/fit.hpp>
#include <tenure/layout/layout.hpp>

namespace tenure::layout {

using first_fit = basic_fit<fit_rule::first>;

static_assert(layout<first_fit>);

} // namespace tenure::layout
