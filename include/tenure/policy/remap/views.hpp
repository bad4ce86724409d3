#pragma once

/// \file
/// `remap_views<Device>`: the windows in which a `remap_pool` shows handles in a row once more, from the first showing until
/// all mappings are gone.
///
///     view   | h2 | h7 | h4 |                   shown for a request; spans lie in it
///     view   | h2 | h7 | h4 | h9 |              a larger request came: one handle more, where that is less to show
///     retired  | h3 |    | h6 |                 not searched any more; h6 is in use, so nobody may unmap it yet
///
/// A view goes when there are too many, the least recently used first; so does a window that homes were in and that is no
/// view. Its slots are emptied as what they show is seen free and settled.
///
/// Invariants:
///   1. A view shows a handle once.
///   2. A handle is unmapped only when all of it is free and settled, or after the host has waited for the device.
///
/// Complexity: to open a view looks at a few retired windows, not at all; `longer` is linear in views and handles. Thread-
/// safety: thread-compatible.

#include <tenure/backing/windows.hpp>
#include <tenure/core.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/policy/remap/blocks.hpp>
#include <tenure/policy/remap/homes.hpp>
#include <tenure/policy/remap/options.hpp>
#include <tenure/policy/remap/supply.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tenure {

template <vmm_device Device>
class remap_views {
  public:
    using place = remap_blocks::place;
    using window_id = typename windows<Device>::window_id;
    using handle_id = typename windows<Device>::handle_id;
    using handle_list = std::vector<handle_id>;
    using view_id = std::uint32_t; ///< the layout's number of the view
    static constexpr std::uint32_t none = windows<Device>::none;

    remap_views(Device& device, const remap_options& options, windows<Device>& where, remap_blocks& blocks,
                remap_homes<Device>& homes) noexcept
        : device_(&device), options_(options), windows_(where), blocks_(blocks), homes_(homes) {}

    remap_views(const remap_views&) = delete;
    remap_views& operator=(const remap_views&) = delete;

    // ---- showing ----

    /// Effects: shows the handles in a new view, where the request fits. Requires: `make_room`.
    /// Returns: `ok`, or the device's answer. Throws: `std::bad_alloc`.
    status show(const handle_list& handles, const remap_demand& n) {
        std::size_t bytes = 0;
        for (const handle_id h : handles) bytes += homes_[h].size;
        result<window_id, status> w = windows_.open(std::max(bytes, view_window), n.alignment);
        if (!w && w.error() == status::out_of_memory) w = windows_.open(bytes, n.alignment);
        if (!w) return w.error();
        std::vector<place> places;
        try {
            if (const status s = fill(*w, handles, places); s != status::ok) {
                abandon(*w);
                return s;
            }
        } catch (...) {
            abandon(*w);
            throw;
        }
        return enter(*w, std::move(places), n.bytes);
    }

    struct extension {
        view_id view = none;
        handle_list handles; ///< to be shown behind what it shows
    };

    /// Returns: the view in which the request fits if fewest handles are shown there besides, fewer than `most`. Handles
    /// of `have` only; `usable`: the domains that the request may use.
    [[nodiscard]] std::optional<extension> longer(const remap_supply& have, const remap_demand& n,
                                                  remap_blocks::domain_span usable, std::size_t most) const {
        std::optional<extension> best;
        for (view_id v = 0; v < views_.size(); ++v) {
            if (views_[v] == none || homes_.grows_in(views_[v])) continue;
            const std::span<const place> places = blocks_.places_of(v);
            const std::size_t tail = free_end(v, n.alignment, usable);
            if (tail < have.least_fragment || tail >= n.bytes) continue;
            const auto is_shown = [&](handle_id h) {
                return std::any_of(places.begin(), places.end(),
                                   [&](const place& p) { return p.of.base == homes_[h].base; });
            };
            auto handles = have.without(is_shown).assemble(n.bytes - tail);
            if (!handles || handles->size() >= most) continue;
            std::size_t bytes = 0;
            for (const handle_id h : *handles) bytes += homes_[h].size;
            if (bytes > windows_.at(views_[v]).room()) continue;
            most = handles->size();
            best = extension{v, std::move(*handles)};
        }
        return best;
    }

    /// Effects: shows them. Returns: `ok`, or the device's answer; what was shown by then stays.
    /// Throws: `std::bad_alloc`, the same.
    status extend(const extension& x) {
        blocks_.make_room_in_view(x.view, x.handles.size());
        for (const handle_id h : x.handles) {
            const std::uint64_t at = windows_.at(views_[x.view]).end();
            if (const status s = windows_.show(views_[x.view], h); s != status::ok) return s;
            blocks_.extend_view(x.view, {homes_[h], at});
        }
        return status::ok;
    }

    /// Effects: shows the handles at the end of a window, as far as the device does, and appends their places.
    /// Throws: `std::bad_alloc`, the same.
    status fill(window_id w, const handle_list& handles, std::vector<place>& places) {
        places.reserve(places.size() + handles.size());
        for (const handle_id h : handles) {
            const std::uint64_t at = windows_.at(w).end();
            if (const status s = windows_.show(w, h); s != status::ok) return s;
            places.push_back({homes_[h], at});
        }
        return status::ok;
    }

    /// Effects: the window is a view of these places; n bytes are expected to fit there. Throws: `std::bad_alloc`, and
    /// abandons the window.
    status enter(window_id w, std::vector<place> places, std::size_t n) {
        try {
            views_.reserve(std::size_t{blocks_.view_limit()} + 1);
            const view_id v = blocks_.add_view(std::move(places), n);
            if (views_.size() <= v) views_.resize(std::size_t{v} + 1, none);
            views_[v] = w;
        } catch (...) {
            abandon(w);
            throw;
        }
        return status::ok;
    }

    // ---- going ----

    /// Effects: what a failed showing leaves goes. Requires: no block has been in this window, but in homes.
    void abandon(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none && !windows_.is_home(slot)) (void)windows_.hide(w, slot.handle);
        let_go(w);
    }

    /// Effects: there is room for one more view; the least recently used one goes if there are too many. What is opened
    /// until the next call can be retired. Throws: `std::bad_alloc`.
    void make_room() {
        constexpr std::size_t opened = 8; // areas and views, more than one growth opens
        retired_.reserve(retired_.size() + homes_.area_limit() + views_.size() + opened);
        // Retired views whose handles never fall free: in the end only waiting proves that nobody uses them.
        if (retired_.size() / most_retired >= options_.max_views && device_->synchronize() == status::ok)
            for (const window_id w : retired_) hide_all(w);
        else
            look_at_some();
        drop_retired();

        std::size_t count = 0;
        view_id oldest = none;
        for (view_id v = 0; v < views_.size(); ++v) {
            if (views_[v] == none) continue;
            ++count;
            if (blocks_.spans_in(v) != 0) continue;
            if (oldest == none || blocks_.last_used(v) < blocks_.last_used(oldest)) oldest = v;
        }
        if (count >= options_.max_views && oldest != none) forget(oldest);
    }

    /// Effects: windows that show nothing any more go.
    void drop_empty() noexcept {
        for (view_id v = 0; v < views_.size(); ++v)
            if (views_[v] != none && blocks_.spans_in(v) == 0 && windows_.at(views_[v]).mapped == 0)
                forget(v);
        for (std::uint32_t a = 0; a < homes_.area_limit(); ++a)
            if (homes_.window_of(a) != none) let_go(homes_.window_of(a));
        drop_retired();
    }

    /// Returns: whether there are more retired windows than should be: what they show is not known to be out of use.
    [[nodiscard]] bool wants_proof() const noexcept { return retired_.size() > options_.max_views / 2; }

  private:
    /// Returns: bytes at the end of the view where a request of this alignment could begin, and go on into what is shown
    /// next; 0 if nothing can be.
    [[nodiscard]] std::size_t free_end(view_id v, std::size_t alignment,
                                       remap_blocks::domain_span usable) const noexcept {
        const std::span<const place> places = blocks_.places_of(v);
        if (places.empty()) return 0;
        const std::uint64_t end = places.back().at + places.back().of.size;
        if (end != windows_.at(views_[v]).end()) return 0;
        std::uint64_t begin = end;
        for (std::size_t i = places.size(); i-- > 0;) {
            if (places[i].of.size == 0) break;
            const std::size_t tail = blocks_.free_tail(places[i].of, usable);
            begin -= tail;
            if (tail != places[i].of.size) break;
        }
        begin = round_up(begin, alignment);
        return begin < end ? end - begin : 0;
    }

    /// Effects: the view is not searched any more.
    void forget(view_id v) noexcept {
        const window_id w = std::exchange(views_[v], none);
        blocks_.remove_view(v);
        let_go(w);
    }

    /// Effects: a window that is no view and has no homes is retired.
    void let_go(window_id w) noexcept {
        if (std::find(views_.begin(), views_.end(), w) != views_.end()) return;
        if (!homes_.leave(w)) return;
        hide_settled(w);
        if (windows_.at(w).mapped == 0 && windows_.drop(w) == status::ok) return;
        retired_.push_back(w); // has room, see `make_room`
    }

    void drop_retired() noexcept {
        for (window_id& w : retired_)
            if (windows_.at(w).mapped == 0 && windows_.drop(w) == status::ok) w = none;
        std::erase(retired_, none);
    }

    /// Effects: empties what can be of some retired windows; the next call goes on with the next ones.
    void look_at_some() noexcept {
        for (std::size_t i = 0; i < std::min(at_a_time, retired_.size()); ++i)
            hide_settled(retired_[next_retired_++ % retired_.size()]);
    }

    /// Requires: all work on what the window shows is over.
    void hide_all(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none) (void)windows_.hide(w, slot.handle);
    }

    void hide_settled(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none && !windows_.is_home(slot) && homes_.is_settled(homes_[slot.handle]))
                (void)windows_.hide(w, slot.handle);
    }

    /// Times `max_views`: retired views that may wait for a proof before the host waits instead.
    static constexpr std::size_t most_retired = 8;
    /// One view is retired for one that comes, so a few looked at keep up.
    static constexpr std::size_t at_a_time = 4;
    static constexpr std::size_t view_window = std::size_t{8} << 30; ///< bytes of addresses, to grow into

    Device* device_;
    const remap_options& options_;
    windows<Device>& windows_;
    remap_blocks& blocks_;
    remap_homes<Device>& homes_;
    own_lines_vector<window_id> views_;   ///< by the layout's number of the view
    own_lines_vector<window_id> retired_; ///< areas and views that are gone but for mappings in use
    std::size_t next_retired_ = 0;
};

} // namespace tenure
