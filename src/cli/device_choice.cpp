#include "device_choice.hpp"

#if defined(TENURE_HAVE_CUDA)
#include "gpu/gpu.hpp"
#endif

#include <charconv>
#include <string_view>

namespace tenure::cli {

device_choice parse_device(const std::string& name) {
    if (name == "sim") return {};
    device_choice choice{device_kind::cuda, 0};
    const std::string_view text = name;
    const std::string_view number = text.substr(0, 5) == "cuda:" ? text.substr(5) : std::string_view("0");
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), choice.ordinal);
    const bool known = text == "cuda" || text.substr(0, 5) == "cuda:";
    if (!known || error != std::errc{} || end != number.data() + number.size() || choice.ordinal < 0)
        throw usage_error("unknown device \"" + name + "\" (known: sim cuda cuda:N)");
#if !defined(TENURE_HAVE_CUDA)
    throw usage_error("--device " + name + ": this program was built without CUDA; use --device sim");
#else
    return choice;
#endif
}

#if defined(TENURE_HAVE_CUDA)

std::shared_ptr<gpu_device> open_gpu(const device_choice& choice) {
    if (choice.kind == device_kind::sim) return nullptr;
    try {
        return std::make_shared<gpu_device>(choice.ordinal);
    } catch (const driver_error& e) {
        throw usage_error(e.what());
    }
}

std::size_t free_bytes(gpu_device& gpu) {
    const auto now = gpu.device().memory();
    if (!now) throw replay_error(std::string("asking for free memory: ") + to_string(now.error()));
    return now->free;
}

std::string description(gpu_device& gpu) {
    return gpu.text();
}

#else

std::shared_ptr<gpu_device> open_gpu(const device_choice&) {
    return nullptr;
}

// There is none to ask.
std::size_t free_bytes(gpu_device&) {
    return 0;
}

std::string description(gpu_device&) {
    return {};
}

#endif

} // namespace tenure::cli
