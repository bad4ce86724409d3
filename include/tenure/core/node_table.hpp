#pragma once

/// \file
/// `node_table`: a growable array of small nodes that name each other by 32-bit indices.
///
/// Structures of linked nodes (lists, trees, address order) keep all their nodes in one table. An index is half a
/// pointer, survives growth, and serves callers as a dense, reused name for side tables. Nodes given back form a
/// chain through one of their own fields, so the table has no memory beside the array.
///
///   1. `acquire` hands out the node released last, so that hot nodes stay hot.
///   2. Indices in use and indices in the chain together are exactly [0, extent()).
///   3. Room is asked for beforehand (`reserve_free`, the only call that can fail); taking it never fails.
///
/// Cost: O(1); growth doubles and copies. References are valid until the next `reserve_free`.
/// Thread-safety: thread-compatible.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

namespace tenure {

using node_index = std::uint32_t;
inline constexpr node_index no_node = std::numeric_limits<node_index>::max();

/// `Link` is the field of a node that chains it while it is not in use.
template <class Node, node_index Node::*Link>
class node_table {
    static_assert(std::is_trivially_copyable_v<Node>, "growth copies nodes as bytes");

  public:
    /// Effects: the next `n` calls of `acquire` need no memory. Throws: `std::bad_alloc`, changing nothing.
    void reserve_free(std::size_t n) {
        if (n > spare_ + (nodes_.capacity() - nodes_.size())) grow(n - spare_);
    }

    /// Requires: room, see `reserve_free`. Returns: a node with its default values.
    node_index acquire() noexcept {
        if (free_ == no_node) {
            nodes_.emplace_back();
            return static_cast<node_index>(nodes_.size() - 1);
        }
        const node_index i = free_;
        free_ = nodes_[i].*Link;
        nodes_[i] = Node{};
        --spare_;
        return i;
    }

    /// Requires: `i` is in use. Effects: `i` may be handed out again.
    void release(node_index i) noexcept {
        nodes_[i] = Node{};
        nodes_[i].*Link = free_;
        free_ = i;
        ++spare_;
    }

    [[nodiscard]] Node& operator[](node_index i) noexcept { return nodes_[i]; }
    [[nodiscard]] const Node& operator[](node_index i) const noexcept { return nodes_[i]; }
    [[nodiscard]] Node* data() noexcept { return nodes_.data(); }
    [[nodiscard]] const Node* data() const noexcept { return nodes_.data(); }

    /// Returns: the number of nodes in use.
    [[nodiscard]] std::size_t size() const noexcept { return nodes_.size() - spare_; }

    /// Returns: one more than the largest index ever handed out.
    [[nodiscard]] std::size_t extent() const noexcept { return nodes_.size(); }

    /// Returns: whether the chain of unused nodes is whole. Linear in its length.
    [[nodiscard]] bool validate() const noexcept {
        std::size_t n = 0;
        for (node_index i = free_; i != no_node; i = nodes_[i].*Link)
            if (i >= nodes_.size() || ++n > spare_) return false;
        return n == spare_;
    }

  private:
    void grow(std::size_t n) {
        if (n > no_node - nodes_.size()) throw std::bad_alloc();
        nodes_.reserve(std::max({nodes_.size() + n, 2 * nodes_.capacity(), std::size_t{64}}));
    }

    std::vector<Node> nodes_;
    node_index free_ = no_node;
    std::size_t spare_ = 0; ///< nodes in the chain
};

} // namespace tenure
