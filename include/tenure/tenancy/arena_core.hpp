#pragma once

/// \file
/// `arena_core<Policy, Device>`: what an arena is made of, and what outlives it where its blocks are bequeathed.
///
///     meter      the tenant's place in the tree
///     metered    the device, paid for
///     policy     the pool
///
/// All that is rare lies here: the ladder at a limit, misuse, destruction. `arena` is the thin hot path before it.
///
/// Invariants:
///   1. It is attached to its meter, and known to the registry, exactly while its policy lives.
///   2. No lock is held while the ladder is climbed.
///
/// Thread-safety: thread-safe, except construction and destruction.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/policy/moving_block.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/arena_options.hpp>
#include <tenure/tenancy/arena_registry.hpp>
#include <tenure/tenancy/environment.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>
#include <tenure/tenancy/survivors.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tenure {

/// On cache lines of its own: it shares none with another arena's core.
template <template <class> class Policy, device Device>
class alignas(own_lines) arena_core final : public idle_holder, public survivor {
  public:
    using device_type = metered<Device>;
    using policy_type = Policy<device_type>;
    using policy_options = typename policy_type::options_type;

    arena_core(meter* parent, arena_group* group, Device& device, arena_options options,
               policy_options policy)
        : options_(environment::instance().limited(parent, std::move(options)))
        , heir_(heir_of(group))
        , node_(parent, options_.name, options_.limits())
        , device_(device, node_) {
        node_.on_high(options_.on_high);
        policy_.emplace(device_, std::move(policy));
        arena_registry::instance().enter({this,
                                          [](const void* self, const void* p) noexcept {
                                              return static_cast<const arena_core*>(self)->has(p);
                                          },
                                          short_text(options_.name)});
        node_.attach(*this);
        shown_ = environment::instance().show(*this);
    }

    arena_core(const arena_core&) = delete;
    arena_core& operator=(const arena_core&) = delete;

    ~arena_core() override {
        shown_ = {};
        node_.detach();
        arena_registry::instance().leave(this);
        const misuse_scope scope(&refine, this);
        policy_.reset(); // reports what is still live, through `refine`, under this arena's name
    }

    [[nodiscard]] const arena_options& options() const noexcept { return options_; }
    [[nodiscard]] meter& node() noexcept { return node_; }
    [[nodiscard]] const meter& node() const noexcept { return node_; }
    [[nodiscard]] usage_counters usage() const { return policy_->usage(); }
    [[nodiscard]] policy_type& policy() noexcept { return *policy_; }

    /// Effects: a core with live blocks goes to the group above, if there is one; any other is destroyed.
    static void bequeath(std::unique_ptr<arena_core> core) noexcept {
        const std::shared_ptr<survivors> heir = core->heir_.lock();
        if (heir == nullptr) return;
        try {
            if (core->live_blocks() == 0) return;
            heir->add(std::shared_ptr<survivor>(std::move(core)));
        } catch (...) { // host memory: destroyed, and what was live is reported
        }
    }

    // ---- allocation and free, with what the policy does not know ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment) {
        void* p = nullptr;
        try {
            p = policy_->allocate(stream, bytes, alignment); // nothing is passed on but p
        } catch (const out_of_memory& e) {
            return climb_or_throw(e.failure(), stream, bytes, alignment);
        } catch (const driver_error&) {
            node_.count_failure(failure_cause::driver);
            throw;
        } catch (const invalid_alignment&) {
            node_.count_failure(failure_cause::invalid_alignment);
            throw;
        }
        if (node_.pressed()) [[unlikely]]
            relieve();
        return p;
    }
    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment) noexcept {
        deallocate_result r = policy_->try_deallocate(stream, p, bytes, alignment);
        if (!r) name(r);
        return r;
    }
    void deallocate(stream_handle stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
        if (const deallocate_result r = try_deallocate(stream, p, bytes, alignment); !r)
            report_misuse(r.error());
    }

    // The same, for who has looked for a hit already.
    TENURE_NOINLINE void* allocate_missed(stream_handle stream, std::size_t bytes, std::size_t alignment) {
        return allocate(stream, bytes, alignment);
    }
    TENURE_NOINLINE void deallocate_missed(stream_handle stream, void* p, std::size_t bytes,
                                           std::size_t alignment) noexcept {
        deallocate(stream, p, bytes, alignment);
    }

    // ---- the ladder ----

    /// Effects: what is left to do after the policy has answered `r`, where it failed or there is pressure. Changes `r` in
    /// place, so that the hot path returns the policy's answer without a copy.
    TENURE_NOINLINE void climb(allocate_result& r, stream_handle stream, std::size_t bytes,
                               std::size_t alignment) noexcept {
        climb(
            r, [&]() noexcept { return policy_->try_allocate(stream, bytes, alignment); },
            [&]() noexcept {
                const result<stream_state, status> state = device_.describe(stream);
                return state && !state->capturing();
            });
    }

    /// The same for a policy that has thrown.
    TENURE_NOINLINE void* climb_or_throw(const allocation_failure& failure, stream_handle stream,
                                         std::size_t bytes, std::size_t alignment) {
        allocate_result r = failure;
        climb(r, stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }
    TENURE_NOINLINE void relieve() noexcept { node_.relieve(); }

    void* allocate_sync(std::size_t bytes, std::size_t alignment) {
        const auto attempt = [&]() -> allocate_result {
            try {
                return policy_->allocate_sync(bytes, alignment);
            } catch (const out_of_memory& e) {
                return e.failure();
            }
        };
        allocate_result r = attempt();
        if (!r || node_.pressed()) climb(r, attempt, [] { return true; });
        if (!r) throw_failure(r.error());
        return *r;
    }

    // ---- misuse ----

    /// Requires: `r` is a misuse. Effects: adds what the policy does not know.
    TENURE_NOINLINE void name(deallocate_result& r) noexcept {
        misuse m = r.error();
        refine(m, this);
        r = m;
    }

    /// Adds the arena's name to a misuse, and finds out whose pointer it was. Returns: whether it is one.
    static bool refine(misuse& m, void* context) noexcept {
        const auto* self = static_cast<const arena_core*>(context);
        if (!m.owner.empty()) return true; // another arena's, which a handler or callback has used
        m.owner = short_text(self->options_.name);
        if (m.kind == misuse_kind::live_at_destruction)
            return self->options_.at_destruction != leftovers::release;
        if (m.kind != misuse_kind::foreign_pointer) return true;
        if (const auto owner = arena_registry::instance().owner_of(m.pointer, self)) {
            m.kind = misuse_kind::wrong_arena;
            m.real_owner = *owner;
        }
        return true;
    }

    // ---- the rest ----

    [[nodiscard]] bool validate() const noexcept {
        if (!policy_->validate()) return false;
        for (int tries = 0; tries < 100; ++tries) {
            const meter_reading before = node_.read();
            const std::size_t reserved = policy_->usage().reserved.current;
            const meter_reading after = node_.read();
            // No charge in between, so equal sums mean no refund either.
            if (before.charges == after.charges && before.own == after.own) return reserved <= after.own;
        }
        return true;
    }

    std::size_t release_all(stream_handle stream) {
        const misuse_scope scope(&refine, this);
        std::size_t freed = 0;
        for (const segment_snapshot& s : policy_->snapshot().segments)
            for (const block_snapshot& b : s.blocks) {
                if (b.state != block_state::allocated || b.continued) continue;
                void* const p = to_pointer(b.block != 0 ? b.block : b.address);
                if (policy_->try_deallocate(stream, p, b.requested)) ++freed;
            }
        return freed;
    }

    status set_parent(meter& parent, arena_group* group) noexcept {
        const status s = node_.set_parent(parent);
        if (s == status::ok) heir_ = heir_of(group);
        return s;
    }

    /// See `arena::transfer`.
    template <class Other>
    result<freed, move_refusal> transfer(void* p, Other& to) noexcept {
        if (static_cast<const void*>(&to) == this) return move_refusal::not_supported;
        if constexpr (moves_blocks<policy_type> && moves_blocks<typename Other::policy_type>) {
            if (device_.upstream() != to.device_.upstream()) return move_refusal::not_supported;
            const result<moving_block, move_refusal> m = policy_->offer(p);
            if (!m) return m.error();
            const std::size_t bytes = round_up(m->allocated, device_.allocation_granularity());
            status paid = meter::move_charge(node_, to.node_, bytes);
            if (paid == status::invalid_value) { // of two trees: for an instant both pay
                result<meter::ticket, status> charge = to.node_.reserve_settled(bytes);
                paid = charge ? status::ok : charge.error();
                if (charge) {
                    charge->commit();
                    node_.refund(bytes);
                }
            }
            if (paid != status::ok) return move_refusal::over_limit;
            bool accepted = false;
            move_refusal why = move_refusal::device;
            if (device_.wipe_around(to_pointer(m->allocation), m->allocated, p, m->requested) == status::ok) {
                why = move_refusal::not_supported; // the other's layout has no place for such a segment
                try {
                    accepted = to.policy_->accept(*m);
                } catch (...) {
                    why = move_refusal::host_memory;
                }
            }
            if (!accepted) {
                if (meter::move_charge(to.node_, node_, bytes, true) != status::ok) {
                    to.node_.refund(bytes);
                    node_.charge_as_of_right(bytes);
                }
                return why;
            }
            policy_->let_go(p);
            to.device_.take_over(to_pointer(m->allocation));
            return freed{};
        } else {
            return move_refusal::not_supported;
        }
    }

    // ---- idle_holder ----

    std::size_t give_idle(std::size_t bytes_to_keep) noexcept override {
        const misuse_scope scope(&refine, this);
        try {
            return policy_->trim(bytes_to_keep);
        } catch (...) { // host memory
            return 0;
        }
    }

    [[nodiscard]] std::uint64_t freed_blocks() const noexcept override {
        try {
            return policy_->usage().blocks.total_out;
        } catch (...) { // host memory
            return 0;
        }
    }

    // ---- survivor ----

    deallocate_result free_on(stream_handle stream, void* p, std::size_t bytes,
                              std::size_t alignment) noexcept override {
        deallocate_result r = policy_->try_deallocate(stream, p, bytes, alignment);
        if (!r) name(r);
        return r;
    }
    void free_on_own_stream(void* p) noexcept override {
        const misuse_scope scope(&refine, this);
        policy_->release(p);
    }
    [[nodiscard]] bool has(const void* p) const noexcept override { return policy_->owns(p); }
    [[nodiscard]] std::size_t live_blocks() const override { return policy_->usage().blocks.current; }

  private:
    template <template <class> class, device>
    friend class arena_core;

    static std::weak_ptr<survivors> heir_of(const arena_group* group) noexcept {
        return group == nullptr ? std::weak_ptr<survivors>() : group->heir();
    }

    static bool memory_would_help(const allocation_failure& f) noexcept {
        return f.cause != failure_cause::invalid_alignment && f.cause != failure_cause::driver;
    }

    /// Steps 4 to 7; see `arena`. `attempt()` asks the policy again; `may_wait()`: whether the host may wait for others.
    template <class Attempt, class MayWait>
    void climb(allocate_result& r, Attempt&& attempt, MayWait&& may_wait) {
        if (!r && memory_would_help(r.error())) {
            if (options_.on_pressure && told(r.error())) r = attempt();
            borrow_for(r, attempt);
            if (!r && options_.wait.limit.count() > 0 && memory_would_help(r.error()) && may_wait())
                wait_for(r, attempt);
        }
        if (!r) node_.count_failure(r.error().cause);
        node_.forget_refusal(); // the next request has answers of its own
        if (node_.pressed()) node_.relieve();
    }

    /// Returns: whether the application says that it made room.
    bool told(const allocation_failure& failure) noexcept {
        try {
            return options_.on_pressure(failure);
        } catch (...) { // a callback that fails made no room
            return false;
        }
    }

    /// Where room is missing, and how much.
    struct shortage {
        std::uint64_t level = 0;
        std::size_t bytes = 0;
        bool hopeless = false;
    };

    [[nodiscard]] std::optional<shortage> shortage_of(const allocation_failure& f) const noexcept {
        if (f.driver_status == status::over_limit) {
            const std::optional<refusal> why = node_.last_refusal();
            if (!why) return std::nullopt;
            return shortage{why->level, why->ancestor ? why->missing : 0, why->hopeless};
        }
        // The device is full: whoever shares it with this arena stands in the same tree.
        if (f.driver_status == status::out_of_memory)
            return shortage{0, round_up(f.rounded, device_.allocation_granularity()), f.rounded > f.max};
        return std::nullopt;
    }

    /// Effects: takes idle memory of others and tries again, until that succeeds or there is none.
    template <class Attempt>
    void borrow_for(allocate_result& r, Attempt&& attempt) {
        // While others take what was given, more is asked for; not without end. Nothing found means that there was nothing
        // only if nobody has freed a block meanwhile where it was looked for already.
        std::optional<free_count> before;
        for (int round = 0; round < meter::most_rounds && !r && memory_would_help(r.error()); ++round) {
            const std::optional<shortage> missing = shortage_of(r.error());
            if (!missing || missing->bytes == 0 || missing->hopeless) return;
            const bool none = node_.borrow(missing->level, missing->bytes) == 0;
            r = attempt(); // others may have made more room than they needed
            if (r) return;
            std::optional<free_count> now;
            if (none) now = node_.count_frees(missing->level);
            if (none && before == now) return;
            before = now;
        }
    }

    template <class Attempt>
    void wait_for(allocate_result& r, Attempt&& attempt) {
        std::optional<shortage> missing = shortage_of(r.error());
        if (!missing || missing->hopeless) return;
        const auto end = std::chrono::steady_clock::now() + options_.wait.limit;
        meter::place place(node_, missing->level, options_.wait.threads);
        while (place.granted() && place.await(end)) {
            r = attempt();
            if (!r) borrow_for(r, attempt);
            if (r || !memory_would_help(r.error())) return;
            missing = shortage_of(r.error());
            if (!missing || missing->hopeless) return;
            place.turn_to(missing->level);
        }
    }

    const arena_options options_;
    std::weak_ptr<survivors> heir_; ///< of the group above, which may go first
    meter node_;
    metered<Device> device_;
    std::optional<policy_type> policy_; ///< always engaged between construction and destruction
    environment::shown shown_;
};

} // namespace tenure
