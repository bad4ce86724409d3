// The device "sim".

#include "host_device.hpp"
#include "opened_device.hpp"

#include <memory>

namespace tenure::c {
namespace {

class opened_sim final : public opened_device_of<host_device> {
  public:
    using opened_device_of::opened_device_of;

    [[nodiscard]] bool host() const noexcept override { return true; }
    [[nodiscard]] int ordinal() const noexcept override { return 0; }
    result<stream_handle, status> create_stream() override { return device_.create_stream(); }
    status destroy_stream(stream_handle stream) override {
        const result<stream_state, status> known = device_.describe(stream);
        if (!known || stream == default_stream) return status::invalid_value;
        device_.destroy_stream(stream);
        return status::ok;
    }
};

} // namespace

std::unique_ptr<opened_device> open_sim(const device_settings& settings) {
    return std::make_unique<opened_sim>(settings.hub, settings.capacity);
}

} // namespace tenure::c
