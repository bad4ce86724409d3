#pragma once

/// \file
/// `remap_homes<Device>`: the handles of a `remap_pool` where their bytes are counted: bought, and given back.
///
///     area       | h0 | h1 |hole| h3 | h4 |  . . . addresses to grow into . . .      one range of the layout
///                                         ^ the next handle
///
/// An *area* is a window with homes in a row. For each kind of block one area grows: a new handle is put right behind
/// the newest home, and merges with what is free there. So a pool that only grows buys what it uses. An area grows no
/// more when something is shown behind its newest home, or its addresses are used up; then another is opened.
///
/// A driver is asked for much in handles; if it is known to have less, for all of it at once, so that a hopeless request
/// costs one refused call, and buys nothing that would have to go back (unless others took the memory meanwhile).
///
/// Invariants:
///   1. Homes of the layout and handles of the windows correspond one to one, but for `stuck` ones: nobody's, and the
///      device did not take them back. Holes of the layout are handles that went back.
///   2. A purchase that fails changes nothing, but for what is stuck then.
///
/// Complexity: linear in the handles where nothing else is said, and driver calls. Thread-safety: thread-compatible.

#include <tenure/backing/segments.hpp>
#include <tenure/backing/windows.hpp>
#include <tenure/core.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/policy/remap/blocks.hpp>
#include <tenure/policy/remap/options.hpp>
#include <tenure/policy/remap/supply.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tenure {

template <vmm_device Device>
class remap_homes {
  public:
    using kind = remap_blocks::kind;
    using home = remap_blocks::home;
    using window_id = typename windows<Device>::window_id;
    using handle_id = typename windows<Device>::handle_id;
    using handle_list = std::vector<handle_id>;
    using area_id = std::uint32_t;
    static constexpr std::uint32_t none = windows<Device>::none;

    remap_homes(Device& device, const remap_options& options, windows<Device>& where, remap_blocks& blocks)
        : device_(&device)
        , options_(options)
        , step_(device.allocation_granularity())
        , windows_(where)
        , blocks_(blocks) {}

    remap_homes(const remap_homes&) = delete;
    remap_homes& operator=(const remap_homes&) = delete;

    // ---- what there is ----

    [[nodiscard]] const home& operator[](handle_id id) const noexcept { return homes_[id]; }
    [[nodiscard]] bool is_free(const home& h) const noexcept { return blocks_.free_head(h) == h.size; }
    [[nodiscard]] bool is_settled(const home& h) const noexcept {
        constexpr std::array<layout::domain, 1> settled{0};
        return blocks_.free_head(h, settled) == h.size;
    }

    /// Calls f(handle_id, home) for each.
    template <class F>
    void for_each(F&& f) const {
        for (handle_id id = 0; id < homes_.size(); ++id)
            if (homes_[id].size != 0) f(id, homes_[id]);
    }

    /// Calls f(segment_range) for runs of mapped homes without a gap, and for handles that the device did not take back.
    template <class F>
    void for_each_run(F&& f) const {
        for (const area& a : areas_) {
            if (a.window == none) continue;
            segment_range run;
            for (const auto& slot : windows_.at(a.window).slots) {
                if (windows_.is_home(slot) && homes_[slot.handle].size != 0) {
                    if (run.size == 0) run.base = slot.address;
                    run.size += slot.size;
                } else if (run.size != 0) {
                    f(std::exchange(run, {}));
                }
            }
            if (run.size != 0) f(run);
        }
        for (const handle_id h : stuck_) f(segment_range{windows_.of(h).home, windows_.of(h).size});
    }

    [[nodiscard]] std::size_t area_limit() const noexcept { return areas_.size(); }
    [[nodiscard]] window_id window_of(area_id a) const noexcept { return areas_[a].window; }

    /// Returns: whether homes will be put into this window.
    [[nodiscard]] bool grows_in(window_id w) const noexcept {
        return std::any_of(growing_.begin(), growing_.end(),
                           [&](area_id a) { return a != none && areas_[a].window == w; });
    }

    // ---- buying ----

    struct purchase {
        std::size_t bytes = 0;
        bool behind_newest =
            false; ///< right behind the newest home, where the request begins; else in an area of its own
    };

    /// Returns: what must be bought so that the request fits at home. `usable`: the domains that it may use; all of them
    /// if that is not given.
    template <class... Usable>
    [[nodiscard]] purchase missing(const remap_demand& n, kind k, Usable... usable) const noexcept {
        const area_id a = growing_[index(k)];
        if (a == none || !can_grow(areas_[a])) return {n.bytes, false};
        const std::uint64_t end = windows_.at(areas_[a].window).end();
        const std::size_t free = blocks_.free_tail(home{areas_[a].base, areas_[a].bytes, k}, usable...);
        const std::uint64_t start = round_up(end - free, n.alignment);
        if (start > end) return {n.bytes, false};
        const std::size_t bytes = n.bytes - std::min<std::size_t>(n.bytes, end - start);
        if (in_steps(k, bytes) > windows_.at(areas_[a].window).room()) return {n.bytes, false};
        return {bytes, true};
    }

    /// Returns: bytes that the device gives for `bytes` bytes.
    [[nodiscard]] std::size_t in_steps(kind k, std::size_t bytes) const noexcept {
        return round_up(bytes, k == kind::small ? round_up(options_.small_handle_bytes, step_) : step_);
    }

    /// Effects: buys it, and some more for what comes next if the device gives that. Requires: `make_room_to_retire` for
    /// an area. Returns: `ok`, or the device's answer. Throws: `std::bad_alloc`.
    status buy(kind k, const purchase& p, std::size_t alignment, layout::domain color) {
        if (p.bytes == 0) return status::ok;
        const area_id grows = growing_[index(k)];
        area_id a = grows;
        if (!p.behind_newest) {
            const std::size_t least = in_steps(k, std::max(p.bytes, ahead(k, p.bytes)));
            const bool alone = grows != none && can_grow(areas_[grows]) && alignment > step_;
            const std::size_t room = k == kind::small ? small_window : large_window;
            const result<area_id, status> fresh =
                open(k, alone ? least : std::max(room, round_up(least * 2, step_)), least, alignment);
            if (!fresh) return fresh.error();
            a = *fresh;
            if (!alone) growing_[index(k)] = a; // one aligned block is no reason to leave the newest home
        }
        const auto keep = [&](status s) { // a window that nothing was bought into goes again
            if (s == status::ok || p.behind_newest || areas_[a].bytes != 0) return s;
            if (windows_.at(areas_[a].window).homes != 0 || windows_.drop(areas_[a].window) != status::ok)
                return s;
            areas_[a] = area{};
            growing_[index(k)] = grows;
            return s;
        };
        const std::size_t more = std::min(ahead(k, p.bytes), windows_.at(areas_[a].window).room());
        if (more > p.bytes) {
            const status s = buy_into(a, more, color, nullptr);
            if (!lacks_memory(s)) return keep(s);
            // What could not be taken back may be in the way now.
            if (!can_grow(areas_[a]) || in_steps(k, p.bytes) > windows_.at(areas_[a].window).room())
                return keep(s);
        }
        return keep(buy_into(a, p.bytes, color, nullptr));
    }

    /// Effects: opens an area in a window that becomes `bytes` bytes long; where so many addresses are not to be had,
    /// `least` bytes will do. Throws: `std::bad_alloc`.
    result<area_id, status> open(kind k, std::size_t bytes, std::size_t least, std::size_t alignment) {
        area_id a = 0;
        while (a < areas_.size() && areas_[a].window != none) ++a;
        if (a == areas_.size()) areas_.emplace_back();
        result<window_id, status> w = windows_.open(bytes, alignment);
        if (!w && w.error() == status::out_of_memory) w = windows_.open(least, alignment);
        if (!w) return w.error();
        areas_[a] = {*w, k, 0, 0, {}};
        return a;
    }

    /// Effects: later homes of this kind follow in the area.
    void grow_in(area_id a) noexcept { growing_[index(areas_[a].of)] = a; }

    /// Effects: buys `bytes` bytes at the end of an area. `bought`: the handles are appended to it.
    status buy_into(area_id a, std::size_t bytes, layout::domain color, handle_list* bought) {
        const std::size_t filled = windows_.at(areas_[a].window).filled;
        const bool at_once = bytes > next_size(areas_[a].of, bytes, bytes) && !has_room(bytes);
        handle_list mine;
        std::size_t settled = 0;
        status s = status::ok;
        try {
            for (std::size_t got = 0; got < bytes && s == status::ok;) {
                const std::size_t size =
                    at_once ? in_steps(areas_[a].of, bytes) : next_size(areas_[a].of, bytes - got, bytes);
                mine.reserve(mine.size() + 1);
                stuck_.reserve(stuck_.size() + mine.size() + 1);
                if (homes_.size() <= windows_.handle_limit()) homes_.resize(windows_.handle_limit() + 1);
                const result<handle_id, status> h = windows_.buy(areas_[a].window, size);
                s = h ? status::ok : h.error();
                if (h) mine.push_back(*h);
                if (h && room_seen_ != no_limit) room_seen_ -= std::min(room_seen_, size);
                got += size;
            }
            if (s == status::ok) {
                if (bought != nullptr) bought->reserve(bought->size() + mine.size());
                for (; settled < mine.size(); ++settled) settle(a, mine[settled], color);
                if (bought != nullptr) bought->insert(bought->end(), mine.begin(), mine.end());
                return s;
            }
        } catch (...) {
            undo(mine, settled, filled);
            throw;
        }
        undo(mine, settled, filled);
        return s;
    }

    // ---- giving back ----

    /// Requires: all of it is free, and all work on it over. Returns: whether the device took it.
    bool give_back(handle_id id) {
        const home h = homes_[id];
        area& a = *std::find_if(areas_.begin(), areas_.end(), [&](const area& x) {
            return x.window != none && h.base >= x.base && h.base - x.base < x.bytes;
        });
        a.holes.reserve(a.holes.size() + 1);
        stuck_.reserve(stuck_.size() + 1);
        const layout::block_id hole = blocks_.take_away(h);
        const bool gone = windows_.release(id) == status::ok;
        if (!gone && windows_.is_at_home(id)) {
            blocks_.fill(hole);
            return false;
        }
        a.holes.push_back(hole);
        homes_[id] = home{};
        if (!gone) stuck_.push_back(id);
        return gone;
    }

    /// Effects: offers the device once more what it has not taken back.
    void offer_stuck() noexcept {
        std::erase_if(stuck_, [this](handle_id id) { return windows_.release(id) == status::ok; });
    }

    /// Effects: an area in this window goes if it has no homes left. Returns: whether none is there any more.
    bool leave(window_id w) noexcept {
        for (area_id i = 0; i < areas_.size(); ++i) {
            area& a = areas_[i];
            if (a.window != w) continue;
            // A handle that the device did not take back still counts as one of its homes.
            if (windows_.at(w).homes != 0) return false;
            for (const layout::block_id hole : a.holes) blocks_.fill(hole);
            if (a.bytes != 0) blocks_.remove(a.base);
            for (area_id& g : growing_)
                if (g == i) g = none;
            a = area{};
        }
        return true;
    }

    [[nodiscard]] bool validate() const noexcept {
        std::size_t bytes = 0;
        for_each([&](handle_id, const home& h) { bytes += h.size; });
        for (const handle_id id : stuck_) bytes += windows_.of(id).size;
        return bytes == windows_.bytes();
    }

  private:
    /// A window that homes are in: one range of the layout.
    struct area {
        window_id window = none;
        kind of = kind::large;
        std::uint64_t base = 0; ///< of the first home
        std::size_t bytes = 0;  ///< from there on, holes included
        std::vector<layout::block_id> holes;
    };

    static constexpr std::size_t index(kind k) noexcept { return static_cast<std::size_t>(k); }

    /// Returns: whether the next slot of the area's window is right behind its newest home.
    [[nodiscard]] bool can_grow(const area& a) const noexcept {
        return a.bytes == 0 || windows_.at(a.window).end() == a.base + a.bytes;
    }

    /// Returns: how much to buy where `bytes` bytes are missing.
    [[nodiscard]] std::size_t ahead(kind k, std::size_t bytes) const noexcept {
        if (k == kind::small || options_.purchases_per_pool == 0) return bytes;
        const std::size_t least = std::max(step_, options_.least_purchase_bytes);
        const std::size_t share = windows_.bytes() / options_.purchases_per_pool;
        return std::max(bytes, std::clamp(share, least, std::max(least, options_.least_handle_bytes)));
    }

    /// Returns: bytes of the next handle, where `need` of the `request` bytes are still to be bought.
    [[nodiscard]] std::size_t next_size(kind k, std::size_t need, std::size_t request) const noexcept {
        const std::size_t share = round_up((windows_.bytes() + need) / options_.handles_per_pool, step_);
        const std::size_t most = std::clamp(
            share, round_up(options_.least_handle_bytes, step_),
            std::max(round_up(options_.most_handle_bytes, step_), round_up(windows_.bytes() / 256, step_)));
        const std::size_t part =
            options_.handles_per_request == 0
                ? 0
                : std::min(round_up(request / options_.handles_per_request, step_), most_for_request);
        return std::min(in_steps(k, need), std::max(most, part));
    }

    /// Returns: whether `bytes` bytes could be bought now, as far as the device and who meters it know: limits, and free
    /// memory. The driver takes 7 us to say how much is free, so it is asked again only once that may have come near.
    [[nodiscard]] bool has_room(std::size_t bytes) noexcept {
        if constexpr (requires { device_->room(); })
            if (device_->room() < bytes) return false;
        if (room_seen_ / 4 < bytes) {
            // Not over_limit: that a meter would explain by its last refusal, be that long ago.
            allocation_failure f;
            f.driver_status = status::out_of_memory;
            device_->explain(f);
            room_seen_ = f.max == no_limit ? no_limit : f.max - std::min(f.max, f.used);
        }
        return room_seen_ >= bytes;
    }

    /// Nobody has seen the handles from the `settled`th on: their memory was never used. They were bought when
    /// `filled` bytes of their window were. Requires: room in `stuck_` for them, and one more.
    void undo(const handle_list& mine, std::size_t settled, std::size_t filled) noexcept {
        const handle_id refused = windows_.take_refused();
        if (refused != none) stuck_.push_back(refused);
        bool all_gone = refused == none;
        for (std::size_t i = mine.size(); i-- > settled;) {
            const window_id w = windows_.of(mine[i]).window;
            if (windows_.release(mine[i]) != status::ok) {
                stuck_.push_back(mine[i]);
                all_gone = false;
            } else if (all_gone) {
                windows_.unfill(w, filled);
            }
        }
    }

    /// Effects: the handle, the area's newest, is free memory of the layout.
    void settle(area_id a, handle_id h, layout::domain color) {
        const std::uint64_t at = windows_.of(h).home;
        const std::size_t size = windows_.of(h).size;
        if (areas_[a].bytes == 0) {
            blocks_.add({at, size}, color, areas_[a].of);
            areas_[a].base = at;
        } else {
            blocks_.grow(areas_[a].base, size, color, areas_[a].of);
        }
        areas_[a].bytes += size;
        homes_[h] = {at, size, areas_[a].of};
    }

    static constexpr std::size_t small_window = std::size_t{4} << 30;  ///< bytes of addresses
    static constexpr std::size_t large_window = std::size_t{64} << 30; ///< the same
    /// Bytes of a handle: from there on the driver's time goes with the bytes.
    static constexpr std::size_t most_for_request = std::size_t{512} << 20;

    Device* device_;
    const remap_options& options_;
    std::size_t step_; ///< the device's granularity, bytes
    windows<Device>& windows_;
    remap_blocks& blocks_;
    own_lines_vector<home> homes_; ///< by handle, for all that there are
    own_lines_vector<area> areas_;
    std::array<area_id, 2> growing_{none, none}; ///< by kind: the area that grows
    handle_list stuck_;                          ///< nobody's, but the device did not take them
    /// Bytes the device had free when it was asked last, less what was bought since.
    std::size_t room_seen_ = 0;
};

} // namespace tenure
