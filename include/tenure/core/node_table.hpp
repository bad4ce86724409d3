#pragma once

/// \file
/// `node_table`: a growable array of small nodes that name each other by 32-bit indices.
///
/// Structures of linked nodes (lists, trees, address order) keep all their nodes in one table. An index is
/// half a pointer, survives growth, and serves callers as a dense, reused name for side tables. Destroyed
/// nodes form a chain through their own first bytes, so the table has no memory beside the array.
///
///   1. `create` hands out the node destroyed last, so that hot nodes stay hot.
///   2. Indices in use and indices in the chain together are exactly [0, extent()).
///   3. Whoever must not fail later calls `reserve` now.
///
/// Cost: O(1); growth doubles and copies. References are valid until the next `reserve` or `create`, indices
/// until `destroy`. Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>

namespace tenure {

using node_index = std::uint32_t;
inline constexpr node_index no_node = std::numeric_limits<node_index>::max();

template <class Node>
class node_table {
    static_assert(std::is_trivially_copyable_v<Node>, "nodes move as bytes when the table grows");
    static_assert(sizeof(Node) >= sizeof(node_index), "a destroyed node must have room for a link");

  public:
    static constexpr node_index none = no_node;

    /// Effects: the next `n` calls of `create` need no memory. Throws: `std::bad_alloc`, changing nothing.
    void reserve(std::size_t n) {
        if (n > spare_ + (nodes_.capacity() - nodes_.size())) grow(n - spare_);
    }

    /// Returns: a node with its default values. Throws: `std::bad_alloc`, changing nothing; never after a
    /// `reserve`.
    node_index create() {
        if (spare_ == 0) {
            if (nodes_.size() == nodes_.capacity()) grow(1);
            nodes_.emplace_back();
            return static_cast<node_index>(nodes_.size() - 1);
        }
        const node_index i = chain_;
        chain_ = link(i);
        nodes_[i] = Node{};
        --spare_;
        return i;
    }

    /// Requires: `i` is in use. Effects: `i` may be handed out again.
    void destroy(node_index i) noexcept {
        nodes_[i] = Node{};
        std::memcpy(static_cast<void*>(&nodes_[i]), &chain_, sizeof chain_);
        chain_ = i;
        ++spare_;
    }

    /// Requires: `i < extent()`.
    [[nodiscard]] Node& operator[](node_index i) noexcept { return nodes_[i]; }
    [[nodiscard]] const Node& operator[](node_index i) const noexcept { return nodes_[i]; }
    [[nodiscard]] Node* data() noexcept { return nodes_.data(); }
    [[nodiscard]] const Node* data() const noexcept { return nodes_.data(); }

    /// Returns: the number of nodes in use.
    [[nodiscard]] std::size_t size() const noexcept { return nodes_.size() - spare_; }

    /// Returns: one more than the largest index ever handed out.
    [[nodiscard]] std::size_t extent() const noexcept { return nodes_.size(); }

    /// Returns: whether the chain of destroyed nodes is whole. Linear in its length.
    [[nodiscard]] bool validate() const noexcept {
        std::size_t n = 0;
        for (node_index i = chain_; i != none; i = link(i))
            if (i >= nodes_.size() || ++n > spare_) return false;
        return n == spare_;
    }

  private:
    [[nodiscard]] node_index link(node_index i) const noexcept {
        node_index next;
        std::memcpy(&next, static_cast<const void*>(&nodes_[i]), sizeof next);
        return next;
    }

    void grow(std::size_t n) {
        if (n > no_node - nodes_.size()) throw std::bad_alloc();
        nodes_.reserve(std::max({nodes_.size() + n, 2 * nodes_.capacity(), std::size_t{64}}));
    }

    own_lines_vector<Node> nodes_;
    node_index chain_ = no_node;
    std::size_t spare_ = 0; ///< nodes in the chain
};

} // namespace tenure
