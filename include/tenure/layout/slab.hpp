#pragma once

/// \file
/// `slab`: ranges cut into slots of one size each. O(1), no splitting, no merging; for many small blocks.
///
///     bound   [ used | free d0 | used | free d3 | ............. rest, d0 ............. ]
///               slot 0    1       2        3      slots never touched, and what is no slot
///     idle    [ .............................. rest, d0 .............................. ]
///
/// `slab_classes` says which slot a request takes: the smallest that is large enough and a multiple of its
/// alignment, less than 25 % more than the request as rounded up to alignment and granule. Requests of more
/// than 8 MiB, and alignments of more than 2 MiB, take a whole range.
///
///   1. A range is *bound* to one class while it has a used slot. It is *idle*, and any class may bind it, as
///      soon as it is wholly free and of one domain. Wholly free but of several domains it stays bound: its
///      slots serve its class, `remove` takes it, `recolor` can make it idle, and `allocate_across` binds it to another.
///   2. Slots are touched in address order. What lies behind the last touched slot is the *rest*: one free
///      block of one domain, however many slots it has room for. So memory is proportional to the slots
///      touched.
///   3. Each domain has, for each class, a list of free slots and a list of rests that have room for one; a
///      list of rests that are only a tail; and its idle ranges, ordered by size.
///   4. Two neighbours in a range are *alike* if both are used, or both free and of one domain. Borders
///      between others are *seams*, and are counted: a range with neither used slots nor seams is of one
///      domain.
///   5. What *could hold* (n, a), if the base of its range is a multiple of a: a free slot of the class of
///      (n, a); a rest with room for one in a range bound to that class; an idle range of at least
///      `rounded(n, a)` bytes. Nothing else: no slot of a larger class, no tail. `allocate` prefers them in
///      this order, and of idle ranges the smallest with room for a usual number of slots, else the smallest.
///
/// A block that takes a whole range is as large as the range, which may be more than `rounded`. `range_for`
/// ignores the size preferred by the caller: a range serves one class, so a larger one only strands more.
///
/// Cost, for d domains asked for: `allocate` is O(d) from a bound range and O(d log idle ranges) from an idle
/// one; `deallocate` is O(1), amortised: the last free of a range forgets the slots touched since it was
/// bound. Only where a is larger than the alignment that all bases have in common does `allocate` step over
/// slots and ranges that are not aligned. `recolor` is linear in the free slots recoloured, `allocate_across` in
/// the ranges and in the slots of those that are wholly free. 24 bytes of host memory for each slot touched.
///
/// Thread-safety: thread-compatible (externally synchronised).

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/index_tree.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/domain_table.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/layout/range_table.hpp>
#include <tenure/layout/slab_classes.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tenure::layout {

class slab {
    using sizes = slab_classes;

  public:
    /// Returns: the size of the slot for n bytes at alignment a; if there is none, n rounded up to 2 MiB.
    [[nodiscard]] static constexpr std::size_t rounded(std::size_t n, std::size_t a) noexcept {
        const unsigned c = sizes::class_for(n, a);
        return c == sizes::none ? round_up(std::max<std::size_t>(n, 1), sizes::range_step)
                                : sizes::slot_bytes(c);
    }

    /// Returns: room for 8 slots, or for as many as 16 MiB hold, in multiples of 2 MiB; or as much as a block
    /// that takes a whole range needs.
    [[nodiscard]] static constexpr range_request range_for(std::size_t n, std::size_t a,
                                                           std::size_t) noexcept {
        const std::size_t size = rounded(n, a);
        return {sizes::class_for(n, a) == sizes::none ? size : sizes::range_bytes(size),
                std::max(a, sizes::range_step)};
    }

    /// Effects: adds r as an idle range of domain d.
    /// Requires: granular, not empty, inside the space, disjoint from all others.
    /// Throws: `std::bad_alloc`, changing nothing. Complexity: O(log ranges).
    void add(range r, domain d) {
        nodes_.reserve(1);
        domains_.reserve();
        ranges_.reserve();
        if (slabs_.size() == ranges_.size()) slabs_.emplace_back(); // indices are dense
        const node_index rest = nodes_.create();
        const node_index number = ranges_.add(r, rest);
        slabs_[number].where = r;
        slabs_[number].rest = rest;
        nodes_[rest].range = number;
        link(rest, d);
        bases_ |= r.base;
    }

    /// Effects: removes the range that starts at base if all of it is free, whatever its domains.
    /// Returns: whether it did. Complexity: O(its touched slots + log ranges).
    bool remove(address base) noexcept {
        const node_index number = ranges_.find(base);
        if (number == no_node || slabs_[number].used != 0) return false;
        forget_pieces(slabs_[number]);
        nodes_.destroy(slabs_[number].rest);
        slabs_[number] = slab_range{};
        ranges_.remove(number);
        if (ranges_.size() == 0) bases_ = 0;
        return true;
    }

    /// Returns: a block of at least `rounded(n, a)` bytes, or `no_block` if no free block could hold it.
    /// Requires: n >= 1, a is a power of two. Throws: `std::bad_alloc`, changing nothing.
    [[nodiscard]] block_id allocate(std::size_t n, std::size_t a, std::span<const domain> domains) {
        const std::size_t size = rounded(n, a);
        const unsigned c = sizes::class_for(n, a);
        if (c == sizes::none) {
            const node_index number = smallest_idle(size, a, domains);
            return number == no_node ? no_block : bind(number, c, slabs_[number].where.size);
        }
        if (const node_index i = first_aligned(slots_of(c), a, domains); i != no_node) return take(i);
        if (const node_index rest = first_aligned(rests_of(c), a, domains); rest != no_node) {
            reserve_slot(nodes_[rest].range);
            unlink(rest);
            return touch(nodes_[rest].range);
        }
        node_index number = smallest_idle(sizes::range_bytes(size), a, domains);
        if (number == no_node) number = smallest_idle(size, a, domains);
        return number == no_node ? no_block : bind(number, c, size);
    }

    /// Returns: a block of at least `rounded(n, a)` bytes from a range that is wholly free, of several domains, all of
    /// them among `domains`, the smallest that is large enough; or `no_block`. What is left of the range is of domain d.
    /// Complexity: the ranges, and the slots of those that are wholly free. Throws: `std::bad_alloc`, changing nothing.
    [[nodiscard]] block_id allocate_across(std::size_t n, std::size_t a, std::span<const domain> domains,
                                           domain d) {
        const std::size_t size = rounded(n, a);
        const unsigned c = sizes::class_for(n, a);
        node_index best = no_node;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            const slab_range& s = slabs_[r];
            if (s.slot == 0 || s.used != 0 || s.where.size < size || !is_base_aligned(r, a)) continue;
            if ((best == no_node || order().less(r, best)) && is_all_of(s, domains)) best = r;
        }
        if (best == no_node) return no_block;
        slab_range& s = slabs_[best];
        reserve_slot(best);
        forget_pieces(s);
        link(s.rest, d);
        return bind(best, c, c == sizes::none ? s.where.size : size);
    }

    /// Effects: the block becomes free in domain d. Requires: a used block's id.
    void deallocate(block_id id, domain d) noexcept {
        slab_range& s = slabs_[nodes_[id].range];
        used_ -= s.slot;
        --s.used;
        paint(id, piece_state::free, d);
        link(id, d);
        make_idle_if_uniform(nodes_[id].range);
    }

    /// Effects: every free block of `from` becomes one of `to`.
    void recolor(domain from, domain to) noexcept {
        record* const source = domains_.find(from);
        if (from == to || !source || source->bytes == 0) return;
        for (const node_index& head : source->heads)
            while (head != no_node) recolor_one(head, to);
        while (!source->idle.empty()) recolor_one(slabs_[source->idle.root()].rest, to);
    }

    [[nodiscard]] address offset(block_id id) const noexcept {
        const slab_range& s = slabs_[nodes_[id].range];
        return s.where.base + nodes_[id].slot * s.slot;
    }
    [[nodiscard]] std::size_t size(block_id id) const noexcept { return slabs_[nodes_[id].range].slot; }

    [[nodiscard]] std::size_t free_bytes() const noexcept { return total_bytes() - used_; }
    [[nodiscard]] std::size_t free_bytes(domain d) const noexcept {
        const record* const r = domains_.find(d);
        return r ? r->bytes : 0;
    }
    [[nodiscard]] std::size_t used_bytes() const noexcept { return used_; }
    [[nodiscard]] std::size_t total_bytes() const noexcept { return ranges_.total_bytes(); }

    /// Returns: the bytes of the largest block that some request could get there: an idle range or a slot.
    [[nodiscard]] std::size_t largest_free(std::span<const domain> domains) const noexcept {
        std::size_t largest = 0;
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (!r) continue;
            if (!r->idle.empty()) largest = std::max(largest, slabs_[r->idle.last(order())].where.size);
            for (unsigned c = sizes::count; c-- > 0;) {
                if (r->heads[slots_of(c)] == no_node && r->heads[rests_of(c)] == no_node) continue;
                largest = std::max(largest, sizes::slot_bytes(c));
                break;
            }
        }
        return largest;
    }

    template <class F>
    void for_each_free_range(F&& f) const {
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r))
            if (slabs_[r].used == 0) f(ranges_[r].where);
    }

    /// Free slots are shown one by one, the rest of a range as one block.
    template <class F>
    void for_each_block(F&& f) const {
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            const slab_range& s = slabs_[r];
            for (std::size_t k = 0; k < pieces(s); ++k) {
                const node_index i = piece(s, k);
                const bool free = nodes_[i].state == piece_state::free;
                f(block_view{free ? no_block : i, s.where.base + k * s.slot, bytes(i), free,
                             free ? nodes_[i].color : domain{0}});
            }
        }
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!nodes_.validate() || !ranges_.validate()) return false;
        std::size_t nodes = 0, free_pieces = 0, used = 0;
        for (node_index r = ranges_.first(); r != no_node; r = ranges_.next(r)) {
            const slab_range& s = slabs_[r];
            if (!slab_is_whole(r)) return false;
            nodes += s.slots.size() + 1;
            used += s.used * s.slot;
            free_pieces += pieces(s) - s.used;
        }
        return nodes == nodes_.size() && used == used_ && lists_hold(free_pieces);
    }

  private:
    enum class piece_state : std::uint8_t { used, free };

    /// A piece of a range: a touched slot, or the rest.
    struct node {
        node_index range = no_node;
        node_index slot = no_node;                     ///< number in the range; `no_node` for the rest
        node_index previous = no_node, next = no_node; ///< in its list, when free
        domain color = 0;                              ///< when not used
        piece_state state = piece_state::free;
    };
    static_assert(sizeof(node) == 20);

    struct slab_range {
        range where;
        node_index rest = no_node; ///< a piece of the range only while it has bytes
        unsigned size_class = 0;   ///< when bound
        std::size_t slot = 0;      ///< bytes of a slot when bound, else 0
        std::size_t used = 0;      ///< number of used slots
        std::size_t seams = 0;
        own_lines_vector<node_index> slots; ///< touched
        tree_links links;                   ///< when idle
    };

    /// Lists of a domain: by class the free slots, then by class the rests with room for one, then the tails.
    static constexpr std::size_t slots_of(unsigned c) noexcept { return c; }
    static constexpr std::size_t rests_of(unsigned c) noexcept { return sizes::count + 1 + c; }
    static constexpr std::size_t tails = 2 * sizes::count + 1;
    static constexpr std::size_t lists = tails + 1;

    /// Free memory of one domain.
    struct record {
        std::array<node_index, lists> heads;
        index_tree idle; ///< ranges by (size, base)
        std::size_t idle_ranges = 0;
        std::size_t bytes = 0;
        record() noexcept { heads.fill(no_node); }
    };

    template <class Range>
    struct by_size {
        Range* ranges;
        [[nodiscard]] auto& links(node_index i) const noexcept { return ranges[i].links; }
        [[nodiscard]] bool less(node_index a, node_index b) const noexcept {
            const range &x = ranges[a].where, &y = ranges[b].where;
            return x.size != y.size ? x.size < y.size : x.base < y.base;
        }
    };
    [[nodiscard]] by_size<slab_range> order() noexcept { return {slabs_.data()}; }
    [[nodiscard]] by_size<const slab_range> order() const noexcept { return {slabs_.data()}; }

    // ---- pieces of a range, in address order ----

    static std::size_t rest_bytes(const slab_range& s) noexcept {
        return s.where.size - s.slots.size() * s.slot;
    }
    static std::size_t pieces(const slab_range& s) noexcept {
        return s.slots.size() + (rest_bytes(s) != 0 ? 1 : 0);
    }
    static node_index piece(const slab_range& s, std::size_t k) noexcept {
        return k < s.slots.size() ? s.slots[k] : s.rest;
    }
    static bool has_untouched_slot(const slab_range& s) noexcept {
        return s.slot != 0 && rest_bytes(s) >= s.slot;
    }

    /// Returns: k such that `piece(range, k) == i`.
    [[nodiscard]] std::size_t place(node_index i) const noexcept {
        const node& n = nodes_[i];
        return n.slot != no_node ? n.slot : slabs_[n.range].slots.size();
    }
    [[nodiscard]] std::size_t bytes(node_index i) const noexcept {
        const slab_range& s = slabs_[nodes_[i].range];
        return nodes_[i].slot != no_node ? s.slot : rest_bytes(s);
    }

    [[nodiscard]] bool alike(node_index i, node_index j) const noexcept {
        const node &x = nodes_[i], &y = nodes_[j];
        const bool x_used = x.state == piece_state::used, y_used = y.state == piece_state::used;
        return x_used == y_used && (x_used || x.color == y.color);
    }

    /// Returns: the number of seams at the borders of the k-th piece.
    [[nodiscard]] std::size_t seams_at(const slab_range& s, std::size_t k) const noexcept {
        const node_index i = piece(s, k);
        return (k != 0 && !alike(piece(s, k - 1), i) ? 1u : 0u) +
               (k + 1 < pieces(s) && !alike(i, piece(s, k + 1)) ? 1u : 0u);
    }

    /// Effects: changes state and colour of a piece that is in no list.
    void paint(node_index i, piece_state state, domain color) noexcept {
        slab_range& s = slabs_[nodes_[i].range];
        const std::size_t k = place(i);
        s.seams -= seams_at(s, k);
        nodes_[i].state = state;
        nodes_[i].color = color;
        s.seams += seams_at(s, k);
    }

    // ---- lists ----

    /// Returns: the list that a free piece belongs in; none if it is an idle range.
    [[nodiscard]] std::optional<std::size_t> list_of(node_index i) const noexcept {
        const slab_range& s = slabs_[nodes_[i].range];
        if (s.slot == 0) return std::nullopt;
        if (nodes_[i].slot != no_node) return slots_of(s.size_class);
        return has_untouched_slot(s) ? rests_of(s.size_class) : tails;
    }

    void link(node_index i, domain d) noexcept {
        record& r = domains_[d];
        node& n = nodes_[i];
        n.state = piece_state::free;
        n.color = d;
        r.bytes += bytes(i);
        if (const auto list = list_of(i)) {
            n.previous = no_node;
            n.next = r.heads[*list];
            if (n.next != no_node) nodes_[n.next].previous = i;
            r.heads[*list] = i;
        } else {
            r.idle.insert(order(), n.range);
            ++r.idle_ranges;
        }
    }

    void unlink(node_index i) noexcept {
        const node& n = nodes_[i];
        record& r = domains_[n.color];
        r.bytes -= bytes(i);
        if (const auto list = list_of(i)) {
            (n.previous == no_node ? r.heads[*list] : nodes_[n.previous].next) = n.next;
            if (n.next != no_node) nodes_[n.next].previous = n.previous;
        } else {
            r.idle.erase(order(), n.range);
            --r.idle_ranges;
        }
    }

    void recolor_one(node_index i, domain to) noexcept {
        unlink(i);
        paint(i, piece_state::free, to);
        link(i, to);
        make_idle_if_uniform(nodes_[i].range);
    }

    // ---- search ----

    [[nodiscard]] bool is_base_aligned(node_index number, std::size_t a) const noexcept {
        return is_aligned(slabs_[number].where.base, a);
    }

    [[nodiscard]] node_index first_aligned(std::size_t list, std::size_t a,
                                           std::span<const domain> domains) const noexcept {
        const bool all_aligned = is_aligned(bases_, a);
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (!r) continue;
            node_index i = r->heads[list];
            while (i != no_node && !all_aligned && !is_base_aligned(nodes_[i].range, a)) i = nodes_[i].next;
            if (i != no_node) return i;
        }
        return no_node;
    }

    [[nodiscard]] node_index smallest_idle(std::size_t least, std::size_t a,
                                           std::span<const domain> domains) const noexcept {
        node_index best = no_node;
        for (const domain d : domains) {
            const record* const r = domains_.find(d);
            if (!r) continue;
            node_index i =
                r->idle.first_where(order(), [&](node_index x) { return slabs_[x].where.size >= least; });
            while (i != no_node && !is_base_aligned(i, a)) i = r->idle.next(order(), i);
            if (i != no_node && (best == no_node || order().less(i, best))) best = i;
        }
        return best;
    }

    [[nodiscard]] bool is_all_of(const slab_range& s, std::span<const domain> domains) const noexcept {
        for (std::size_t k = 0; k < pieces(s); ++k)
            if (!is_in(nodes_[piece(s, k)].color, domains)) return false;
        return true;
    }

    // ---- slots ----

    node_index take(node_index i) noexcept {
        unlink(i);
        paint(i, piece_state::used, 0);
        return count_used(i);
    }

    node_index count_used(node_index i) noexcept {
        slab_range& s = slabs_[nodes_[i].range];
        ++s.used;
        used_ += s.slot;
        return i;
    }

    /// Effects: `touch` on that range will need no host memory. Throws: `std::bad_alloc`.
    void reserve_slot(node_index number) {
        nodes_.reserve(1);
        own_lines_vector<node_index>& slots = slabs_[number].slots;
        if (slots.size() == slots.capacity()) slots.reserve(std::max<std::size_t>(8, 2 * slots.size()));
    }

    /// Effects: the first slot of the rest becomes a used one. Requires: the rest has one and is in no list.
    node_index touch(node_index number) noexcept {
        const node_index i = nodes_.create();
        slab_range& s = slabs_[number];
        s.seams -= seams_at(s, s.slots.size());
        nodes_[i].range = number;
        nodes_[i].slot = static_cast<node_index>(s.slots.size());
        nodes_[i].state = piece_state::used;
        s.slots.push_back(i);
        s.seams += seams_at(s, s.slots.size() - 1);
        if (rest_bytes(s) != 0) link(s.rest, nodes_[s.rest].color);
        return count_used(i);
    }

    /// Effects: an idle range becomes one of class c with its first slot used. Returns: that slot.
    node_index bind(node_index number, unsigned c, std::size_t slot) {
        reserve_slot(number);
        slab_range& s = slabs_[number];
        unlink(s.rest);
        s.size_class = c;
        s.slot = slot;
        return touch(number);
    }

    void make_idle_if_uniform(node_index number) noexcept {
        slab_range& s = slabs_[number];
        if (s.slot == 0 || s.used != 0 || s.seams != 0) return;
        const domain d = nodes_[piece(s, 0)].color;
        forget_pieces(s);
        link(s.rest, d);
    }

    /// Effects: nothing is left of a wholly free range but its rest, in no list.
    void forget_pieces(slab_range& s) noexcept {
        if (rest_bytes(s) != 0) unlink(s.rest);
        for (const node_index i : s.slots) {
            unlink(i);
            nodes_.destroy(i);
        }
        s.slots.clear();
        s.slot = 0;
        s.seams = 0;
    }

    // ---- validation ----

    [[nodiscard]] bool slab_is_whole(node_index number) const noexcept {
        const slab_range& s = slabs_[number];
        if (s.where != ranges_[number].where || s.rest >= nodes_.extent()) return false;
        if (nodes_[s.rest].range != number || nodes_[s.rest].slot != no_node) return false;
        if (s.slot == 0) return s.slots.empty() && s.used == 0 && s.seams == 0;
        if (s.size_class > sizes::none || s.slots.empty() || s.slots.size() > s.where.size / s.slot)
            return false;
        if (s.slot != (s.size_class == sizes::none ? s.where.size : sizes::slot_bytes(s.size_class)))
            return false;
        std::size_t used = 0, seams = 0;
        for (std::size_t k = 0; k < pieces(s); ++k) {
            const node_index i = piece(s, k);
            if (i >= nodes_.extent() || nodes_[i].range != number || place(i) != k) return false;
            if (nodes_[i].state == piece_state::used) ++used;
            if (k != 0 && !alike(piece(s, k - 1), i)) ++seams;
        }
        return used == s.used && seams == s.seams && (used != 0 || seams != 0);
    }

    /// Returns: whether the lists hold `free_pieces` pieces in all, each where it belongs.
    [[nodiscard]] bool lists_hold(std::size_t free_pieces) const noexcept {
        std::size_t listed = 0;
        for (std::size_t n = 0; n < domains_.size(); ++n) {
            const auto d = static_cast<domain>(n);
            const record& r = *domains_.find(d);
            std::size_t sum = 0;
            const auto belongs = [&](node_index i, std::optional<std::size_t> list) {
                sum += bytes(i);
                return ++listed <= free_pieces && nodes_[i].state == piece_state::free &&
                       nodes_[i].color == d && list_of(i) == list;
            };
            for (std::size_t list = 0; list < lists; ++list) {
                node_index previous = no_node;
                for (node_index i = r.heads[list]; i != no_node; previous = i, i = nodes_[i].next)
                    if (!belongs(i, list) || nodes_[i].previous != previous) return false;
            }
            if (!r.idle.validate(order(), r.idle_ranges)) return false;
            for (node_index i = r.idle.first(order()); i != no_node; i = r.idle.next(order(), i))
                if (!belongs(slabs_[i].rest, std::nullopt)) return false;
            if (sum != r.bytes) return false;
        }
        return listed == free_pieces;
    }

    node_table<node> nodes_;
    range_table ranges_;
    own_lines_vector<slab_range> slabs_; ///< by index of the range
    domain_table<record> domains_;
    std::size_t used_ = 0;
    address bases_ =
        0; ///< all bases since the last time there were none, or-ed: what divides it divides them
};

static_assert(layout<slab>);

} // namespace tenure::layout
