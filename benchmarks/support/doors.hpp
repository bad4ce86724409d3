#pragma once

/// \file
/// The doors through which a program may come to a policy, each as an object that owns the policy and has
/// `resource()`, whatever that is.
///
///     concrete       Policy<Device>                       all inlined, where the compiler wants to
///     arena          arena<Policy, Device>                with a hard limit
///     resource_ref   resource_ref to the concrete type    one indirect call
///     any_resource   any_resource that owns it            one indirect call

#include <tenure/core/units.hpp>
#include <tenure/resource/any_resource.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

namespace bench {

/// Bytes: more than any benchmark needs, less than no limit. A limit costs its check.
inline constexpr std::size_t wide_limit = std::size_t{1} << 46;

template <class Device, template <class> class Policy>
class concrete_door {
  public:
    using device_type = Device;
    static constexpr const char* name = "concrete";
    static constexpr bool indirect = false;
    explicit concrete_door(Device& d) : pool_(d) {}
    auto& resource() noexcept { return pool_; }

  private:
    Policy<Device> pool_;
};

template <class Device, template <class> class Policy>
class arena_door {
  public:
    using device_type = Device;
    static constexpr const char* name = "arena";
    static constexpr bool indirect = false;
    explicit arena_door(Device& d, std::size_t max = wide_limit)
        : arena_(d, {.name = "tenant", .max = max, .at_destruction = tenure::leftovers::release}) {}
    auto& resource() noexcept { return arena_; }

  private:
    tenure::arena<Policy, Device> arena_;
};

template <class Device, template <class> class Policy>
class ref_door {
  public:
    using device_type = Device;
    static constexpr const char* name = "resource_ref";
    static constexpr bool indirect = true;
    explicit ref_door(Device& d) : pool_(d) {}
    auto& resource() noexcept { return ref_; }

  private:
    Policy<Device> pool_;
    tenure::resource_ref ref_{pool_};
};

template <class Device, template <class> class Policy>
class any_door {
  public:
    using device_type = Device;
    static constexpr const char* name = "any_resource";
    static constexpr bool indirect = true;
    explicit any_door(Device& d) : any_(tenure::make_any_resource<Policy<Device>>(d)) {}
    auto& resource() noexcept { return any_; }

  private:
    tenure::any_resource any_;
};

/// The resource that a door leads to.
template <class Door>
using resource_of = std::remove_reference_t<decltype(std::declval<Door&>().resource())>;

/// Effects: calls `visit(std::type_identity<Door>{})` for each.
template <class Device, template <class> class Policy, class Visitor>
void for_each_door(Visitor visit) {
    visit(std::type_identity<concrete_door<Device, Policy>>{});
    visit(std::type_identity<arena_door<Device, Policy>>{});
    visit(std::type_identity<ref_door<Device, Policy>>{});
    visit(std::type_identity<any_door<Device, Policy>>{});
}

} // namespace bench
