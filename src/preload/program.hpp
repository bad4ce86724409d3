#pragma once

/// \file
/// `program`: the program whose CUDA calls go through this library, and how each is served.
///
///     cudaMalloc, cudaMallocAsync, the default pool     a block of the arena
///     managed, pitched and 3D memory, arrays, pools     the runtime's, counted against the limit
///     graphs' own memory                                the runtime's, counted when it is there; said once
///     everything else                                   not seen
///
/// Rules:
///   1. **Error codes are the runtime's own.** A request that the limit refuses is passed on to the runtime as one that no GPU can
///      serve (2^62 bytes), so that its answer, its last error and its texts are what the program knows from a full device.
///   2. What the runtime would do to somebody else's pointer, it does: a pointer that is not in the ledger is its.
///   3. `cudaFree` waits for the device before the block is free, as the runtime's does; programs count on it.
///   4. Calls that tenure itself makes go straight through (`inside`).
///   5. After a fork, at the exit, and without a usable device, everything goes straight through.
///
/// Never destroyed: static objects of the program free memory until the very end.
/// Thread-safety: thread-safe; `cudaDeviceReset` waits for the calls of other threads.

#include "ledger.hpp"
#include "real.hpp"
#include "settings.hpp"
#include "share.hpp"

#include <tenure/core/error.hpp>
#include <tenure/device/cuda/process.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include <pthread.h>
#include <unistd.h>

namespace tenure::preload {

/// While it lives, this thread's CUDA calls are tenure's own.
class inside {
  public:
    inside() noexcept { ++depth(); }
    ~inside() { --depth(); }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;
    [[nodiscard]] static bool now() noexcept { return depth() != 0; }

  private:
    static int& depth() noexcept {
        static thread_local int d = 0;
        return d;
    }
};

/// The current device is this one, for a while.
class on_device {
  public:
    explicit on_device(int wanted) noexcept {
        int now = wanted;
        if (real::cudaGetDevice(&now) == cudaSuccess && now != wanted &&
            real::cudaSetDevice(wanted) == cudaSuccess)
            before_ = now;
    }
    ~on_device() {
        if (before_ >= 0) (void)real::cudaSetDevice(before_);
    }
    on_device(const on_device&) = delete;
    on_device& operator=(const on_device&) = delete;

  private:
    int before_ = -1;
};

class program {
  public:
    static program& get() {
        static program& only = *new program;
        return only;
    }

    // ---- served from the arena ----

    /// `forward()`: the same call, of the runtime.
    template <class Forward>
    cudaError_t malloc(void** p, std::size_t n, Forward&& forward) noexcept {
        if (p == nullptr || n == 0 || !open()) return forward();
        const std::shared_lock lock(resets_);
        const inside here;
        share* const s = share_of(current());
        if (s == nullptr) return forward();
        if (!settings_.pooled) return count(*s, n, p, forward, [&] { return n; });
        s->count_graphs();
        return serve(*s, n, p, forward, [&] {
            try {
                return allocate_result(s->memory().allocate_sync(n, alignment));
            } catch (const out_of_memory& e) {
                return allocate_result(e.failure());
            } catch (const std::exception&) {
                return allocate_result(allocation_failure{.cause = failure_cause::driver});
            }
        });
    }

    /// `stream`: as the runtime's functions with a legacy default stream understand it.
    template <class Forward>
    cudaError_t malloc_async(void** p, std::size_t n, cudaStream_t stream, Forward&& forward) noexcept {
        if (p == nullptr || n == 0 || !open()) return forward();
        const std::shared_lock lock(resets_);
        const inside here;
        if (capturing(
                stream)) { // nothing else may be asked of it: cudaStreamGetDevice invalidates the capture
            if (share* const s = share_of(current())) s->expect_graphs();
            graph_notice_.say();
            return forward();
        }
        share* const s = share_of(device_of(stream));
        if (s == nullptr) return forward();
        if (!settings_.pooled) return count(*s, n, p, forward, [&] { return n; });
        s->count_graphs();
        return serve(*s, n, p, forward, [&] { return s->memory().try_allocate(stream, n, alignment); });
    }

    template <class Forward>
    cudaError_t malloc_from_pool(void** p, std::size_t n, cudaMemPool_t pool, cudaStream_t stream,
                                 Forward&& forward) noexcept {
        if (p == nullptr || n == 0 || !open()) return forward();
        if (capturing(stream)) return malloc_async(p, n, stream, forward);
        cudaMemPool_t usual = nullptr;
        const int device = device_of(stream);
        if (real::cudaDeviceGetDefaultMemPool(&usual, device) == cudaSuccess && usual == pool)
            return malloc_async(p, n, stream, forward);
        return counted(p, n, forward, [&] { return n; });
    }

    template <class Forward>
    cudaError_t free(void* p, Forward&& forward) noexcept {
        const auto by_runtime = [&] { return forward(); };
        return give_back(p, by_runtime, [&](share& s, const held& h) -> cudaError_t {
            const on_device there(h.device);
            const cudaError_t waited = real::cudaDeviceSynchronize();
            if (waited == cudaSuccess) s.memory().deallocate_sync(p, h.bytes, alignment);
            return waited;
        });
    }

    template <class Forward>
    cudaError_t free_async(void* p, cudaStream_t stream, Forward&& forward) noexcept {
        const auto by_runtime = [&] { return forward(); };
        return give_back(p, by_runtime, [&](share& s, const held& h) -> cudaError_t {
            s.memory().deallocate(stream, p, h.bytes, alignment);
            return cudaSuccess;
        });
    }

    // ---- the runtime's, counted ----

    /// `forward` fills in `*p`; `actual()`: how many bytes that were, asked after a success.
    template <class Pointer, class Forward, class Actual>
    cudaError_t counted(Pointer* p, std::size_t estimate, Forward&& forward, Actual&& actual) noexcept {
        if (p == nullptr || estimate == 0 || !open()) return forward();
        const std::shared_lock lock(resets_);
        const inside here;
        share* const s = share_of(current());
        return s == nullptr ? forward() : count(*s, estimate, p, forward, actual);
    }

    /// The end of what `counted` began.
    template <class Forward>
    cudaError_t free_counted(const void* p, Forward&& forward) noexcept {
        return give_back(p, forward, [](share&, const held&) { return cudaSuccess; });
    }

    // ---- the rest ----

    /// What the program may still have, as far as the device has it.
    cudaError_t memory_info(std::size_t* free, std::size_t* total) noexcept {
        const cudaError_t e = real::cudaMemGetInfo(free, total);
        if (e != cudaSuccess || free == nullptr || total == nullptr || !open()) return e;
        const std::shared_lock lock(resets_);
        const inside here;
        share* const s = share_of(current());
        if (s == nullptr) return e;
        s->count_graphs();
        const usage_counters u = s->memory().usage();
        const meter_reading r = s->limits();
        const std::size_t idle = u.reserved.current - std::min(u.reserved.current, u.allocated.current);
        const std::size_t used = r.used - std::min(r.used, idle);
        *total = std::min(*total, r.max);
        *free = std::min(*free + idle, *total - std::min(*total, used));
        return e;
    }

    /// The memory of the current device goes, the program's and ours: the runtime frees only what it knows of.
    cudaError_t reset() noexcept {
        if (!open()) return real::cudaDeviceReset();
        const std::unique_lock lock(resets_);
        const inside here;
        const int device = current();
        if (device >= 0 && device < most_devices) {
            (void)real::cudaDeviceSynchronize();
            const std::lock_guard making(mutex_);
            published_[at(device)].store(nullptr);
            shares_[at(device)].reset();
            ledger_.forget(device);
        }
        return real::cudaDeviceReset();
    }

    void note_graph_node() noexcept {
        if (!open()) return;
        const std::shared_lock lock(resets_);
        const inside here;
        if (share* const s = share_of(current())) s->expect_graphs();
        graph_notice_.say();
    }

    void note_shared(const void* p) noexcept {
        if (!open()) return;
        const std::optional<held> h = ledger_.find(p);
        if (h && h->from == origin::arena) ipc_notice_.say();
    }

  private:
    static constexpr int most_devices = 128;
    static constexpr std::size_t alignment = 512;                   ///< bytes; no less than cudaMalloc gives
    static constexpr std::size_t impossible = std::size_t{1} << 62; ///< bytes that no GPU has

    program() : settings_(settings::get()) {
        (void)::pthread_atfork(nullptr, nullptr, [] { get().forked_.store(true); });
        if (settings_.summary) (void)std::atexit([] { get().summarise(); });
    }

    static std::size_t at(int device) noexcept { return static_cast<std::size_t>(device); }

    /// Returns: whether a call of the program is to be served. See rules 4 and 5.
    [[nodiscard]] bool open() noexcept {
        return !inside::now() && !forked_.load(std::memory_order_relaxed) &&
               cuda::process_state() == status::ok && right_runtime();
    }

    /// Returns: whether the program's runtime is of the version that this library was compiled for.
    [[nodiscard]] bool right_runtime() noexcept {
        int known = runtime_.load(std::memory_order_relaxed);
        if (known == 0) {
            int version = 0;
            if (real::cudaRuntimeGetVersion(&version) != cudaSuccess) return false;
            known = version / 1000 == CUDART_VERSION / 1000 ? 1 : 2;
            runtime_.store(known, std::memory_order_relaxed);
            if (known == 2)
                std::fprintf(
                    stderr,
                    "tenure run: the program has CUDA runtime %d.%d and this is for %d: nothing is limited\n",
                    version / 1000, version % 1000 / 10, CUDART_VERSION / 1000);
        }
        return known == 1;
    }

    static int current() noexcept {
        int device = 0;
        if (real::cudaGetDevice(&device) == cudaSuccess) return device;
        (void)real::cudaGetLastError();
        return -1;
    }

    static int device_of(cudaStream_t stream) noexcept {
        int device = 0;
        if (cuda::follows_current_device(stream)) return current();
        if (real::cudaStreamGetDevice(stream, &device) == cudaSuccess) return device;
        (void)real::cudaGetLastError();
        return current();
    }

    static bool capturing(cudaStream_t stream) noexcept {
        cudaStreamCaptureStatus c = cudaStreamCaptureStatusNone;
        if (real::cudaStreamIsCapturing(stream, &c) != cudaSuccess) {
            (void)real::cudaGetLastError();
            return true; // the legacy stream while another is captured: the runtime's to judge
        }
        return c != cudaStreamCaptureStatusNone;
    }

    /// Returns: null if the device cannot be had: then the runtime says why, by the program's own call.
    share* share_of(int device) noexcept {
        if (device < 0 || device >= most_devices) return nullptr;
        if (share* const s = published_[at(device)].load(std::memory_order_acquire)) return s;
        const std::lock_guard lock(mutex_);
        if (shares_[at(device)] != nullptr) return shares_[at(device)].get();
        try {
            shares_[at(device)] = std::make_unique<share>(device, settings_);
        } catch (const driver_error&) {
            return nullptr;
        } catch (const std::exception& e) {
            std::fprintf(stderr, "tenure run: %s\n", e.what());
            ::_exit(127);
        }
        published_[at(device)].store(shares_[at(device)].get(), std::memory_order_release);
        return shares_[at(device)].get();
    }

    /// Returns: the runtime's own answer to a request that cannot be served.
    static cudaError_t refuse() noexcept {
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; // it must harm no capture
        const bool relaxed = real::cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
        void* none = nullptr;
        const cudaError_t e = real::cudaMalloc(&none, impossible);
        if (relaxed) (void)real::cudaThreadExchangeStreamCaptureMode(&mode);
        if (e != cudaSuccess) return e;
        (void)real::cudaFree(none);
        return cudaErrorMemoryAllocation;
    }

    template <class Forward, class Allocate>
    cudaError_t serve(share& s, std::size_t n, void** p, Forward&& forward, Allocate&& allocate) noexcept {
        allocate_result r = allocate();
        if (!r && r.error().pending != 0 && s.device().synchronize() == status::ok) r = allocate();
        if (!r) {
            const failure_cause why = r.error().cause;
            const bool memory = why != failure_cause::driver && why != failure_cause::capture;
            return memory ? refuse() : count(s, n, p, forward, [&] { return n; });
        }
        try {
            ledger_.put(*r, {n, s.device().ordinal(), origin::arena});
        } catch (...) { // no host memory
            s.memory().release(*r);
            return refuse();
        }
        *p = *r;
        return cudaSuccess;
    }

    template <class Pointer, class Forward, class Actual>
    cudaError_t count(share& s, std::size_t estimate, Pointer* p, Forward&& forward,
                      Actual&& actual) noexcept {
        s.count_graphs();
        if (!s.charge(estimate)) return refuse();
        const cudaError_t e = forward();
        if (e != cudaSuccess) {
            s.refund(estimate);
            return e;
        }
        const std::size_t bytes = actual();
        if (bytes > estimate) s.charge_as_of_right(bytes - estimate);
        if (bytes < estimate) s.refund(estimate - bytes);
        try {
            ledger_.put(*p, {bytes, s.device().ordinal(), origin::counted});
        } catch (...) { // no host memory: it stays charged, which errs on the safe side
        }
        return cudaSuccess;
    }

    /// `by_runtime()`, `by_arena(share, held)`: give it back, and say how that went.
    template <class ByRuntime, class ByArena>
    cudaError_t give_back(const void* p, ByRuntime&& by_runtime, ByArena&& by_arena) noexcept {
        if (p == nullptr || inside::now() || forked_.load(std::memory_order_relaxed)) return by_runtime();
        const std::shared_lock lock(resets_);
        const std::optional<held> h = ledger_.take(p);
        if (!h) return by_runtime();
        const inside here;
        share* const s = published_[at(h->device)].load(std::memory_order_acquire);
        const bool gone = s == nullptr || cuda::process_state() != status::ok;
        if (h->from == origin::arena) {
            if (gone)
                return real::cudaFree(
                    nullptr); // the memory goes with the process; the runtime says how it is
            const cudaError_t e = by_arena(*s, *h);
            if (e != cudaSuccess) keep(p, *h);
            return e;
        }
        const cudaError_t e = by_runtime();
        if (e == cudaSuccess) {
            if (!gone) s->refund(h->bytes);
        } else {
            keep(p, *h);
        }
        return e;
    }

    void keep(const void* p, const held& h) noexcept {
        try {
            ledger_.put(p, h);
        } catch (...) { // no host memory: the block stays taken
        }
    }

    void summarise() noexcept {
        if (forked_.load()) return;
        for (int i = 0; i < most_devices; ++i) {
            const share* const s = published_[at(i)].load();
            if (s == nullptr) continue;
            try {
                const meter_reading r = s->limits();
                const usage_counters u = s->memory().usage();
                std::fprintf(stderr,
                             "tenure run: cuda:%d: at most %s held of %s; in blocks at most %s; %zu requests "
                             "refused\n",
                             i, format_bytes(r.peak).c_str(),
                             r.max == no_limit ? "no limit" : format_bytes(r.max).c_str(),
                             format_bytes(u.requested.peak).c_str(), u.failures);
            } catch (...) { // no host memory for a courtesy
            }
        }
    }

    const settings& settings_;
    ledger ledger_;
    notice graph_notice_{
        "memory that a CUDA graph allocates for itself is counted, but the limit cannot refuse it"};
    notice ipc_notice_{
        "memory of a pool is shared with another process: the handle is that of the whole segment. If the "
        "program fails there, run it with --policy none"};
    std::atomic<bool> forked_{false};
    std::atomic<int> runtime_{0}; ///< 0: not asked, 1: the right one, 2: another
    std::shared_mutex resets_;    ///< held alone while a device is reset
    std::mutex mutex_;            ///< guards what follows
    std::array<std::unique_ptr<share>, most_devices> shares_;
    std::array<std::atomic<share*>, most_devices> published_{}; ///< the same, to be read without the lock
};

} // namespace tenure::preload
