#pragma once

/// \file
/// `cuda_world`: the GPUs, as `allocator` asks for them.
///
/// Everything goes through torch's own runtime library (libcudart is linked as torch links it, so both see one current
/// device), and the driver through `cuda::device`. Thread-safety: thread-safe.

#include "gate.hpp"
#include "ipc.hpp"
#include "options.hpp"
#include "outside_captures.hpp"

#include <tenure/device/cuda/guards.hpp>
#include <tenure/device/cuda_device.hpp>

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <string>

namespace tenure::torch {

template <>
struct outside_captures<cuda::device> {
    cuda::relaxed_capture relaxed{};
};

class cuda_world {
  public:
    using device_type = cuda::device;

    /// Throws: `driver_error`.
    [[nodiscard]] static std::unique_ptr<cuda::device> open(int ordinal, sharing share) {
        if (share == sharing::off) return std::make_unique<cuda::device>(ordinal);
        try {
            return std::make_unique<cuda::device>(ordinal, cuda::device_options{.shareable = true});
        } catch (const driver_error& e) {
            if (share == sharing::on || e.code() != status::not_supported) throw;
        }
        return std::make_unique<cuda::device>(ordinal);
    }

    [[nodiscard]] static int current_device() {
        c10::DeviceIndex device = 0;
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        return device;
    }
    [[nodiscard]] static stream_handle current_stream(int device) {
        return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
    }

    /// By torch's own call: it fails where torch's fails, and costs less than `cuda::device::synchronize`.
    static status wait_for_current_device(cuda::device&) noexcept {
        const cudaError_t e = cudaDeviceSynchronize();
        if (e != cudaSuccess) (void)cudaGetLastError();
        return cuda::to_status(e);
    }

    static void copy(void* to, const void* from, std::size_t n) {
        C10_CUDA_CHECK(cudaMemcpy(to, from, n, cudaMemcpyDeviceToDevice));
    }
    /// Mapped memory and that of driver pools can be copied between devices without peer access by the peer call only.
    static cudaError_t copy_async(void* to, int to_device, const void* from, int from_device, std::size_t n,
                                  cudaStream_t stream, bool peer) {
        if (peer || to_device == from_device)
            return cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, stream);
        return cudaMemcpyPeerAsync(to, to_device, from, from_device, n, stream);
    }

    static c10::cuda::CUDACachingAllocator::ShareableHandle share(gate<cuda::device>& through, void* p,
                                                                  std::size_t n) {
        return ipc::share(through, p, n);
    }
    std::shared_ptr<void> open_shared(cuda::device& d, const std::string& handle) {
        return opened_.open(d, handle);
    }

    /// Effects: device `user` may use the memory of `of`'s device, what there is and what will be.
    static void enable_peer(int user, gate<cuda::device>& of) {
        {
            const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(user));
            const cudaError_t e = cudaDeviceEnablePeerAccess(of.upstream().ordinal(), 0);
            if (e == cudaErrorPeerAccessAlreadyEnabled)
                (void)cudaGetLastError();
            else
                C10_CUDA_CHECK(e);
        }
        admit(user, of);
    }

    /// Effects: devices that may have been let use memory of `of`'s device before `of` was there may use its memory, too:
    /// those that can, and that this process uses. Torch asks for a pair once, and remembers the answer.
    static void admit_peers(gate<cuda::device>& of) {
        const int owner = of.upstream().ordinal();
        for (c10::DeviceIndex d = 0; d < c10::cuda::device_count(); ++d) {
            if (d == owner || !c10::cuda::hasPrimaryContext(d)) continue;
            int reaches = 0;
            C10_CUDA_CHECK(cudaDeviceCanAccessPeer(&reaches, d, owner));
            if (reaches != 0) admit(d, of);
        }
    }

  private:
    static void admit(int user, gate<cuda::device>& of) {
        const status s = of.admit(user, {.to_range = &grant_range, .to_pool = &grant_pool});
        TORCH_CHECK(s == status::ok, "tenure: device ", user, " gets no access to memory of device ",
                    of.upstream().ordinal(), ": ", to_string(s));
    }

    static status grant_pool(cuda::device&, pool_handle pool, int peer) noexcept {
        cudaMemAccessDesc access{};
        access.location.type = cudaMemLocationTypeDevice;
        access.location.id = peer;
        access.flags = cudaMemAccessFlagsProtReadWrite;
        const cudaError_t e = cudaMemPoolSetAccess(pool, &access, 1);
        if (e != cudaSuccess) (void)cudaGetLastError();
        return cuda::to_status(e);
    }

    static status grant_range(cuda::device& d, void* p, std::size_t bytes, int peer) noexcept {
        CUmemAccessDesc access{};
        access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access.location.id = peer;
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return cuda::to_status(d.driver().mem_set_access(to_address(p), bytes, &access, 1));
    }

    ipc::opened opened_;
};

} // namespace tenure::torch
