#pragma once

/// \file
/// `tenure::vmm_device`: a device whose addresses and memory can be got separately, and joined by mapping.
///
///     address space   |---- reservation ---------------------|    cheap, practically without end
///                        ^ map      ^ map        ^ map
///     memory          [handle 7] [handle 3]   [handle 7]          physical, counts against the capacity
///
/// | expression | what it does on a GPU |
/// |---|---|
/// | `d.supports_vmm()` | no driver call: whether it has all this; where not, every call answers `not_supported` |
/// | `d.reserve_address(n, a, near)` | `cuMemAddressReserve`: n bytes of addresses, aligned to a (rule 1), at `near` where that is free (rule 7) |
/// | `d.free_address(p, n)` | `cuMemAddressFree`: one whole reservation in which nothing is mapped |
/// | `d.create_memory(n)` | `cuMemCreate`: n bytes of physical memory behind one handle |
/// | `d.release_memory(h)` | `cuMemRelease`: gives up h; the memory goes when the last mapping does |
/// | `d.map(p, h)` | `cuMemMap`: the whole of h at p, once or at several addresses at once |
/// | `d.set_access(p, n)` | `cuMemSetAccess`: for the device to read and write, whole mappings, no gap |
/// | `d.unmap(p, n)` | `cuMemUnmap`: takes away whole mappings, no gap |
/// | `d.synchronize()` | the host waits for all work of the device, as `d.deallocate` does, and harms no capture |
///
/// Rules for every model:
///   1. Sizes and addresses are multiples of `allocation_granularity()`, alignments powers of two (0 stands
///      for the granularity); anything else is `invalid_value`.
///   2. A mapping shows a whole handle from its start. Part of a mapping can be neither unmapped nor given
///      access, part of a reservation cannot be freed. A driver need not notice a gap, or a mapping that reaches over
///      its reservation's end (580 does not): callers see to that.
///   3. Memory mapped at p may be used once `set_access` has covered it.
///   4. **No call but `synchronize` waits for work, and none checks for it.** A kernel that uses an address while it is
///      unmapped dies, and the context with it: the caller proves first that all work on the range is over.
///   5. A failed call changes nothing.
///   6. Allowed at any time during a stream capture.
///   7. `near` is a wish: where those addresses are taken, or it is 0, the device takes others. It is aligned as `a` says.
///
/// Cost goes with the number of handles, not of bytes, and many threads are no faster than one: the driver
/// has one lock. Everything is noexcept and thread-safe.

#include <tenure/device/device.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace tenure {

/// Names physical memory (`CUmemGenericAllocationHandle`). 0 names none.
using memory_handle = std::uint64_t;

/// A device with virtual memory: the table above.
template <class D>
concept vmm_device = device<D> && requires(D& d, const D& cd, void* p, std::size_t n, memory_handle h) {
    { cd.supports_vmm() }
    noexcept->std::same_as<bool>;
    { d.reserve_address(n, n, std::uint64_t{}) }
    noexcept->std::same_as<result<void*, status>>;
    { d.free_address(p, n) }
    noexcept->std::same_as<status>;
    { d.create_memory(n) }
    noexcept->std::same_as<result<memory_handle, status>>;
    { d.release_memory(h) }
    noexcept->std::same_as<status>;
    { d.map(p, h) }
    noexcept->std::same_as<status>;
    { d.set_access(p, n) }
    noexcept->std::same_as<status>;
    { d.unmap(p, n) }
    noexcept->std::same_as<status>;
    { d.synchronize() }
    noexcept->std::same_as<status>;
};

} // namespace tenure
