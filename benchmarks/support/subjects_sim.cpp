/// \file
/// The policies on the simulated device.

#include "support/subjects.hpp"

namespace bench {

template <>
const std::vector<subject<idle_device>>& subjects() {
    static const std::vector<subject<idle_device>> all = make_subjects<idle_device>();
    return all;
}

} // namespace bench
