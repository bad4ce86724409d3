#pragma once

/// \file
/// `hub_stock`: pieces of device memory, each either with a tenant or on the shelf, where it belongs to nobody.
///
///     live     by address or handle     piece 7 (2 MiB, of alice, written by alice)
///     shelf    by size                  piece 3 (2 MiB, written by bob)   piece 9 (20 MiB, never written)
///
/// Invariants:
///   1. A piece is in one of the two, or in the hands of the caller that took it out.
///   2. `shelved` is the sum of the sizes on the shelf.
///   3. Nothing but `enter` needs host memory: pieces move as whole nodes.
///
/// Complexity: logarithmic in the pieces; `take` also linear in the shelved pieces of that size. Thread-compatible.

#include <tenure/tenancy/meter.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace tenure {

/// One segment, or one physical handle.
struct hub_piece {
    std::uint64_t key = 0;    ///< address or handle
    std::size_t bytes = 0;    ///< a multiple of the device's granularity
    meter* tenant = nullptr;  ///< who has it; null on the shelf, and for one that takes without a name
    std::uint64_t writer = 0; ///< whose bytes may be in it, by `meter::id`; 0: it is all zero
    std::size_t mappings = 0; ///< of a handle
    bool released = false;    ///< its tenant has given the handle up
};

class hub_stock {
    using live_map = std::map<std::uint64_t, hub_piece>;
    using shelf_map = std::multimap<std::uint64_t, hub_piece>;

  public:
    using node = live_map::node_type;

    /// Who takes memory without a name; never the same tenant as anybody, itself included.
    static constexpr std::uint64_t nobody = ~std::uint64_t{0};

    static std::uint64_t id_of(const meter* tenant) noexcept {
        return tenant == nullptr ? nobody : tenant->id();
    }

    /// Returns: an empty piece. Throws: `std::bad_alloc`.
    static node make() {
        live_map one;
        one.emplace(0, hub_piece{});
        return one.extract(one.begin());
    }

    /// Returns: a piece of exactly that size from the shelf, or an empty node: the tenant's own former one first, then
    /// one that is all zero, then another's.
    [[nodiscard]] node take(std::size_t bytes, std::uint64_t tenant) noexcept {
        const auto [begin, end] = shelf_.equal_range(bytes);
        auto best = end;
        for (auto it = begin; it != end; ++it) {
            if (best == end || rank(it->second, tenant) > rank(best->second, tenant)) best = it;
            if (rank(best->second, tenant) == best_rank) break;
        }
        return best == end ? node{} : unshelve(best);
    }

    /// Returns: the piece that was shelved first of those of the largest size not above `bytes`, else the smallest
    /// there is; an empty node if the shelf is.
    [[nodiscard]] node take_any(std::size_t bytes) noexcept {
        if (shelf_.empty()) return {};
        auto it = shelf_.upper_bound(bytes);
        if (it == shelf_.begin()) return unshelve(it);
        --it;
        return unshelve(shelf_.lower_bound(it->first));
    }

    void shelve(node piece) noexcept {
        hub_piece& p = piece.mapped();
        p.tenant = nullptr;
        p.mappings = 0;
        p.released = false;
        piece.key() = p.bytes;
        shelved_ += p.bytes;
        shelf_.insert(std::move(piece)); // behind its equals: the oldest stands first
    }

    void set_live(node piece) noexcept {
        piece.key() = piece.mapped().key;
        live_.insert(std::move(piece));
    }

    /// Returns: null if there is none.
    [[nodiscard]] hub_piece* find(std::uint64_t key) noexcept {
        const auto it = live_.find(key);
        return it == live_.end() ? nullptr : &it->second;
    }

    /// Linear in the shelf; for what is not live.
    [[nodiscard]] bool on_shelf(std::uint64_t key) const noexcept {
        for (const auto& [bytes, p] : shelf_)
            if (p.key == key) return true;
        return false;
    }

    [[nodiscard]] node take_live(std::uint64_t key) noexcept { return live_.extract(key); }

    [[nodiscard]] std::size_t shelved() const noexcept { return shelved_; }
    [[nodiscard]] std::size_t shelved_pieces() const noexcept { return shelf_.size(); }

    [[nodiscard]] bool validate() const noexcept {
        std::size_t sum = 0;
        for (const auto& [bytes, p] : shelf_) {
            if (bytes != p.bytes || p.tenant != nullptr || p.mappings != 0) return false;
            sum += bytes;
        }
        for (const auto& [key, p] : live_)
            if (key != p.key) return false;
        return sum == shelved_;
    }

  private:
    static constexpr int best_rank = 2;
    static int rank(const hub_piece& p, std::uint64_t tenant) noexcept {
        if (p.writer == tenant && tenant != nobody) return best_rank;
        return p.writer == 0 ? 1 : 0;
    }

    node unshelve(shelf_map::iterator it) noexcept {
        shelved_ -= it->second.bytes;
        return shelf_.extract(it);
    }

    live_map live_;   ///< by key
    shelf_map shelf_; ///< by size
    std::size_t shelved_ = 0;
};

} // namespace tenure
