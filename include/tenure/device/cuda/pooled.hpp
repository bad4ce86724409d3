#pragma once

/// \file
/// `cuda::pooled<Base>`: a device on a GPU that has driver pools, too (`cudaMemPool_t`), as `tenure::pool_device` asks.
///
///     basic_device<plain_memory>  <-- pooled <-- device              pools of GPU memory
///     basic_device<pinned_memory> <-- pooled <-- host_pool_device    pools of host memory
///
/// A pool gives its memory out in stream order, whatever the memory is. Invariants, and what a call costs: see
/// `cuda_device.hpp`. Thread-safety: thread-safe; the object does not change after construction.

#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/cuda/basic_device.hpp>
#include <tenure/device/device.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tenure::cuda {
inline namespace TENURE_CUDA_DEFAULT_STREAM {

template <class Base>
class pooled : public Base {
  public:
    /// Returns: whether there are driver pools here. Where not, `create_pool` answers `not_supported`.
    [[nodiscard]] bool supports_pools() const noexcept { return has_pools_; }

    /// The driver grows pools, and rounds their limit up, in steps of this size; it offers no query for it.
    [[nodiscard]] std::size_t pool_step() const noexcept { return 32_MiB; }

    /// Returns: a pool; `not_supported` if there are none here, or a peer cannot reach its memory; or the driver's answer.
    result<pool_handle, status> create_pool(const pool_properties& properties) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        if (!has_pools_) return status::not_supported;
        const current_device here(this->ordinal(), this->only_one_device());
        const relaxed_capture relaxed;
        cudaMemPoolProps p{};
        p.allocType = cudaMemAllocationTypePinned;
        p.handleTypes = handles_;
        p.location = location_;
        p.maxSize = properties.max_bytes;
        pool_handle pool = nullptr;
        if (const status s = settle(cudaMemPoolCreate(&pool, &p)); s != status::ok) return s;
        const status s = set_up(pool, properties);
        if (s == status::ok) return pool;
        (void)settle(cudaMemPoolDestroy(pool));
        return s;
    }

    status destroy_pool(pool_handle pool) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaMemPoolDestroy(pool));
    }

    result<void*, status> allocate_from(pool_handle pool, std::size_t bytes, stream_handle stream) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(this->ordinal(), this->only_one_device());
        if (const status s = this->not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        void* pointer = nullptr;
        if (const status s = settle(cudaMallocFromPoolAsync(&pointer, bytes, pool, stream)); s != status::ok)
            return s;
        return pointer;
    }

    /// A free on a capturing stream is refused too: it would become a node that frees again at every launch.
    status deallocate_to(pool_handle /*pool*/, void* pointer, stream_handle stream) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const current_device here(this->ordinal(), this->only_one_device());
        if (const status s = this->not_capturing(stream); s != status::ok) return s;
        const relaxed_capture relaxed;
        return settle(cudaFreeAsync(pointer, stream));
    }

    status trim_pool(pool_handle pool, std::size_t bytes_to_keep) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const relaxed_capture relaxed;
        // The driver overflows with numbers near the largest, and gives everything back (observed, driver 580).
        return settle(cudaMemPoolTrimTo(pool, std::min<std::size_t>(bytes_to_keep, 256_TiB)));
    }

    result<pool_memory, status> memory_of(pool_handle pool) noexcept {
        if (const status s = process_state(); s != status::ok) return s;
        const relaxed_capture relaxed;
        std::uint64_t reserved = 0;
        std::uint64_t used = 0;
        if (const status s =
                settle(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
            s != status::ok) {
            return s;
        }
        if (const status s = settle(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
            s != status::ok) {
            return s;
        }
        return pool_memory{reserved, used};
    }

  protected:
    /// `location`: whose memory the pools have; `handles`: how other processes may get at it.
    pooled(int ordinal, cudaMemLocation location, cudaMemAllocationHandleType handles)
        : Base(ordinal), location_(location), handles_(handles) {}
    ~pooled() = default;

    void have_no_pools() noexcept { has_pools_ = false; }

  private:
    status set_up(pool_handle pool, const pool_properties& wanted) noexcept {
        std::uint64_t threshold = wanted.release_threshold;
        if (const status s =
                settle(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
            s != status::ok)
            return s;
        const bool said =
            say(pool, cudaMemPoolReuseFollowEventDependencies, wanted.reuse_follows_events) &&
            say(pool, cudaMemPoolReuseAllowOpportunistic, wanted.reuse_when_passed) &&
            say(pool, cudaMemPoolReuseAllowInternalDependencies, wanted.reuse_makes_streams_wait);
        if (!said) return status::failed;
        // Host memory is nobody's but the host's, unless it is said.
        if (location_.type != cudaMemLocationTypeDevice)
            if (const status s = give_access(pool, this->ordinal()); s != status::ok) return s;
        for (int peer = 0; peer < 64; ++peer) {
            if ((wanted.peers >> peer & 1) == 0 || peer == this->ordinal()) continue;
            if (const status s = give_access_to_peer(pool, peer); s != status::ok) return s;
        }
        return status::ok;
    }

    static bool say(pool_handle pool, cudaMemPoolAttr attribute, bool on) noexcept {
        int value = on ? 1 : 0;
        return settle(cudaMemPoolSetAttribute(pool, attribute, &value)) == status::ok;
    }

    status give_access(pool_handle pool, int device) noexcept {
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = device;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        return settle(cudaMemPoolSetAccess(pool, &access, 1));
    }

    status give_access_to_peer(pool_handle pool, int peer) noexcept {
        int count = 0;
        if (const status s = settle(cudaGetDeviceCount(&count)); s != status::ok) return s;
        if (peer >= count) return status::not_supported;
        if (location_.type == cudaMemLocationTypeDevice) {
            int reaches = 0;
            if (const status s = settle(cudaDeviceCanAccessPeer(&reaches, peer, this->ordinal()));
                s != status::ok)
                return s;
            if (reaches == 0) return status::not_supported;
        }
        return give_access(pool, peer);
    }

    cudaMemLocation location_;
    cudaMemAllocationHandleType handles_;
    bool has_pools_ = true;
};

} // namespace TENURE_CUDA_DEFAULT_STREAM
} // namespace tenure::cuda
