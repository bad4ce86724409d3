#include "policy_of.hpp"
#include "pool_option_table.hpp"

#include <tenure/policy/best_fit_pool.hpp>

namespace tenure::cli {

policy_family best_fit_family() {
    return family_of<best_fit_pool>("best_fit", "the smallest free block that fits, split and merged",
                                    pool_option_table());
}

} // namespace tenure::cli
