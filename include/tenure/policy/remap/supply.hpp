#pragma once

/// \file
/// `remap_supply`: the free memory that a request may be shown in a row, and which of it to show.
///
///     | used | tail |     |   whole   | |  whole  |     | head |  used  |
///            [      the request, in a view: few handles, little more   ]
///
/// Invariant: nothing here changes anything. A view begins at a multiple of the request's alignment.
///
/// Complexity: to choose costs O(n log n) in the free handles. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/policy/remap/blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace tenure {

/// Bytes.
struct remap_demand {
    std::size_t bytes = 0;
    std::size_t alignment = 0;
};

struct remap_supply {
    using handle_id = std::uint32_t;
    using handle_list = std::vector<handle_id>;
    static constexpr handle_id none = std::numeric_limits<handle_id>::max();

    std::vector<std::pair<std::size_t, handle_id>> whole; ///< wholly free: bytes, handle; largest first
    std::size_t whole_bytes = 0;
    handle_id tail_of = none, head_of = none; ///< the longest free end and beginning of handles in part used
    std::size_t tail = 0, head = 0;           ///< bytes of them
    std::size_t least_fragment = 0;           ///< bytes that they must have to be worth a place in a view
    bool in_order = false; ///< which whole handles are shown: see `remap_options::show_in_order`

    /// Returns: what is there for a request of this alignment. `for_each_home(f)` calls f(handle, home) for each;
    /// `usable`: the domains that it may use, all of them if that is not given.
    template <class ForEachHome, class... Usable>
    [[nodiscard]] static remap_supply of(ForEachHome for_each_home, const remap_blocks& blocks,
                                         std::size_t least_fragment, std::size_t alignment,
                                         Usable... usable) {
        using home = remap_blocks::home;
        remap_supply s;
        s.least_fragment = least_fragment;
        for_each_home([&](handle_id id, const home& h) {
            const std::size_t at_end = blocks.free_tail(h, usable...);
            if (at_end == h.size) return s.add(h.size, id);
            if (h.of != remap_blocks::kind::large) return;
            const std::size_t skipped = round_up(h.size - at_end, alignment);
            const std::size_t aligned = h.size - std::min(h.size, skipped);
            if (aligned >= least_fragment && aligned > s.tail) s.tail = aligned, s.tail_of = id;
        });
        for_each_home([&](handle_id id, const home& h) {
            if (h.of != remap_blocks::kind::large || id == s.tail_of) return;
            const std::size_t at_begin = blocks.free_head(h, usable...);
            if (at_begin != h.size && at_begin >= least_fragment && at_begin > s.head)
                s.head = at_begin, s.head_of = id;
        });
        std::sort(s.whole.begin(), s.whole.end(),
                  [](const auto& x, const auto& y) { return x.first > y.first; });
        return s;
    }

    /// Returns: the same without the handles of which `is_out(handle)`, and without the tail.
    template <class IsOut>
    [[nodiscard]] remap_supply without(IsOut is_out) const {
        remap_supply s;
        s.least_fragment = least_fragment;
        s.in_order = in_order;
        for (const auto& [size, id] : whole)
            if (!is_out(id)) s.add(size, id);
        if (head != 0 && !is_out(head_of)) s.head = head, s.head_of = head_of;
        return s;
    }

    [[nodiscard]] std::size_t bytes() const noexcept { return whole_bytes + tail + head; }

    /// Returns: the handles to show, in this order, so that n bytes are in a row; nothing if there are not so many.
    /// Fragments are used only where whole handles do not suffice.
    [[nodiscard]] std::optional<handle_list> assemble(std::size_t n) const {
        if (n > bytes()) return std::nullopt;
        const bool with_tail = n > whole_bytes && tail != 0;
        const bool with_head = n > whole_bytes + (with_tail ? tail : 0);
        const std::size_t fragments = (with_tail ? tail : 0) + (with_head ? head : 0);
        handle_list handles;
        if (with_tail) handles.push_back(tail_of);
        const std::size_t rest = n - std::min(n, fragments);
        if (in_order)
            pick_in_order(rest, handles);
        else
            pick(rest, handles);
        if (with_head) handles.push_back(head_of);
        return handles;
    }

  private:
    void add(std::size_t size, handle_id id) {
        whole.emplace_back(size, id);
        whole_bytes += size;
    }

    /// Appends whole free handles that are together n bytes or more: few of them, and little more.
    void pick(std::size_t n, handle_list& handles) const {
        std::vector<bool> taken(whole.size());
        std::size_t got = 0;
        const auto take = [&](std::size_t i) {
            taken[i] = true;
            got += whole[i].first;
        };
        for (std::size_t i = 0; i < whole.size() && got < n; ++i) // the largest that do not exceed it
            if (whole[i].first <= n - got) take(i);
        for (std::size_t i = whole.size(); i-- > 0 && got < n;) // the smallest that does
            if (!taken[i] && whole[i].first >= n - got) take(i);
        for (std::size_t i = whole.size(); i-- > 0 && got < n;) // whatever is left
            if (!taken[i]) take(i);
        for (std::size_t i = whole.size(); i-- > 0;) { // which may have made others superfluous
            if (!taken[i] || got - whole[i].first < n) continue;
            taken[i] = false;
            got -= whole[i].first;
        }
        for (std::size_t i = 0; i < whole.size(); ++i)
            if (taken[i]) handles.push_back(whole[i].second);
    }

    /// The same, but handles that follow each other in the order of purchase, as few as that allows. Requires: there are n bytes.
    void pick_in_order(std::size_t n, handle_list& handles) const {
        if (n == 0) return;
        auto row = whole;
        std::sort(row.begin(), row.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
        std::size_t best = 0, fewest = row.size();
        for (std::size_t first = 0, last = 0, bytes = 0; last < row.size(); ++last) {
            bytes += row[last].first;
            while (bytes - row[first].first >= n) bytes -= row[first++].first;
            if (bytes >= n && last + 1 - first < fewest) best = first, fewest = last + 1 - first;
        }
        for (std::size_t i = best; i < best + fewest; ++i) handles.push_back(row[i].second);
    }
};

} // namespace tenure
