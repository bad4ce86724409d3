#pragma once

/// \file
/// `arenas_view`: the tenants and devices that an operator wants to see, and a picture of them all.
///
///     arenas_view view;
///     auto seen_gpu = view.add(gpu);        a group: itself and all below it
///     auto seen_job = view.add(job);        an arena: also what its pool knows
///     auto seen_book = view.add(book);      accounts: all of a book in one row, below the arena whose pool they share
///     auto seen_alice = view.add(alice);    one account of many: a row of its own, below the book
///     auto seen_card = view.add("0", card, [&] { return gpu.limits().used; });    a `capacity_watch`
///     puts(to_json(view.read(), {}).c_str());
///
/// Invariants:
///   1. What was added is looked at only while its `seen` lives, which therefore ends before it does.
///   2. Rows come in tree order, parents before children, each tenant once however often it was added.
///   3. What stands below a group or an arena that was added is taken with it at one instant; what pools and accounts know is
///      taken right after. A tenant that moves to another tree meanwhile shows where it was or where it is.
///
/// Nothing is done but in `read` and `read_devices`. Complexity: linear in the rows, and one `usage` an arena, a visit of all
/// stocks an account, one question to the device a watch.
/// Thread-safety: thread-safe. Its lock is taken before any other of the library.

#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/account_picture.hpp>
#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/capacity.hpp>
#include <tenure/tenancy/device_row.hpp>
#include <tenure/tenancy/meter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure {

class arenas_view {
  public:
    /// While it lives, the view shows what was added.
    class seen {
      public:
        seen(seen&& other) noexcept : view_(std::exchange(other.view_, nullptr)), number_(other.number_) {}
        seen& operator=(seen&& other) noexcept {
            std::swap(view_, other.view_);
            std::swap(number_, other.number_);
            return *this;
        }
        ~seen() {
            if (view_ != nullptr) view_->remove(number_);
        }

      private:
        friend class arenas_view;
        seen(arenas_view& view, std::uint64_t number) noexcept : view_(&view), number_(number) {}
        arenas_view* view_;
        std::uint64_t number_;
    };

    arenas_view() = default;
    arenas_view(const arenas_view&) = delete;
    arenas_view& operator=(const arenas_view&) = delete;

    /// Effects: shows an arena or a group, and all below it; or a book of accounts; or an account. Requires: it and the view
    /// outlive what is returned. Throws: `std::bad_alloc`.
    template <class Tenant>
    [[nodiscard]] seen add(const Tenant& tenant) {
        if constexpr (requires { tenant.glance(); }) {
            const std::lock_guard lock(mutex_);
            account_source s{.tenant = &tenant,
                             .look = [](const void* t) { return static_cast<const Tenant*>(t)->glance(); }};
            const auto same = std::find_if(accounts_.begin(), accounts_.end(),
                                           [&](const account_source& a) { return a.tenant == s.tenant; });
            s.number = ++last_;
            s.id = same == accounts_.end() ? meter::new_id() : same->id;
            accounts_.push_back(s);
            return {*this, s.number};
        } else {
            source s{.node = &tenant.node()};
            if constexpr (requires { tenant.usage(); }) {
                s.pool = &tenant;
                s.usage = [](const void* pool) { return static_cast<const Tenant*>(pool)->usage(); };
            }
            const std::lock_guard lock(mutex_);
            s.number = ++last_;
            sources_.push_back(s);
            return {*this, s.number};
        }
    }

    /// Effects: shows a device. `held()`: bytes that the arenas hold of it, as `capacity_watch::look` takes it; called by
    /// whoever reads, with the view's lock held, and must not throw. Requires: no other device of that name is shown; the
    /// watch, and what `held` refers to, outlive what is returned, as the view does. Throws: `std::bad_alloc`.
    [[nodiscard]] seen add(std::string name, capacity_watch& watch, std::function<std::size_t()> held) {
        const std::lock_guard lock(mutex_);
        devices_.push_back({last_ + 1, std::move(name), &watch, std::move(held)});
        return {*this, ++last_};
    }

    /// Throws: `std::bad_alloc`.
    [[nodiscard]] std::vector<arena_row> read() const {
        const std::lock_guard lock(mutex_);
        std::vector<arena_row> rows;
        std::unordered_map<std::uint64_t, std::size_t> by_id;
        std::vector<std::pair<std::uint64_t, const source*>> pools;
        for (const source& s : sources_) {
            if (s.pool != nullptr) pools.emplace_back(s.node->id(), &s);
            if (by_id.count(s.node->id()) != 0) continue; // seen from above
            for (const tenant_picture& t : s.node->picture()) {
                const auto [at, is_new] = by_id.emplace(t.id, rows.size());
                if (is_new)
                    rows.push_back(row_of(t));
                else
                    rows[at->second] = row_of(t); // of the instant of what is above it
            }
        }
        for (const auto& [id, s] : pools) set_usage(rows[by_id.at(id)], s->usage(s->pool));
        add_accounts(rows, by_id);
        return in_tree_order(std::move(rows), by_id);
    }

    /// Returns: the devices, as they were added; each is asked. Throws: `std::bad_alloc`.
    [[nodiscard]] std::vector<device_row> read_devices() const {
        const std::lock_guard lock(mutex_);
        std::vector<device_row> rows;
        rows.reserve(devices_.size());
        for (const device_source& d : devices_) rows.push_back(row_of(d.name, d.watch->look(d.held())));
        return rows;
    }

  private:
    struct source {
        std::uint64_t number = 0;
        const meter* node = nullptr;
        const void* pool = nullptr;
        usage_counters (*usage)(const void*) = nullptr;
    };
    struct account_source {
        std::uint64_t number = 0;
        std::uint64_t id = 0; ///< of its row; the same for the same account
        const void* tenant = nullptr;
        account_picture (*look)(const void*) = nullptr;
    };
    struct device_source {
        std::uint64_t number = 0;
        std::string name;
        capacity_watch* watch = nullptr;
        std::function<std::size_t()> held;
    };

    /// Effects: each account stands below the next of those above it that is shown, a book below its arena.
    void add_accounts(std::vector<arena_row>& rows,
                      std::unordered_map<std::uint64_t, std::size_t>& by_id) const {
        std::vector<std::pair<std::uint64_t, account_picture>> pictures;
        std::unordered_map<const void*, std::uint64_t> shown;
        for (const account_source& s : accounts_) {
            if (!by_id.emplace(s.id, rows.size() + pictures.size()).second) continue;
            pictures.emplace_back(s.id, s.look(s.tenant));
            shown.emplace(pictures.back().second.key, s.id);
        }
        for (const auto& [id, picture] : pictures) {
            arena_row row = row_of(picture);
            row.id = id;
            row.parent = picture.arena;
            for (const void* const above : picture.above) {
                const auto at = shown.find(above);
                if (at == shown.end()) continue;
                row.parent = at->second;
                break;
            }
            rows.push_back(std::move(row));
        }
    }

    static std::vector<arena_row> in_tree_order(std::vector<arena_row> rows,
                                                const std::unordered_map<std::uint64_t, std::size_t>& by_id) {
        std::unordered_map<std::uint64_t, std::vector<std::size_t>> children;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (by_id.count(rows[i].parent) == 0) rows[i].parent = 0; // what is above it is not shown
            children[rows[i].parent].push_back(i);
        }
        std::vector<arena_row> ordered;
        ordered.reserve(rows.size());
        std::vector<bool> shown(rows.size(), false);
        std::vector<std::pair<std::size_t, std::uint32_t>> to_visit; // row, depth; the last is next
        const auto push = [&](std::uint64_t parent, std::uint32_t depth) {
            const auto below = children.find(parent);
            if (below == children.end()) return;
            for (auto it = below->second.rbegin(); it != below->second.rend(); ++it)
                to_visit.emplace_back(*it, depth);
        };
        const auto visit_all = [&] {
            while (!to_visit.empty()) {
                const auto [i, depth] = to_visit.back();
                to_visit.pop_back();
                if (shown[i]) continue;
                shown[i] = true;
                if (depth == 0) rows[i].parent = 0;
                rows[i].depth = depth;
                push(rows[i].id, depth + 1);
                ordered.push_back(std::move(rows[i]));
            }
        };
        push(0, 0);
        visit_all();
        // Two that changed places between their pictures stand above each other.
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (shown[i]) continue;
            to_visit.emplace_back(i, 0);
            visit_all();
        }
        return ordered;
    }

    void remove(std::uint64_t number) noexcept {
        const std::lock_guard lock(mutex_);
        const auto is_it = [number](const auto& s) { return s.number == number; };
        std::erase_if(sources_, is_it);
        std::erase_if(accounts_, is_it);
        std::erase_if(devices_, is_it);
    }

    mutable std::mutex mutex_; ///< guards what follows
    std::vector<source> sources_;
    std::vector<account_source> accounts_;
    std::vector<device_source> devices_;
    std::uint64_t last_ = 0;
};

} // namespace tenure
