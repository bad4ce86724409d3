#pragma once

/// \file
/// `allocate_settled`: a block that every stream may use at once, without an exception where there is none.
///
/// Thread-safety: that of the memory.

#include <tenure/core/error.hpp>
#include <tenure/core/status.hpp>
#include <tenure/resource/resource_ref.hpp>

#include <cstddef>

namespace tenure::torch {

inline constexpr std::size_t block_alignment = 512; ///< bytes; torch's kernels count on it

/// Returns: as `try_allocate`, a block to be given back with `deallocate_sync`.
inline allocate_result allocate_settled(resource_ref memory, std::size_t bytes) noexcept {
    try {
        return memory.allocate_sync(bytes, block_alignment);
    } catch (const out_of_memory& e) {
        return e.failure();
    } catch (...) { // the driver, or host memory
        allocation_failure f;
        f.requested = f.rounded = bytes;
        f.cause = failure_cause::driver;
        f.driver_status = status::failed;
        return f;
    }
}

} // namespace tenure::torch
