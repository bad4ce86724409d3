#include "policy_of.hpp"
#include "pool_option_table.hpp"

#include <tenure/policy/slab_pool.hpp>

namespace tenure::cli {

policy_family slab_family() {
    return family_of<slab_pool>("slab", "equal slots per size class", pool_option_table());
}

} // namespace tenure::cli
