#include "policy_of.hpp"

#include <tenure/policy/caching_pool.hpp>

#include <charconv>
#include <string>

namespace tenure::cli {

namespace {

double parse_fraction(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size())
        throw std::invalid_argument("\"" + std::string(text) + "\" is not a number");
    return value;
}

/// The defaults, and so what the help says, are `caching_options::pytorch()`.
const std::vector<option_entry<caching_options>>& table() {
    using options = caching_options;
    static const std::vector<option_entry<options>> entries{
        {"min_block", "BYTES  every block is a multiple of it (512)",
         [](options& o, std::string_view v) { o.min_block = parse_bytes(v); }},
        {"small_size", "BYTES  up to here, blocks share small segments (1MiB)",
         [](options& o, std::string_view v) { o.small_size = parse_bytes(v); }},
        {"small_segment", "BYTES  bought for small blocks (2MiB)",
         [](options& o, std::string_view v) { o.small_segment = parse_bytes(v); }},
        {"large_segment", "BYTES  bought for larger blocks (20MiB)",
         [](options& o, std::string_view v) { o.large_segment = parse_bytes(v); }},
        {"min_large_alloc", "BYTES  from here on, a block gets a segment of its own size (10MiB)",
         [](options& o, std::string_view v) { o.min_large_alloc = parse_bytes(v); }},
        {"round_large", "BYTES  such a segment is a multiple of it (2MiB)",
         [](options& o, std::string_view v) { o.round_large = parse_bytes(v); }},
        {"max_split", "BYTES  blocks from here on are never split (none)",
         [](options& o, std::string_view v) { o.max_split = parse_bytes(v); }},
        {"max_non_split_rounding", "BYTES  how much too large such a block may be (20MiB)",
         [](options& o, std::string_view v) { o.max_non_split_rounding = parse_bytes(v); }},
        {"roundup_power2_divisions", "N, or a list by MiB: [256:1,512:2,>:8] (0)",
         [](options& o, std::string_view v) {
             o.roundup_power2_divisions = parse_roundup_power2_divisions(v);
         }},
        {"gc_threshold", "FRACTION  of the limit, above which old free segments go back (0: off)",
         [](options& o, std::string_view v) { o.garbage_collection_threshold = parse_fraction(v); }},
        {"synchronize_on_oom", "on|off  wait for other streams before failing (on)",
         [](options& o, std::string_view v) { o.synchronize_on_oom = parse_switch(v); }},
        {"release_all_on_oom", "on|off  give all free segments back before failing, not just enough (on)",
         [](options& o, std::string_view v) { o.release_all_on_oom = parse_switch(v); }},
        {"cross_stream_reuse", "on|off  reuse blocks on other streams once it is safe (off)",
         [](options& o, std::string_view v) { o.cross_stream_reuse = parse_switch(v); }},
    };
    return entries;
}

} // namespace

policy_family caching_family() {
    return family_of<caching_pool>("caching", "PyTorch's scheme; without options, PyTorch's settings",
                                   table());
}

} // namespace tenure::cli
