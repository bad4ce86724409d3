#include "policy_of.hpp"

#include <tenure/policy/async_pool.hpp>

namespace tenure::cli {

namespace {

const std::vector<option_entry<async_options>>& table() {
    static const std::vector<option_entry<async_options>> entries{
        bytes_option("max_bytes", &async_options::max_bytes, "the driver's own limit, in its steps; 0: none"),
    };
    return entries;
}

} // namespace

policy_family async_family() {
    return family_of<async_pool>("async", "cudaMallocAsync on a pool of its own", table(),
                                 late_free::at_completion);
}

} // namespace tenure::cli
