#pragma once

/// \file
/// `nvml`: what the NVIDIA Management Library says of a device's memory, where it is installed.
///
///     libnvidia-ml.so.1  <--dlopen--  six functions  -->  nvml_reading
///
/// The library comes with the driver, is in containers that ask for the `utility` capability, and needs no CUDA context. It
/// sees the whole card and all processes on it, where `cudaMemGetInfo` sees what the process may have.
///
/// Nothing is linked; without the library, or without one of the functions, `open` says so and nothing else changes.
/// Thread-safety: thread-safe, as the library is.

#include <tenure/tenancy/process.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include <dlfcn.h>
#include <unistd.h>

namespace tenure {

/// Bytes unless the name says otherwise.
struct nvml_reading {
    std::size_t total = 0; ///< of the card
    std::size_t free = 0;  ///< of the card
    bool mig = false;      ///< it is partitioned, so a process has a part of it only
    std::optional<std::size_t>
        by_process; ///< used by this process; nothing if the driver does not tell, or means other pids (in a container)
    std::size_t processes = 0; ///< number of processes that compute on it, as far as they are shown
};

/// The functions, with the types of nvml.h that they need. Null: not there.
struct nvml_api {
    using device = void*;
    struct memory {
        unsigned long long total, free, used;
    };
    struct process {
        unsigned pid;
        unsigned long long used;
        unsigned gpu_instance, compute_instance;
    };
    int (*init)() = nullptr;
    int (*shutdown)() = nullptr;
    int (*device_by_bus_id)(const char*, device*) = nullptr;
    int (*device_memory)(device, memory*) = nullptr;
    int (*mig_mode)(device, unsigned* current, unsigned* pending) = nullptr;
    int (*processes)(device, unsigned* count, process*) = nullptr;

    /// Returns: the functions of the library, all null without it. It is never unloaded.
    static nvml_api load(const char* library = "libnvidia-ml.so.1") noexcept {
        nvml_api api;
        void* const handle = ::dlopen(library, RTLD_LAZY | RTLD_LOCAL);
        if (handle == nullptr) return api;
        const auto find = [handle](auto& function, const char* name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
        };
        find(api.init, "nvmlInit_v2");
        find(api.shutdown, "nvmlShutdown");
        find(api.device_by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
        find(api.device_memory, "nvmlDeviceGetMemoryInfo");
        find(api.mig_mode, "nvmlDeviceGetMigMode");
        find(api.processes, "nvmlDeviceGetComputeRunningProcesses_v3");
        return api;
    }
};

class nvml {
  public:
    /// `bus_id`: of the device, as `cudaDeviceGetPCIBusId` gives it. Returns: null where the library, a function that is needed
    /// or the device is not there.
    static std::unique_ptr<nvml> open(const std::string& bus_id, const nvml_api& api = nvml_api::load()) {
        if (api.init == nullptr || api.shutdown == nullptr || api.device_by_bus_id == nullptr ||
            api.device_memory == nullptr || api.init() != success)
            return nullptr;
        nvml_api::device device = nullptr;
        if (api.device_by_bus_id(bus_id.c_str(), &device) == success)
            return std::unique_ptr<nvml>(new nvml(api, device));
        (void)api.shutdown();
        return nullptr;
    }

    ~nvml() { (void)api_.shutdown(); }
    nvml(const nvml&) = delete;
    nvml& operator=(const nvml&) = delete;

    /// Returns: nothing if the device does not answer any more. Cost: some tens of microseconds.
    [[nodiscard]] std::optional<nvml_reading> read() const {
        nvml_api::memory m{};
        if (api_.device_memory(device_, &m) != success) return std::nullopt;
        nvml_reading r;
        r.total = m.total;
        r.free = m.free;
        unsigned now = 0;
        unsigned pending = 0;
        r.mig = api_.mig_mode != nullptr && api_.mig_mode(device_, &now, &pending) == success && now == 1;
        if (api_.processes != nullptr) {
            std::array<nvml_api::process, 128> all{};
            auto count = static_cast<unsigned>(all.size());
            if (api_.processes(device_, &count, all.data()) == success) {
                r.processes = count;
                const bool same_pids = in_first_pid_namespace();
                for (unsigned i = 0; same_pids && i < count && i < all.size(); ++i)
                    if (all[i].pid == static_cast<unsigned>(::getpid()) && all[i].used != not_told)
                        r.by_process = r.by_process.value_or(0) + all[i].used;
            }
        }
        return r;
    }

  private:
    static constexpr int success = 0;
    static constexpr unsigned long long not_told = ~0ull;
    nvml(const nvml_api& api, nvml_api::device device) noexcept : api_(api), device_(device) {}
    const nvml_api api_;
    const nvml_api::device device_;
};

} // namespace tenure
