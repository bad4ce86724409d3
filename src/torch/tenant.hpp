#pragma once

/// \file
/// `tenant`: an arena as torch's threads know it: a name, a policy and a limit, with memory of its own on each device.
/// `tenants`: all of them, and which one this thread is in.
///
/// Which arena a thread is in travels in `c10::ThreadLocalDebugInfo`, which torch itself carries into autograd's worker
/// threads: a backward pass allocates where the forward pass did. A thread that never entered an arena is in none, and
/// finds that out with one relaxed load.
///
/// Invariants: ids are never reused; 0 is the default arena; no two tenants that can be entered have the same name.
/// Thread-safety: thread-safe.

#include "options.hpp"

#include <tenure/core/error.hpp>

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tenure::torch {

struct arena_slot;

inline constexpr int max_devices = 128; ///< torch counts devices in eight bits

class tenant final : public c10::DebugInfoBase, public std::enable_shared_from_this<tenant> {
  public:
    tenant(std::uint64_t id, std::string name, std::size_t max, policy_choice policy)
        : id_(id), name_(std::move(name)), policy_(std::move(policy)) {
        for (auto& m : max_) m.store(max, std::memory_order_relaxed);
    }

    [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] const policy_choice& policy() const noexcept { return policy_; }
    [[nodiscard]] std::size_t max(int device) const noexcept { return max_[at(device)].load(); }
    void set_max(int device, std::size_t bytes) noexcept { max_[at(device)].store(bytes); }

    /// Its memory on a device, null before the first use and after the last. Written under that device's lock.
    [[nodiscard]] arena_slot* slot(int device) const noexcept { return slots_[at(device)].load(); }
    void set_slot(int device, arena_slot* s) noexcept { slots_[at(device)].store(s); }

    [[nodiscard]] bool open() const noexcept { return open_.load(); }
    void close() noexcept { open_.store(false); }

  private:
    static std::size_t at(int device) noexcept { return static_cast<std::size_t>(device); }

    const std::uint64_t id_;
    const std::string name_;
    const policy_choice policy_;
    std::array<std::atomic<std::size_t>, max_devices> max_{}; ///< bytes
    std::array<std::atomic<arena_slot*>, max_devices> slots_{};
    std::atomic<bool> open_{true};
};

using tenant_ptr = std::shared_ptr<tenant>;

class tenants {
  public:
    /// Throws: `std::invalid_argument` if an open tenant has the name.
    tenant_ptr create(const std::string& name, std::size_t max, policy_choice policy) {
        const std::lock_guard lock(mutex_);
        if (name.empty()) throw std::invalid_argument("an arena needs a name");
        if (find_open(name) != nullptr)
            throw std::invalid_argument("there is an arena \"" + name + "\" already");
        const std::uint64_t id = next_++;
        auto t = std::make_shared<tenant>(id, name, max, std::move(policy));
        all_.emplace(id, t);
        return t;
    }

    /// Returns: null if there is none.
    [[nodiscard]] tenant_ptr find(std::uint64_t id) const {
        const std::lock_guard lock(mutex_);
        const auto it = all_.find(id);
        return it == all_.end() ? nullptr : it->second;
    }
    [[nodiscard]] tenant_ptr find(const std::string& name) const {
        const std::lock_guard lock(mutex_);
        return find_open(name);
    }
    [[nodiscard]] std::vector<tenant_ptr> list() const {
        const std::lock_guard lock(mutex_);
        std::vector<tenant_ptr> l;
        for (const auto& [id, t] : all_) l.push_back(t);
        return l;
    }

    /// Effects: forgets a closed tenant that has no memory left anywhere.
    void forget(std::uint64_t id) {
        const std::lock_guard lock(mutex_);
        all_.erase(id);
    }

    // ---- this thread ----

    /// Returns: the arena that this thread is in; null: in none, so in the default one.
    [[nodiscard]] static tenant* current() noexcept {
        if (!entered_ever.load(std::memory_order_relaxed)) [[likely]]
            return nullptr;
        return static_cast<tenant*>(c10::ThreadLocalDebugInfo::get(kind));
    }
    static void push(tenant_ptr t) {
        entered_ever.store(true);
        c10::ThreadLocalDebugInfo::_push(kind, std::move(t));
    }
    /// Effects: this thread leaves the arena that it entered last. What others have pushed since (a profiler that was
    /// started inside) stays. Throws: `c10::Error` if it is in none, or what lies above is of a kind that nobody knows.
    static void pop() {
        using info = c10::ThreadLocalDebugInfo;
        std::vector<std::pair<c10::DebugInfoKind, std::shared_ptr<c10::DebugInfoBase>>> above;
        for (int k = 0; !on_top(kind) && k < kinds; ++k) {
            const auto other = static_cast<c10::DebugInfoKind>(k);
            if (!on_top(other)) continue;
            above.emplace_back(other, info::_pop(other));
            k = -1;
        }
        const bool inside = on_top(kind);
        if (inside) (void)info::_pop(kind);
        for (; !above.empty(); above.pop_back()) info::_push(above.back().first, above.back().second);
        TORCH_CHECK(inside, "tenure: this thread is in no arena that it could leave now");
    }

  private:
    /// Torch has no kind for others to use; it compares kinds, and does nothing else with them.
    static constexpr auto kind = static_cast<c10::DebugInfoKind>(0xA7);
    static constexpr int kinds = 16; ///< more than torch has of its own

    static bool on_top(c10::DebugInfoKind k) {
        try {
            return c10::ThreadLocalDebugInfo::_peek(k) != nullptr;
        } catch (const c10::Error&) { // there is no other way to ask
            return false;
        }
    }

    static inline std::atomic<bool> entered_ever{false};

    [[nodiscard]] tenant_ptr find_open(const std::string& name) const {
        for (const auto& [id, t] : all_)
            if (t->open() && t->name() == name) return t;
        return nullptr;
    }

    mutable std::mutex mutex_; ///< guards what follows; nothing is called under it
    std::map<std::uint64_t, tenant_ptr> all_;
    std::uint64_t next_ = 0; ///< the first to be made is the default
};

} // namespace tenure::torch
