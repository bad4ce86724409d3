#pragma once

/// \file
/// Layer `device`: the concepts of what touches the driver, and the simulated model of them.

#include <tenure/device/device.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/device/standing_on.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/device/vmm_device.hpp>
