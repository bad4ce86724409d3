#pragma once

/// \file
/// `remap_blocks`: the layout of a `remap_pool`. Blocks that lie in one place, and blocks that lie in several.
///
///     home       | used | free | used |  free  |   | free | used |          where bytes are counted
///                                  h3 |########|   |######| h8
///     view                            |########|h5 |######|                 the same bytes in a row
///                                     [   one block of three pieces ]
///
/// Bytes are counted at home: each handle has one home, handles that are neighbours there merge, and within homes
/// blocks are found by first fit. A *view* shows several handles in a row once more. The free end of one handle,
/// whole free handles and the free beginning of another are one stretch there, so a block may lie over them. It is
/// a *span*: its address is in the view, its pieces are used blocks at home.
///
/// A span costs no driver call: the view is there already. So a program whose sizes recur comes to rest: whatever
/// shape it needs, it has been shown before. `recent` remembers where a size fitted last.
///
/// Small blocks have homes of their own, so that they do not hold handles that large blocks could take whole; when those
/// are full they take the smallest fragment elsewhere.
///
/// Invariants:
///   1. Every byte at home belongs to one free block, one used block, or one hole (a handle that went back).
///   2. A span's pieces are, in order, the end of a handle, whole handles, the beginning of a handle.
///   3. Views only name homes that are there; a view that loses a handle is not searched over that place.
///   4. As a layout it keeps the promises of `layout::layout`. `allocate` may in addition find a span.
///
/// Complexity: that of `first_fit`; a request that no home holds costs O(pieces * log n) where its size fitted
/// last, else a search of all views. Thread-safety: thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/first_fit.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure {

class remap_blocks {
  public:
    using address = layout::address;
    using block_id = layout::block_id;
    using domain = layout::domain;
    using domain_span = std::span<const domain>;

    /// Which homes: those of small blocks, or the others.
    enum class kind : std::uint8_t { small, large };

    /// Bytes: blocks up to this size are small.
    static constexpr std::size_t small_block = std::size_t{256} << 10;

    /// Where a handle's bytes are counted. `size` 0: it went back. Bytes.
    struct home {
        address base = 0;
        std::size_t size = 0;
        kind of = kind::large;
    };

    static constexpr std::uint32_t no_view = std::numeric_limits<std::uint32_t>::max();

    [[nodiscard]] static constexpr kind kind_of(std::size_t bytes) noexcept {
        return bytes <= small_block ? kind::small : kind::large;
    }

    /// Returns: in which homes the block lies; of a span, its first piece.
    [[nodiscard]] static constexpr kind kind_at(block_id id) noexcept { return static_cast<kind>(id % 2); }

    // ---- a layout ----

    [[nodiscard]] static constexpr std::size_t rounded(std::size_t n, std::size_t a) noexcept {
        return fit::rounded(n, a);
    }
    [[nodiscard]] static constexpr layout::range_request range_for(std::size_t n, std::size_t a,
                                                                   std::size_t preferred) noexcept {
        return fit::range_for(n, a, preferred);
    }

    void add(layout::range r, domain d) { add(r, d, kind::large); }
    void add(layout::range r, domain d, kind k) {
        make_room_for_ids(k, 1);
        (void)of(k).add(r, d);
    }

    /// Effects: the range that starts at base has `bytes` more at its end. Throws: `std::bad_alloc`.
    void grow(address base, std::size_t bytes, domain d, kind k) {
        make_room_for_ids(k, 1);
        of(k).grow(base, bytes, d);
    }

    /// Effects: removes the range if nothing in it is used. Holes count as free. Returns: whether it did.
    bool remove(address base) noexcept {
        return of(kind::large).remove(base) || of(kind::small).remove(base);
    }

    /// See `layout::layout`. The block may be a span.
    block_id allocate(std::size_t n, std::size_t a, domain_span domains) {
        return allocate(of(kind_of(n)).find(n, a, domains), n, a, domains);
    }

    /// See `layout::layout`.
    block_id allocate_across(std::size_t n, std::size_t a, domain_span domains, domain) {
        const kind k = kind_of(n);
        block_id id = from_run(k, of(k).find_run(n, a, domains), n, a);
        if (id == layout::no_block && k == kind::small)
            id = from_run(kind::large, of(kind::large).find_run(n, a, domains), n, a);
        return id;
    }

    /// Returns: a block as `allocate` does, unless a run of free neighbours that holds it lies lower.
    block_id allocate_from_any(std::size_t n, std::size_t a, domain_span domains) {
        const kind k = kind_of(n);
        const auto best = of(k).find(n, a, domains);
        const layout::block_run run = of(k).find_run(n, a, domains);
        const bool is_lower = run.first != no_node && (!best || run.begin < best->offset);
        return is_lower ? from_run(k, run, n, a) : allocate(best, n, a, domains);
    }

    /// Returns: whether `allocate` would take it from a free block of at most `most` bytes, at home.
    [[nodiscard]] bool fits_within(std::size_t n, std::size_t a, std::size_t most,
                                   domain_span domains) const noexcept {
        const auto best = of(kind_of(n)).find(n, a, domains);
        return best && best->size <= most;
    }

    void deallocate(block_id id, domain d) noexcept {
        const std::uint32_t s = tags_[id].span;
        if (s == not_span) return of_id(id).deallocate(inner(id), d);
        for (block_id piece = spans_[s].first; piece != layout::no_block;) {
            const block_id next = tags_[piece].next;
            tags_[piece] = tag{};
            of_id(piece).deallocate(inner(piece), d);
            piece = next;
        }
        if (spans_[s].view != no_view) --views_[spans_[s].view].live;
        spans_.destroy(s);
    }

    void recolor(domain from, domain to) noexcept {
        for (fit& f : fits_) f.recolor(from, to);
    }

    [[nodiscard]] address offset(block_id id) const noexcept {
        const std::uint32_t s = tags_[id].span;
        return s == not_span ? of_id(id).offset(inner(id)) : spans_[s].at;
    }
    [[nodiscard]] std::size_t size(block_id id) const noexcept {
        const std::uint32_t s = tags_[id].span;
        return s == not_span ? of_id(id).size(inner(id)) : spans_[s].bytes;
    }

    [[nodiscard]] std::size_t free_bytes() const noexcept {
        return fits_[0].free_bytes() + fits_[1].free_bytes();
    }
    [[nodiscard]] std::size_t free_bytes(domain d) const noexcept {
        return fits_[0].free_bytes(d) + fits_[1].free_bytes(d);
    }
    [[nodiscard]] std::size_t used_bytes() const noexcept {
        return fits_[0].used_bytes() + fits_[1].used_bytes() - holes_;
    }
    [[nodiscard]] std::size_t total_bytes() const noexcept {
        return fits_[0].total_bytes() + fits_[1].total_bytes() - holes_;
    }
    /// Bytes of the largest free block at one place.
    [[nodiscard]] std::size_t largest_free(domain_span domains) const noexcept {
        return std::max(fits_[0].largest_free(domains), fits_[1].largest_free(domains));
    }

    template <class F>
    void for_each_free_range(F&& f) const {
        for (const fit& x : fits_) x.for_each_free_range(f);
    }

    /// Homes of small blocks first. A span is shown at home, piece by piece; see `part_of`.
    template <class F>
    void for_each_block(F&& f) const {
        for (std::size_t k = 0; k < fits_.size(); ++k)
            fits_[k].for_each_block([&](layout::block_view b) {
                b.id = outer(b.id, static_cast<kind>(k));
                if (b.free || tags_[b.id].span != hole) f(b);
            });
    }

    /// Returns: where the block, or its first piece, is at home.
    [[nodiscard]] address home_of(block_id id) const noexcept { return of_id(id).offset(inner(id)); }

    /// Where a used block at home belongs: to which block, how many bytes of it are before.
    struct part {
        block_id block;
        std::size_t before;
    };
    /// Complexity: the pieces.
    [[nodiscard]] part part_of(block_id id) const noexcept {
        const std::uint32_t s = tags_[id].span;
        if (s == not_span) return {id, 0};
        part p{spans_[s].first, 0};
        for (block_id piece = p.block; piece != id; piece = tags_[piece].next)
            p.before += of_id(piece).size(inner(piece));
        return p;
    }

    [[nodiscard]] bool validate() const noexcept {
        if (!fits_[0].validate() || !fits_[1].validate()) return false;
        std::size_t holes = 0;
        bool good = true;
        for (std::size_t k = 0; k < fits_.size(); ++k)
            fits_[k].for_each_block([&](const layout::block_view& b) {
                const tag& t = tags_[outer(b.id, static_cast<kind>(k))];
                if (b.free) good = good && t.span == not_span;
                if (!b.free && t.span == hole) holes += b.size;
            });
        return good && holes == holes_;
    }

    // ---- what a stock asks ----

    /// Returns: the most that has been used at once, bytes.
    [[nodiscard]] std::size_t peak_bytes() const noexcept { return peak_; }

    /// Returns: bytes at the end of the home that are free for one of `domains`, without a gap.
    [[nodiscard]] std::size_t free_tail(const home& h, domain_span domains) const noexcept {
        return tail_where(h, [&](domain d) { return layout::is_in(d, domains); });
    }
    /// The same, whatever the domains.
    [[nodiscard]] std::size_t free_tail(const home& h) const noexcept {
        return tail_where(h, [](domain) { return true; });
    }

    /// Returns: the same at the beginning of the home. All of it is free if that is its size.
    [[nodiscard]] std::size_t free_head(const home& h, domain_span domains) const noexcept {
        return head_where(h, [&](domain d) { return layout::is_in(d, domains); });
    }
    [[nodiscard]] std::size_t free_head(const home& h) const noexcept {
        return head_where(h, [](domain) { return true; });
    }

    /// Effects: the home's bytes are gone; a hole is in their place. Requires: all of them are free.
    /// Returns: the hole. Throws: `std::bad_alloc`, changing nothing.
    block_id take_away(const home& h) {
        std::size_t blocks = 0;
        for_each_free_part(h, [&](const auto&, address, std::size_t) { ++blocks; });
        make_room(h.of, blocks);
        block_id first = layout::no_block;
        const address end = h.base + h.size;
        for (address at = h.base; at < end;) {
            const auto c = of(h.of).free_from(at);
            const std::size_t bytes = std::min(c->offset + c->size, end) - at;
            const block_id id = outer(of(h.of).take_at(*c, at, bytes), h.of);
            tags_[id] = {first, hole};
            first = id;
            at += bytes;
        }
        holes_ += h.size;
        for (view& v : views_)
            for (place& p : v.places)
                if (p.of.base == h.base && p.of.of == h.of) p.of.size = 0;
        return first;
    }

    /// Effects: the hole is free memory again, to be removed with its range.
    void fill(block_id first) noexcept {
        while (first != layout::no_block) {
            const block_id next = tags_[first].next;
            holes_ -= of_id(first).size(inner(first));
            tags_[first] = tag{};
            of_id(first).deallocate(inner(first), domain{0});
            first = next;
        }
    }

    // ---- views ----

    /// One handle in a view: its home, and where the view shows it.
    struct place {
        home of;
        address at = 0;
    };

    /// Effects: blocks may lie in this view from now on; `size_hint` bytes are expected to fit there.
    /// Returns: its number, reused after `remove_view`. Throws: `std::bad_alloc`, changing nothing.
    std::uint32_t add_view(std::vector<place> places, std::size_t size_hint) {
        std::size_t v = 0;
        while (v < views_.size() && views_[v].in_use) ++v;
        if (v == views_.size()) views_.emplace_back();
        if (recent_.size() >= max_recent) recent_.clear();
        recent_[size_hint] = static_cast<std::uint32_t>(v);
        views_[v] = {std::move(places), ++clock_, 0, true};
        return static_cast<std::uint32_t>(v);
    }

    /// Effects: the view can be extended by `more` places without host memory. Throws: `std::bad_alloc`.
    void make_room_in_view(std::uint32_t v, std::size_t more) {
        views_[v].places.reserve(views_[v].places.size() + more);
    }
    /// Effects: the view shows this, too, behind what it has shown. Requires: room; it does not show that home yet.
    void extend_view(std::uint32_t v, const place& p) noexcept {
        views_[v].places.push_back(p);
        views_[v].last_used = ++clock_;
    }

    /// Returns: what the view shows, in the order of addresses.
    [[nodiscard]] std::span<const place> places_of(std::uint32_t v) const noexcept {
        return views_[v].places;
    }

    /// Requires: no span is in it.
    void remove_view(std::uint32_t v) noexcept { views_[v] = view{}; }

    [[nodiscard]] std::size_t spans_in(std::uint32_t v) const noexcept { return views_[v].live; }
    [[nodiscard]] std::uint64_t last_used(std::uint32_t v) const noexcept { return views_[v].last_used; }
    [[nodiscard]] std::uint32_t view_limit() const noexcept {
        return static_cast<std::uint32_t>(views_.size());
    }

  private:
    using fit = layout::first_fit;

    static constexpr std::uint32_t not_span = std::numeric_limits<std::uint32_t>::max();
    static constexpr std::uint32_t hole = not_span - 1;
    static constexpr std::size_t max_recent = 4096;

    /// What the homes' layouts do not know about a block.
    struct tag {
        block_id next = layout::no_block; ///< the span's next piece
        std::uint32_t span = not_span;
    };
    struct span {
        address at = 0;
        std::size_t bytes = 0;
        block_id first = layout::no_block;
        std::uint32_t view = no_view;
    };
    struct view {
        std::vector<place> places;
        std::uint64_t last_used = 0;
        std::size_t live = 0; ///< spans in it
        bool in_use = false;
    };
    /// A stretch of a view that could hold a request.
    struct stretch {
        std::uint32_t view = no_view;
        std::size_t first = 0; ///< the place it begins in
        address at = 0;
        std::size_t whole = 0; ///< bytes of wholly free handles that it takes from
    };

    // An outer id is an inner one and the kind, so that both layouts' ids are dense.
    static constexpr block_id outer(block_id id, kind k) noexcept {
        return 2 * id + static_cast<block_id>(k);
    }
    static constexpr block_id inner(block_id id) noexcept { return id / 2; }
    [[nodiscard]] fit& of(kind k) noexcept { return fits_[static_cast<std::size_t>(k)]; }
    [[nodiscard]] const fit& of(kind k) const noexcept { return fits_[static_cast<std::size_t>(k)]; }
    [[nodiscard]] fit& of_id(block_id id) noexcept { return fits_[id % 2]; }
    [[nodiscard]] const fit& of_id(block_id id) const noexcept { return fits_[id % 2]; }

    template <class IsUsable>
    [[nodiscard]] std::size_t tail_where(const home& h, IsUsable is_usable) const noexcept {
        address at = h.base + h.size;
        while (at > h.base) {
            const auto c = of(h.of).free_from(at - 1);
            if (!c || c->offset >= at || !is_usable(of(h.of).domain_of(c->id))) break;
            at = std::max(c->offset, h.base);
        }
        return h.base + h.size - at;
    }

    template <class IsUsable>
    [[nodiscard]] std::size_t head_where(const home& h, IsUsable is_usable) const noexcept {
        const address end = h.base + h.size;
        address at = h.base;
        while (at < end) {
            const auto c = of(h.of).free_from(at);
            if (!c || c->offset > at || !is_usable(of(h.of).domain_of(c->id))) break;
            at = std::min(c->offset + c->size, end);
        }
        return at - h.base;
    }

    /// Effects: `takes` more blocks need no memory. Throws: `std::bad_alloc`.
    void make_room(kind k, std::size_t takes) {
        of(k).reserve_takes(takes);
        make_room_for_ids(k, 2 * takes);
    }
    /// Effects: there is a tag for each block at home, and for `more`. Throws: `std::bad_alloc`.
    void make_room_for_ids(kind k, std::size_t more) {
        const std::size_t ids = 2 * (of(k).id_limit() + more) + 2;
        if (tags_.size() < ids) tags_.resize(ids);
    }

    /// Takes the block from `best`, the first fit in homes of its own kind; if there is none, from elsewhere.
    block_id allocate(const std::optional<fit::candidate>& best, std::size_t n, std::size_t a,
                      domain_span domains) {
        const kind k = kind_of(n);
        if (best) return from_home(k, *best, n, a);
        if (k == kind::large) return counted(from_view(n, a, domains));
        const auto other = of(kind::large).find(n, a, domains);
        return other ? from_home(kind::large, *other, n, a) : layout::no_block;
    }

    block_id from_home(kind k, const fit::candidate& best, std::size_t n, std::size_t a) {
        make_room(k, 1);
        return counted(outer(of(k).take(best, rounded(n, a), a), k));
    }

    block_id from_run(kind k, const layout::block_run& run, std::size_t n, std::size_t a) {
        if (run.first == no_node) return layout::no_block;
        make_room(k, 1);
        return counted(outer(of(k).take_run(run, rounded(n, a), a), k));
    }

    /// Effects: the peak is up to date. Returns: the block.
    block_id counted(block_id id) noexcept {
        peak_ = std::max(peak_, used_bytes());
        return id;
    }

    template <class F>
    void for_each_free_part(const home& h, F&& f) const {
        const address end = h.base + h.size;
        for (address at = h.base; at < end;) {
            const auto c = of(h.of).free_from(at);
            if (!c || c->offset >= end) return;
            const address from = std::max(at, c->offset);
            at = std::min(c->offset + c->size, end);
            f(*c, from, at - from);
        }
    }

    /// Returns: where in view v, from place i on, n bytes at alignment a fit, if they do.
    [[nodiscard]] std::optional<stretch> try_at(std::uint32_t v, std::size_t i, std::size_t n, std::size_t a,
                                                domain_span domains) const noexcept {
        const std::vector<place>& places = views_[v].places;
        const place& first = places[i];
        if (first.of.size == 0) return std::nullopt;
        const std::size_t tail = free_tail(first.of, domains);
        if (tail == 0) return std::nullopt;
        address end = first.at + first.of.size;
        const address at = round_up(end - tail, std::max(a, layout::granule));
        stretch s{v, i, at, at < end && tail == first.of.size ? tail : 0};
        for (std::size_t j = i + 1; end < at + n && j < places.size(); ++j) {
            if (places[j].of.size == 0) return std::nullopt;
            const std::size_t head = free_head(places[j].of, domains);
            if (at >= end) s.first = j; // an aligned start may lie in a later handle
            end += head;
            if (head < places[j].of.size) break;
            if (at < end) s.whole += head;
        }
        return end >= at + n ? std::optional(s) : std::nullopt;
    }

    /// Returns: a span, or `no_block`.
    block_id from_view(std::size_t n, std::size_t a, domain_span domains) {
        const std::size_t need = rounded(n, a);
        std::size_t free = 0;
        for (const domain d : domains) free += free_bytes(d);
        if (free < need) return layout::no_block; // as while a pool grows: no view can hold it
        std::optional<stretch> best;
        if (const auto it = recent_.find(need); it != recent_.end() && views_[it->second].in_use)
            best = best_in(it->second, need, a, domains);
        if (!best) {
            for (std::uint32_t v = 0; v < views_.size(); ++v) {
                const auto s = best_in(v, need, a, domains);
                if (s && (!best || s->whole < best->whole)) best = s;
            }
            if (!best) return layout::no_block;
            if (recent_.size() >= max_recent) recent_.clear();
            recent_[need] = best->view;
        }
        return take_span(*best, need);
    }

    [[nodiscard]] std::optional<stretch> best_in(std::uint32_t v, std::size_t n, std::size_t a,
                                                 domain_span domains) const noexcept {
        std::optional<stretch> best;
        const std::vector<place>& places = views_[v].places;
        if (places.empty()) return best;
        const address end = places.back().at + places.back().of.size;
        for (std::size_t i = 0; i < places.size() && end - places[i].at >= n; ++i) {
            const auto s = try_at(v, i, n, a, domains);
            if (s && (!best || s->whole < best->whole)) best = s;
            if (best && best->whole == 0) break;
        }
        return best;
    }

    block_id take_span(const stretch& s, std::size_t n) {
        const std::vector<place>& places = views_[s.view].places;
        const auto for_each_part = [&](auto&& f) { // of the span: f(home, address at home, bytes)
            std::size_t left = n;
            address at = s.at;
            for (std::size_t i = s.first; left != 0; ++i) {
                const std::size_t skipped = at - places[i].at;
                const std::size_t bytes = std::min(left, places[i].of.size - skipped);
                f(places[i].of, places[i].of.base + skipped, bytes);
                left -= bytes;
                at += bytes;
            }
        };
        std::array<std::size_t, 2> takes{};
        for_each_part([&](const home& h, address at, std::size_t bytes) {
            for_each_free_part({at, bytes, h.of}, [&](const auto&, address, std::size_t) {
                ++takes[static_cast<std::size_t>(h.of)];
            });
        });
        make_room(kind::small, takes[0]);
        make_room(kind::large, takes[1]);
        spans_.reserve(1);

        const node_index index = spans_.create();
        block_id last = layout::no_block;
        for_each_part([&](const home& h, address at, std::size_t bytes) {
            const address end = at + bytes;
            while (at < end) {
                const auto c = of(h.of).free_from(at);
                const std::size_t piece = std::min(c->offset + c->size, end) - at;
                const block_id id = outer(of(h.of).take_at(*c, at, piece), h.of);
                tags_[id] = {layout::no_block, index};
                if (last == layout::no_block)
                    spans_[index].first = id;
                else
                    tags_[last].next = id;
                last = id;
                at += piece;
            }
        });
        spans_[index].at = s.at;
        spans_[index].bytes = n;
        spans_[index].view = s.view;
        ++views_[s.view].live;
        views_[s.view].last_used = ++clock_;
        return spans_[index].first;
    }

    std::array<fit, 2> fits_;    ///< by kind
    own_lines_vector<tag> tags_; ///< by outer id, of every block
    node_table<span> spans_;
    own_lines_vector<view> views_;
    std::unordered_map<std::size_t, std::uint32_t> recent_; ///< size to the view where it fitted last
    std::uint64_t clock_ = 0;
    std::size_t holes_ = 0; ///< bytes
    std::size_t peak_ = 0;  ///< bytes
};

static_assert(layout::layout<remap_blocks>);

} // namespace tenure
