#pragma once

/// \file
/// `policy_choice`: which policy an arena is to have, and the policy's own options, as texts.
///
///     remap                                        the name alone
///     caching:max_split=512MiB,gc_threshold=0.8    with options, where all must stand in one word
///     max_split=512MiB\ngc_threshold=0.8           the options alone, one a line
///
/// Only the form is looked at here; what a policy knows says `with_policy.hpp`. Plain values; thread-compatible.

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::policies {

/// All that `with_policy` knows.
inline constexpr const char* policy_names =
    "remap caching best_fit async fronted_remap fronted_caching fronted_best_fit";

struct option {
    std::string key;
    std::string value;
    friend bool operator==(const option&, const option&) = default;
};

struct policy_choice {
    std::string name = "remap";
    std::vector<option> options{};
    friend bool operator==(const policy_choice&, const policy_choice&) = default;
};

/// Returns: the options in `text`, which end with `separator` each, in order; empty ones are left out. Throws:
/// `std::invalid_argument` for one without "=".
inline std::vector<option> parse_options(std::string_view text, char separator = '\n') {
    std::vector<option> all;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find(separator), text.size());
        const std::string_view one = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (one.empty()) continue;
        const std::size_t equals = one.find('=');
        if (equals == std::string_view::npos || equals == 0)
            throw std::invalid_argument("option \"" + std::string(one) + "\" is not of the form key=value");
        all.push_back({std::string(one.substr(0, equals)), std::string(one.substr(equals + 1))});
    }
    return all;
}

/// Returns: what "name" or "name:key=value,key=value" says. Throws: `std::invalid_argument`.
inline policy_choice parse_policy(std::string_view text) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    policy_choice choice{.name = std::string(text.substr(0, colon))};
    if (choice.name.empty()) throw std::invalid_argument("a policy needs a name");
    if (colon < text.size()) choice.options = parse_options(text.substr(colon + 1), ',');
    return choice;
}

} // namespace tenure::policies
