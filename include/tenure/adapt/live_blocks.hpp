#pragma once

/// \file
/// `live_blocks`: what an adaptor remembers of the blocks that went through it, by their address.
///
/// An adaptor must know a block again at its free: `release` names no size, and the size that `deallocate`
/// names may be wrong. Upstream refuses to free a block that it does not know, or that is freed with another
/// size; so a block is taken out here only if upstream would take it as well.
///
/// An entry is added after upstream has handed the block out, and taken out before upstream takes it back. So
/// no two blocks ever claim one address, whatever other threads do in between.
///
/// Cost: one hash lookup a call. Only `insert` may need memory. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/core/pointer_map.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace tenure {

/// Requires of `Entry`: trivially copyable, with a member `std::size_t bytes`, as requested.
template <class Entry>
class live_blocks {
  public:
    /// Effects: adds the block at p. Returns: the entry that was there: of a block that has been freed behind
    /// the adaptor's back. Throws: `std::bad_alloc`, changing nothing.
    std::optional<Entry> insert(const void* p, const Entry& entry) {
        entries_.reserve(1);
        places_.reserve(places_.size() + 1);
        const std::optional<Entry> stale = take(p);
        const node_index i = entries_.create();
        entries_[i] = entry;
        places_.insert(to_address(p), i);
        return stale;
    }

    /// Effects: takes the block at p out. Returns: its entry, if it is known.
    std::optional<Entry> take(const void* p) noexcept {
        const std::optional<std::uint32_t> i = places_.erase(to_address(p));
        if (!i) return std::nullopt;
        const Entry taken = entries_[*i];
        entries_.destroy(*i);
        return taken;
    }

    /// The same, if it was requested with that size.
    std::optional<Entry> take(const void* p, std::size_t bytes) noexcept {
        const Entry* const known = find(p);
        return known && known->bytes == bytes ? take(p) : std::nullopt;
    }

    /// Returns: the entry of the block at p, or null. Valid until the next change.
    [[nodiscard]] Entry* find(const void* p) noexcept {
        const std::optional<std::uint32_t> i = places_.find(to_address(p));
        return i ? &entries_[*i] : nullptr;
    }

    [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }

    template <class F>
    void for_each(F&& f) const {
        places_.for_each([&](std::uint64_t, std::uint32_t i) { f(entries_[i]); });
    }

    [[nodiscard]] bool validate() const noexcept {
        return places_.validate() && entries_.validate() && places_.size() == entries_.size();
    }

  private:
    node_table<Entry> entries_;
    pointer_map places_;
};

} // namespace tenure
