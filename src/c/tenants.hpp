#pragma once

/// \file
/// The handles of the C interface, and `tenants`: the tree of arenas and groups of one device, by path.
///
///     tenure_device --> tenants --> "gpu"      group
///                                   "gpu/a"    arena --> the device's hub
///                                   "gpu/b"    arena
///
/// Invariants:
///   1. What a handle points to is never freed: destroyed, it is emptied and marked, so that whoever still uses it is
///      told. That costs some 200 bytes of host memory for each that ever was.
///   2. Nothing is destroyed that others stand under.
///   3. What `TENURE_ARENAS` says of a path holds over what the program says.
///
///   4. A child of `fork` has none of its parent's handles: there they are as if closed.
///
/// Complexity: logarithmic in the tenants. Thread-safety: thread-safe; what is destroyed is waited for (`inside.hpp`).

#include "failure.hpp"
#include "inside.hpp"
#include "opened_device.hpp"
#include "settings.hpp"

#include "../policies/named_arena.hpp"

#include <tenure/resource/resource_ref.hpp>
#include <tenure/tenancy/arena_config.hpp>
#include <tenure/tenancy/arena_group.hpp>
#include <tenure/tenancy/arenas_view.hpp>
#include <tenure/tenure.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>

namespace tenure::c {

class tenants;

} // namespace tenure::c

struct tenure_device : tenure::c::handle {
    std::unique_ptr<tenure::c::tenants> inside;
};

struct tenure_arena : tenure::c::handle {
    std::optional<tenure::resource_ref> memory; ///< of an arena; a group has none
    tenure::meter* node = nullptr;
    tenure_device* owner = nullptr; ///< may be closed when this is

    tenure_arena* parent = nullptr;
    std::size_t children = 0;
    bool implied = false; ///< a group that only the operator named; the program may still make it its own
    std::string path;
    std::unique_ptr<tenure::arena_group> group;
    std::unique_ptr<tenure::policies::named_arena> arena;
    std::optional<tenure::arenas_view::seen> seen; ///< by the device's view
};

namespace tenure::c {

/// All state of the library that belongs to no device. Never destroyed: arenas may outlive any static object.
struct library {
    std::mutex mutex; ///< guards the handles
    std::deque<std::unique_ptr<tenure_device>> devices;
    std::deque<std::unique_ptr<tenure_arena>> arenas;

    static library& get() {
        static library& only = *new library;
        return only;
    }

    tenure_device& keep(std::unique_ptr<tenants> opened);
    /// Effects: `arena` is kept; if this throws, it is still the caller's.
    void keep(std::unique_ptr<tenure_arena>& arena) {
        const std::lock_guard lock(mutex);
        arenas.push_back(std::move(arena));
    }

  private:
    library() {
        (void)::pthread_atfork([] { get().mutex.lock(); }, [] { get().mutex.unlock(); },
                               [] {
                                   get().forget_all();
                                   get().mutex.unlock();
                               });
    }

    void forget_all() noexcept {
        for (const auto& d : devices) d->mark.store(0);
        for (const auto& a : arenas) a->mark.store(0);
        call_slots::forget_others();
    }
};

enum class tenant_kind { arena, group };

class tenants {
    /// What a call has made so far, in order.
    using made_here = std::vector<tenure_arena*>;

  public:
    tenants(std::unique_ptr<opened_device> device, arena_config from_operator)
        : device_(std::move(device)), operator_(std::move(from_operator)) {}

    [[nodiscard]] opened_device& device() noexcept { return *device_; }

    /// See tenure_arena_create and tenure_group_create. Throws.
    tenure_arena& create(std::string_view path, std::string_view settings, tenant_kind kind) {
        check_path(path);
        arena_entry entry = parse_tenant(path, settings);
        const std::lock_guard lock(mutex_);
        if (settings.empty())
            if (const arena_entry* any = any_beside(path)) {
                entry = *any;
                entry.path = path;
                if (kind == tenant_kind::group) entry.policy.clear(); // it is for the arenas beside
            }
        return all_or_none(
            [&](made_here& made) -> tenure_arena& { return make(std::move(entry), kind, made); });
    }

    /// See tenure_arenas_create. Throws.
    void create_all(std::string_view text) {
        const arena_config config = arena_config::parse(text, "arenas");
        const std::lock_guard lock(mutex_);
        std::vector<arena_entry> any_after = any_;
        all_or_none([&](made_here& made) {
            for (const arena_entry& e : config.entries()) {
                if (e.name() == "*") {
                    any_after.erase(std::remove_if(any_after.begin(), any_after.end(),
                                                   [&](const arena_entry& o) { return o.path == e.path; }),
                                    any_after.end());
                    any_after.push_back(e);
                    continue;
                }
                check_path(e.path);
                const bool above = std::any_of(
                    config.entries().begin(), config.entries().end(),
                    [&](const arena_entry& other) { return e.path == other.parent() && &other != &e; });
                make(e, above && e.policy.empty() ? tenant_kind::group : tenant_kind::arena, made);
            }
        });
        any_ = std::move(any_after);
    }

    /// Returns: null if there is none.
    [[nodiscard]] tenure_arena* find(std::string_view path) const {
        const std::lock_guard lock(mutex_);
        return find_locked(path);
    }

    /// See tenure_arena_destroy. Returns: whether it was there. Throws: `coded_error`.
    bool destroy(tenure_arena& a, bool release_live) {
        const std::lock_guard lock(mutex_);
        const auto can_go = [&] {
            if (a.children != 0)
                throw coded_error(TENURE_BUSY,
                                  std::to_string(a.children) + " tenants stand below \"" + a.path + "\"");
            if (!a.memory || release_live) return true;
            const usage_counters u = a.memory->usage();
            if (u.blocks.current != 0 || u.captured != 0)
                throw coded_error(TENURE_LIVE_BLOCKS,
                                  "arena \"" + a.path + "\" has " + std::to_string(u.blocks.current) +
                                      " live blocks of " + format_bytes(u.requested.current) +
                                      ", and keeps " + format_bytes(u.captured) + " for graphs");
            return true;
        };
        if (!close_handle(a, handle::arena, can_go)) return false;
        remove(a);
        return true;
    }

    /// Returns: the operator's line for `path`, or null.
    [[nodiscard]] const arena_entry* from_operator(std::string_view path) const {
        return operator_.find(path);
    }

    [[nodiscard]] std::size_t size() const {
        const std::lock_guard lock(mutex_);
        return by_path_.size();
    }
    [[nodiscard]] std::vector<arena_row> rows() const { return view_.read(); }

  private:
    friend struct library;

    /// Returns: what `f` returns; if it throws, what it had made is gone again.
    template <class F>
    std::invoke_result_t<F&, made_here&> all_or_none(F&& f) {
        made_here made;
        try {
            return f(made);
        } catch (...) {
            for (auto it = made.rbegin(); it != made.rend(); ++it) remove(**it);
            throw;
        }
    }

    [[nodiscard]] tenure_arena* find_locked(std::string_view path) const {
        const auto it = by_path_.find(path);
        return it == by_path_.end() ? nullptr : it->second;
    }

    static std::string_view above(std::string_view path) {
        const std::size_t slash = path.rfind('/');
        return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
    }

    [[nodiscard]] const arena_entry* any_beside(std::string_view path) const {
        for (const arena_entry& e : any_)
            if (e.parent() == above(path)) return &e;
        return nullptr;
    }

    /// Returns: what stands above `path`, made if only the operator knows it; null: nothing is to stand there.
    tenure_arena* parent_of(std::string_view path, made_here& made) {
        const std::string_view parent = above(path);
        if (parent.empty()) return nullptr;
        if (tenure_arena* const there = find_locked(parent)) return there;
        for (arena_entry e : operator_.entries())
            if (e.path == parent) {
                e.policy.clear(); // what it may be for an arena, a group has none
                tenure_arena& group = make(std::move(e), tenant_kind::group, made);
                group.implied = true;
                return &group;
            }
        throw coded_error(TENURE_NOT_FOUND, "nothing stands at \"" + std::string(parent) + "\", above \"" +
                                                std::string(path) + "\": make a group there first");
    }

    tenure_arena& make(arena_entry entry, tenant_kind kind, made_here& made) {
        tenure_arena* const there = find_locked(entry.path);
        if (there != nullptr && there->implied && kind == tenant_kind::group) {
            limit(*there, entry);
            there->implied = false;
            return *there;
        }
        if (there != nullptr)
            throw coded_error(TENURE_EXISTS, "there is a tenant \"" + entry.path + "\" already");
        if (kind == tenant_kind::group && !entry.policy.empty())
            throw std::invalid_argument("\"" + entry.path + "\" is a group: it has no policy");
        const arena_entry* const by_operator = operator_.find(entry.path);
        if (by_operator != nullptr && !by_operator->policy.empty()) entry.policy = by_operator->policy;
        tenure_arena* const parent = parent_of(entry.path, made);
        made.reserve(made.size() + 1);
        meter* const above = parent == nullptr ? nullptr : parent->node;

        const std::string name(entry.name());
        auto owned = std::make_unique<tenure_arena>();
        tenure_arena& a = *owned;
        if (kind == tenant_kind::group) {
            group_options options{.name = name,
                                  .min = entry.limits.min,
                                  .high = entry.limits.high,
                                  .max = entry.limits.max,
                                  .weight = entry.limits.weight,
                                  .on_high = {}};
            operator_.apply(entry.path, options);
            a.group = above == nullptr ? std::make_unique<arena_group>(std::move(options))
                                       : std::make_unique<arena_group>(*above, std::move(options));
            a.node = &a.group->node();
        } else {
            arena_options options{.name = name,
                                  .min = entry.limits.min,
                                  .high = entry.limits.high,
                                  .max = entry.limits.max,
                                  .weight = entry.limits.weight,
                                  .at_destruction = leftovers::release,
                                  .on_pressure = {}};
            operator_.apply(entry.path, options);
            const policies::policy_choice policy =
                entry.policy.empty() ? policies::policy_choice{} : policies::parse_policy(entry.policy);
            a.arena = device_->make_arena(policy, above, std::move(options));
            a.node = &a.arena->node();
            a.memory.emplace(a.arena->memory());
        }
        try {
            show(a);
            by_path_.emplace(entry.path, &a);
            library::get().keep(owned);
        } catch (...) {
            by_path_.erase(entry.path);
            empty(a);
            throw;
        }
        made.push_back(&a);
        a.path = std::move(entry.path);
        a.owner = handle_;
        a.parent = parent;
        if (parent != nullptr) ++parent->children;
        a.mark.store(handle::arena, std::memory_order_release);
        return a;
    }

    /// Effects: the group has the limits that `entry` gives and the operator does not. Throws: `coded_error`.
    void limit(tenure_arena& group, const arena_entry& entry) {
        const arena_entry* const line = operator_.find(entry.path);
        const arena_entry::keys taken = line == nullptr ? arena_entry::keys{} : line->given;
        if (entry.given.max && !taken.max) (void)group.node->enforce_max(entry.limits.max);
        if (entry.given.min && !taken.min && group.node->admit_min(entry.limits.min) != status::ok)
            throw coded_error(TENURE_NOT_ADMITTED, "the guarantee of \"" + entry.path + "\" does not fit");
        if (entry.given.high && !taken.high) group.node->set_high(entry.limits.high);
        if (entry.given.weight && !taken.weight) group.node->set_weight(entry.limits.weight);
    }

    void show(tenure_arena& a) {
        if (a.arena)
            a.seen.emplace(view_.add(*a.arena));
        else
            a.seen.emplace(view_.add(*a.group));
    }

    static void empty(tenure_arena& a) noexcept {
        a.seen.reset();
        a.memory.reset();
        a.node = nullptr;
        a.arena.reset();
        a.group.reset();
    }

    void remove(tenure_arena& a) noexcept {
        a.mark.store(0, std::memory_order_release);
        by_path_.erase(a.path);
        if (a.parent != nullptr) --a.parent->children;
        empty(a);
        a.path = {};
    }

    tenure_device* handle_ = nullptr;
    const std::unique_ptr<opened_device> device_;
    const arena_config operator_;
    arenas_view view_;
    mutable std::mutex mutex_; ///< guards what follows
    std::map<std::string, tenure_arena*, std::less<>> by_path_;
    std::vector<arena_entry> any_; ///< the lines "*" of the program
};

inline tenure_device& library::keep(std::unique_ptr<tenants> opened) {
    const std::lock_guard lock(mutex);
    tenure_device& made = *devices.emplace_back(std::make_unique<tenure_device>());
    opened->handle_ = &made;
    made.inside = std::move(opened);
    made.mark.store(handle::device, std::memory_order_release);
    return made;
}

} // namespace tenure::c
