#include "fronted_option_table.hpp"
#include "remap_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_remap_family() {
    static const auto table = fronted_option_table(remap_option_table());
    policy_family family =
        family_of<fronted_remap_pool>("fronted_remap", "remap with magazines of each thread in front", table);
    family.in_all = false;
    return family;
}

} // namespace tenure::cli
