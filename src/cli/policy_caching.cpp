#include "caching_option_table.hpp"
#include "policy_of.hpp"

namespace tenure::cli {

policy_family caching_family() {
    return family_of<caching_pool>("caching", "PyTorch's scheme; without options, PyTorch's settings",
                                   caching_option_table());
}

} // namespace tenure::cli
