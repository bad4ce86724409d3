#pragma once

/// \file
/// `buddy`: power-of-two blocks that split into halves and merge back. Fast, naturally aligned, wasteful.
///
/// A range of any size is carved, from its base, into the powers of two of which its size is the sum, largest
/// first. To allocate, the smallest block that is large enough is halved until it fits:
///
///     range of 7 granules      |      4      |   2   | 1 |
///     allocate 1 granule       |      4      |   2   |[1]|
///     allocate 1 granule       |      4      |[1]| 1 |[1]|
///
/// The *order* of a block is the logarithm of its bytes. Two halves of one block are *buddies*; a free block
/// merges with its buddy as soon as that is free, whole and of the same domain.
///
///   1. A block of order k lies at a multiple of 2^k from its range's base.
///   2. No two buddies are both free and of one domain.
///   3. A buddy is a neighbour: if the neighbour on the buddy's side has the block's own order, it is the
///      buddy; else the buddy is split, or beyond the end. So links between neighbours are all it takes to
///      find buddies, and memory is proportional to the number of blocks, not of granules.
///   4. Each domain has a list of free blocks for each order, and a bitmap of the orders that have any.
///   5. A free block *could hold* (n, a) if it has `rounded(n, a)` bytes or more and its range's base is a
///      multiple of a. `allocate` takes one of the smallest such blocks of the domains asked for: among
///      equals the domain that was named first, in it the block that became free last.
///
/// Cost: `allocate` is O(d + h) for d domains and h <= 39 halvings, `deallocate` O(m) for m <= 39 merges,
/// each with one list operation. Only where a is larger than the alignment that all bases have in common must
/// `allocate` search: it is linear then in the free blocks that are large enough. `recolor` is linear in the
/// blocks recoloured, `allocate_across` in all blocks. Up to half of a block is waste. 32 bytes of host memory a
/// block. The scheme is Knowlton's, "A fast storage allocator" (CACM, 1965).
///
/// Thread-safety: thread-compatible (externally synchronised).

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/core/units.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/range_table.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tenure::layout {

class buddy {
  public:
    /// Returns: the smallest power of two that is at least n, a and the granule, in bytes; where that does
    /// not fit, the largest multiple of the granule.
    [[nodiscard]] static constexpr std::size_t rounded(std::size_t n, std::size_t a) noexcept {
        const std::size_t wanted = std::max({n, a, granule});
        constexpr std::size_t largest_power = std::size_t{1} << 63;
        return wanted > largest_power ? round_down(std::numeric_limits<std::size_t>::max(), granule)
                                      : std::bit_ceil(wanted);
    }

    /// Returns: a power of two of at least 2 MiB and `preferred`: one block that can be halved down to
    /// anything.
    [[nodiscard]] static constexpr range_request range_for(std::size_t n, std::size_t a,
                                                           std::size_t preferred) noexcept {
        constexpr std::size_t least = 2_MiB;
        return {rounded(std::max({n, preferred, least}), a), std::max(a, least)};
    }

    /// Effects: adds r as free blocks of domain d.
    /// Requires: granular, not empty, inside the space, disjoint from all others.
    /// Throws: `std::bad_alloc`, changing nothing. Complexity: O(log size + log ranges).
    void add(range r, domain d) {
        nodes_.reserve(static_cast<std::size_t>(std::popcount(r.size)));
        domains_.reserve();
        ranges_.reserve();
        if (used_in_range_.size() == ranges_.size()) used_in_range_.emplace_back(); // indices are dense
        const node_index number = ranges_.add(r, nodes_.create());
        used_in_range_[number] = 0;
        bases_ |= r.base;
        node_index i = ranges_[number].first;
        for (std::size_t done = 0;;) {
            node& b = nodes_[i];
            b.offset = r.base + done;
            b.range = number;
            b.order = static_cast<std::uint8_t>(log2_floor(r.size - done));
            link(i, d);
            done += bytes(i);
            if (done == r.size) return;
            const node_index right = nodes_.create();
            nodes_[right].left = i;
            nodes_[i].right = right;
            i = right;
        }
    }

    /// Effects: removes the range that starts at base if all of it is free, whatever its domains.
    /// Returns: whether it did. Complexity: O(its blocks + log ranges).
    bool remove(address base) noexcept {
        const node_index number = ranges_.find(base);
        if (number == no_node || used_in_range_[number] != 0) return false;
        for (node_index i = ranges_[number].first; i != no_node;) {
            const node_index right = nodes_[i].right;
            unlink(i);
            nodes_.destroy(i);
            i = right;
        }
        ranges_.remove(number);
        if (ranges_.size() == 0) bases_ = 0;
        return true;
    }

    /// Returns: a block of `rounded(n, a)` bytes, or `no_block` if no free block could hold it.
    /// Requires: n >= 1, a is a power of two. Throws: `std::bad_alloc`, changing nothing.
    [[nodiscard]] block_id allocate(std::size_t n, std::size_t a, std::span<const domain> domains) {
        const std::size_t size = rounded(n, a);
        if (size > space_end) return no_block;
        const unsigned order = log2_floor(size);
        const node_index i =
            is_aligned(bases_, a) ? smallest(order, domains) : smallest_aligned(order, a, domains);
        if (i == no_node) return no_block;
        nodes_.reserve(nodes_[i].order - order);

        const domain color = nodes_[i].color;
        unlink(i);
        while (nodes_[i].order > order) halve(i, color);
        used_in_range_[nodes_[i].range] += size;
        used_ += size;
        return i;
    }

    /// Returns: a block of `rounded(n, a)` bytes made of smaller free blocks of `domains` that are all that lies
    /// at its place, the lowest such place of the first range; or `no_block`. Nothing is left of them.
    /// Complexity: the number of blocks. Throws: nothing.
    [[nodiscard]] block_id allocate_across(std::size_t n, std::size_t a, std::span<const domain> domains,
                                           domain) noexcept {
        const std::size_t size = rounded(n, a);
        if (size > space_end) return no_block;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            if (!is_aligned(ranges_[r].where.base, a)) continue;
            for (node_index i = ranges_[r].first; i != no_node; i = nodes_[i].right) {
                if (!is_aligned(nodes_[i].offset - ranges_[r].where.base, size)) continue;
                if (bytes(i) < size && covers(i, size, domains)) return take_all(i, size);
            }
        }
        return no_block;
    }

    /// Effects: the block becomes free in domain d and merges with its buddies. Requires: a used block's id.
    void deallocate(block_id id, domain d) noexcept {
        used_in_range_[nodes_[id].range] -= bytes(id);
        used_ -= bytes(id);
        merge(id, d);
    }

    /// Effects: every free block of `from` becomes one of `to`, merging.
    void recolor(domain from, domain to) noexcept {
        free_lists* const source = domains_.find(from);
        if (from == to || !source) return;
        while (source->filled != 0) {
            const node_index i = source->heads[static_cast<unsigned>(std::countr_zero(source->filled))];
            unlink(i);
            merge(i, to);
        }
    }

    [[nodiscard]] address offset(block_id id) const noexcept { return nodes_[id].offset; }
    [[nodiscard]] std::size_t size(block_id id) const noexcept { return bytes(id); }

    [[nodiscard]] std::size_t free_bytes() const noexcept { return total_bytes() - used_; }
    [[nodiscard]] std::size_t free_bytes(domain d) const noexcept {
        const free_lists* const lists = domains_.find(d);
        return lists ? lists->bytes : 0;
    }
    [[nodiscard]] std::size_t used_bytes() const noexcept { return used_; }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return ranges_.total_bytes(); }

    /// Complexity: O(number of domains asked for).
    [[nodiscard]] std::size_t largest_free(std::span<const domain> domains) const noexcept {
        std::size_t largest = 0;
        for (const domain d : domains) {
            const free_lists* const lists = domains_.find(d);
            if (lists && lists->filled != 0)
                largest = std::max(largest, granule << log2_floor(lists->filled));
        }
        return largest;
    }

    template <class F>
    void for_each_free_range(F&& f) const {
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r))
            if (used_in_range_[r] == 0) f(ranges_[r].where);
    }

    template <class F>
    void for_each_block(F&& f) const {
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r))
            for (node_index i = ranges_[r].first; i != no_node; i = nodes_[i].right) {
                const node& b = nodes_[i];
                f(block_view{i, b.offset, bytes(i), b.free, b.free ? b.color : domain{0}});
            }
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!nodes_.validate() || !ranges_.validate()) return false;
        std::size_t blocks = 0, free_blocks = 0, used = 0;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            const range& where = ranges_[r].where;
            std::size_t done = 0, used_here = 0;
            node_index left = no_node;
            for (node_index i = ranges_[r].first; i != no_node; left = i, i = nodes_[i].right) {
                if (i >= nodes_.extent() || ++blocks > nodes_.size()) return false;
                const node& b = nodes_[i];
                if (b.order < smallest_order || b.order > largest_order || b.range != r || b.left != left)
                    return false;
                if (b.offset != where.base + done || !is_aligned(done, bytes(i))) return false;
                if (b.free && free_buddy(i, b.color) != no_node) return false;
                done += bytes(i);
                (b.free ? free_blocks : used_here) += b.free ? 1 : bytes(i);
            }
            if (done != where.size || used_here != used_in_range_[r] || (bases_ & where.base) != where.base)
                return false;
            used += used_here;
        }
        return blocks == nodes_.size() && used == used_ && lists_hold(free_blocks);
    }

  private:
    static constexpr unsigned smallest_order = log2_floor(granule);
    static constexpr unsigned largest_order = log2_floor(space_end);
    static constexpr unsigned orders = largest_order - smallest_order + 1;

    struct node {
        address offset = 0;
        node_index left = no_node, right = no_node;    ///< neighbours in the range
        node_index previous = no_node, next = no_node; ///< in its free list
        node_index range = no_node;
        domain color = 0; ///< when free
        std::uint8_t order = 0;
        bool free = false;
    };
    static_assert(sizeof(node) == 32);

    /// Free blocks of one domain.
    struct free_lists {
        std::array<node_index, orders>
            heads;                ///< of the blocks of order smallest_order, smallest_order + 1, ...
        std::uint64_t filled = 0; ///< bit k: `heads[k]` has a block
        std::size_t bytes = 0;
        free_lists() noexcept { heads.fill(no_node); }
    };

    [[nodiscard]] std::size_t bytes(node_index i) const noexcept { return std::size_t{1} << nodes_[i].order; }

    [[nodiscard]] bool is_free(node_index i, domain color) const noexcept {
        return i != no_node && nodes_[i].free && nodes_[i].color == color;
    }

    /// Returns: i's buddy if that is whole, free and of this domain, else `no_node`.
    [[nodiscard]] node_index free_buddy(node_index i, domain color) const noexcept {
        const node& b = nodes_[i];
        const bool is_left_half = ((b.offset - ranges_[b.range].where.base) & bytes(i)) == 0;
        const node_index j = is_left_half ? b.right : b.left;
        return is_free(j, color) && nodes_[j].order == b.order ? j : no_node;
    }

    [[nodiscard]] node_index smallest(unsigned order, std::span<const domain> domains) const noexcept {
        node_index best = no_node;
        unsigned best_list = orders;
        for (const domain d : domains) {
            const free_lists* const lists = domains_.find(d);
            if (!lists) continue;
            const unsigned least = order - smallest_order;
            const std::uint64_t enough = lists->filled >> least;
            if (enough == 0) continue;
            const unsigned list = least + static_cast<unsigned>(std::countr_zero(enough));
            if (list >= best_list) continue;
            best_list = list;
            best = lists->heads[list];
        }
        return best;
    }

    /// The same where some bases are not multiples of a. No block in their ranges is aligned then: blocks of
    /// at least a bytes lie at multiples of a from the base.
    [[nodiscard]] node_index smallest_aligned(unsigned order, std::size_t a,
                                              std::span<const domain> domains) const noexcept {
        node_index best = no_node;
        unsigned best_list = orders;
        for (const domain d : domains) {
            const free_lists* const lists = domains_.find(d);
            if (!lists) continue;
            for (unsigned list = order - smallest_order; list < best_list; ++list) {
                node_index i = lists->heads[list];
                while (i != no_node && !is_aligned(ranges_[nodes_[i].range].where.base, a))
                    i = nodes_[i].next;
                if (i == no_node) continue;
                best_list = list;
                best = i;
            }
        }
        return best;
    }

    /// Returns: whether the next `size` bytes from block i on are free blocks of these domains.
    [[nodiscard]] bool covers(node_index i, std::size_t size,
                              std::span<const domain> domains) const noexcept {
        for (std::size_t done = 0; done < size; done += bytes(i), i = nodes_[i].right) {
            if (i == no_node || !nodes_[i].free || !is_in(nodes_[i].color, domains)) return false;
            if (done + bytes(i) == size) return true;
        }
        return false;
    }

    /// Effects: the free blocks in the next `size` bytes from block i on are one used block. Returns: i.
    node_index take_all(node_index i, std::size_t size) noexcept {
        unlink(i);
        for (std::size_t done = bytes(i); done < size;) {
            const node_index next = nodes_[i].right;
            done += bytes(next);
            unlink(next);
            nodes_[i].right = nodes_[next].right;
            nodes_.destroy(next);
        }
        if (nodes_[i].right != no_node) nodes_[nodes_[i].right].left = i;
        nodes_[i].order = static_cast<std::uint8_t>(log2_floor(size));
        used_in_range_[nodes_[i].range] += size;
        used_ += size;
        return i;
    }

    /// Effects: i, which is in no list, becomes its left half; the right half becomes a free block.
    /// Requires: a node is reserved.
    void halve(node_index i, domain color) noexcept {
        const node_index half = nodes_.create();
        node& left = nodes_[i];
        node& right = nodes_[half];
        --left.order;
        right.offset = left.offset + bytes(i);
        right.range = left.range;
        right.order = left.order;
        right.left = i;
        right.right = left.right;
        if (left.right != no_node) nodes_[left.right].left = half;
        left.right = half;
        link(half, color);
    }

    /// Effects: i, which is in no list, becomes free in its domain and merges with its buddies as far as they
    /// go.
    void merge(node_index i, domain color) noexcept {
        for (node_index j = free_buddy(i, color); j != no_node; j = free_buddy(i, color)) {
            unlink(j);
            const node_index upper = nodes_[i].offset < nodes_[j].offset ? j : i;
            i = upper == j ? i : j;
            node& whole = nodes_[i];
            whole.right = nodes_[upper].right;
            if (whole.right != no_node) nodes_[whole.right].left = i;
            ++whole.order;
            nodes_.destroy(upper);
        }
        link(i, color);
    }

    void link(node_index i, domain color) noexcept {
        free_lists& lists = domains_[color];
        node& b = nodes_[i];
        const unsigned list = b.order - smallest_order;
        b.free = true;
        b.color = color;
        b.previous = no_node;
        b.next = lists.heads[list];
        if (b.next != no_node) nodes_[b.next].previous = i;
        lists.heads[list] = i;
        lists.filled |= std::uint64_t{1} << list;
        lists.bytes += bytes(i);
    }

    void unlink(node_index i) noexcept {
        node& b = nodes_[i];
        free_lists& lists = domains_[b.color];
        const unsigned list = b.order - smallest_order;
        (b.previous == no_node ? lists.heads[list] : nodes_[b.previous].next) = b.next;
        if (b.next != no_node) nodes_[b.next].previous = b.previous;
        if (lists.heads[list] == no_node) lists.filled &= ~(std::uint64_t{1} << list);
        lists.bytes -= bytes(i);
        b.free = false;
    }

    /// Returns: whether the lists hold `free_blocks` blocks in all, each in the list of its domain and order.
    [[nodiscard]] bool lists_hold(std::size_t free_blocks) const noexcept {
        std::size_t listed = 0;
        for (std::size_t d = 0; d < domains_.size(); ++d) {
            const free_lists& lists = *domains_.find(static_cast<domain>(d));
            std::size_t sum = 0;
            for (unsigned list = 0; list < orders; ++list) {
                if (((lists.filled >> list) & 1) != (lists.heads[list] == no_node ? 0u : 1u)) return false;
                node_index previous = no_node;
                for (node_index i = lists.heads[list]; i != no_node; previous = i, i = nodes_[i].next) {
                    if (++listed > free_blocks || !is_free(i, static_cast<domain>(d))) return false;
                    if (nodes_[i].order != list + smallest_order || nodes_[i].previous != previous)
                        return false;
                    sum += bytes(i);
                }
            }
            if (sum != lists.bytes) return false;
        }
        return listed == free_blocks;
    }

    node_table<node> nodes_;
    range_table ranges_;
    own_lines_vector<std::size_t> used_in_range_; ///< bytes, by index of the range
    domain_table<free_lists> domains_;
    std::size_t used_ = 0;
    address bases_ =
        0; ///< all bases since the last time there were none, or-ed: what divides it divides them
};

static_assert(layout<buddy>);

} // namespace tenure::layout
