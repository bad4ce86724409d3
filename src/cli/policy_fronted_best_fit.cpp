#include "fronted_option_table.hpp"
#include "pool_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_best_fit_family() {
    return fronted_family_of<fronted_best_fit_pool>(
        "fronted_best_fit", "best_fit with magazines of each thread in front", pool_option_table());
}

} // namespace tenure::cli
