#include "caching_option_table.hpp"
#include "policy_of.hpp"
#include "pool_option_table.hpp"

#include <tenure/policy/slab_and_caching.hpp>

namespace tenure::cli {

namespace {

using options = binned_options<pool_options, caching_options>;

const std::vector<option_entry<options>>& table() {
    static const std::vector<option_entry<options>> entries = [] {
        std::vector<option_entry<options>> all{
            bytes_option("threshold", &options::threshold, "the largest request that goes to the slabs")};
        for (const option_entry<pool_options>& e : pool_option_table()) {
            all.push_back({"small." + e.name, e.value, e.help,
                           [&e](options& o, std::string_view text) { e.set(o.small, text); }});
        }
        for (const option_entry<caching_options>& e : caching_option_table()) {
            all.push_back({"large." + e.name, e.value, e.help,
                           [&e](options& o, std::string_view text) { e.set(o.large, text); }});
        }
        return all;
    }();
    return entries;
}

} // namespace

policy_family binned_family() {
    return family_of<slab_and_caching>("binned", "small blocks to slabs, large ones to caching", table());
}

} // namespace tenure::cli
