#pragma once

/// \file
/// `bitmap`: good fit by size classes, found through two levels of bits. The fast default.
///
///     range    [ used | free d0 | used | free d0 | free d1 | used ]    blocks chained in address order
///                          |                |         |
///     domain 0  class_index: size class -> list of free blocks         domain 1  one short list
///
/// A search looks at the first few blocks of the request's own class and takes the smallest that fits; else
/// at the first few of the next class that is not empty, where everything fits; else, before it says "no
/// space", at every block it has passed over. So the fit is nearly best, the usual cost is constant, and
/// there is never a false "no space".
///
/// Small blocks are cut from the front of a free block and large ones (from 1 MiB) from its back, the lower
/// and the higher one among equals: small and large blocks gather at opposite ends of a range, and holes that
/// large blocks leave are not nibbled at from both sides.
///
///   1. Blocks tile their range; two free neighbours in one range never have the same domain.
///   2. A free block is in exactly one list: its class's in its domain's index, or its domain's only list.
///   3. A block knows whether its neighbours are free. A free between two used neighbours reads neither.
///   4. A domain with more than `short_list` free blocks gets an index as soon as one is idle, at the latest in
///      the next `allocate` that asks for it. One without free blocks has none. So hundreds of domains cost
///      24 bytes each, and a free never needs memory.
///   5. Of two blocks that become one, the lower keeps its id; a block that is split keeps its id for its
///      lowest part.
///
/// Complexity: `allocate` is O(1) per domain asked for as long as the first look finds a fit. Else it looks at
/// all blocks of the request's class; with an alignment beyond the granule, at all whose size lies between the
/// request and request + alignment. A class remembers an upper bound of its sizes, so a futile request does
/// not look again before a larger block has been there; under such an alignment the bound does not help, and
/// each futile request looks at them all. `deallocate` is O(1). `recolor` is linear in the free blocks of
/// `from`.
/// Cost: 32 bytes a block, free or used; 9.4 KB a domain with many free blocks.
/// Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/core/prefetch.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/range_table.hpp>
#include <tenure/layout/runs.hpp>
#include <tenure/layout/size_classes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace tenure::layout {

class bitmap {
  public:
    [[nodiscard]] static constexpr std::size_t rounded(std::size_t n, std::size_t) noexcept {
        return round_up(n, granule);
    }

    [[nodiscard]] static constexpr range_request range_for(std::size_t n, std::size_t a,
                                                           std::size_t preferred) noexcept {
        return {std::max(rounded(n, a), round_up(preferred, granule)), std::max(a, granule)};
    }

    /// Effects: adds r as one free block of domain d.
    /// Requires: granular, not empty, inside the space, disjoint from all others. Throws: `std::bad_alloc`.
    void add(range r, domain d) {
        nodes_.reserve(1);
        ranges_.reserve();
        domains_.reserve();
        const node_index n = nodes_.create();
        nodes_[n].set_offset(r.base / granule);
        nodes_[n].set_size(r.size / granule);
        ranges_.add(r, n);
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
        if (n > space_end || a > space_end) return no_block;
        nodes_.reserve(2);
        if (idle_.empty()) make_index();
        const request q{round_up(n, granule) / granule, std::max(a, granule) / granule, n >= large};
        choice best;
        for (const domain d : domains) {
            record* const r = domains_.find(d);
            if (!r || r->count == 0) continue;
            if (!r->index && r->count > short_list) {
                give_index(*r);
                if (idle_.empty()) make_index();
            }
            if (r->index)
                search(*r->index, q, best);
            else
                look(r->list, short_list, q, best);
        }
        return best.id == no_node ? no_block : take(best.id, q);
    }

    /// Returns: a block from the smallest run of free neighbours of `domains` that holds n bytes at alignment a
    /// together, or `no_block`; from its front. What is left of it keeps its domains. Complexity: see `smallest_run`.
    /// Throws: `std::bad_alloc`, changing nothing.
    block_id allocate_across(std::size_t n, std::size_t a, std::span<const domain> domains, domain) {
        if (n > space_end || a > space_end) return no_block;
        nodes_.reserve(2);
        const block_run run = smallest_run(shown{*this}, rounded(n, a), std::max(a, granule), domains);
        return run.first == no_node ? no_block : take_run(run, rounded(n, a), std::max(a, granule));
    }

    /// Effects: the block becomes free in domain d and merges. Requires: a used block's id.
    void deallocate(block_id id, domain d) noexcept {
        used_ -= nodes_[id].size();
        settle(id, d);
    }

    /// Effects: every free block of `from` becomes one of `to`, merging.
    void recolor(domain from, domain to) noexcept {
        record* const source = domains_.find(from);
        if (from == to || !source || source->count == 0) return;
        record& target = domains_[to];
        if (target.count == 0) { // nothing to merge with: the lists stay as they are
            for_each_free(*source, [&](node_index n) { nodes_[n].color = to; });
            std::swap(*source, target);
            return;
        }
        while (source->count != 0) {
            const node_index n =
                source->index ? source->index->head(source->index->first_from(0)) : source->list;
            unlink(n);
            settle(n, to);
        }
    }

    /// Requires: id is that of a block. Bytes.
    [[nodiscard]] address offset(block_id id) const noexcept { return nodes_[id].offset() * granule; }
    [[nodiscard]] std::size_t size(block_id id) const noexcept { return nodes_[id].size() * granule; }

    /// Effects: none but that a call which names the block is faster soon after.
    void prefetch(block_id id) const noexcept { tenure::prefetch(&nodes_[id]); }

    [[nodiscard]] std::size_t free_bytes() const noexcept { return total_bytes() - used_bytes(); }
    [[nodiscard]] std::size_t free_bytes(domain d) const noexcept {
        const record* const r = domains_.find(d);
        return r ? r->granules * granule : 0;
    }
    [[nodiscard]] std::size_t used_bytes() const noexcept { return used_ * granule; }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return ranges_.total_bytes(); }

    /// Complexity: the blocks of the highest class of each domain.
    [[nodiscard]] std::size_t largest_free(std::span<const domain> domains) const noexcept {
        std::uint64_t largest = 0;
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (!r || r->count == 0) continue;
            const node_index head = r->index ? r->index->head(r->index->last()) : r->list;
            for (node_index n = head; n != no_node; n = nodes_[n].list_next)
                largest = std::max(largest, nodes_[n].size());
        }
        return largest * granule;
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
                f(block_view{i, offset(i), size(i), n.free, n.free ? n.color : domain{0}});
            }
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!nodes_.validate() || !ranges_.validate()) return false;
        std::size_t blocks = 0, free_blocks = 0;
        std::uint64_t used = 0;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r))
            if (!validate_range(r, blocks, free_blocks, used)) return false;
        if (blocks != nodes_.size() || used != used_) return false;
        std::size_t indices = idle_.size();
        for (std::size_t d = 0; d < domains_.size(); ++d) {
            const record& r = *domains_.find(static_cast<domain>(d));
            if (!validate_record(r, static_cast<domain>(d)) || r.count > free_blocks) return false;
            free_blocks -= r.count;
            indices += r.index ? 1 : 0;
        }
        for (const class_index* const i : idle_)
            if (!i->empty() || !i->validate()) return false;
        return free_blocks == 0 && indices == indices_.size();
    }

  private:
    /// Bytes; blocks from here on are cut from the back.
    static constexpr std::size_t large = std::size_t{1} << 20;
    /// Blocks that a search looks at before it goes on to the next class.
    static constexpr node_index first_look = 8;
    /// Free blocks that a domain may have without an index.
    static constexpr node_index short_list = 16;

    /// Offsets and sizes in granules, 40 bits each. The flags are bytes so that a neighbour sets one without
    /// reading.
    struct alignas(32) node {
        std::uint32_t offset_low = 0, size_low = 0;
        node_index previous = no_node, next = no_node;           ///< in address order, within the range
        node_index list_previous = no_node, list_next = no_node; ///< when free
        domain color = 0;                                        ///< when free
        std::uint8_t offset_high = 0, size_high = 0;
        bool free = false;
        bool previous_free = false, next_free = false; ///< whether the neighbour is, in whatever domain

        [[nodiscard]] std::uint64_t offset() const noexcept {
            return std::uint64_t{offset_high} << 32 | offset_low;
        }
        [[nodiscard]] std::uint64_t size() const noexcept {
            return std::uint64_t{size_high} << 32 | size_low;
        }
        void set_offset(std::uint64_t granules) noexcept {
            offset_low = static_cast<std::uint32_t>(granules);
            offset_high = static_cast<std::uint8_t>(granules >> 32);
        }
        void set_size(std::uint64_t granules) noexcept {
            size_low = static_cast<std::uint32_t>(granules);
            size_high = static_cast<std::uint8_t>(granules >> 32);
        }
    };
    static_assert(sizeof(node) == 32);

    struct record {
        class_index* index = nullptr;
        node_index list = no_node; ///< all its blocks, while it has no index
        node_index count = 0;
        std::uint64_t granules = 0;
    };

    /// For `smallest_run`.
    struct shown {
        const bitmap& l;
        [[nodiscard]] const node& neighbours(node_index n) const noexcept { return l.nodes_[n]; }
        [[nodiscard]] address offset(node_index n) const noexcept { return l.offset(n); }
        [[nodiscard]] std::size_t size(node_index n) const noexcept { return l.size(n); }
        [[nodiscard]] node_index count(domain d) const noexcept {
            const record* const r = l.domains_.find(d);
            return r ? r->count : 0;
        }
        template <class F>
        void for_each_free(domain d, F&& f) const {
            if (const record* const r = l.domains_.find(d)) l.for_each_free(*r, f);
        }
    };

    /// Granules.
    struct request {
        std::uint64_t size;
        std::uint64_t alignment;
        bool large;
    };

    /// The best block so far. Granules.
    struct choice {
        node_index id = no_node;
        std::uint64_t size = 0;
        std::uint64_t offset = 0;
    };

    // ---- search ----

    static bool fits(std::uint64_t offset, std::uint64_t size, const request& q) noexcept {
        return size >= q.size && round_up(offset, q.alignment) - offset <= size - q.size;
    }

    /// Looks at up to `most` blocks of a list for a better one. Returns: whether it found one.
    bool look(node_index list, node_index most, const request& q, choice& best) const noexcept {
        bool found = false;
        for (node_index i = list; i != no_node && most != 0; i = nodes_[i].list_next, --most) {
            const node& n = nodes_[i];
            const std::uint64_t size = n.size(), offset = n.offset();
            if (best.id != no_node) {
                if (size > best.size) continue;
                if (size == best.size && (offset < best.offset) == q.large) continue;
            }
            if (!fits(offset, size, q)) continue;
            best = {i, size, offset};
            found = true;
        }
        return found;
    }

    void search(class_index& index, const request& q, choice& best) const noexcept {
        const unsigned own = size_classes::of(q.size);
        const unsigned sure = size_classes::not_below(q.size + q.alignment - 1);
        unsigned c = index.first_from(own);
        for (unsigned looks = 2; c < sure && looks != 0; c = index.first_from(c + 1), --looks)
            if (look(index.head(c), first_look, q, best)) return;
        if (c < sure) c = index.first_from(sure);
        if (c < size_classes::count) {
            look(index.head(c), first_look, q, best);
            return;
        }
        if (best.id != no_node) return; // another domain's, and nothing here that surely fits
        for (c = index.first_from(own); c < sure; c = index.first_from(c + 1)) {
            if (index.ceiling(c) < q.size) continue;
            if (look(index.head(c), no_node, q, best)) return;
            std::uint64_t largest = 0;
            for (node_index i = index.head(c); i != no_node; i = nodes_[i].list_next)
                largest = std::max(largest, nodes_[i].size());
            index.set_ceiling(c, largest);
        }
    }

    /// Takes the request's part out of free block n.
    block_id take(node_index n, const request& q) noexcept {
        const domain d = nodes_[n].color;
        const std::uint64_t offset = nodes_[n].offset(), size = nodes_[n].size();
        const std::uint64_t start =
            q.large ? round_down(offset + size - q.size, q.alignment) : round_up(offset, q.alignment);
        unlink(n);
        node_index taken = n;
        if (start != offset) {
            taken = split(n, start - offset);
            link(n, d);
            nodes_[taken].previous_free = true;
        } else if (nodes_[n].previous != no_node) {
            nodes_[nodes_[n].previous].next_free = false;
        }
        if (offset + size != start + q.size) {
            link(split(taken, q.size), d);
            nodes_[taken].next_free = true;
        } else if (nodes_[taken].next != no_node) {
            nodes_[nodes_[taken].next].previous_free = false;
        }
        used_ += q.size;
        return taken;
    }

    /// Takes `bytes` at alignment a out of a run that holds them. Requires: room for two nodes.
    block_id take_run(const block_run& run, std::size_t bytes, std::size_t a) noexcept {
        const std::uint64_t start = round_up(run.begin, a) / granule, need = bytes / granule;
        node_index first = run.first;
        while (nodes_[first].offset() + nodes_[first].size() <= start) first = nodes_[first].next;
        const std::uint64_t there = nodes_[first].offset() + nodes_[first].size() - start;
        const node_index taken = take(first, {std::min(need, there), a / granule, false});
        while (nodes_[taken].size() < need) {
            const node_index next = nodes_[taken].next;
            join(taken, take(next, {std::min(nodes_[next].size(), need - nodes_[taken].size()), 1, false}));
        }
        return taken;
    }

    // ---- free blocks ----

    [[nodiscard]] bool previous_is_free(node_index n, domain d) const noexcept {
        return nodes_[n].previous_free && nodes_[nodes_[n].previous].color == d;
    }
    [[nodiscard]] bool next_is_free(node_index n, domain d) const noexcept {
        return nodes_[n].next_free && nodes_[nodes_[n].next].color == d;
    }

    /// A block that is in no list becomes free in d, together with its neighbours there.
    void settle(node_index n, domain d) noexcept {
        if (next_is_free(n, d)) {
            const node_index next = nodes_[n].next;
            unlink(next);
            join(n, next);
        } else if (nodes_[n].next != no_node) {
            nodes_[nodes_[n].next].previous_free = true;
        }
        if (previous_is_free(n, d)) {
            const node_index previous = nodes_[n].previous;
            unlink(previous);
            join(previous, n);
            n = previous;
        } else if (nodes_[n].previous != no_node) {
            nodes_[nodes_[n].previous].next_free = true;
        }
        link(n, d);
    }

    /// The block `upper`, right behind `lower`, becomes part of it. Both are in no list.
    void join(node_index lower, node_index upper) noexcept {
        node& l = nodes_[lower];
        const node& u = nodes_[upper];
        l.set_size(l.size() + u.size());
        l.next = u.next;
        l.next_free = u.next_free;
        if (l.next != no_node) nodes_[l.next].previous = lower;
        nodes_.destroy(upper);
    }

    /// Cuts a block that is in no list behind its first `granules`. Returns: the upper part. Which of the two
    /// are free is the caller's to say.
    node_index split(node_index lower, std::uint64_t granules) noexcept {
        const node_index upper = nodes_.create();
        node& l = nodes_[lower];
        node& u = nodes_[upper];
        u.set_offset(l.offset() + granules);
        u.set_size(l.size() - granules);
        u.previous = lower;
        u.next = l.next;
        u.next_free = l.next_free;
        if (l.next != no_node) nodes_[l.next].previous = upper;
        l.next = upper;
        l.next_free = false;
        l.set_size(granules);
        return upper;
    }

    // ---- lists ----

    void link(node_index n, domain d) noexcept {
        record& r = domains_[d];
        nodes_[n].free = true;
        nodes_[n].color = d;
        r.granules += nodes_[n].size();
        ++r.count;
        if (!r.index && r.count > short_list && !idle_.empty()) give_index(r);
        push(r, n);
    }

    void push(record& r, node_index n) noexcept {
        node& x = nodes_[n];
        x.list_previous = no_node;
        if (r.index) {
            const unsigned c = size_classes::of(x.size());
            x.list_next = r.index->head(c);
            r.index->set_head(c, n);
            r.index->raise_ceiling(c, x.size());
        } else {
            x.list_next = r.list;
            r.list = n;
        }
        if (x.list_next != no_node) nodes_[x.list_next].list_previous = n;
    }

    void unlink(node_index n) noexcept {
        node& x = nodes_[n];
        record& r = domains_[x.color];
        x.free = false;
        r.granules -= x.size();
        --r.count;
        if (x.list_next != no_node) nodes_[x.list_next].list_previous = x.list_previous;
        if (x.list_previous != no_node)
            nodes_[x.list_previous].list_next = x.list_next;
        else if (r.index)
            r.index->set_head(size_classes::of(x.size()), x.list_next);
        else
            r.list = x.list_next;
        if (r.count == 0 && r.index) {
            idle_.push_back(r.index); // room was made together with the index
            r.index = nullptr;
        }
    }

    /// Calls f(node) for each free block of a domain; f may unlink that one.
    template <class F>
    void for_each_free(const record& r, F&& f) const {
        const auto walk = [&](node_index list) {
            for (node_index n = list; n != no_node;) {
                const node_index next = nodes_[n].list_next;
                f(n);
                n = next;
            }
        };
        const class_index* const index = r.index;
        if (!index) return walk(r.list);
        for (unsigned c = index->first_from(0); c < size_classes::count; c = index->first_from(c + 1))
            walk(index->head(c));
    }

    /// Effects: one more idle index. Throws: `std::bad_alloc`, changing nothing.
    void make_index() {
        idle_.reserve(indices_.size() + 1);
        indices_.push_back(std::make_unique<class_index>());
        idle_.push_back(indices_.back().get());
    }

    /// Requires: an idle index. Effects: sorts the domain's list into it.
    void give_index(record& r) noexcept {
        r.index = idle_.back();
        idle_.pop_back();
        for (node_index n = std::exchange(r.list, no_node); n != no_node;) {
            const node_index next = nodes_[n].list_next;
            push(r, n);
            n = next;
        }
    }

    // ---- validation ----

    bool validate_range(node_index r, std::size_t& blocks, std::size_t& free_blocks,
                        std::uint64_t& used) const noexcept {
        const range where = ranges_[r].where;
        address end = where.base;
        node_index previous = no_node;
        for (node_index i = ranges_[r].first; i != no_node; previous = i, i = nodes_[i].next) {
            if (i >= nodes_.extent() || ++blocks > nodes_.size()) return false;
            const node& n = nodes_[i];
            if (offset(i) != end || n.size() == 0 || n.previous != previous) return false;
            if (n.previous_free != (previous != no_node && nodes_[previous].free)) return false;
            if (previous != no_node && nodes_[previous].next_free != n.free) return false;
            if (n.free && n.previous_free && nodes_[previous].color == n.color) return false;
            if (n.next == no_node && n.next_free) return false;
            free_blocks += n.free ? 1 : 0;
            used += n.free ? 0 : n.size();
            end += size(i);
        }
        return end == where.base + where.size;
    }

    bool validate_record(const record& r, domain d) const noexcept {
        std::size_t count = 0;
        std::uint64_t granules = 0;
        const auto good = [&](node_index list, unsigned c) {
            node_index previous = no_node;
            for (node_index i = list; i != no_node; previous = i, i = nodes_[i].list_next) {
                if (i >= nodes_.extent() || ++count > r.count) return false;
                const node& n = nodes_[i];
                if (!n.free || n.color != d || n.list_previous != previous) return false;
                if (r.index && (size_classes::of(n.size()) != c || n.size() > r.index->ceiling(c)))
                    return false;
                granules += n.size();
            }
            return true;
        };
        if (!r.index) return good(r.list, 0) && count == r.count && granules == r.granules;
        if (r.list != no_node || r.count == 0 || !r.index->validate()) return false;
        for (unsigned c = 0; c < size_classes::count; ++c)
            if (!good(r.index->head(c), c)) return false;
        return count == r.count && granules == r.granules;
    }

    node_table<node> nodes_;
    range_table ranges_;
    domain_table<record> domains_;
    own_lines_vector<std::unique_ptr<class_index>> indices_;
    own_lines_vector<class_index*> idle_; ///< those that no domain has; all empty
    std::uint64_t used_ = 0;              ///< granules
};

static_assert(layout<bitmap>);

} // namespace tenure::layout
