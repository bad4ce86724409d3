// Every policy on the simulated device.

#include "gate.hpp"
#include "policies_make.hpp"

#include <tenure/device/sim_device.hpp>

namespace tenure::torch {

template std::unique_ptr<arena_memory> make_arena_memory(const policy_choice&, const caching_options&,
                                                         gate<sim::device>&, const std::string&, std::size_t);

} // namespace tenure::torch
