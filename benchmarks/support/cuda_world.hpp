#pragma once

/// \file
/// `cuda_world`: a GPU, for the benchmarks; see `worlds.hpp`.

#include "support/subjects.hpp"
#include "support/worlds.hpp"

#include <tenure/core/error.hpp>
#include <tenure/device/cuda_device.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

class cuda_world {
  public:
    using device_type = tenure::cuda::device;
    static constexpr const char* name = "cuda";

    /// Throws: `tenure::driver_error`; with `status::no_device` where there is no GPU.
    cuda_world() {
        streams_.reserve(max_streams);
        while (streams_.size() < max_streams) {
            tenure::stream_handle s = nullptr;
            if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess)
                throw tenure::driver_error(tenure::status::failed, "cudaStreamCreateWithFlags");
            streams_.push_back(s);
        }
    }
    ~cuda_world() {
        for (const tenure::stream_handle s : streams_) (void)cudaStreamDestroy(s);
    }
    cuda_world(const cuda_world&) = delete;
    cuda_world& operator=(const cuda_world&) = delete;

    [[nodiscard]] device_type& device() noexcept { return device_; }
    [[nodiscard]] tenure::stream_handle stream(std::size_t i) { return streams_.at(i); }
    [[nodiscard]] context describe() const {
        cudaDeviceProp properties{};
        int driver = 0;
        int runtime = 0;
        (void)cudaGetDeviceProperties(&properties, device_.ordinal());
        (void)cudaDriverGetVersion(&driver);
        (void)cudaRuntimeGetVersion(&runtime);
        return {{"device", properties.name},
                {"device_bytes", std::to_string(properties.totalGlobalMem)},
                {"cuda_driver", version_text(driver)},
                {"cuda_runtime", version_text(runtime)}};
    }

  private:
    /// "13.0" for 13000.
    static std::string version_text(int version) {
        return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    device_type device_;
    std::vector<tenure::stream_handle> streams_;
};

template <>
const std::vector<subject<tenure::cuda::device>>& subjects();

} // namespace bench
