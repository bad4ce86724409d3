#pragma once

/// \file
/// The options of PyTorch's scheme; the defaults are PyTorch's.

#include "option_entry.hpp"

#include <tenure/policy/caching_pool.hpp>

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::cli {

inline const std::vector<option_entry<caching_options>>& caching_option_table() {
    using options = caching_options;
    static const std::vector<option_entry<options>> table{
        bytes_option("min_block", &options::min_block, "every block is a multiple of it"),
        bytes_option("small_size", &options::small_size, "up to here, blocks share small segments"),
        bytes_option("small_segment", &options::small_segment, "bought for small blocks"),
        bytes_option("large_segment", &options::large_segment, "bought for larger blocks"),
        bytes_option("min_large_alloc", &options::min_large_alloc,
                     "from here on, a block gets a segment of its own size"),
        bytes_option("round_large", &options::round_large, "such a segment is a multiple of it"),
        bytes_option("max_split", &options::max_split, "blocks from here on are never split"),
        bytes_option("max_non_split_rounding", &options::max_non_split_rounding,
                     "how much too large such a block may be"),
        {"roundup_power2_divisions", "N|LIST",
         "steps from one power of two to the next; by MiB: [256:1,>:8] (0)",
         [](options& o, std::string_view text) {
             o.roundup_power2_divisions = parse_roundup_power2_divisions(text);
         }},
        {"gc_threshold", "FRACTION", "of the limit, above which old free segments go back (0: never)",
         [](options& o, std::string_view text) {
             double value = 0;
             const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
             if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0.0 && value < 1.0))
                 throw std::invalid_argument("\"" + std::string(text) +
                                             "\" is not a fraction from 0 to below 1");
             o.garbage_collection_threshold = value;
         }},
        switch_option("synchronize_on_oom", &options::synchronize_on_oom,
                      "wait for other streams before failing"),
        switch_option("release_all_on_oom", &options::release_all_on_oom,
                      "give all free segments back before failing, not just enough"),
        switch_option("cross_stream_reuse", &options::cross_stream_reuse,
                      "reuse blocks on other streams once it is safe"),
    };
    return table;
}

} // namespace tenure::cli
