#include "policy_of.hpp"

#include <tenure/policy/async_pool.hpp>

namespace tenure::cli {

namespace {

const std::vector<option_entry<async_options>>& table() {
    static const std::vector<option_entry<async_options>> entries{
        {"max_bytes", "BYTES  the driver's own limit, which it rounds up to its steps (0: none)",
         [](async_options& o, std::string_view v) { o.max_bytes = parse_bytes(v); }},
    };
    return entries;
}

} // namespace

policy_family async_family() {
    return family_of<async_pool>("async", "cudaMallocAsync on a pool of its own", table(),
                                 late_free::at_completion);
}

} // namespace tenure::cli
