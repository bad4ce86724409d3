#pragma once

/// \file
/// The oracle for layouts: a map of intervals, obviously right and slow.
///
/// It knows ranges and coloured bytes and nothing of any layout's structure: a free interval is as long as the run of
/// bytes of one colour inside one range. `see` compares all that a layout says about itself with it. What is special
/// about a layout stands in its `layout_traits`, so that a new one joins the model test by a line.
///
/// Every check returns a complaint; empty means that all is well.

#include <tenure/core/bits.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace tenure::test {

/// What the model test may expect of a layout beyond the concept. Specialise (by inheriting) where one differs.
struct exact_layout_traits {
    /// Every two free neighbours of one domain in one range are one block, so that `allocate_across` has one right answer.
    static constexpr bool merges_fully = true;

    /// The free block taken is the smallest that can hold the request, the lowest among equals, and its front.
    static constexpr bool best_fit = false;

    /// The same, but it is the lowest that can hold the request.
    static constexpr bool first_fit = false;

    /// A block is `rounded` bytes large, never more.
    static constexpr bool size_is_rounded = true;

    /// What `allocate_across` leaves of a range becomes the domain that the caller names for it.
    static constexpr bool across_recolors_range = false;

    /// `largest_free` is the size of the largest free block that `for_each_block` shows.
    static constexpr bool largest_is_exact = true;

    /// Returns: whether the free block could hold n bytes at alignment a. If so, `allocate` must not say "no space".
    template <class L>
    static bool could_hold(const layout::block_view& block, std::size_t n, std::size_t a) {
        const std::uint64_t start = round_up(block.offset, std::max(a, layout::granule));
        const std::uint64_t end = block.offset + block.size;
        return start < end && L::rounded(n, a) <= end - start;
    }
};

template <class L>
struct layout_traits : exact_layout_traits {};

class layout_oracle {
  public:
    struct piece {
        std::size_t size = 0;
        bool free = false;
        layout::domain color = 0;
        layout::block_id id = layout::no_block;
        friend bool operator==(const piece&, const piece&) = default;
    };
    using interval_map = std::map<layout::address, piece>;

    [[nodiscard]] const std::map<layout::address, std::size_t>& ranges() const { return ranges_; }
    [[nodiscard]] const interval_map& pieces() const { return pieces_; }

    /// Returns: whether [base, base + size) lies in the space and touches no range's inside.
    [[nodiscard]] bool is_vacant(layout::address base, std::size_t size, layout::address space) const {
        if (size == 0 || base >= space || size > space - base) return false;
        const auto above = ranges_.lower_bound(base);
        if (above != ranges_.end() && above->first - base < size) return false;
        if (above == ranges_.begin()) return true;
        const auto below = std::prev(above);
        return base - below->first >= below->second;
    }

    void add(layout::range r, layout::domain d) {
        ranges_.emplace(r.base, r.size);
        pieces_.emplace(r.base, piece{r.size, true, d, layout::no_block});
    }

    [[nodiscard]] bool is_wholly_free(layout::address base) const {
        const auto r = ranges_.find(base);
        if (r == ranges_.end()) return false;
        for (auto p = pieces_.find(base); p != pieces_.end() && p->first < base + r->second; ++p)
            if (!p->second.free) return false;
        return true;
    }

    /// Requires: `is_wholly_free(base)`.
    void remove(layout::address base) {
        const auto r = ranges_.find(base);
        pieces_.erase(pieces_.find(base), pieces_.lower_bound(base + r->second));
        ranges_.erase(r);
    }

    /// The layout says that it handed out [offset, offset + size) as `id`.
    [[nodiscard]] std::string allocated(layout::block_id id, layout::address offset, std::size_t size,
                                        std::span<const layout::domain> domains) {
        if (id == layout::no_block) return "allocated without an id";
        for (const auto& [at, p] : pieces_)
            if (!p.free && p.id == id) return "id " + std::to_string(id) + " handed out twice";
        auto hole = pieces_.upper_bound(offset);
        if (hole == pieces_.begin()) return "block outside every range: " + text(offset, size);
        --hole;
        const auto [start, p] = *hole;
        if (!p.free || size > p.size || offset - start > p.size - size)
            return "block " + text(offset, size) + " is not inside one free interval";
        if (std::find(domains.begin(), domains.end(), p.color) == domains.end())
            return "block " + text(offset, size) + " is of domain " + std::to_string(p.color) +
                   ", which was not asked for";
        pieces_.erase(hole);
        if (offset > start) pieces_.emplace(start, piece{offset - start, true, p.color, layout::no_block});
        pieces_.emplace(offset, piece{size, false, 0, id});
        const layout::address end = start + p.size;
        if (offset + size < end)
            pieces_.emplace(offset + size, piece{end - offset - size, true, p.color, layout::no_block});
        return {};
    }

    /// Requires: `offset` is the start of a used block.
    void freed(layout::address offset, layout::domain d) {
        piece& p = pieces_.at(offset);
        p = piece{p.size, true, d, layout::no_block};
        merge_all();
    }

    void recolor(layout::domain from, layout::domain to) {
        for (auto& [at, p] : pieces_)
            if (p.free && p.color == from) p.color = to;
        merge_all();
    }

    /// The layout says that it handed out [offset, offset + size) as `id` from several neighbours.
    [[nodiscard]] std::string allocated_across(layout::block_id id, layout::address offset, std::size_t size,
                                               std::span<const layout::domain> domains) {
        if (id == layout::no_block) return "allocated without an id";
        for (const auto& [at, p] : pieces_)
            if (!p.free && p.id == id) return "id " + std::to_string(id) + " handed out twice";
        const layout::address end = offset + size;
        for (layout::address at = offset; at < end;) {
            auto i = pieces_.upper_bound(at);
            if (i == pieces_.begin()) return "block outside every range: " + text(offset, size);
            --i;
            const auto [start, p] = *i;
            if (start + p.size <= at || !p.free) return "block " + text(offset, size) + " is not free";
            if (at != offset && ranges_.count(at) != 0) return "block reaches into another range";
            if (std::find(domains.begin(), domains.end(), p.color) == domains.end())
                return "block " + text(offset, size) + " is of domain " + std::to_string(p.color) +
                       ", which was not asked for";
            pieces_.erase(i);
            if (start < at) pieces_.emplace(start, piece{at - start, true, p.color, layout::no_block});
            const layout::address after = start + p.size;
            if (end < after) pieces_.emplace(end, piece{after - end, true, p.color, layout::no_block});
            at = after;
        }
        pieces_.emplace(offset, piece{size, false, 0, id});
        return {};
    }

    /// Effects: all that is free in the range that contains `at` is of domain d.
    void recolor_range(layout::address at, layout::domain d) {
        const auto r = std::prev(ranges_.upper_bound(at));
        for (auto& [start, p] : pieces_)
            if (p.free && start >= r->first && start < r->first + r->second) p.color = d;
        merge_all();
    }

    /// Returns: the address that exact best fit over runs of two or more free neighbours hands out; none if no run fits.
    template <class L>
    [[nodiscard]] std::optional<layout::address> smallest_run(std::size_t n, std::size_t a,
                                                              std::span<const layout::domain> domains) const {
        std::optional<std::pair<std::size_t, layout::address>> best;
        const auto usable = [&](const piece& p) {
            return p.free && std::find(domains.begin(), domains.end(), p.color) != domains.end();
        };
        for (auto first = pieces_.begin(); first != pieces_.end();) {
            auto last = first;
            std::size_t number = 1;
            while (usable(first->second) && std::next(last) != pieces_.end() &&
                   touch(last, std::next(last)) && usable(std::next(last)->second)) {
                ++last;
                ++number;
            }
            const std::size_t size = last->first + last->second.size - first->first;
            const layout::block_view whole{layout::no_block, first->first, size, true, 0};
            if (number > 1 && exact_layout_traits::could_hold<L>(whole, n, a) &&
                (!best || size < best->first))
                best = {size, first->first};
            first = std::next(last);
        }
        if (!best) return std::nullopt;
        return round_up(best->second, std::max(a, layout::granule));
    }

    /// Returns: the free block that an exact layout must take, as the address it hands out; none if nothing fits.
    template <class L>
    [[nodiscard]] std::optional<layout::address> exact_fit(std::size_t n, std::size_t a,
                                                           std::span<const layout::domain> domains) const {
        const interval_map::value_type* best = nullptr;
        for (const auto& entry : pieces_) {
            const piece& p = entry.second;
            if (!p.free || std::find(domains.begin(), domains.end(), p.color) == domains.end()) continue;
            if (!exact_layout_traits::could_hold<L>({layout::no_block, entry.first, p.size, true, p.color}, n,
                                                    a))
                continue;
            const bool is_better = !layout_traits<L>::first_fit && best && p.size < best->second.size;
            if (!best || is_better) best = &entry;
        }
        if (!best) return std::nullopt;
        return round_up(best->first, std::max(a, layout::granule));
    }

    /// Compares everything that the layout says about itself with what must be so.
    template <class L>
    [[nodiscard]] std::string see(const L& l) const {
        using traits = layout_traits<L>;
        const std::vector<layout::block_view> blocks = blocks_of(l);
        std::map<layout::domain, std::size_t> free, largest;
        std::size_t used = 0, total = 0;
        auto r = ranges_.begin();
        layout::address expected = r == ranges_.end() ? 0 : r->first;
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const layout::block_view& b = blocks[i];
            if (r == ranges_.end() || b.offset != expected)
                return "blocks do not tile the ranges at " + text(b.offset, b.size);
            if (b.size == 0 || b.size > r->first + r->second - b.offset)
                return "block reaches over its range's end: " + text(b.offset, b.size);
            expected = b.offset + b.size;
            const bool last = expected == r->first + r->second;
            if (last && ++r != ranges_.end()) expected = r->first;
            if (!b.free) {
                used += b.size;
                if (l.offset(b.id) != b.offset || l.size(b.id) != b.size)
                    return "offset or size of an id differs from the view's: " + text(b.offset, b.size);
                continue;
            }
            free[b.color] += b.size;
            largest[b.color] = std::max(largest[b.color], b.size);
            if (traits::merges_fully && !last && i + 1 < blocks.size() && blocks[i + 1].free &&
                blocks[i + 1].color == b.color)
                return "free neighbours of one domain are not merged at " + text(b.offset, b.size);
        }
        if (r != ranges_.end()) return "a range has no blocks";
        if (canonical(blocks) != pieces_) return "blocks differ from the oracle's intervals";
        for (const auto& [base, size] : ranges_) total += size;
        if (l.total_bytes() != total) return "total_bytes is wrong";
        if (l.used_bytes() != used) return "used_bytes is wrong";
        if (l.free_bytes() != total - used) return "free_bytes is wrong";
        for (unsigned d = 0; d < 16; ++d) {
            const auto color = static_cast<layout::domain>(d);
            const auto f = free.find(color);
            if (l.free_bytes(color) != (f == free.end() ? 0 : f->second))
                return "free_bytes of a domain is wrong";
            const std::size_t most = f == free.end() ? 0 : largest[color];
            const layout::domain one[]{color};
            const std::size_t said = l.largest_free(one);
            if (traits::largest_is_exact ? said != most : said > (f == free.end() ? 0 : f->second))
                return "largest_free is wrong";
        }
        std::set<std::pair<layout::address, std::size_t>> whole, said;
        for (const auto& [base, size] : ranges_)
            if (is_wholly_free(base)) whole.emplace(base, size);
        bool twice = false;
        l.for_each_free_range([&](const layout::range& x) { twice |= !said.emplace(x.base, x.size).second; });
        if (twice || said != whole) return "for_each_free_range differs";
        return {};
    }

    template <class L>
    static std::vector<layout::block_view> blocks_of(const L& l) {
        std::vector<layout::block_view> blocks;
        l.for_each_block([&](const layout::block_view& b) { blocks.push_back(b); });
        return blocks;
    }

  private:
    static std::string text(layout::address offset, std::size_t size) {
        return "[" + std::to_string(offset) + ", +" + std::to_string(size) + ")";
    }

    /// Two neighbours that are free and in one range.
    [[nodiscard]] bool touch(interval_map::const_iterator left, interval_map::const_iterator right) const {
        return left->second.free && right->second.free && left->first + left->second.size == right->first &&
               ranges_.count(right->first) == 0;
    }

    void merge(interval_map& m) const {
        for (auto left = m.begin(); left != m.end();) {
            const auto right = std::next(left);
            if (right != m.end() && touch(left, right) && left->second.color == right->second.color) {
                left->second.size += right->second.size;
                m.erase(right);
            } else {
                left = right;
            }
        }
    }
    void merge_all() { merge(pieces_); }

    [[nodiscard]] interval_map canonical(const std::vector<layout::block_view>& blocks) const {
        interval_map m;
        for (const layout::block_view& b : blocks)
            m.emplace(b.offset, piece{b.size, b.free, b.free ? b.color : layout::domain{0},
                                      b.free ? layout::no_block : b.id});
        merge(m);
        return m;
    }

    std::map<layout::address, std::size_t> ranges_;
    interval_map pieces_;
};

} // namespace tenure::test
