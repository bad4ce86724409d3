#pragma once

/// \file
/// All of tenure that needs no CUDA: layouts, the simulated device, pools, magazines, arenas, adaptors.
///
/// What needs CUDA headers is included by name: `<tenure/device/cuda_device.hpp>` and `<tenure/interop.hpp>`.

#include <tenure/adapt.hpp>
#include <tenure/backing.hpp>
#include <tenure/core.hpp>
#include <tenure/device.hpp>
#include <tenure/front.hpp>
#include <tenure/layout.hpp>
#include <tenure/ordering.hpp>
#include <tenure/policy.hpp>
#include <tenure/resource.hpp>
#include <tenure/tenancy.hpp>
