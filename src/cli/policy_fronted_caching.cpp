#include "caching_option_table.hpp"
#include "fronted_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>

namespace tenure::cli {

policy_family fronted_caching_family() {
    return fronted_family_of<fronted_caching_pool>(
        "fronted_caching", "caching with magazines of each thread in front", caching_option_table());
}

} // namespace tenure::cli
