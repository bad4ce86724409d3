// Every policy on the device "sim".

#include "host_device.hpp"

#include "../policies/make_named_arena.hpp"

#include <tenure/tenancy/hub.hpp>

namespace tenure::policies {

template std::unique_ptr<named_arena> make_named_arena(const policy_choice&, meter*, hub<c::host_device>&,
                                                       arena_options, const caching_options&);

} // namespace tenure::policies
