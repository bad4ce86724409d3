#include "policies.hpp"

#include <algorithm>
#include <utility>

namespace tenure::cli {

namespace {

/// Returns: the parts of `text` between the separators that stand outside brackets.
std::vector<std::string_view> split_outside_brackets(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    std::size_t begin = 0;
    int depth = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '[') ++depth;
        if (text[i] == ']') --depth;
        if (text[i] != separator || depth > 0) continue;
        parts.push_back(text.substr(begin, i - begin));
        begin = i + 1;
    }
    parts.push_back(text.substr(begin));
    return parts;
}

std::string known_names() {
    std::string names;
    for (const policy_family& f : families()) names += std::string(f.name) + " ";
    return names + "all";
}

named_policy parse_policy(std::string_view spec) {
    const std::vector<std::string_view> parts = split_outside_brackets(spec, ':');
    const std::vector<policy_family>& all = families();
    const auto family =
        std::find_if(all.begin(), all.end(), [&](const policy_family& f) { return parts.front() == f.name; });
    if (family == all.end()) {
        throw usage_error("unknown policy \"" + std::string(parts.front()) + "\" (known: " + known_names() +
                          ")");
    }
    named_policy result{std::string(spec), family->make()};
    for (std::size_t i = 1; i < parts.size(); ++i) {
        const std::size_t equals = parts[i].find('=');
        const std::string_view option = parts[i].substr(0, equals);
        if (equals == std::string_view::npos) {
            // Misspelt or not, say first whether there is such an option at all.
            if (!option.empty()) result.run->set(option, "");
            throw usage_error("policy " + std::string(spec) + ": write option=value, not \"" +
                              std::string(option) + "\"");
        }
        result.run->set(option, parts[i].substr(equals + 1));
    }
    result.run->check();
    return result;
}

std::vector<policy_family>& known_families() {
    static std::vector<policy_family> all = [] {
        std::vector<policy_family> list;
        list.push_back(best_fit_family());
        list.push_back(buddy_family());
        list.push_back(slab_family());
        list.push_back(caching_family());
        list.push_back(async_family());
        list.push_back(remap_family());
        list.push_back(binned_family());
        list.push_back(fronted_best_fit_family());
        list.push_back(fronted_caching_family());
        list.push_back(fronted_remap_family());
        return list;
    }();
    return all;
}

} // namespace

const std::vector<policy_family>& families() {
    return known_families();
}

void add_family(policy_family family) {
    known_families().push_back(std::move(family));
}

std::vector<named_policy> parse_policies(std::string_view list) {
    std::vector<named_policy> policies;
    for (const std::string_view spec : split_outside_brackets(list, ',')) {
        if (spec != "all") {
            policies.push_back(parse_policy(spec));
            continue;
        }
        for (const policy_family& f : families())
            if (f.in_all) policies.push_back({f.name, f.make()});
    }
    return policies;
}

std::string policies_help() {
    std::string text;
    for (const policy_family& f : families()) {
        std::string name = f.name;
        name.resize(std::max<std::size_t>(name.size() + 1, 18), ' ');
        text += "  " + name + f.help + "\n" + f.options_help;
    }
    return text;
}

} // namespace tenure::cli
