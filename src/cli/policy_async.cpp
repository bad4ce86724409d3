#include "policy_of.hpp"

#include <tenure/policy/async_pool.hpp>

namespace tenure::cli {

namespace {

const std::vector<option_entry<async_options>>& table() {
    static const std::vector<option_entry<async_options>> entries{
        bytes_option("max_bytes", &async_options::max_bytes, "the driver's own limit, in its steps; 0: none"),
        switch_option("reuse_follows_events", &async_options::reuse_follows_events,
                      "on streams that stand behind the free"),
        switch_option("reuse_when_passed", &async_options::reuse_when_passed,
                      "on any stream once the work before the free is over"),
        switch_option("reuse_makes_streams_wait", &async_options::reuse_makes_streams_wait,
                      "on a GPU: on any stream, which then waits"),
    };
    return entries;
}

} // namespace

policy_family async_family() {
    return family_of<async_pool>("async", "cudaMallocAsync on a pool of its own", table(),
                                 late_free::at_completion);
}

} // namespace tenure::cli
