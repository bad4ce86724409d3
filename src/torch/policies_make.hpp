#pragma once

/// \file
/// What `policies.hpp` declares. Included where it is instantiated for a device.

#include "policies.hpp"

#include "../cli/caching_option_table.hpp"
#include "../cli/magazine_option_table.hpp"
#include "../cli/option_entry.hpp"
#include "../cli/pool_option_table.hpp"
#include "../cli/remap_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>
#include <tenure/policy.hpp>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tenure::torch {

/// Effects: sets what `choice` says. Throws: `std::invalid_argument` that lists what the policy knows.
template <class Options>
void apply(const policy_choice& choice, const std::vector<cli::option_entry<Options>>& table, Options& to) {
    for (const option& o : choice.options) {
        const cli::option_entry<Options>* found = nullptr;
        std::string known;
        for (const cli::option_entry<Options>& e : table) {
            if (e.name == o.key) found = &e;
            known += " " + e.name;
        }
        if (found == nullptr)
            throw std::invalid_argument("policy " + choice.name + " has no option \"" + o.key +
                                        "\" (known:" + known + ")");
        try {
            found->set(to, o.value);
        } catch (const std::invalid_argument& e) {
            throw std::invalid_argument("option " + o.key + " of policy " + choice.name + ": " + e.what());
        }
    }
}

namespace detail {

inline const std::vector<cli::option_entry<async_options>>& async_option_table() {
    static const std::vector<cli::option_entry<async_options>> table{
        cli::bytes_option("max_bytes", &async_options::max_bytes,
                          "the driver's own limit, in its steps; 0: none"),
    };
    return table;
}

template <class Options>
Options read(const policy_choice& choice, const std::vector<cli::option_entry<Options>>& table,
             Options from = {}) {
    apply(choice, table, from);
    return from;
}

template <class Options>
magazines_options<Options> read_fronted(const policy_choice& choice,
                                        const std::vector<cli::option_entry<Options>>& of_pool) {
    return read(choice, cli::fronted_option_table(of_pool));
}

/// Returns: what `use` returns for the options of the chosen policy. `use.template operator()<Policy>(options)`.
template <class Use>
auto with_policy(const policy_choice& choice, const caching_options& configured, Use&& use) {
    const std::string& name = choice.name;
    if (name == "remap") {
        device_pool_options all{};
        all.remap = read(choice, cli::remap_option_table());
        return use.template operator()<device_pool>(all);
    }
    if (name == "caching") {
        const auto all = read(choice, cli::caching_option_table(), configured);
        all.check();
        return use.template operator()<caching_pool>(all);
    }
    if (name == "best_fit")
        return use.template operator()<best_fit_pool>(read(choice, cli::pool_option_table()));
    if (name == "async") return use.template operator()<async_pool>(read(choice, async_option_table()));
    if (name == "fronted_remap")
        return use.template operator()<fronted_remap_pool>(read_fronted(choice, cli::remap_option_table()));
    if (name == "fronted_caching")
        return use.template operator()<fronted_caching_pool>(
            read_fronted(choice, cli::caching_option_table()));
    if (name == "fronted_best_fit")
        return use.template operator()<fronted_best_fit_pool>(read_fronted(choice, cli::pool_option_table()));
    throw std::invalid_argument("there is no policy \"" + name + "\" (known: " + policy_names + ")");
}

} // namespace detail

template <device Device>
std::unique_ptr<arena_memory> make_arena_memory(const policy_choice& choice,
                                                const caching_options& configured, Device& device,
                                                const std::string& name, std::size_t max) {
    return detail::with_policy(
        choice, configured,
        [&]<template <class> class Policy>(const auto& options) -> std::unique_ptr<arena_memory> {
            return std::make_unique<arena_memory_of<Policy, Device>>(device, name, max, options);
        });
}

inline void check_policy_options(const policy_choice& choice) {
    detail::with_policy(choice, {}, []<template <class> class Policy>(const auto&) {});
}

} // namespace tenure::torch
