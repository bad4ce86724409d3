#include "async_option_table.hpp"
#include "policy_of.hpp"

#include <tenure/policy/async_pool.hpp>

namespace tenure::cli {

policy_family async_family() {
    return family_of<async_pool>("async", "cudaMallocAsync on a pool of its own", async_option_table(),
                                 late_free::at_completion);
}

} // namespace tenure::cli
