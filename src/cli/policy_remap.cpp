#include "policy_of.hpp"
#include "remap_option_table.hpp"

#include <tenure/policy/remap_pool.hpp>

namespace tenure::cli {

policy_family remap_family() {
    return family_of<remap_pool>("remap", "free memory shown in a row behind new addresses",
                                 remap_option_table());
}

} // namespace tenure::cli
