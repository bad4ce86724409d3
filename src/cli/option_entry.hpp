#pragma once

/// \file
/// `option_entry`: one option of a policy as people write it, and the common kinds of them.

#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace tenure::cli {

/// One option as a command line sees it. The help names the default as the library has it.
template <class Options>
struct option_entry {
    std::string name;
    std::string value; ///< what to write: "BYTES", "on|off"
    std::string help;
    std::function<void(Options&, std::string_view value)> set; ///< Throws: `std::invalid_argument`.
};

template <class Options>
option_entry<Options> bytes_option(std::string name, std::size_t Options::*member, const std::string& help) {
    const std::size_t preset = Options{}.*member;
    return {std::move(name), "BYTES",
            help + " (" + (preset == no_limit ? "none" : format_bytes(preset)) + ")",
            [member](Options& o, std::string_view text) { o.*member = parse_bytes(text); }};
}

template <class Options>
option_entry<Options> count_option(std::string name, std::size_t Options::*member, const std::string& help) {
    return {std::move(name), "N", help + " (" + std::to_string(Options{}.*member) + ")",
            [member](Options& o, std::string_view text) {
                std::size_t value = 0;
                const char* const end = text.data() + text.size();
                const auto [stop, error] = std::from_chars(text.data(), end, value);
                if (error != std::errc{} || stop != end || text.empty())
                    throw std::invalid_argument("\"" + std::string(text) + "\" is no whole number");
                o.*member = value;
            }};
}

/// Returns: whether a switch is on. Throws: `std::invalid_argument` for what is neither "on" nor "off".
inline bool is_on(std::string_view text) {
    if (text == "on" || text == "off") return text == "on";
    throw std::invalid_argument("\"" + std::string(text) + "\" is neither on nor off");
}

template <class Options>
option_entry<Options> switch_option(std::string name, bool Options::*member, const std::string& help) {
    return {std::move(name), "on|off", help + (Options{}.*member ? " (on)" : " (off)"),
            [member](Options& o, std::string_view text) { o.*member = is_on(text); }};
}

/// Returns: the options of a table, a line each.
template <class Options>
std::string options_help(const std::vector<option_entry<Options>>& table) {
    std::string text;
    for (const option_entry<Options>& o : table) {
        std::string left = o.name + "=" + o.value;
        left.resize(std::max<std::size_t>(left.size() + 1, 36), ' ');
        text += "      " + left + o.help + "\n";
    }
    return text;
}

} // namespace tenure::cli
