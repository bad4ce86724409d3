// Every policy on the simulated device.

#include "gate.hpp"

#include "../../src/policies/make_named_arena.hpp"

#include <tenure/device/sim_device.hpp>

namespace tenure::policies {

template std::unique_ptr<named_arena> make_named_arena(const policy_choice&, meter*,
                                                       torch::gate<sim::device>&, arena_options,
                                                       const caching_options&);

} // namespace tenure::policies
