#pragma once

/// \file
/// `outside_captures<Device>`: a scope in which code that is not this library's may call the device, although a stream
/// is being captured.
///
/// A capture in global mode forbids most calls that take or give back memory, on every thread, and is invalidated by
/// them. A device's own members see to that themselves; the allocators of MemPools, torch's callbacks and the allocator
/// that was there before do not. In general there is nothing to do; `cuda_world.hpp` says what a GPU needs.
///
/// Thread-safety: each scope belongs to one thread.

namespace tenure::torch {

template <class Device>
struct outside_captures {};

} // namespace tenure::torch
