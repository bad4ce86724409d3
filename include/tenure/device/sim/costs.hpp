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
    std::chrono::nanoseconds passed{}; ///< on top of the fixed cost of a query: of an event that has passed
    cost_curve allocate;               ///< on top of the fixed cost: cudaMalloc of n bytes
    cost_curve deallocate;             ///< cudaFree of n bytes on an idle device
    cost_curve grow_pool;              ///< a driver pool takes n bytes from the device
    cost_curve shrink_pool;            ///< a driver pool gives one chunk of n bytes back
    cost_curve create_memory;          ///< n bytes of physical memory
    cost_curve release_memory;         ///< n bytes of physical memory, mapped nowhere any more
    cost_curve set_access;             ///< for each handle of n bytes
    cost_curve unmap;                  ///< for each handle of n bytes
    cost_curve fill;                   ///< of n bytes with zero: time on the stream, not on the host

    /// Returns: the costs measured on an H200 (driver 580, CUDA 13.0). The ratios are what to build on.
    ///
    /// Three sources. Survey: a first series over all calls; medians. Probe: a second series, another day, over the
    /// calls that take, map and free memory, sizes 2 MiB to 2 GiB in powers of two and 20 MiB; medians of 40 calls (24 of
    /// 1 GiB, 12 of 2 GiB). Both are of an idle GPU. Replay: the calls that policies make while seven recorded programs
    /// run (`compare --device cuda --costs`), with kernels under way on several streams. That is what the model stands for:
    /// where the replay differs from the others by more than a quarter, it counts.
    [[nodiscard]] static constexpr costs h200() noexcept {
        using std::chrono::nanoseconds;
        costs c;
        const auto set = [&c](call kind, std::int64_t ns) { c.fixed[index(kind)] = nanoseconds{ns}; };
        // cudaMalloc, survey: 36-46 us up to 20 MiB; 1 GiB: 248 us.
        // Probe: 38-62 us up to 64 MiB, 61 / 64 / 78 at 128 / 256 / 512 MiB; 1 / 2 GiB: 97 / 147 us.
        // Replay: 49-53 us up to 32 MiB, 58 / 58 / 80 / 84 at 64 / 128 / 256 / 512 MiB, 116 us from 1 to 2 GiB.
        c.allocate = {{{{32_MiB, 49'000}, {128_MiB, 59'000}, {256_MiB, 76'000}, {1_GiB, 100'000}}}, 4};
        // cudaFree of an idle device, survey: 32-41 us up to 20 MiB; 1 GiB: 683 us.
        // Probe: 35-51 us up to 32 MiB, 61 / 155 / 117 / 234 at 64 / 128 / 256 / 512 MiB; 1 / 2 GiB: 441 / 912 us.
        c.deallocate = {{{{32_MiB, 44'000}, {128_MiB, 117'000}, {256_MiB, 130'000}, {1_GiB, 440'800}}}, 4};
        set(call::memory, 7'300); // survey: cudaMemGetInfo: 7.3 us
        set(call::describe, 90);  // replay (probe: cuStreamIsCapturing: 25 ns, cuStreamGetId: 25 ns)
        set(call::create_event,
            510); // replay, mean of three: 650, 450, 420 (survey: 480 ns with cudaEventDestroy)
        set(call::destroy_event, 240); // survey: half of the two
        set(call::record, 261);        // probe: cuEventRecord: 261 ns (survey: cudaEventRecord: 445 ns)
        // cudaEventQuery, survey, probe: 278-330 ns, of a device on which nothing else was ever enqueued. Beside work on other
        // streams, busy or done: 190-220 ns of an event that has not passed, 1310-1420 of one that has.
        // Replay: 770 ns and 2090.
        set(call::query, 770);
        c.passed = nanoseconds{1'230};
        set(call::synchronize_stream, 1'850);  // survey: cudaStreamSynchronize, idle: 1.7-2.0 us
        set(call::synchronize_device, 91'500); // a small cudaMalloc and cudaFree
        set(call::synchronize_event, 1'850);   // not measured: as for a stream
        set(call::wait, 440);                  // survey: cudaStreamWaitEvent: 440 ns
        set(call::allocate_from,
            1'250); // replay (survey: cudaMallocAsync + cudaFreeAsync, warm: 0.7-1.0 us a pair)
        set(call::deallocate_to, 1'300); // replay
        // cudaMallocAsync growth, replay: 44 us for 32 MiB, the least that a pool takes, 87 / 139 / 343 / 575 at 64 / 128 / 256 /
        // 512 MiB; 2 GiB: 1.4 ms (survey, of new pools: 107-130 us up to 20 MiB; 1 GiB: 1.6 ms).
        c.grow_pool = {{{{32_MiB, 44'000}, {128_MiB, 140'000}, {512_MiB, 600'000}, {2_GiB, 1'400'000}}}, 4};
        set(call::create_pool, 107'000); // not measured: as the smallest growth of a new pool
        set(call::memory_of, 92);        // not measured: as another attribute, cudaStreamGetCaptureInfo
        // cuMemAddressReserve, replay: 9-11 us up to 512 MiB, 7 us for 64 GiB (survey, 2 MiB to 16 TiB: 1-5 us; probe: 2.7 us).
        set(call::reserve_address, 8'500);
        set(call::free_address, 1'900); // probe: cuMemAddressFree: 1.9 us
        // cuMemCreate, survey: 2 / 20 / 256 MiB / 1 GiB: 15 / 15 / 33 / 126 us.
        // Probe: 13-14 us up to 8 MiB, 8-10 from 16 to 64 MiB, 12 / 20 / 17 at 128 / 256 / 512 MiB; 1 / 2 GiB: 24 / 37.
        // Replay: 13-14 us up to 64 MiB.
        c.create_memory = {{{{64_MiB, 13'700}, {512_MiB, 17'700}, {1_GiB, 24'300}, {2_GiB, 37'000}}}, 4};
        // cuMemRelease, probe: 13-19 us up to 32 MiB, 28 / 47 / 91 / 200 at 64 / 128 / 256 / 512 MiB;
        // 1 / 2 GiB: 329 / 811 us.
        c.release_memory = {{{{32_MiB, 16'300}, {256_MiB, 90'900}, {1_GiB, 328'800}}}, 3};
        set(call::map,
            1'300); // cuMemMap a handle, survey: 1-4 us; probe: 0.7-1.8 us, replay: 1.3 us, whatever the size
        // cuMemSetAccess a handle, survey: ~33 us up to 20 MiB, 65 us at 256 MiB, 110 us at 1 GiB.
        // Probe: 23-33 us up to 128 MiB, 44-53 at 256 MiB, 47-49 at 512 MiB; 1 / 2 GiB: 58-62 / 96-111 us.
        c.set_access = {{{{128_MiB, 28'000}, {256_MiB, 45'000}, {1_GiB, 60'000}, {2_GiB, 104'000}}}, 4};
        // cuMemUnmap a handle, survey: 21 us (20 MiB), 35 us at 256 MiB.
        // Probe: 15-21 us up to 128 MiB, 21-28 at 256 MiB, 24-25 at 512 MiB; 1 / 2 GiB: 27-29 / 39 us.
        c.unmap = {{{{128_MiB, 18'300}, {256_MiB, 24'000}, {1_GiB, 28'000}, {2_GiB, 39'000}}}, 4};
        set(call::own_stream, 6'000); // not measured; once in the life of a device
        set(call::fill_zero, 1'900);  // not measured: as launching other work
        // cudaMemsetAsync, survey: 1 MiB 5 us; 64 MiB 3.8 TB/s; 1 GiB and up 4.5 TB/s.
        c.fill = {{{{1_MiB, 5'000}, {64_MiB, 17'700}, {1_GiB, 239'000}, {2_GiB, 477'000}}}, 4};
        c.shrink_pool = c.unmap; // not measured: a pool unmaps what it gives back
        return c;
    }

    /// Returns: every call free of charge: virtual time moves only where a test moves it.
    [[nodiscard]] static constexpr costs zero() noexcept { return {}; }
};

} // namespace tenure::sim
