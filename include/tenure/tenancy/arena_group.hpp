#pragma once

/// \file
/// `arena_group`: a tenant without a pool of its own, for the levels above the arenas: the device, an organisation, a user.
///
///     arena_group gpu({.name = "gpu", .max = 80_GiB});
///     arena_group org(gpu, {.name = "org", .min = 20_GiB, .max = 40_GiB});
///     arena<caching_pool, cuda::device> job(org, device, {.name = "job", .max = 10_GiB});
///
/// A group destroyed before what stands under it leaves no gap: that moves up a level. Requires: no request below it
/// runs meanwhile.
///
/// Complexity: see `meter`. Thread-safety: thread-safe, except construction and destruction.

#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/environment.hpp>
#include <tenure/tenancy/limits.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/survivors.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tenure {

struct group_options {
    std::string name = "group";  ///< in every error, as a part of the path
    std::size_t min = 0;         ///< bytes, see `tenant_limits`, all four
    std::size_t high = no_limit; ///< bytes
    std::size_t max = no_limit;  ///< bytes
    unsigned weight = 100;
    high_callback on_high{};

    [[nodiscard]] tenant_limits limits() const noexcept {
        return {.min = min, .high = high, .max = max, .weight = weight};
    }
};

class arena_group {
  public:
    /// A root. What an operator says of it (`environment`) stands for what the options do.
    explicit arena_group(group_options options) : arena_group(nullptr, std::move(options)) {}
    /// Throws: `not_admitted`, see `meter`.
    arena_group(meter& parent, group_options options) : arena_group(&parent, std::move(options)) {}

    /// The group's place in the tree, to stand others under it.
    [[nodiscard]] meter& node() noexcept { return meter_; }
    [[nodiscard]] const meter& node() const noexcept { return meter_; }
    // NOLINTNEXTLINE(google-explicit-constructor): a group is given wherever a parent is asked for
    operator meter&() noexcept { return meter_; }

    [[nodiscard]] std::string_view name() const noexcept { return meter_.name(); }
    [[nodiscard]] meter_reading limits() const noexcept { return meter_.read(); }

    /// Returns: the group and all below it, parents before children, at one instant.
    [[nodiscard]] std::vector<tenant_picture> picture() const { return meter_.picture(); }

    /// Effects: the limit is `max` bytes from now on; charges granted earlier stay. Idle memory below the group is
    /// given back as far as it is over the limit. Returns: bytes by which it is still over.
    std::size_t set_max(std::size_t max) noexcept { return meter_.enforce_max(max); }

    /// Effects: the guarantee is `min` bytes from now on; where a level above is full with others' idle memory, that is
    /// taken. Returns: `ok` or `over_limit`, see `meter::set_min`.
    status set_min(std::size_t min) noexcept { return meter_.admit_min(min); }

    std::size_t set_high(std::size_t high) noexcept { return meter_.set_high(high); }
    void set_weight(unsigned weight) noexcept { meter_.set_weight(weight); }

    /// See `meter::set_parent`.
    status set_parent(meter& parent) noexcept { return meter_.set_parent(parent); }

    /// Effects: gives idle memory of all arenas below it back, guarantees or not, until `bytes_to_keep` bytes are used
    /// or no more can go. Returns: bytes given back.
    std::size_t trim(std::size_t bytes_to_keep) noexcept { return meter_.trim(bytes_to_keep); }

    // ---- blocks of arenas that were destroyed with `leftovers::reparent` ----

    /// Effects: frees the block on `stream`. A pointer that no such arena has left behind is a misuse,
    /// `foreign_pointer`. After the last block of an arena, its memory is given back.
    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (p == nullptr) return;
        std::shared_ptr<survivor> owner = survivors_->owner_of(p);
        if (owner == nullptr) return foreign(p, bytes);
        if (const deallocate_result r = owner->free_on(stream, p, bytes, alignment); !r)
            report_misuse(r.error());
        survivors_->drop_if_empty(std::move(owner));
    }
    /// The same, on the stream of the block's allocation.
    void release(void* p) noexcept {
        if (p == nullptr) return;
        std::shared_ptr<survivor> owner = survivors_->owner_of(p);
        if (owner == nullptr) return foreign(p, 0);
        owner->free_on_own_stream(p);
        survivors_->drop_if_empty(std::move(owner));
    }
    [[nodiscard]] bool owns(const void* p) const noexcept { return survivors_->owner_of(p) != nullptr; }

    /// Where arenas below it leave themselves that are destroyed with live blocks; gone when the group is.
    [[nodiscard]] std::weak_ptr<survivors> heir() const noexcept { return survivors_; }

  private:
    arena_group(meter* parent, group_options options)
        : arena_group(environment::instance().limited(parent, std::move(options)), parent) {}

    /// The same, with the operator's limits in the options.
    arena_group(group_options options, meter* parent) : meter_(parent, options.name, options.limits()) {
        meter_.on_high(std::move(options.on_high));
        shown_ = environment::instance().show(*this);
    }

    void foreign(const void* p, std::size_t bytes) const noexcept {
        misuse m{.kind = misuse_kind::foreign_pointer, .pointer = p, .bytes = bytes};
        m.owner = short_text(meter_.name());
        report_misuse(m);
    }

    meter meter_;
    const std::shared_ptr<survivors> survivors_ =
        std::make_shared<survivors>(); ///< charged to it, so destroyed before it
    environment::shown shown_;
};

} // namespace tenure
