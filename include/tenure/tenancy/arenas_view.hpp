#pragma once

/// \file
/// `arenas_view`: the arenas and groups that an operator wants to see, and a picture of them all.
///
///     arenas_view view;
///     auto seen_gpu = view.add(gpu);        a group: itself and all below it
///     auto seen_job = view.add(job);        an arena: also what its pool knows
///     puts(to_json(view.read(), {}).c_str());
///
/// Invariants:
///   1. An arena is looked at only while its `seen` lives, which therefore ends before the arena does.
///   2. Rows come in tree order, parents before children, each tenant once however often it was added.
///   3. The levels of one tree are taken at one instant; what pools know is taken right after.
///
/// Nothing is done but in `read`. Complexity of that: linear in the rows, and one `usage` an arena.
/// Thread-safety: thread-safe. Its lock is taken before any other of the library.

#include <tenure/resource/usage.hpp>
#include <tenure/tenancy/arena_row.hpp>
#include <tenure/tenancy/meter.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure {

class arenas_view {
  public:
    /// While it lives, the view shows what was added.
    class [[nodiscard]] seen {
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

    /// Effects: shows an arena or a group, and all below it. Requires: it and the view outlive what is returned.
    /// Throws: `std::bad_alloc`.
    template <class Tenant>
    seen add(const Tenant& tenant) {
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

    /// Throws: `std::bad_alloc`.
    [[nodiscard]] std::vector<arena_row> read() const {
        const std::lock_guard lock(mutex_);
        std::vector<arena_row> rows;
        std::unordered_map<std::uint64_t, std::size_t> by_id;
        std::vector<std::pair<std::uint64_t, const source*>> pools;
        for (const source& s : sources_) {
            const std::vector<tenant_picture> picture = s.node->picture();
            for (const tenant_picture& t : picture)
                if (by_id.emplace(t.id, rows.size()).second) rows.push_back(row_of(t));
            if (s.pool != nullptr) pools.emplace_back(picture.front().id, &s);
        }
        for (const auto& [id, s] : pools) set_usage(rows[by_id.at(id)], s->usage(s->pool));
        return in_tree_order(std::move(rows), by_id);
    }

  private:
    struct source {
        std::uint64_t number = 0;
        const meter* node = nullptr;
        const void* pool = nullptr;
        usage_counters (*usage)(const void*) = nullptr;
    };

    static std::vector<arena_row> in_tree_order(std::vector<arena_row> rows,
                                                const std::unordered_map<std::uint64_t, std::size_t>& by_id) {
        std::unordered_map<std::uint64_t, std::vector<std::size_t>> children;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (by_id.count(rows[i].parent) == 0) rows[i].parent = 0; // what is above it is not shown
            children[rows[i].parent].push_back(i);
        }
        std::vector<arena_row> ordered;
        ordered.reserve(rows.size());
        std::vector<std::pair<std::size_t, std::uint32_t>> to_visit; // row, depth; the last is next
        const auto push = [&](std::uint64_t parent, std::uint32_t depth) {
            const auto below = children.find(parent);
            if (below == children.end()) return;
            for (auto it = below->second.rbegin(); it != below->second.rend(); ++it)
                to_visit.emplace_back(*it, depth);
        };
        push(0, 0);
        while (!to_visit.empty()) {
            const auto [i, depth] = to_visit.back();
            to_visit.pop_back();
            rows[i].depth = depth;
            push(rows[i].id, depth + 1);
            ordered.push_back(std::move(rows[i]));
        }
        return ordered;
    }

    void remove(std::uint64_t number) noexcept {
        const std::lock_guard lock(mutex_);
        std::erase_if(sources_, [number](const source& s) { return s.number == number; });
    }

    mutable std::mutex mutex_; ///< guards what follows
    std::vector<source> sources_;
    std::uint64_t last_ = 0;
};

} // namespace tenure
