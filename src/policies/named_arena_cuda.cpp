// Every policy on a GPU.

#include "make_named_arena.hpp"

#include <tenure/device/cuda_device.hpp>
#include <tenure/tenancy/hub.hpp>

namespace tenure::policies {

template std::unique_ptr<named_arena> make_named_arena(const policy_choice&, meter*, hub<cuda::device>&,
                                                       arena_options, const caching_options&);

} // namespace tenure::policies
