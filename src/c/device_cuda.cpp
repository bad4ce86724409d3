// The devices "cuda:0", "cuda:1", ...

#include "opened_device.hpp"

#include <tenure/device/cuda_device.hpp>

#include <memory>

namespace tenure::c {
namespace {

class opened_cuda final : public opened_device_of<cuda::device> {
  public:
    using opened_device_of::opened_device_of;

    [[nodiscard]] bool host() const noexcept override { return false; }
    [[nodiscard]] int ordinal() const noexcept override { return device_.ordinal(); }
    result<stream_handle, status> create_stream() override {
        if (const status s = cuda::process_state(); s != status::ok) return s;
        const cuda::relaxed_capture relaxed;
        const cuda::current_device here(device_.ordinal(), false);
        cudaStream_t stream = nullptr;
        const status s = cuda::settle(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        if (s != status::ok) return s;
        return stream;
    }
    status destroy_stream(stream_handle stream) override {
        if (const status s = cuda::process_state(); s != status::ok) return s;
        const cuda::relaxed_capture relaxed;
        return cuda::settle(cudaStreamDestroy(stream));
    }
};

} // namespace

std::unique_ptr<opened_device> open_cuda(int ordinal, const device_settings& settings) {
    return std::make_unique<opened_cuda>(settings.hub, ordinal);
}

} // namespace tenure::c
