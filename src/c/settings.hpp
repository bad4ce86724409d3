#pragma once

/// \file
/// Settings as C programs write them, "key=value key=value". Functions of values; errors are exceptions with the sentence
/// for the user.

#include "opened_device.hpp"

#include <tenure/core/units.hpp>
#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/hub.hpp>

#include <cctype>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure::c {

inline std::string_view text_of(const char* s) noexcept {
    return s == nullptr ? std::string_view() : std::string_view(s);
}

/// Returns: the words "key=value" of `text`, split. Throws: `std::invalid_argument`.
inline std::vector<std::pair<std::string, std::string>> words_of(std::string_view text) {
    constexpr std::string_view space = " \t\r\n";
    std::vector<std::pair<std::string, std::string>> words;
    while (true) {
        text.remove_prefix(std::min(text.find_first_not_of(space), text.size()));
        if (text.empty()) return words;
        const std::string_view word = text.substr(0, text.find_first_of(space));
        text.remove_prefix(word.size());
        const std::size_t equals = word.find('=');
        if (equals == std::string_view::npos || equals == 0)
            throw std::invalid_argument("\"" + std::string(word) + "\" is not of the form key=value");
        words.emplace_back(word.substr(0, equals), word.substr(equals + 1));
    }
}

inline device_settings parse_device_settings(std::string_view text, bool sim) {
    device_settings s;
    const auto bytes = [](const std::string& value) {
        return value == "none" ? no_limit : parse_bytes(value);
    };
    for (const auto& [key, value] : words_of(text)) {
        if (key == "scrub") {
            if (value == "on_transfer")
                s.hub.wipe = scrub::on_transfer;
            else if (value == "on_free")
                s.hub.wipe = scrub::on_free;
            else if (value == "none")
                s.hub.wipe = scrub::none;
            else
                throw std::invalid_argument("scrub=" + value + ": it may be on_transfer, on_free or none");
        } else if (key == "shelf") {
            s.hub.max_shelved = bytes(value);
        } else if (key == "capacity" && sim) {
            s.capacity = parse_bytes(value);
        } else {
            throw std::invalid_argument("unknown option \"" + key + "\" of a device (known: scrub shelf" +
                                        (sim ? " capacity)" : "; capacity: of sim only)"));
        }
    }
    return s;
}

/// Returns: the one tenant that `settings` describe, named by the last part of `path`. Throws: `arena_config_error`.
inline arena_entry parse_tenant(std::string_view path, std::string_view settings) {
    const std::string name(path.substr(path.rfind('/') + 1));
    if (settings.find_first_of(";\n#") != std::string_view::npos)
        throw std::invalid_argument("settings are those of one tenant: no ';', '#' or line break");
    const arena_config parsed =
        arena_config::parse(name + " " + std::string(settings), "settings of " + std::string(path));
    arena_entry entry = parsed.entries().at(0);
    entry.path = path;
    return entry;
}

/// Throws: `std::invalid_argument` if `path` cannot be one.
inline void check_path(std::string_view path) {
    if (path.empty()) throw std::invalid_argument("a tenant needs a path");
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view part = path.substr(begin, end - begin);
        if (part.empty())
            throw std::invalid_argument("a part of the path \"" + std::string(path) + "\" is empty");
        if (part == "*")
            throw std::invalid_argument("\"*\" stands for many and cannot be made: \"" + std::string(path) +
                                        "\"");
        for (const char c : part)
            if (c == '=' || c == ';' || c == '#' || std::isspace(static_cast<unsigned char>(c)) != 0)
                throw std::invalid_argument("the path \"" + std::string(path) +
                                            "\" has one of = ; # or a space in it");
        begin = end + 1;
    }
}

} // namespace tenure::c
