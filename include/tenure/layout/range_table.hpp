#pragma once

/// \file
/// `range_table`: the ranges of a layout, in address order, each with the first of its blocks.
///
/// Ranges have indices (dense, reused) so that a block can name its range in 4 bytes.
/// Cost: O(log ranges); a walk O(1) a step. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/index_tree.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/layout.hpp>

#include <cstddef>

namespace tenure::layout {

class range_table {
  public:
    struct entry {
        range where;
        node_index first = no_node; ///< the block at the range's base
        tree_links links;
    };

    /// Effects: the next `add` needs no memory. Throws: `std::bad_alloc`, changing nothing.
    void reserve() { entries_.reserve(1); }

    /// Requires: `reserve`; `where` is disjoint from all others. Returns: its index.
    node_index add(range where, node_index first) noexcept {
        const node_index i = entries_.create();
        entries_[i].where = where;
        entries_[i].first = first;
        tree_.insert(order(entries_), i);
        total_ += where.size;
        return i;
    }

    void remove(node_index i) noexcept {
        total_ -= entries_[i].where.size;
        tree_.erase(order(entries_), i);
        entries_.destroy(i);
    }

    /// Effects: range i has `bytes` more at its end. Requires: no other range is there.
    void grow(node_index i, std::size_t bytes) noexcept {
        entries_[i].where.size += bytes;
        total_ += bytes;
    }

    /// Returns: the range that starts at base, or `no_node`.
    [[nodiscard]] node_index find(address base) const noexcept {
        const node_index i =
            tree_.first_where(order(entries_), [&](node_index n) { return entries_[n].where.base >= base; });
        return i != no_node && entries_[i].where.base == base ? i : no_node;
    }

    [[nodiscard]] const entry& operator[](node_index i) const noexcept { return entries_[i]; }
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return total_; }

    /// Walks in address order: `for (i = first(); i != no_node; i = next(i))`.
    [[nodiscard]] node_index first() const noexcept { return tree_.first(order(entries_)); }
    [[nodiscard]] node_index next(node_index i) const noexcept { return tree_.next(order(entries_), i); }

    // The blocks of a range form a chain through `nodes[i].next`, from its `first` to `no_node`.

    /// Returns: whether all blocks of the range are free. Complexity: its blocks, up to the first used one.
    template <class Nodes>
    [[nodiscard]] bool all_free(node_index i, const Nodes& nodes) const noexcept {
        for (node_index n = entries_[i].first; n != no_node; n = nodes[n].next)
            if (!nodes[n].free) return false;
        return true;
    }

    /// Calls f(range) for each range whose blocks are all free, in address order.
    template <class Nodes, class F>
    void for_each_all_free(const Nodes& nodes, F&& f) const {
        for (node_index i = first(); i != no_node; i = next(i))
            if (all_free(i, nodes)) f(entries_[i].where);
    }

    /// Requires: all blocks of the range are free. Effects: removes it with its blocks, each after unlink(block).
    template <class Nodes, class Unlink>
    void remove(node_index i, Nodes& nodes, Unlink unlink) noexcept {
        for (node_index n = entries_[i].first; n != no_node;) {
            const node_index following = nodes[n].next;
            unlink(n);
            nodes.destroy(n);
            n = following;
        }
        remove(i);
    }

    /// Returns: whether the ranges are granular, inside the space, disjoint and add up. Linear.
    [[nodiscard]] bool validate() const noexcept {
        if (!entries_.validate() || !tree_.validate(order(entries_), entries_.size())) return false;
        address end = 0;
        std::size_t total = 0;
        for (node_index i = first(); i != no_node; i = next(i)) {
            const range& r = entries_[i].where;
            if (r.base < end || r.size == 0 || r.base > space_end || r.size > space_end - r.base)
                return false;
            if (!is_aligned(r.base, granule) || !is_aligned(r.size, granule)) return false;
            end = r.base + r.size;
            total += r.size;
        }
        return total == total_;
    }

  private:
    using table = node_table<entry>;

    template <class Entry>
    struct by_base {
        Entry* entries;
        [[nodiscard]] auto& links(node_index i) const noexcept { return entries[i].links; }
        [[nodiscard]] bool less(node_index a, node_index b) const noexcept {
            return entries[a].where.base < entries[b].where.base;
        }
    };
    static by_base<entry> order(table& t) noexcept { return {t.data()}; }
    static by_base<const entry> order(const table& t) noexcept { return {t.data()}; }

    table entries_;
    index_tree tree_;
    std::size_t total_ = 0;
};

} // namespace tenure::layout
