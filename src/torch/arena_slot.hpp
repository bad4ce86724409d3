#pragma once

/// \file
/// `arena_slot`: what one tenant has on one device.
///
/// Invariants: `blocks` counts everything that lies in the memory: live and pending blocks, segments of private pools;
/// `in_segments` is what of it those segments take. Thread-safety: externally synchronised, by the heap's mutex.

#include "tenant.hpp"

#include "../policies/named_arena.hpp"

#include <tenure/resource/resource_ref.hpp>

#include <cstddef>
#include <memory>

namespace tenure::torch {

struct arena_slot {
    tenant_ptr owner;
    std::unique_ptr<policies::named_arena> arena;
    std::size_t blocks = 0;
    std::size_t in_segments = 0; ///< bytes

    [[nodiscard]] resource_ref memory() const noexcept { return arena->memory(); }
};

} // namespace tenure::torch
