#include "fronted_option_table.hpp"
#include "remap_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_remap_family() {
    return fronted_family_of<fronted_remap_pool>(
        "fronted_remap", "remap with magazines of each thread in front", remap_option_table());
}

} // namespace tenure::cli
