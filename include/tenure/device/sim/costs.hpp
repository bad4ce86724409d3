#pragma once

/// \file
/// `sim::costs`: what each driver call costs the host, in virtual nanoseconds.
///
/// A call costs a fixed time, or a time that grows with the bytes of one piece of memory: a *curve*, linear
/// between measured points, level before the first, continued with the last slope beyond the last. What a
/// call waits for is not its cost: it comes on top.
///
/// Plain values; thread-compatible.

#include <tenure/core/units.hpp>
#include <tenure/device/sim/call.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace tenure::sim {

/// Nanoseconds as a function of bytes.
struct cost_curve {
    struct point {
        std::size_t bytes = 0;
        std::int64_t ns = 0;
    };
    std::array<point, 4> points{};
    std::size_t size = 0; ///< number of points in use, in increasing order of bytes; none: every size is free

    /// Returns: the cost of n bytes. Complexity: constant.
    [[nodiscard]] constexpr std::chrono::nanoseconds operator()(std::size_t n) const noexcept {
        if (size == 0) return std::chrono::nanoseconds{0};
        if (size == 1 || n <= points[0].bytes) return std::chrono::nanoseconds{points[0].ns};
        std::size_t right = 1;
        while (right + 1 < size && points[right].bytes < n) ++right;
        const point& a = points[right - 1];
        const point& b = points[right];
        const double slope = static_cast<double>(b.ns - a.ns) / static_cast<double>(b.bytes - a.bytes);
        // One hour bounds absurd sizes, so that the virtual clock cannot overflow.
        const double ns = static_cast<double>(a.ns) + slope * static_cast<double>(n - a.bytes);
        return std::chrono::nanoseconds{ns > 3.6e12 ? std::int64_t{3'600'000'000'000}
                                                    : static_cast<std::int64_t>(ns)};
    }
};

struct costs {
    std::array<std::chrono::nanoseconds, call_kinds> fixed{}; ///< a call of each kind, whatever its size
    cost_curve allocate;      ///< on top of the fixed cost: cudaMalloc of n bytes
    cost_curve deallocate;    ///< cudaFree of n bytes on an idle device
    cost_curve grow_pool;     ///< a driver pool takes n bytes from the device
    cost_curve shrink_pool;   ///< a driver pool gives one chunk of n bytes back
    cost_curve create_memory; ///< n bytes of physical memory
    cost_curve set_access;    ///< for each handle of n bytes
    cost_curve unmap;         ///< for each handle of n bytes

    /// Returns: the costs measured on an H200 (driver 580, CUDA 13.0): medians of one machine. The ratios are
    /// what to build on.
    [[nodiscard]] static constexpr costs h200() noexcept {
        using std::chrono::nanoseconds;
        costs c;
        const auto set = [&c](call kind, std::int64_t ns) { c.fixed[index(kind)] = nanoseconds{ns}; };
        // cudaMalloc / cudaFree, idle GPU: 36-46 us / 32-41 us up to 20 MiB; 1 GiB: 248 us / 683 us.
        c.allocate = {{{{2_MiB, 36'000}, {20_MiB, 46'000}, {1_GiB, 248'000}}}, 3};
        c.deallocate = {{{{2_MiB, 32'000}, {20_MiB, 41'000}, {1_GiB, 683'000}}}, 3};
        set(call::memory, 7'300);              // cudaMemGetInfo: 7.3 us
        set(call::describe, 79 + 92);          // cudaStreamGetId: 79 ns, cudaStreamGetCaptureInfo: 92 ns
        set(call::create_event, 240);          // cudaEventCreate + cudaEventDestroy: 480 ns
        set(call::destroy_event, 240);         // the other half of it
        set(call::record, 445);                // cudaEventRecord: 445 ns
        set(call::query, 310);                 // cudaEventQuery: 290-330 ns
        set(call::synchronize_stream, 1'850);  // cudaStreamSynchronize, idle: 1.7-2.0 us
        set(call::synchronize_device, 80'000); // a small cudaMalloc and cudaFree, idle: 36-46 us and 32-41 us
        set(call::synchronize_event, 1'850);   // not measured: as for a stream
        set(call::wait, 440);                  // cudaStreamWaitEvent: 440 ns
        set(call::allocate_from, 425); // cudaMallocAsync + cudaFreeAsync, warm, one thread: 0.7-1.0 us a pair
        set(call::deallocate_to, 425); // the other half of it
        // cudaMallocAsync growth: 107-130 us up to 20 MiB; 1 GiB: 1.6 ms.
        c.grow_pool = {{{{2_MiB, 107'000}, {20_MiB, 130'000}, {1_GiB, 1'600'000}}}, 3};
        set(call::create_pool, 107'000);   // not measured: as the smallest growth
        set(call::memory_of, 92);          // not measured: as another attribute, cudaStreamGetCaptureInfo
        set(call::reserve_address, 3'000); // cuMemAddressReserve (2 MiB to 16 TiB): 1-5 us
        set(call::free_address, 3'000);    // not measured: as reserving
        // cuMemCreate 2 / 20 / 256 MiB / 1 GiB: 15 / 15 / 33 / 126 us.
        c.create_memory = {{{{2_MiB, 15'000}, {20_MiB, 15'000}, {256_MiB, 33'000}, {1_GiB, 126'000}}}, 4};
        set(call::release_memory, 15'000); // not measured: as creating a small one
        set(call::map, 2'500);             // cuMemMap: 1-4 us a handle
        // cuMemSetAccess: ~33 us a handle up to 20 MiB, 65 us at 256 MiB, 110 us at 1 GiB.
        c.set_access = {{{{20_MiB, 33'000}, {256_MiB, 65'000}, {1_GiB, 110'000}}}, 3};
        // cuMemUnmap: 21 us a handle (20 MiB), 35 us at 256 MiB.
        c.unmap = {{{{20_MiB, 21'000}, {256_MiB, 35'000}}}, 2};
        c.shrink_pool = c.unmap; // not measured: a pool unmaps what it gives back
        return c;
    }

    /// Returns: every call free of charge: virtual time moves only where a test moves it.
    [[nodiscard]] static constexpr costs zero() noexcept { return {}; }
};

} // namespace tenure::sim
