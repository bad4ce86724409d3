#pragma once

/// \file
/// `named_arena`: an arena whose policy was chosen by name, behind one interface.
///
///     named_arena --virtual--> arena<Policy, Device>
///         |
///         +-- memory()   the arena as a resource: what the hot path uses, one indirect call
///         +-- the rest   what is rare: limits, the graphs' memory
///
/// Adds nothing to the arena but that. Complexity and thread-safety: those of the arena.

#include "policy_choice.hpp"

#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenancy/meter.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace tenure::policies {

class named_arena {
  public:
    virtual ~named_arena() = default;
    named_arena(const named_arena&) = delete;
    named_arena& operator=(const named_arena&) = delete;

    [[nodiscard]] resource_ref memory() const noexcept { return memory_; }

    /// Its place in the tree.
    [[nodiscard]] virtual meter& node() noexcept = 0;

    /// See `arena`, these.
    virtual std::size_t set_max(std::size_t max) = 0;
    virtual status set_min(std::size_t min) noexcept = 0;
    virtual std::size_t set_high(std::size_t high) noexcept = 0;

    /// See `capture_resource`. Returns: whether the policy keeps anything for graphs.
    virtual bool release_captured(std::uint64_t capture) noexcept = 0;

    /// See `arenas_view::add`.
    virtual arenas_view::seen show_in(arenas_view& view) const = 0;

  protected:
    explicit named_arena(resource_ref memory) noexcept : memory_(memory) {}

  private:
    resource_ref memory_;
};

/// Returns: an arena under `parent` (null: standing alone) with this policy. Throws: `std::invalid_argument` if there is no
/// such policy, or it has no such option; and what the arena's construction throws.
/// Instantiated for each device in a file of its own, see `make_named_arena.hpp`.
template <device Device>
std::unique_ptr<named_arena> make_named_arena(const policy_choice& choice, meter* parent, Device& device,
                                              arena_options options);

} // namespace tenure::policies
