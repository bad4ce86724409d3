#pragma once

/// \file
/// `index_tree`: an intrusive, ordered, balanced search tree over nodes that are named by 32-bit indices.
///
/// The tree owns nothing but the index of its root (4 bytes), so that hundreds of trees over one table of nodes cost
/// next to nothing. Each call is told by an *order* how to reach a node's links and how two nodes compare:
///
///     struct by_size { node* nodes;
///         tree_links& links(node_index i) const;             // where the tree may keep its links
///         bool less(node_index a, node_index b) const; };    // strict, total over the nodes of one tree
///
/// An order may also keep a *summary* of each subtree in the node at its top, such as the largest size below it:
///
///         auto& summary(node_index i) const;      // where it is kept
///         auto summarize(node_index i) const;     // what it should be, from node i and the summaries of its children
///
/// Then the tree can be searched for the first node of a kind that its order does not know (`first_of`, `next_of`).
///
///   1. In-order traversal is strictly ascending.
///   2. The heights of two siblings differ by at most one (AVL: Adelson-Velsky and Landis, 1962), so that n nodes
///      are at most 1.44 log2 n high. `balance` is the right height less the left one.
///   3. A node's links are the tree's between `insert` and `erase`, and nobody's before and after. What `less` looks
///      at may not change in between. Erasing moves links, never nodes: all other indices stay valid.
///   4. After every call each summary is what it should be. Of a node in the tree, what else `summarize` looks at changes
///      only right before `refreshed` tells of it.
///
/// Cost: every call is O(log n) except where it says otherwise; no allocation, no recursion (but in `validate`).
/// Thread-safety: thread-compatible.

#include <tenure/core/node_table.hpp>

#include <cstddef>
#include <cstdint>

namespace tenure {

struct tree_links {
    node_index parent = no_node;
    node_index child[2] = {no_node, no_node}; ///< left, right
    std::int8_t balance = 0;
};

class index_tree {
  public:
    [[nodiscard]] bool empty() const noexcept { return root_ == no_node; }
    [[nodiscard]] node_index root() const noexcept { return root_; }

    /// Requires: `n` is in no tree and differs from all nodes here.
    template <class Order>
    void insert(const Order& order, node_index n) noexcept {
        node_index parent = no_node;
        unsigned side = 0;
        for (node_index at = root_; at != no_node; at = order.links(at).child[side]) {
            parent = at;
            side = order.less(n, at) ? 0 : 1;
        }
        order.links(n) = tree_links{parent, {no_node, no_node}, 0};
        if (parent == no_node)
            root_ = n;
        else
            order.links(parent).child[side] = n;
        refreshed(order, n);
        while (parent != no_node) { // the subtree on `side` of `parent` has become one higher
            tree_links& p = order.links(parent);
            p.balance = static_cast<std::int8_t>(p.balance + (side ? 1 : -1));
            if (p.balance == 0) return;
            if (p.balance != 1 && p.balance != -1) {
                rebalance(order, parent);
                return;
            }
            if (p.parent != no_node) side = side_of(order, p.parent, parent);
            parent = p.parent;
        }
    }

    /// Requires: `n` is in this tree.
    template <class Order>
    void erase(const Order& order, node_index n) noexcept {
        const tree_links gone = order.links(n);
        node_index at = gone.parent; // where a subtree has become one lower, and on which side
        unsigned side = at == no_node ? 0 : side_of(order, at, n);
        if (gone.child[0] != no_node && gone.child[1] != no_node) {
            const node_index heir = end(order, gone.child[1], 0);
            tree_links& h = order.links(heir);
            if (h.parent == n) {
                at = heir;
                side = 1;
            } else {
                at = h.parent;
                side = 0;
                set_child(order, at, 0, h.child[1]);
                set_child(order, heir, 1, gone.child[1]);
            }
            set_child(order, heir, 0, gone.child[0]);
            h.balance = gone.balance;
            put(order, gone.parent, n, heir);
        } else {
            put(order, gone.parent, n, gone.child[0] != no_node ? gone.child[0] : gone.child[1]);
        }
        if constexpr (keeps_summaries<Order>) // an heir's summary is that of its old place, so all the way up
            for (node_index i = at; i != no_node; i = order.links(i).parent) refresh(order, i);
        while (at != no_node) {
            tree_links& a = order.links(at);
            a.balance = static_cast<std::int8_t>(a.balance - (side ? 1 : -1));
            if (a.balance == 1 || a.balance == -1) return;
            if (a.balance != 0) {
                at = rebalance(order, at);
                if (order.links(at).balance != 0) return;
            }
            const node_index parent = order.links(at).parent;
            if (parent != no_node) side = side_of(order, parent, at);
            at = parent;
        }
    }

    /// Effects: `heir` is where `n` was, `n` in no tree. Requires: `heir` is in no tree, and belongs there by the order.
    template <class Order>
    void replace(const Order& order, node_index n, node_index heir) noexcept {
        const tree_links l = order.links(n);
        order.links(heir) = l;
        put(order, l.parent, n, heir);
        for (const node_index c : l.child)
            if (c != no_node) order.links(c).parent = heir;
        refreshed(order, heir);
    }

    /// To be called when what a summary is made of has changed in node `n`. Does nothing where there are none.
    template <class Order>
    void refreshed(const Order& order, node_index n) const noexcept {
        if constexpr (keeps_summaries<Order>) {
            refresh(order, n);
            for (node_index at = order.links(n).parent; at != no_node && refresh(order, at);)
                at = order.links(at).parent;
        }
    }

    /// Returns: the first and the last node in order; `no_node` if empty.
    template <class Order>
    [[nodiscard]] node_index first(const Order& order) const noexcept {
        return root_ == no_node ? no_node : end(order, root_, 0);
    }
    template <class Order>
    [[nodiscard]] node_index last(const Order& order) const noexcept {
        return root_ == no_node ? no_node : end(order, root_, 1);
    }

    /// Returns: the node after `n`, or `no_node`. A walk over all costs O(1) a step.
    template <class Order>
    [[nodiscard]] node_index next(const Order& order, node_index n) const noexcept {
        const node_index right = order.links(n).child[1];
        if (right != no_node) return end(order, right, 0);
        node_index parent = order.links(n).parent;
        while (parent != no_node && order.links(parent).child[1] == n) {
            n = parent;
            parent = order.links(n).parent;
        }
        return parent;
    }

    /// Requires: `reached(node_index)` is false up to some node and true from there on.
    /// Returns: the first node for which it is true, or `no_node`.
    template <class Order, class Predicate>
    [[nodiscard]] node_index first_where(const Order& order, Predicate reached) const noexcept {
        node_index found = no_node;
        for (node_index at = root_; at != no_node;) {
            const bool here = reached(at);
            if (here) found = at;
            at = order.links(at).child[here ? 0 : 1];
        }
        return found;
    }

    /// Requires: `within(n)`, by n's summary, is true iff `is` is true of a node in n's subtree.
    /// Returns: the first node of which `is` is true, or `no_node`.
    template <class Order, class Within, class Is>
    [[nodiscard]] node_index first_of(const Order& order, Within within, Is is) const noexcept {
        return root_ != no_node && within(root_) ? first_below(order, root_, within, is) : no_node;
    }

    /// The same. Returns: the first one after `n`.
    template <class Order, class Within, class Is>
    [[nodiscard]] node_index next_of(const Order& order, node_index n, Within within, Is is) const noexcept {
        for (;;) {
            const node_index right = order.links(n).child[1];
            if (right != no_node && within(right)) return first_below(order, right, within, is);
            node_index parent = order.links(n).parent;
            while (parent != no_node && order.links(parent).child[1] == n) {
                n = parent;
                parent = order.links(n).parent;
            }
            if (parent == no_node || is(parent)) return parent;
            n = parent;
        }
    }

    /// Returns: whether the tree holds exactly `count` nodes, in order and in balance, with their summaries. Linear.
    template <class Order>
    [[nodiscard]] bool validate(const Order& order, std::size_t count) const noexcept {
        if (root_ == no_node) return count == 0;
        if (order.links(root_).parent != no_node || height(order, root_, 0) < 0) return false;
        std::size_t seen = 1;
        for (node_index n = first(order);; ++seen) {
            if constexpr (keeps_summaries<Order>)
                if (order.summary(n) != order.summarize(n)) return false;
            const node_index after = next(order, n);
            if (after == no_node) return seen == count;
            if (seen == count || !order.less(n, after) || order.less(after, n)) return false;
            n = after;
        }
    }

  private:
    template <class Order>
    static constexpr bool keeps_summaries = requires(const Order& order, node_index n) {
        order.summary(n);
        order.summarize(n);
    };

    /// Returns: whether it has changed.
    template <class Order>
    static bool refresh(const Order& order, node_index n) noexcept {
        const auto now = order.summarize(n);
        auto& kept = order.summary(n);
        const bool changes = kept != now;
        kept = now;
        return changes;
    }

    /// Requires: `within(at)`.
    template <class Order, class Within, class Is>
    static node_index first_below(const Order& order, node_index at, Within within, Is is) noexcept {
        for (;;) {
            const node_index left = order.links(at).child[0];
            if (left != no_node && within(left))
                at = left;
            else if (is(at))
                return at;
            else
                at = order.links(at).child[1];
        }
    }

    template <class Order>
    static unsigned side_of(const Order& order, node_index parent, node_index child) noexcept {
        return order.links(parent).child[1] == child ? 1 : 0;
    }

    template <class Order>
    static node_index end(const Order& order, node_index n, unsigned side) noexcept {
        for (;;) {
            const node_index further = order.links(n).child[side];
            if (further == no_node) return n;
            n = further;
        }
    }

    template <class Order>
    static void set_child(const Order& order, node_index parent, unsigned side, node_index child) noexcept {
        order.links(parent).child[side] = child;
        if (child != no_node) order.links(child).parent = parent;
    }

    /// `heir`, or nothing, takes the place of `n` under `parent`.
    template <class Order>
    void put(const Order& order, node_index parent, node_index n, node_index heir) noexcept {
        if (parent == no_node) {
            root_ = heir;
            if (heir != no_node) order.links(heir).parent = no_node;
        } else {
            set_child(order, parent, side_of(order, parent, n), heir);
        }
    }

    /// The child on `side` of `n` goes up, `n` down to the other side. Balances are the caller's. Returns: that child.
    template <class Order>
    node_index rotate(const Order& order, node_index n, unsigned side) noexcept {
        const node_index up = order.links(n).child[side];
        put(order, order.links(n).parent, n, up);
        set_child(order, n, side, order.links(up).child[1 - side]);
        set_child(order, up, 1 - side, n);
        if constexpr (keeps_summaries<Order>) {
            refresh(order, n);
            refresh(order, up);
        }
        return up;
    }

    /// `n` leans by two. Returns: the root of the subtree afterwards; it is one lower than before iff its balance is 0.
    template <class Order>
    node_index rebalance(const Order& order, node_index n) noexcept {
        const unsigned heavy = order.links(n).balance > 0 ? 1 : 0;
        const std::int8_t lean = heavy ? 1 : -1;
        const auto counter = static_cast<std::int8_t>(-lean);
        const node_index child = order.links(n).child[heavy];
        const std::int8_t child_balance = order.links(child).balance;
        if (child_balance != counter) {
            const bool even = child_balance == 0;
            order.links(n).balance = even ? lean : std::int8_t{0};
            order.links(child).balance = even ? counter : std::int8_t{0};
            return rotate(order, n, heavy);
        }
        const node_index grandchild = rotate(order, child, 1 - heavy);
        const std::int8_t inner = order.links(grandchild).balance;
        order.links(n).balance = inner == lean ? counter : std::int8_t{0};
        order.links(child).balance = inner == counter ? lean : std::int8_t{0};
        order.links(grandchild).balance = 0;
        return rotate(order, n, heavy);
    }

    /// Returns: the height below `n`, or -1 if links or balances are wrong there.
    template <class Order>
    static int height(const Order& order, node_index n, unsigned depth) noexcept {
        if (n == no_node) return 0;
        if (depth > 48) return -1; // more than 2^32 nodes in balance would need: a cycle
        const tree_links& l = order.links(n);
        for (const node_index c : l.child)
            if (c != no_node && order.links(c).parent != n) return -1;
        const int left = height(order, l.child[0], depth + 1);
        const int right = height(order, l.child[1], depth + 1);
        if (left < 0 || right < 0 || right - left != l.balance || l.balance > 1 || l.balance < -1) return -1;
        return (left > right ? left : right) + 1;
    }

    node_index root_ = no_node;
};

} // namespace tenure
