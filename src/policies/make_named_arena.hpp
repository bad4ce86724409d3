#pragma once

/// \file
/// What `named_arena.hpp` declares. Included where it is instantiated for a device.

#include "named_arena.hpp"
#include "with_policy.hpp"

#include <tenure/tenancy/arena.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace tenure::policies {

namespace detail {

/// Holds the arena as the first base: it is there when the reference to it is made, and gone after the last use of that.
template <template <class> class Policy, device Device>
struct arena_holder {
    using arena_type = arena<Policy, Device>;
    using options_type = typename arena_type::policy_options;

    arena_holder(meter* parent, Device& device, arena_options options, const options_type& policy)
        : held(parent != nullptr ? std::make_unique<arena_type>(*parent, device, std::move(options), policy)
                                 : std::make_unique<arena_type>(device, std::move(options), policy)) {}

    const std::unique_ptr<arena_type> held;
};

template <template <class> class Policy, device Device>
class arena_of final : private arena_holder<Policy, Device>, public named_arena {
    using holder = arena_holder<Policy, Device>;
    using policy_type = typename holder::arena_type::policy_type;

  public:
    arena_of(meter* parent, Device& device, arena_options options,
             const typename holder::options_type& policy)
        : holder(parent, device, std::move(options), policy)
        , named_arena(*holder::held, holder::held->node()) {}

    bool release_captured(std::uint64_t capture) noexcept override {
        if constexpr (capture_resource<policy_type>) {
            holder::held->release_captured(capture);
            return true;
        } else {
            return false;
        }
    }

    [[nodiscard]] bool remaps() const noexcept override {
        if constexpr (requires(const policy_type& p) { p.remaps(); })
            return holder::held->policy().remaps();
        else
            return false;
    }
};

} // namespace detail

template <device Device>
std::unique_ptr<named_arena> make_named_arena(const policy_choice& choice, meter* parent, Device& device,
                                              arena_options options, const caching_options& caching) {
    return with_policy(
        choice, caching,
        [&]<template <class> class Policy>(const auto& policy) -> std::unique_ptr<named_arena> {
            return std::make_unique<detail::arena_of<Policy, Device>>(parent, device, std::move(options),
                                                                      policy);
        });
}

} // namespace tenure::policies
