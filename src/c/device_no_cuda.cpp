// In the place of device_cuda.cpp where the library is built without CUDA.

#include "failure.hpp"
#include "opened_device.hpp"

#include <memory>

namespace tenure::c {

std::unique_ptr<opened_device> open_cuda(int, const device_settings&) {
    throw coded_error(TENURE_NOT_SUPPORTED,
                      "this library was built without CUDA; it has only the device \"sim\"");
}

} // namespace tenure::c
