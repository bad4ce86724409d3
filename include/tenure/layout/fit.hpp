#pragma once

/// \file
/// `basic_fit`: exact fit with split and merge, in two rules: `best_fit` and `first_fit`.
///
///     range   [ used | free d0 | used | free d0 | free d1 | used ]     blocks chained in address order
///                        |                 |         |
///     trees           domain 0, in the rule's order     domain 1       one search tree a domain
///
/// The rule says which of the free blocks that hold a request, over all domains asked for, is taken:
///
///     best     the smallest, the lowest one among equals
///     first    the lowest
///
/// Its front part is handed out. What alignment leaves before it and what remains behind it stay free, in their domain.
/// A freed block merges with its neighbours of the same domain; never across two ranges, even where these touch.
///
/// Beside the layout concept it shows its free blocks to callers that decide by themselves (`find`, `take`): a
/// caching pool looks at the best block and may refuse it, or takes it whole. With the rule `first` callers also find what
/// is free at a place (`free_from`), take it from there (`take_at`), and may let a range grow at its end (`grow`).
///
///   1. Blocks tile their range; two free neighbours in one range never have the same domain.
///   2. Each free block is in its domain's tree, and nothing else is.
///   3. Of two blocks that become one, the lower keeps its id; a block that is split keeps its id for its lowest part.
///      So the id at a range's base stays as long as the range.
///
/// Complexity: every call is O(log free blocks), plus the domains asked for. Alignment beyond the granule may make
/// `find` step over blocks that are large enough but not aligned: of the best rule only blocks smaller than request +
/// alignment. `recolor` is O(k log n) in the k free blocks of `from`; `absorb` in the smaller number of the two domains.
/// Cost: 48 bytes a block, free or used; 72 with the rule `first`. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/index_tree.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/range_table.hpp>
#include <tenure/layout/runs.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

namespace tenure::layout {

enum class fit_rule : unsigned char { best, first };

template <fit_rule Rule>
class basic_fit {
    static constexpr bool by_address = Rule == fit_rule::first;

  public:
    /// A free block, not taken yet. Valid until the layout changes. `size` in bytes, before any split.
    struct candidate {
        block_id id = no_block;
        address offset = 0;
        std::size_t size = 0;
        friend bool operator==(const candidate&, const candidate&) = default;
    };

    [[nodiscard]] static constexpr std::size_t rounded(std::size_t n, std::size_t) noexcept {
        return round_up(n, granule);
    }

    [[nodiscard]] static constexpr range_request range_for(std::size_t n, std::size_t a,
                                                           std::size_t preferred) noexcept {
        return {std::max(rounded(n, a), round_up(preferred, granule)), std::max(a, granule)};
    }

    /// Effects: adds r as one free block of domain d. Returns: that block's id.
    /// Requires: granular, not empty, inside the space, disjoint from all others. Throws: `std::bad_alloc`.
    block_id add(range r, domain d) {
        nodes_.reserve(1);
        ranges_.reserve();
        domains_.reserve();
        const node_index n = nodes_.create();
        nodes_[n].offset = r.base;
        nodes_[n].size = r.size;
        nodes_[n].range = ranges_.add(r, n);
        settle(n, d);
        return n;
    }

    /// Effects: the range that starts at base has `bytes` more at its end, free with domain d.
    /// Requires: granular, and no other range there. Complexity: O(log n) if the range ends in free memory, else
    /// its blocks. Throws: `std::bad_alloc`, changing nothing.
    void grow(address base, std::size_t bytes, domain d) requires(by_address) {
        nodes_.reserve(1);
        domains_.reserve();
        const node_index r = ranges_.find(base);
        const address end = base + ranges_[r].where.size;
        node_index last = free_before(end);
        if (last == no_node) last = ranges_[r].first;
        while (nodes_[last].next != no_node) last = nodes_[last].next;
        const node_index n = nodes_.create();
        nodes_[n].offset = end;
        nodes_[n].size = bytes;
        nodes_[n].range = r;
        nodes_[n].previous = last;
        nodes_[last].next = n;
        ranges_.grow(r, bytes);
        settle(n, d);
    }

    /// Effects: removes the range that starts at base if all of it is free, whatever its domains.
    /// Returns: whether it did. Complexity: its free blocks, up to the first used one.
    bool remove(address base) noexcept {
        const node_index r = ranges_.find(base);
        if (r == no_node || !ranges_.all_free(r, nodes_)) return false;
        ranges_.remove(r, nodes_, [this](node_index n) { unlink(n); });
        return true;
    }

    /// Returns: a block for n bytes at alignment a from one of `domains`, or `no_block`.
    /// Requires: n >= 1, a is a power of two. Throws: `std::bad_alloc`, changing nothing.
    block_id allocate(std::size_t n, std::size_t a, std::span<const domain> domains) {
        const std::optional<candidate> best = find(n, a, domains);
        return best ? take(*best, rounded(n, a), a) : no_block;
    }

    /// Returns: the free block that `allocate` would take from, without taking it.
    [[nodiscard]] std::optional<candidate> find(std::size_t n, std::size_t a,
                                                std::span<const domain> domains) const noexcept {
        const std::size_t need = rounded(n, a);
        node_index best = no_node;
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (!r) continue;
            node_index i = first_of_size(*r, need);
            while (i != no_node && (best == no_node || order().less(i, best)) && !fits(nodes_[i], need, a))
                i = next_of_size(*r, i, need);
            if (i != no_node && (best == no_node || order().less(i, best))) best = i;
        }
        if (best == no_node) return std::nullopt;
        return candidate{best, nodes_[best].offset, nodes_[best].size};
    }

    /// Effects: takes `bytes` at alignment a out of the free block c; with `bytes == c.size`, all of it.
    /// Requires: c is valid, `bytes` is granular and fits there at alignment a.
    /// Returns: the block's id; it is c's unless alignment left something free before it.
    /// Throws: `std::bad_alloc`, changing nothing.
    block_id take(candidate c, std::size_t bytes, std::size_t a) {
        nodes_.reserve(2);
        return take_part(c.id, round_up(c.offset, std::max(a, granule)), bytes);
    }

    /// Returns: a block from the smallest run of free neighbours of `domains` that holds n bytes at alignment a
    /// together, or `no_block`; from its front. What is left of it keeps its domains. Complexity: see `smallest_run`.
    /// Throws: `std::bad_alloc`, changing nothing.
    block_id allocate_across(std::size_t n, std::size_t a, std::span<const domain> domains, domain) {
        const block_run run = find_run(n, a, domains);
        return run.first == no_node ? no_block : take_run(run, rounded(n, a), a);
    }

    /// Returns: the run that `allocate_across` would take from, without taking it.
    [[nodiscard]] block_run find_run(std::size_t n, std::size_t a,
                                     std::span<const domain> domains) const noexcept {
        return smallest_run(shown{*this}, rounded(n, a), std::max(a, granule), domains);
    }

    /// Effects: takes `bytes` at alignment a out of a run. Requires: it is as found, and holds them. Returns: the block's id.
    /// Throws: `std::bad_alloc`, changing nothing.
    block_id take_run(const block_run& run, std::size_t bytes, std::size_t a) {
        nodes_.reserve(2);
        const address start = round_up(run.begin, std::max(a, granule));
        node_index first = run.first;
        while (nodes_[first].offset + nodes_[first].size <= start) first = nodes_[first].next;
        const std::size_t there = nodes_[first].offset + nodes_[first].size - start;
        const node_index taken = take_part(first, start, std::min(bytes, there));
        while (nodes_[taken].size < bytes) {
            const node_index next = nodes_[taken].next;
            const std::size_t part = std::min(nodes_[next].size, bytes - nodes_[taken].size);
            join(taken, take_part(next, nodes_[next].offset, part));
        }
        return taken;
    }

    /// Returns: the free block that contains `at`, or else the first one above it.
    [[nodiscard]] std::optional<candidate> free_from(address at) const noexcept requires(by_address) {
        const node_index i = places_.first_where(
            place_order(), [&](node_index n) { return nodes_[n].offset + nodes_[n].size > at; });
        if (i == no_node) return std::nullopt;
        return candidate{i, nodes_[i].offset, nodes_[i].size};
    }

    /// Effects: takes [start, start + bytes) out of the free block c. Requires: c is valid and contains it; granular.
    /// Returns: the block's id. Throws: `std::bad_alloc`, changing nothing.
    block_id take_at(candidate c, address start, std::size_t bytes) requires(by_address) {
        nodes_.reserve(2);
        return take_part(c.id, start, bytes);
    }

    /// Effects: the next n calls of `take_at` need no memory. Throws: `std::bad_alloc`, changing nothing.
    void reserve_takes(std::size_t n) requires(by_address) { nodes_.reserve(2 * n); }

    /// Returns: a number above all ids in use.
    [[nodiscard]] std::size_t id_limit() const noexcept { return nodes_.extent(); }

    /// Effects: the block becomes free in domain d and merges. Requires: a used block's id.
    void deallocate(block_id id, domain d) noexcept {
        used_ -= nodes_[id].size;
        settle(id, d);
    }

    /// Effects: every free block of `from` becomes one of `to`, merging.
    void recolor(domain from, domain to) noexcept {
        record* const source = domains_.find(from);
        if (from == to || !source || source->tree.empty()) return;
        record& target = domains_[to];
        if (target.tree.empty()) { // nothing to merge with: the tree stays as it is
            for (node_index n = source->tree.first(order()); n != no_node; n = source->tree.next(order(), n))
                nodes_[n].color = to;
            std::swap(*source, target);
            return;
        }
        while (!source->tree.empty()) {
            const node_index n = source->tree.root();
            unlink(n);
            settle(n, to);
        }
    }

    /// Effects: free blocks of `from` that touch free blocks of `into` become `into`, merging, transitively.
    void absorb(domain into, domain from) noexcept {
        record* const source = domains_.find(from);
        record* const target = domains_.find(into);
        if (into == from || !source || !target) return;
        // Two blocks of one domain never touch. So whatever joins `into` touches it already now, and one pass
        // over either domain finds them all. They are chained aside first: a walk over a tree survives no
        // merging.
        node_index chain = no_node;
        const auto set_aside = [&](node_index n) {
            unlink(n);
            nodes_[n].links.parent = chain;
            chain = n;
        };
        if (source->count <= target->count) {
            for (node_index n = source->tree.first(order()); n != no_node;) {
                const node_index next = source->tree.next(order(), n);
                if (is_free(nodes_[n].previous, into) || is_free(nodes_[n].next, into)) set_aside(n);
                n = next;
            }
        } else {
            for (node_index n = target->tree.first(order()); n != no_node;
                 n = target->tree.next(order(), n)) {
                if (is_free(nodes_[n].previous, from)) set_aside(nodes_[n].previous);
                if (is_free(nodes_[n].next, from)) set_aside(nodes_[n].next);
            }
        }
        while (chain != no_node) {
            const node_index n = chain;
            chain = nodes_[n].links.parent;
            settle(n, into);
        }
    }

    /// Requires: id is that of a block, used or free. Complexity: O(1).
    [[nodiscard]] address offset(block_id id) const noexcept { return nodes_[id].offset; }
    [[nodiscard]] std::size_t size(block_id id) const noexcept { return nodes_[id].size; }
    [[nodiscard]] range range_of(block_id id) const noexcept { return ranges_[nodes_[id].range].where; }

    /// Returns: whether the block is the only one of its range.
    [[nodiscard]] bool is_whole_range(block_id id) const noexcept {
        return nodes_[id].previous == no_node && nodes_[id].next == no_node;
    }

    /// Requires: id is that of a free block.
    [[nodiscard]] domain domain_of(block_id id) const noexcept { return nodes_[id].color; }

    [[nodiscard]] std::size_t free_bytes() const noexcept { return total_bytes() - used_; }
    [[nodiscard]] std::size_t free_bytes(domain d) const noexcept {
        const record* const r = domains_.find(d);
        return r ? r->bytes : 0;
    }
    [[nodiscard]] std::size_t used_bytes() const noexcept { return used_; }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return ranges_.total_bytes(); }

    [[nodiscard]] std::size_t largest_free(std::span<const domain> domains) const noexcept {
        std::size_t largest = 0;
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (r && !r->tree.empty()) largest = std::max(largest, largest_in(*r));
        }
        return largest;
    }

    template <class F>
    void for_each_free_range(F&& f) const {
        ranges_.for_each_all_free(nodes_, std::forward<F>(f));
    }

    template <class F>
    void for_each_block(F&& f) const {
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r))
            for (node_index i = ranges_[r].first; i != no_node; i = nodes_[i].next) {
                const node& n = nodes_[i];
                f(block_view{i, n.offset, n.size, n.free, n.free ? n.color : domain{0}});
            }
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!nodes_.validate() || !ranges_.validate()) return false;
        std::size_t blocks = 0, free_blocks = 0, used = 0;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            address end = ranges_[r].where.base;
            node_index previous = no_node;
            for (node_index i = ranges_[r].first; i != no_node; previous = i, i = nodes_[i].next) {
                if (i >= nodes_.extent() || ++blocks > nodes_.size()) return false;
                const node& n = nodes_[i];
                if (n.offset != end || n.size == 0 || !is_aligned(n.size, granule)) return false;
                if (n.previous != previous || n.range != r) return false;
                if (n.free && is_free(previous, n.color)) return false;
                if (n.free)
                    ++free_blocks;
                else
                    used += n.size;
                end += n.size;
            }
            if (end != ranges_[r].where.base + ranges_[r].where.size) return false;
        }
        if (blocks != nodes_.size() || used != used_) return false;
        for (std::size_t d = 0; d < domains_.size(); ++d) {
            const record& r = *domains_.find(static_cast<domain>(d));
            if (!r.tree.validate(order(), r.count)) return false;
            std::size_t bytes = 0;
            for (node_index i = r.tree.first(order()); i != no_node; i = r.tree.next(order(), i)) {
                if (!is_free(i, static_cast<domain>(d)) || free_blocks-- == 0) return false;
                bytes += nodes_[i].size;
            }
            if (bytes != r.bytes) return false;
        }
        if (free_blocks != 0) return false;
        if constexpr (by_address) {
            std::size_t placed = 0;
            for (std::size_t d = 0; d < domains_.size(); ++d)
                placed += domains_.find(static_cast<domain>(d))->count;
            if (!places_.validate(place_order(), placed)) return false;
            for (node_index i = places_.first(place_order()); i != no_node;
                 i = places_.next(place_order(), i))
                if (!nodes_[i].free) return false;
        }
        return true;
    }

  private:
    struct plain_node {
        address offset = 0;
        std::size_t size = 0;
        node_index previous = no_node, next = no_node; ///< in address order, within the range
        tree_links links;                              ///< in its domain's tree, when free
        node_index range = no_node;
        domain color = 0; ///< when free
        bool free = false;
    };
    static_assert(sizeof(plain_node) == 48);
    struct placed_node : plain_node {
        tree_links place;     ///< in the tree of all domains, when free
        std::size_t most = 0; ///< bytes of the largest block in its subtree of its domain's tree, when free
    };
    using node = std::conditional_t<by_address, placed_node, plain_node>;

    struct record {
        index_tree tree;
        node_index count = 0;
        std::size_t bytes = 0;
    };

    using table = node_table<node>;

    /// For `smallest_run`.
    struct shown {
        const basic_fit& l;
        [[nodiscard]] const node& neighbours(node_index n) const noexcept { return l.nodes_[n]; }
        [[nodiscard]] address offset(node_index n) const noexcept { return l.nodes_[n].offset; }
        [[nodiscard]] std::size_t size(node_index n) const noexcept { return l.nodes_[n].size; }
        [[nodiscard]] node_index count(domain d) const noexcept {
            const record* const r = l.domains_.find(d);
            return r ? r->count : 0;
        }
        template <class F>
        void for_each_free(domain d, F&& f) const {
            const record* const r = l.domains_.find(d);
            if (!r) return;
            for (node_index n = r->tree.first(l.order()); n != no_node; n = r->tree.next(l.order(), n)) f(n);
        }
    };

    template <class Node>
    struct by_size {
        Node* nodes;
        [[nodiscard]] auto& links(node_index i) const noexcept { return nodes[i].links; }
        [[nodiscard]] bool less(node_index a, node_index b) const noexcept {
            const node &x = nodes[a], &y = nodes[b];
            return x.size != y.size ? x.size < y.size : x.offset < y.offset;
        }
    };

    template <class Node>
    struct by_address_and_most {
        Node* nodes;
        [[nodiscard]] auto& links(node_index i) const noexcept { return nodes[i].links; }
        [[nodiscard]] bool less(node_index a, node_index b) const noexcept {
            return nodes[a].offset < nodes[b].offset;
        }
        [[nodiscard]] auto& summary(node_index i) const noexcept { return nodes[i].most; }
        [[nodiscard]] std::size_t summarize(node_index i) const noexcept {
            std::size_t most = nodes[i].size;
            for (const node_index c : nodes[i].links.child)
                if (c != no_node) most = std::max(most, nodes[c].most);
            return most;
        }
    };

    /// A domain's tree.
    template <class Node>
    using in_order = std::conditional_t<by_address, by_address_and_most<Node>, by_size<Node>>;
    [[nodiscard]] in_order<node> order() noexcept { return {nodes_.data()}; }
    [[nodiscard]] in_order<const node> order() const noexcept { return {nodes_.data()}; }

    template <class Node>
    struct by_place {
        Node* nodes;
        [[nodiscard]] auto& links(node_index i) const noexcept { return nodes[i].place; }
        [[nodiscard]] bool less(node_index a, node_index b) const noexcept {
            return nodes[a].offset < nodes[b].offset;
        }
    };
    [[nodiscard]] by_place<node> place_order() noexcept { return {nodes_.data()}; }
    [[nodiscard]] by_place<const node> place_order() const noexcept { return {nodes_.data()}; }

    /// Returns: the first free block of the domain, in the rule's order, that has `bytes` bytes.
    [[nodiscard]] node_index first_of_size(const record& r, std::size_t bytes) const noexcept {
        const auto has = [&](node_index n) { return nodes_[n].size >= bytes; };
        if constexpr (by_address)
            return r.tree.first_of(
                order(), [&](node_index n) { return nodes_[n].most >= bytes; }, has);
        else
            return r.tree.first_where(order(), has);
    }

    /// Returns: the one after `n`, which has them.
    [[nodiscard]] node_index next_of_size(const record& r, node_index n, std::size_t bytes) const noexcept {
        if constexpr (by_address)
            return r.tree.next_of(
                order(), n, [&](node_index x) { return nodes_[x].most >= bytes; },
                [&](node_index x) { return nodes_[x].size >= bytes; });
        else
            return r.tree.next(order(), n);
    }

    /// Requires: there is one.
    [[nodiscard]] std::size_t largest_in(const record& r) const noexcept {
        if constexpr (by_address)
            return nodes_[r.tree.root()].most;
        else
            return nodes_[r.tree.last(order())].size;
    }

    static bool fits(const node& n, std::size_t need, std::size_t a) noexcept {
        const address start = round_up(n.offset, std::max(a, granule));
        const address end = n.offset + n.size;
        return start < end && need <= end - start;
    }

    [[nodiscard]] bool is_free(node_index n, domain d) const noexcept {
        return n != no_node && nodes_[n].free && nodes_[n].color == d;
    }

    void link(node_index n, domain d) noexcept {
        record& r = domains_[d];
        nodes_[n].free = true;
        nodes_[n].color = d;
        r.tree.insert(order(), n);
        ++r.count;
        r.bytes += nodes_[n].size;
        if constexpr (by_address) places_.insert(place_order(), n);
    }

    void unlink(node_index n) noexcept {
        record& r = domains_[nodes_[n].color];
        r.tree.erase(order(), n);
        --r.count;
        r.bytes -= nodes_[n].size;
        nodes_[n].free = false;
        if constexpr (by_address) places_.erase(place_order(), n);
    }

    /// Requires: room for two nodes.
    node_index take_part(node_index n, address start, std::size_t bytes) noexcept {
        const domain d = nodes_[n].color;
        if constexpr (by_address)
            if (start == nodes_[n].offset && bytes != nodes_[n].size) { // the rest is where it was
                take_place(split(n, bytes), n, d);
                nodes_[n].free = false;
                domains_[d].bytes -= bytes;
                used_ += bytes;
                return n;
            }
        unlink(n);
        node_index taken = n;
        if (start != nodes_[n].offset) {
            taken = split(n, start - nodes_[n].offset);
            link(n, d);
        }
        if (nodes_[taken].size != bytes) link(split(taken, bytes), d);
        used_ += bytes;
        return taken;
    }

    /// Returns: the free block that ends at `end`, or `no_node`.
    [[nodiscard]] node_index free_before(address end) const noexcept {
        const std::optional<candidate> c = free_from(end - 1);
        return c && c->offset < end ? c->id : no_node;
    }

    /// A block that is in no tree becomes free in d, together with its neighbours there.
    void settle(node_index n, domain d) noexcept {
        if constexpr (by_address) return settle_in_place(n, d);
        if (const node_index next = nodes_[n].next; is_free(next, d)) {
            unlink(next);
            join(n, next);
        }
        if (const node_index previous = nodes_[n].previous; is_free(previous, d)) {
            unlink(previous);
            join(previous, n);
            n = previous;
        }
        link(n, d);
    }

    /// The same where the order does not depend on sizes: a block that grows stays where it is in the trees.
    void settle_in_place(node_index n, domain d) noexcept requires(by_address) {
        const node_index next = nodes_[n].next, previous = nodes_[n].previous;
        const bool joins_next = is_free(next, d);
        if (!is_free(previous, d)) {
            if (!joins_next) return link(n, d);
            domains_[d].bytes += nodes_[n].size;
            take_place(n, next, d);
            join(n, next);
            return domains_[d].tree.refreshed(order(), n);
        }
        if (joins_next) {
            unlink(next);
            join(n, next);
        }
        domains_[d].bytes += nodes_[n].size;
        join(previous, n);
        domains_[d].tree.refreshed(order(), previous);
    }

    /// Effects: block n is free in d, in the trees where `former` was, which is in none. Requires: no other free block lies
    /// between them.
    void take_place(node_index n, node_index former, domain d) noexcept requires(by_address) {
        nodes_[n].free = true;
        nodes_[n].color = d;
        domains_[d].tree.replace(order(), former, n);
        places_.replace(place_order(), former, n);
    }

    /// The block `upper`, right behind `lower`, becomes part of it. `upper` is in no tree.
    void join(node_index lower, node_index upper) noexcept {
        nodes_[lower].size += nodes_[upper].size;
        const node_index next = nodes_[upper].next;
        nodes_[lower].next = next;
        if (next != no_node) nodes_[next].previous = lower;
        nodes_.destroy(upper);
    }

    /// Cuts a block behind its first `bytes`. Returns: the upper part, which is in no tree.
    node_index split(node_index lower, std::size_t bytes) noexcept {
        const node_index upper = nodes_.create();
        node& l = nodes_[lower];
        node& u = nodes_[upper];
        u.offset = l.offset + bytes;
        u.size = l.size - bytes;
        u.range = l.range;
        u.previous = lower;
        u.next = l.next;
        if (l.next != no_node) nodes_[l.next].previous = upper;
        l.next = upper;
        l.size = bytes;
        return upper;
    }

    table nodes_;
    range_table ranges_;
    domain_table<record> domains_;
    index_tree places_; ///< all free blocks, by address; empty with the rule `best`
    std::size_t used_ = 0;
};

} // namespace tenure::layout
