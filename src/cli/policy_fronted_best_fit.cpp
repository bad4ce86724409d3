#include "fronted_option_table.hpp"
#include "pool_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_best_fit_family() {
    static const auto table = fronted_option_table(pool_option_table());
    policy_family family = family_of<fronted_best_fit_pool>(
        "fronted_best_fit", "best_fit with magazines of each thread in front", table);
    family.in_all = false;
    return family;
}

} // namespace tenure::cli
