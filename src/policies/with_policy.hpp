#pragma once

/// \file
/// Policies by name: what a policy's name may be, the options of each, and `with_policy`, which turns the name that
/// somebody wrote into the template that the compiler needs.
///
/// | name | what it is |
/// |---|---|
/// | `remap` | `device_pool`: `remap_pool`, or PyTorch's scheme on devices without virtual memory |
/// | `caching` | PyTorch's scheme, with the keys of `PYTORCH_ALLOC_CONF` that belong to it |
/// | `best_fit` | best fit over large segments |
/// | `async` | `cudaMallocAsync` on a pool of its own |
/// | `fronted_remap`, `fronted_caching`, `fronted_best_fit` | these with magazines of each thread in front |
///
/// Option names are those of `tenure compare`: the tables are the same.
///
/// Included where policies are instantiated, a file for each device: every policy is in it. Thread-safety: functions of
/// values.

#include "policy_choice.hpp"

#include "../cli/async_option_table.hpp"
#include "../cli/caching_option_table.hpp"
#include "../cli/magazine_option_table.hpp"
#include "../cli/option_entry.hpp"
#include "../cli/pool_option_table.hpp"
#include "../cli/remap_option_table.hpp"

#include <tenure/front/fronted_pools.hpp>
#include <tenure/policy.hpp>

#include <stdexcept>
#include <string>
#include <vector>

namespace tenure::policies {

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

} // namespace detail

/// Returns: what `use` returns for the options of the chosen policy: `use.template operator()<Policy>(options)`.
/// `configured`: what `caching` starts from. Throws: `std::invalid_argument` if there is no such policy, or it has no such
/// option.
template <class Use>
auto with_policy(const policy_choice& choice, const caching_options& configured, Use&& use) {
    const std::string& name = choice.name;
    if (name == "remap") {
        device_pool_options all{};
        all.remap = detail::read(choice, cli::remap_option_table());
        return use.template operator()<device_pool>(all);
    }
    if (name == "caching") {
        const auto all = detail::read(choice, cli::caching_option_table(), configured);
        all.check();
        return use.template operator()<caching_pool>(all);
    }
    if (name == "best_fit")
        return use.template operator()<best_fit_pool>(detail::read(choice, cli::pool_option_table()));
    if (name == "async")
        return use.template operator()<async_pool>(detail::read(choice, cli::async_option_table()));
    if (name == "fronted_remap")
        return use.template operator()<fronted_remap_pool>(
            detail::read_fronted(choice, cli::remap_option_table()));
    if (name == "fronted_caching")
        return use.template operator()<fronted_caching_pool>(
            detail::read_fronted(choice, cli::caching_option_table()));
    if (name == "fronted_best_fit")
        return use.template operator()<fronted_best_fit_pool>(
            detail::read_fronted(choice, cli::pool_option_table()));
    throw std::invalid_argument("there is no policy \"" + name + "\" (known: " + policy_names + ")");
}

} // namespace tenure::policies
