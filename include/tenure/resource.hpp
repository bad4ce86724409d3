#pragma once

/// \file
/// Layer `resource`: the interface of every policy, arena and adaptor, what it reports, and its type-erased
/// handles. Includes only `core`.

#include <tenure/resource/any_resource.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/resource/usage.hpp>
