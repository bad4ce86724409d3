#pragma once

/// \file
/// Layer `backing`: where ranges come from.

#include <tenure/backing/segments.hpp>
#include <tenure/backing/windows.hpp>
