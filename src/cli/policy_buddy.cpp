#include "policy_of.hpp"
#include "pool_option_table.hpp"

#include <tenure/policy/buddy_pool.hpp>

namespace tenure::cli {

policy_family buddy_family() {
    return family_of<buddy_pool>("buddy", "powers of two, merged with their buddies", pool_option_table());
}

} // namespace tenure::cli
