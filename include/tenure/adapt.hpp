#pragma once

/// \file
/// Layer `adapt`: resources in front of another resource. Includes `core` and `resource` only.

#include <tenure/adapt/guard_canary.hpp>
#include <tenure/adapt/live_blocks.hpp>
#include <tenure/adapt/statistics.hpp>
#include <tenure/adapt/trace_recorder.hpp>
#include <tenure/adapt/trace_writer.hpp>
