#pragma once

/// \file
/// What `named_arena.hpp` declares. Included where it is instantiated for a device.

#include "named_arena.hpp"
#include "with_policy.hpp"

#include <tenure/tenancy/arena.hpp>

#include <cstddef>
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

  public:
    arena_of(meter* parent, Device& device, arena_options options,
             const typename holder::options_type& policy)
        : holder(parent, device, std::move(options), policy), named_arena(*holder::held) {}

    [[nodiscard]] meter& node() noexcept override { return holder::held->node(); }
    std::size_t set_max(std::size_t max) override { return holder::held->set_max(max); }
    status set_min(std::size_t min) noexcept override { return holder::held->set_min(min); }
    std::size_t set_high(std::size_t high) noexcept override { return holder::held->set_high(high); }

    bool release_captured(std::uint64_t capture) noexcept override {
        if constexpr (capture_resource<typename holder::arena_type::policy_type>) {
            holder::held->release_captured(capture);
            return true;
        } else {
            return false;
        }
    }

    arenas_view::seen show_in(arenas_view& view) const override { return view.add(*holder::held); }
};

} // namespace detail

template <device Device>
std::unique_ptr<named_arena> make_named_arena(const policy_choice& choice, meter* parent, Device& device,
                                              arena_options options) {
    return with_policy(
        choice, {}, [&]<template <class> class Policy>(const auto& policy) -> std::unique_ptr<named_arena> {
            return std::make_unique<detail::arena_of<Policy, Device>>(parent, device, std::move(options),
                                                                      policy);
        });
}

} // namespace tenure::policies
