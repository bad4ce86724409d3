#include "caching_option_table.hpp"
#include "fronted_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_caching_family() {
    static const auto table = fronted_option_table(caching_option_table());
    policy_family family = family_of<fronted_caching_pool>(
        "fronted_caching", "caching with magazines of each thread in front", table);
    family.in_all = false;
    return family;
}

} // namespace tenure::cli
