#pragma once

/// \file
/// `arena<Policy, Device>`: one tenant's share of a device, with a hard limit in bytes.
///
///     arena "alice", max 8 GiB
///       policy      its own pool: nothing of it is shared with another tenant
///         metered   charges what the pool takes from the device
///           device  shared by all
///
/// An arena is a `resource`; it charges **reserved** bytes: live blocks, cached blocks, pending frees, all of it.
///
/// Invariants:
///   1. `charged <= max` whenever a charge is granted, for every interleaving of threads, to the byte.
///   2. A hit in the pool never asks the meter: the limit costs nothing on the hot path.
///   3. A failing request changes nothing, and never makes another tenant's request fail.
///   4. After all blocks are freed and `trim(0)`, `charged` is exactly 0.
///
/// At the limit: the pool's own steps first (completed frees, free memory of other streams, empty segments given
/// back), then `on_pressure`, then a typed failure that names the arena. Steps that need several arenas (taking idle
/// memory of siblings, waiting in line) belong to the hierarchy above it, which an arena does not know.
///
/// Thread-safety: thread-safe, except construction and destruction.

#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tenure {

/// What happens to blocks that are live when their arena is destroyed. Their memory goes back to the device
/// always; the work on it must be over, as far as the policy's destructor asks for that.
enum class leftovers {
    report,  ///< it is a misuse: `live_at_destruction`, with the number of blocks and bytes
    release, ///< it is expected
};

struct arena_options {
    std::string name = "arena"; ///< in every error
    std::size_t max = no_limit; ///< bytes; the hard limit
    leftovers at_destruction = leftovers::report;

    /// Called, with no lock held, when an allocation is about to fail for memory. It may free blocks of this arena.
    /// Returns: whether trying again makes sense. May be called by several threads at once.
    std::function<bool(const allocation_failure&)> on_pressure{};
};

template <template <class> class Policy, device Device>
class arena {
  public:
    using device_type = metered<Device>;
    using policy_type = Policy<device_type>;
    using policy_options = typename policy_type::options_type;

    /// Throws: `std::bad_alloc`, and whatever the policy's construction throws.
    explicit arena(Device& device, arena_options options = {}, policy_options policy = {})
        : options_(std::move(options)), meter_(options_.name, options_.max), device_(device, meter_) {
        policy_.emplace(device_, std::move(policy));
        arena_registry::instance().enter({this,
                                          [](const void* self, const void* p) noexcept {
                                              return static_cast<const arena*>(self)->owns(p);
                                          },
                                          short_text(options_.name)});
    }

    arena(const arena&) = delete;
    arena& operator=(const arena&) = delete;

    ~arena() {
        arena_registry::instance().leave(this);
        const misuse_scope scope(&refine, this);
        policy_.reset(); // reports what is still live, through `refine`, under this arena's name
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        allocate_result r = try_allocate(stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        allocate_result r = policy_->try_allocate(stream, bytes, alignment);
        if (!r && relieve(r.error())) r = policy_->try_allocate(stream, bytes, alignment);
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        try {
            return policy_->allocate_sync(bytes, alignment);
        } catch (const out_of_memory& e) {
            if (!relieve(e.failure())) throw;
        }
        return policy_->allocate_sync(bytes, alignment);
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(stream, p, bytes, alignment); !r)
            report_misuse(r.error());
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        deallocate_result r = policy_->try_deallocate(stream, p, bytes, alignment);
        if (r) return r;
        misuse named = r.error();
        refine(named, this);
        return named;
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
        const misuse_scope scope(&refine, this);
        policy_->deallocate_sync(p, bytes, alignment);
    }

    void release(void* p) noexcept {
        const misuse_scope scope(&refine, this);
        policy_->release(p);
    }

    void record_use(void* p, stream_handle stream) noexcept {
        const misuse_scope scope(&refine, this);
        policy_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept { return policy_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return policy_->usage(); }
    std::size_t trim(std::size_t bytes_to_keep) { return policy_->trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return policy_->snapshot(); }
    /// The policy's, and that all it holds is charged. That is compared only over a time in which the meter stood still:
    /// while other threads keep it moving, it is left out.
    [[nodiscard]] bool validate() const noexcept {
        if (!policy_->validate()) return false;
        for (int tries = 0; tries < 100; ++tries) {
            const meter_reading before = meter_.read();
            const std::size_t reserved = policy_->usage().reserved.current;
            const meter_reading after = meter_.read();
            // No charge in between, so equal sums mean no refund either.
            if (before.charges == after.charges && before.charged == after.charged)
                return reserved <= after.charged;
        }
        return true;
    }

    /// Effects: the graphs made from this capture are gone and their work is over; what the policy kept for
    /// them is free.
    void release_captured(std::uint64_t capture) noexcept requires capture_resource<policy_type> {
        policy_->release_captured(capture);
    }

    // ---- limits ----

    [[nodiscard]] std::string_view name() const noexcept { return meter_.name(); }

    /// Returns: what the arena holds and may hold, taken at one instant.
    [[nodiscard]] meter_reading limits() const noexcept { return meter_.read(); }

    /// Effects: the limit is `max` bytes from now on; charges granted earlier stay, nothing is killed. Free memory
    /// above it is given back to the device as far as it can be.
    /// Returns: bytes by which the arena is still over it.
    std::size_t set_max(std::size_t max) {
        if (meter_.set_max(max) == 0) return 0;
        policy_->trim(max);
        const std::size_t charged = meter_.read().charged;
        return charged > max ? charged - max : 0;
    }

    /// The pool behind the arena, for what only this policy can do.
    [[nodiscard]] policy_type& policy() noexcept { return *policy_; }

  private:
    /// Adds the arena's name to a misuse, and finds out whose pointer it was. Returns: whether it is one.
    static bool refine(misuse& m, void* context) noexcept {
        const auto* self = static_cast<const arena*>(context);
        if (!m.owner.empty()) return true; // another arena's, which a handler or callback has used
        m.owner = short_text(self->options_.name);
        if (m.kind == misuse_kind::live_at_destruction)
            return self->options_.at_destruction == leftovers::report;
        if (m.kind != misuse_kind::foreign_pointer) return true;
        if (const auto owner = arena_registry::instance().owner_of(m.pointer, self)) {
            m.kind = misuse_kind::wrong_arena;
            m.real_owner = *owner;
        }
        return true;
    }

    /// Returns: whether the application says that it made room.
    bool relieve(const allocation_failure& failure) noexcept {
        if (!options_.on_pressure || failure.cause == failure_cause::invalid_alignment ||
            failure.cause == failure_cause::driver)
            return false;
        try {
            return options_.on_pressure(failure);
        } catch (...) { // a callback that fails made no room
            return false;
        }
    }

    const arena_options options_;
    meter meter_;
    metered<Device> device_;
    std::optional<policy_type> policy_; ///< always engaged between construction and destruction
};

} // namespace tenure
