#pragma once

/// \file
/// `arena<Policy, Device>`: one tenant's share of a device, with a hard limit in bytes.
///
///     arena "gpu/org/alice", max 8 GiB
///       policy      its own pool: nothing of it is shared with another tenant
///         metered   charges what the pool takes from the device, in every level of the tree
///           device  shared by all; a `hub`, where memory changes hands
///
/// An arena is a `resource`; it charges **reserved** bytes: live blocks, cached blocks, pending frees, all of it. It
/// stands alone, or in a tree of tenants (`arena_group`, `meter`).
///
/// Invariants:
///   1. `charged <= max` of every level whenever a charge is granted, for every interleaving of threads, to the byte.
///   2. A hit in the pool never asks the meter: limits cost nothing on the hot path, however deep the tree is.
///   3. A failing request changes nothing, and never makes another tenant's request fail.
///   4. After all blocks are freed and `trim(0)`, `limits().own` is exactly 0.
///
/// At a limit, in this order, stopping at the first success:
///   1. to 3. the pool's own steps: magazines, completed frees, free memory of other streams, remapping, empty
///      segments given back
///   4. `on_pressure`, with no lock held
///   5. if a level above refused, or the device: idle memory of other tenants below that level, by overage and weight,
///      never what lies under a `min`, never live bytes
///   6. with `wait`: first come, first served, until its deadline; never for a stream that is being captured;
///      refused at once where it would be a deadlock (see `meter::place`)
///   7. a typed failure that names the level that refused
///
/// No step waits for work on the device, except what the policy's own options allow, and except that segments which are
/// given back wait as `cudaFree` does, and that what crosses from another tenant through a `hub` waits for its wipe, which
/// is queued behind what runs on the GPU.
///
/// Thread-safety: thread-safe, except construction and destruction.

#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/arena_core.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure {

template <template <class> class Policy, device Device>
class arena {
    using core_type = arena_core<Policy, Device>;

  public:
    using device_type = metered<Device>;
    using policy_type = Policy<device_type>;
    using policy_options = typename policy_type::options_type;

    /// An arena that stands alone.
    /// Throws: `std::bad_alloc`, and whatever the policy's construction throws.
    explicit arena(Device& device, arena_options options = {}, policy_options policy = {})
        : core_(std::make_unique<core_type>(nullptr, nullptr, device, std::move(options), std::move(policy)))
        , policy_(&core_->policy()) {}

    /// An arena under `parent`, a group or another arena's `node()`. Throws: also `not_admitted`, see `meter`.
    arena(meter& parent, Device& device, arena_options options = {}, policy_options policy = {})
        : core_(std::make_unique<core_type>(&parent, nullptr, device, std::move(options), std::move(policy)))
        , policy_(&core_->policy()) {}

    arena(arena_group& parent, Device& device, arena_options options = {}, policy_options policy = {})
        : core_(std::make_unique<core_type>(&parent.node(), &parent, device, std::move(options),
                                            std::move(policy)))
        , policy_(&core_->policy()) {}

    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;

    /// See `leftovers`.
    ~arena() {
        if (core_->options().at_destruction == leftovers::reparent) core_type::bequeath(std::move(core_));
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        if constexpr (has_hits) {
            if (void* const p = policy_->try_hit(stream, bytes, alignment)) [[likely]]
                return p;
            return core_->allocate_missed(stream, bytes, alignment);
        } else {
            return core_->allocate(stream, bytes, alignment);
        }
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        if constexpr (has_hits)
            if (void* const p = policy_->try_hit(stream, bytes, alignment)) [[likely]]
                return p;
        allocate_result r = policy_->try_allocate(stream, bytes, alignment);
        if (!r || core_->node().pressed()) core_->climb(r, stream, bytes, alignment);
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        return core_->allocate_sync(bytes, alignment);
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if constexpr (has_hits) {
            if (!policy_->try_park(stream, p, bytes)) [[unlikely]]
                core_->deallocate_missed(stream, p, bytes, alignment);
        } else {
            core_->deallocate(stream, p, bytes, alignment);
        }
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        if constexpr (has_hits)
            if (policy_->try_park(stream, p, bytes)) [[likely]]
                return freed{};
        return core_->try_deallocate(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
        const misuse_scope scope(&core_type::refine, core_.get());
        policy_->deallocate_sync(p, bytes, alignment);
    }

    void release(void* p) noexcept {
        const misuse_scope scope(&core_type::refine, core_.get());
        policy_->release(p);
    }

    void record_use(void* p, stream_handle stream) noexcept {
        const misuse_scope scope(&core_type::refine, core_.get());
        policy_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept { return policy_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return policy_->usage(); }
    std::size_t trim(std::size_t bytes_to_keep) { return policy_->trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return policy_->snapshot(); }

    /// The policy's, and that all it holds is charged. That is compared only over a time in which the meter stood still:
    /// while other threads keep it moving, it is left out.
    [[nodiscard]] bool validate() const noexcept { return core_->validate(); }

    /// Effects: the graphs made from this capture are gone and their work is over; what the policy kept for
    /// them is free.
    void release_captured(std::uint64_t capture) noexcept requires capture_resource<policy_type> {
        policy_->release_captured(capture);
    }

    // ---- the tenant as a whole ----

    /// Effects: frees every live block, as `deallocate` on `stream` would. Requires: nobody allocates or frees in the
    /// arena meanwhile, and all uses of its blocks on other streams were recorded or are over.
    /// Returns: number of blocks freed. Throws: `std::bad_alloc`, then some blocks may be free already.
    std::size_t release_all(stream_handle stream) { return core_->release_all(stream); }

    /// Effects: the live block at `p` belongs to `to` from now on: it is freed there, with the size that it was allocated
    /// with. Its bytes stay where they are. The destination is charged first; where both stand in one tree no level above
    /// both sees a change.
    ///
    /// Only whole segments change owners, so the block must fill one, and no other stream and no graph may use it. Where it
    /// was rounded up for that, a `hub` wipes the rest before, and waits for the device to do so. Pools
    /// over segments can do this (`best_fit_pool`, `buddy_pool`, `slab_pool`); others refuse. Requires: nobody else
    /// uses `p` through either arena meanwhile.
    /// Returns: why it cannot be, if so; then nothing has changed.
    template <template <class> class Other>
    result<freed, move_refusal> transfer(void* p, arena<Other, Device>& to) noexcept {
        return core_->transfer(p, *to.core_);
    }

    // ---- limits ----

    [[nodiscard]] std::string_view name() const noexcept { return core_->node().name(); }

    /// The arena's place in the tree, to stand others under it.
    [[nodiscard]] meter& node() noexcept { return core_->node(); }
    [[nodiscard]] const meter& node() const noexcept { return core_->node(); }

    /// Returns: what the arena holds and may hold, taken at one instant.
    [[nodiscard]] meter_reading limits() const noexcept { return core_->node().read(); }

    /// Effects: the limit is `max` bytes from now on; charges granted earlier stay, nothing is killed. Idle memory of
    /// the arena, and of what stands under it, is given back as far as it is over the limit.
    /// Returns: bytes by which the arena is still over it.
    std::size_t set_max(std::size_t max) noexcept { return node().enforce_max(max); }

    /// Effects: the guarantee is `min` bytes from now on; where a level above is full with others' idle memory, that is
    /// taken. Returns: `ok` or `over_limit`, see `meter::set_min`.
    status set_min(std::size_t min) noexcept { return node().admit_min(min); }

    /// Effects: pressure begins above `high` bytes from now on. Returns: bytes by which the arena is above it.
    std::size_t set_high(std::size_t high) noexcept { return node().set_high(high); }

    void set_weight(unsigned weight) noexcept { node().set_weight(weight); }

    /// Effects: the arena, with all that it holds, stands under `parent` from now on. Returns: see `meter::set_parent`.
    status set_parent(meter& parent) noexcept { return core_->set_parent(parent, nullptr); }
    status set_parent(arena_group& parent) noexcept { return core_->set_parent(parent.node(), &parent); }

    /// The pool behind the arena, for what only this policy can do.
    [[nodiscard]] policy_type& policy() noexcept { return *policy_; }
    [[nodiscard]] const policy_type& policy() const noexcept { return *policy_; }

  private:
    template <template <class> class, device>
    friend class arena;

    /// A hit of the policy's charges nothing, so nothing but the policy is asked for one.
    static constexpr bool has_hits = requires(policy_type & pool, void* p) {
        { pool.try_hit(stream_handle{}, std::size_t{}, std::size_t{}) }
        noexcept;
        { pool.try_park(stream_handle{}, p, std::size_t{}) }
        noexcept;
    };

    std::unique_ptr<core_type> core_; ///< null only after it was bequeathed
    policy_type* policy_;
};

} // namespace tenure
