#pragma once

/// \file
/// `named_arena`: an arena whose policy was chosen by name, behind one interface.
///
///     named_arena
///         +-- memory()   the arena as a resource: what the hot path uses, one indirect call
///         +-- node()     its place in the tree: its limits
///         +-- the rest   what only some policies know, virtual
///
/// Adds nothing to the arena but that. Complexity and thread-safety: those of the arena.

#include "policy_choice.hpp"

#include <tenure/device/device.hpp>
#include <tenure/policy/caching_options.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/meter.hpp>

#include <cstdint>
#include <memory>

namespace tenure::policies {

class named_arena {
  public:
    virtual ~named_arena() = default;
    named_arena(const named_arena&) = delete;
    named_arena& operator=(const named_arena&) = delete;

    [[nodiscard]] resource_ref memory() const noexcept { return memory_; }

    /// Its place in the tree, where its limits are read and set. As `memory`, it is the arena's and not part of this.
    [[nodiscard]] meter& node() const noexcept { return *node_; }

    /// See `resource`. With `node`, all that `arenas_view` asks for.
    [[nodiscard]] usage_counters usage() const { return memory_.usage(); }

    /// See `capture_resource`. Returns: whether the policy keeps anything for graphs.
    virtual bool release_captured(std::uint64_t capture) noexcept = 0;

    /// Returns: whether all free memory, wherever it lies, can serve one request.
    [[nodiscard]] virtual bool remaps() const noexcept = 0;

  protected:
    named_arena(resource_ref memory, meter& node) noexcept : memory_(memory), node_(&node) {}

  private:
    resource_ref memory_;
    meter* node_;
};

/// Returns: an arena under `parent` (null: standing alone) with this policy. `caching`: what that policy starts from. Throws:
/// `std::invalid_argument` if there is no such policy, or it has no such option; and what the arena's construction throws.
/// Instantiated for each device in a file of its own, see `make_named_arena.hpp`.
template <device Device>
std::unique_ptr<named_arena> make_named_arena(const policy_choice& choice, meter* parent, Device& device,
                                              arena_options options, const caching_options& caching = {});

} // namespace tenure::policies
