#pragma once

/// \file
/// `remap_stock<Device>`: how a `remap_pool` gets memory, and in which order it prefers to.
///
/// A request that no home and no view holds is met by the first of these that works:
///
///   1. buy what is missing, while the pool stays within its slack over the most that was ever used at once
///   2. show free memory in a new view: the free end of a handle, whole free handles, the free beginning of one
///   3. buy the rest and show it behind free memory, where that saves enough for the driver's time it costs
///   4. buy what is missing; if the device refuses, buy the least that all free memory together leaves missing
///
/// "What is missing" is the request less what is free at the end of the newest home: a new handle is put right behind
/// it, and merges. So a pool that only grows buys what it uses.
///
/// Nothing is unmapped to serve a request: a view is one more place where memory is shown, and the stream that uses
/// memory there is the one that may use it at home. Only giving back, and the removal of views that nobody has used
/// for long, unmap; both only what is wholly free and *settled*, that is, what the host has seen all work on pass.
/// (Should handles under removed views never fall free, the host waits for the device once in a thousand views.)
///
/// Invariants:
///   1. Homes of `blocks()` and handles of the windows correspond one to one; holes are handles that went back.
///   2. A handle is unmapped only when all of it is free and settled, or after the host has waited for the device.
///
/// Complexity: linear in the handles and the free blocks, and driver calls. Thread-safety: thread-compatible.

#include <tenure/backing/windows.hpp>
#include <tenure/core.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/policy/range_stock.hpp>
#include <tenure/policy/remap/blocks.hpp>
#include <tenure/policy/remap/options.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tenure {

template <vmm_device Device>
class remap_stock {
  public:
    using layout_type = remap_blocks;
    using options_type = remap_options;
    static constexpr bool moves_segments = false; ///< a block's handles may hold others, too

    /// Throws: `std::invalid_argument` for options that mean nothing; `driver_error` with `status::not_supported` if the
    /// device has no virtual memory management.
    remap_stock(Device& device, const remap_options& options)
        : device_(&device), options_(options), step_(device.allocation_granularity()), windows_(device) {
        if (!device.supports_vmm())
            throw driver_error(
                status::not_supported,
                "remap_pool: this device has no virtual memory management; caching_pool needs none");
        if (options.handles_per_pool == 0)
            throw std::invalid_argument("remap_options: handles_per_pool is zero");
        if (options.max_views == 0) throw std::invalid_argument("remap_options: max_views is zero");
        if (options.least_handle_bytes == 0)
            throw std::invalid_argument("remap_options: least_handle_bytes is zero");
        if (!is_power_of_two(options.small_handle_bytes))
            throw std::invalid_argument("remap_options: small_handle_bytes is not a power of two");
        if (options.most_handle_bytes < options.least_handle_bytes)
            throw std::invalid_argument("remap_options: most_handle_bytes is less than least_handle_bytes");
    }

    remap_stock(const remap_stock&) = delete;
    remap_stock& operator=(const remap_stock&) = delete;

    [[nodiscard]] remap_blocks& blocks() noexcept { return blocks_; }

    /// What is held: runs of mapped homes without a gap, and handles that the device did not take back.
    class backing_view {
      public:
        explicit backing_view(const remap_stock& stock) noexcept : stock_(&stock) {}
        [[nodiscard]] std::size_t bytes() const noexcept { return stock_->windows_.bytes(); }
        [[nodiscard]] std::size_t count() const noexcept {
            std::size_t runs = 0;
            for_each([&](const segment_range&) { ++runs; });
            return runs;
        }
        /// Returns: a range of size 0 if nothing is mapped there.
        [[nodiscard]] segment_range find(std::uint64_t at) const noexcept {
            return stock_->windows_.shows(at) ? segment_range{at, 1} : segment_range{};
        }
        template <class F>
        void for_each(F&& f) const {
            for (const area& a : stock_->areas_) stock_->for_each_run(a, f);
            for (const handle_id h : stock_->stuck_)
                f(segment_range{stock_->windows_.of(h).home, stock_->windows_.of(h).size});
        }

      private:
        const remap_stock* stock_;
    };
    [[nodiscard]] backing_view backing() const noexcept { return backing_view(*this); }

    /// Effects: the request finds memory now. Returns: `ok`, or the device's answer. Throws: `std::bad_alloc`.
    status grow(const stock_request& q, stock_amount how_much) {
        const demand n{remap_blocks::rounded(q.bytes, q.alignment), q.alignment, step_};
        if (n.bytes > max_block_bytes - n.at_home) return status::out_of_memory;
        const kind k = remap_blocks::kind_of(n.bytes);
        const std::size_t missing = missing_at_home(n, k, q.usable);
        status s = status::not_supported;
        if (how_much == stock_amount::preferred && is_within_slack(n.bytes, missing))
            if ((s = buy(k, missing, q.color)) == status::ok) return s;
        if (k == kind::small) return s == status::not_supported ? buy(k, missing, q.color) : s;

        const supply have = look_around(q.usable);
        if (const auto handles = assemble(have, n))
            if (show(*handles, n) == status::ok) return status::ok;
        if (how_much == stock_amount::preferred) {
            if (join(have, n, missing, q.color, options_.worth_showing_bytes) == status::ok)
                return status::ok;
            if (s == status::not_supported && (s = buy(k, missing, q.color)) == status::ok) return s;
        }
        const status least = join(have, n, missing, q.color, 0);
        if (least != status::not_supported) return least;
        return s == status::not_supported ? buy(k, missing, q.color) : s;
    }

    /// Returns: whether the request could be met if all that is free were settled, after the answer `s`.
    [[nodiscard]] bool could_grow(std::size_t bytes, std::size_t alignment, status s) const {
        const demand n{remap_blocks::rounded(bytes, alignment), alignment, step_};
        const kind k = remap_blocks::kind_of(n.bytes);
        allocation_failure limit;
        limit.driver_status = s;
        device_->explain(limit);
        const std::size_t room = limit.max - std::min(limit.max, limit.used);
        if (in_steps(k, missing_at_home(n, k)) <= room) return true;
        if (k == kind::small) return false;
        const supply have = look_around();
        const std::size_t needed = n.behind(have.tail);
        const std::size_t shown = have.whole_bytes + have.tail + have.head;
        return round_up(needed - std::min(needed, shown), step_) <= room;
    }

    /// Returns: whether neighbouring free blocks, all of domains for which is_usable(domain), are together as
    /// large as `rounded` bytes at this alignment.
    template <class IsUsable>
    [[nodiscard]] bool fit_together(std::size_t rounded, std::size_t alignment, IsUsable is_usable) const {
        if (blocks_.free_bytes() < rounded) return false;
        bool found = false;
        std::uint64_t begin = 0, end = 0;
        const kind k = remap_blocks::kind_of(rounded);
        blocks_.for_each_block([&](const layout::block_view& b) {
            if (k == kind::large && remap_blocks::kind_at(b.id) == kind::small) return;
            if (b.offset != end || !b.free || !is_usable(b.color)) begin = b.offset;
            end = b.offset + b.size;
            if (b.free && is_usable(b.color)) found = found || round_up(begin, alignment) + rounded <= end;
            if (!b.free || !is_usable(b.color)) begin = end;
        });
        return found;
    }

    /// Effects: the host waits for all work of the device, unless all that is free is settled already.
    /// Returns: whether it has waited.
    bool make_room() {
        constexpr layout::domain settled = 0;
        if (blocks_.free_bytes() == blocks_.free_bytes(settled)) return false;
        return device_->synchronize() == status::ok;
    }

    /// Effects: gives wholly free handles back, the largest first, until at most `bytes_to_keep` bytes are held.
    /// Waits for all work of the device if some of them are not settled.
    given_back give_back_until(std::size_t bytes_to_keep) {
        const std::size_t before = windows_.bytes();
        std::erase_if(stuck_, [this](handle_id id) { return windows_.release(id) == status::ok; });
        std::vector<std::pair<std::size_t, handle_id>> free;
        for_each_home([&](handle_id id, const home& h) {
            if (is_free(h)) free.emplace_back(h.size, id);
        });
        std::sort(free.begin(), free.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        bool waited = false;
        for (const auto& [size, id] : free) {
            if (windows_.bytes() <= bytes_to_keep) break;
            if (!waited && !is_settled(homes_[id])) {
                waited = device_->synchronize() == status::ok;
                if (!waited) continue;
            }
            if (!give_back(id)) break;
        }
        drop_empty_windows();
        return {before - windows_.bytes(), waited};
    }

    /// Returns: whether there are more views than should be, and what they show is not known to be out of use.
    [[nodiscard]] bool wants_proof() const noexcept { return retired_.size() > options_.max_views / 2; }

    [[nodiscard]] bool validate() const noexcept {
        if (!windows_.validate()) return false;
        std::size_t bytes = 0;
        for_each_home([&](handle_id, const home& h) { bytes += h.size; });
        for (const handle_id id : stuck_) bytes += windows_.of(id).size;
        return bytes == windows_.bytes() && blocks_.validate();
    }

  private:
    using kind = remap_blocks::kind;
    using home = remap_blocks::home;
    using place = remap_blocks::place;
    using window_id = typename windows<Device>::window_id;
    using handle_id = typename windows<Device>::handle_id;
    static constexpr std::uint32_t none = windows<Device>::none;

    /// A window that homes are in: one range of the layout.
    struct area {
        window_id window = none;
        kind of = kind::large;
        std::uint64_t base = 0; ///< of the first home
        std::size_t bytes = 0;  ///< from there on, holes included
        std::vector<layout::block_id> holes;
    };

    /// What a request may use, outside of one home.
    struct supply {
        std::vector<std::pair<std::size_t, handle_id>> whole; ///< bytes, handle; largest first
        std::size_t whole_bytes = 0;
        handle_id tail_of = none, head_of = none;
        std::size_t tail = 0, head = 0; ///< bytes
    };

    /// How much a request needs, bytes.
    struct demand {
        std::size_t bytes;
        std::size_t alignment;
        std::size_t at_home;   ///< that an aligned start may leave unused in a new handle
        std::size_t in_a_tail; ///< the same in the free end of one
        demand(std::size_t n, std::size_t a, std::size_t step) noexcept
            : bytes(n), alignment(a), at_home(a > step ? a : 0), in_a_tail(a > layout::granule ? a : 0) {}
        [[nodiscard]] std::size_t behind(std::size_t tail) const noexcept {
            return bytes + (tail != 0 ? in_a_tail : at_home);
        }
    };

    using handle_list = std::vector<handle_id>;

    /// Fragments smaller than this are not worth a place in a view, bytes.
    static constexpr std::size_t least_fragment = std::size_t{4} << 20;

    /// Returns: what must be bought so that the request fits at the end of the newest home.
    /// `usable`: the domains that it may use; all of them if that is not given.
    template <class... Usable>
    [[nodiscard]] std::size_t missing_at_home(const demand& n, kind k, Usable... usable) const noexcept {
        const std::uint32_t a = growing_[index(k)];
        if (a != none && can_grow(areas_[a])) {
            const std::uint64_t end = areas_[a].base + areas_[a].bytes;
            const std::size_t free = blocks_.free_tail(home{areas_[a].base, areas_[a].bytes, k}, usable...);
            const std::uint64_t start = round_up(end - free, n.alignment);
            if (start < end) {
                const std::size_t missing = n.bytes - std::min<std::size_t>(n.bytes, end - start);
                if (in_steps(k, missing) <= windows_.at(areas_[a].window).room()) return missing;
            }
        }
        return n.bytes + n.at_home;
    }

    /// Returns: what is bought for `bytes` bytes.
    [[nodiscard]] std::size_t in_steps(kind k, std::size_t bytes) const noexcept {
        return round_up(bytes, k == kind::small ? round_up(options_.small_handle_bytes, step_) : step_);
    }

    /// Returns: whether the next slot of the area's window is right behind its newest home.
    [[nodiscard]] bool can_grow(const area& a) const noexcept {
        return a.bytes == 0 || windows_.at(a.window).end() == a.base + a.bytes;
    }

    [[nodiscard]] bool is_free(const home& h) const noexcept { return blocks_.free_head(h) == h.size; }
    [[nodiscard]] bool is_settled(const home& h) const noexcept {
        constexpr std::array<layout::domain, 1> settled{0};
        return blocks_.free_head(h, settled) == h.size;
    }
    static constexpr std::size_t index(kind k) noexcept { return static_cast<std::size_t>(k); }

    [[nodiscard]] bool is_within_slack(std::size_t n, std::size_t missing) const noexcept {
        if (options_.slack_divisor == 0) return false;
        const std::size_t peak = std::max(blocks_.peak_bytes(), blocks_.used_bytes() + n);
        return windows_.bytes() + missing <= peak + peak / options_.slack_divisor;
    }

    template <class F>
    void for_each_home(F&& f) const {
        for (handle_id id = 0; id < homes_.size(); ++id)
            if (homes_[id].size != 0) f(id, homes_[id]);
    }

    // ---- buying ----

    [[nodiscard]] std::size_t next_size(kind k, std::size_t need) const noexcept {
        const std::size_t step = k == kind::small ? round_up(options_.small_handle_bytes, step_) : step_;
        const std::size_t share = round_up((windows_.bytes() + need) / options_.handles_per_pool, step_);
        const std::size_t most = std::clamp(
            share, round_up(options_.least_handle_bytes, step_),
            std::max(round_up(options_.most_handle_bytes, step_), round_up(windows_.bytes() / 256, step_)));
        return std::min(round_up(need, step), most);
    }

    /// Effects: buys `bytes` bytes right behind the newest home of that kind.
    status buy(kind k, std::size_t bytes, layout::domain color) {
        std::uint32_t& a = growing_[index(k)];
        const std::size_t whole = in_steps(k, bytes);
        if (a == none || windows_.at(areas_[a].window).room() < whole || !can_grow(areas_[a])) {
            const std::size_t room = k == kind::small ? small_window : large_window;
            const result<std::uint32_t, status> fresh =
                open_area(k, std::max(room, round_up(whole * 2, step_)), whole);
            if (!fresh) return fresh.error();
            a = *fresh;
        }
        return buy_into(a, bytes, color, nullptr);
    }

    /// Effects: the same, at the end of an area. `bought`: the handles are appended to it.
    status buy_into(std::uint32_t a, std::size_t bytes, layout::domain color, handle_list* bought) {
        const std::size_t filled = windows_.at(areas_[a].window).filled;
        handle_list mine;
        std::size_t settled = 0;
        status s = status::ok;
        try {
            for (std::size_t got = 0; got < bytes && s == status::ok;) {
                const std::size_t size = next_size(areas_[a].of, bytes - got);
                mine.reserve(mine.size() + 1);
                stuck_.reserve(stuck_.size() + mine.size() + 1);
                if (homes_.size() <= windows_.handle_limit()) homes_.resize(windows_.handle_limit() + 1);
                const result<handle_id, status> h = windows_.buy(areas_[a].window, size);
                s = h ? status::ok : h.error();
                if (h) mine.push_back(*h);
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
    void settle(std::uint32_t a, handle_id h, layout::domain color) {
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

    /// Where so many addresses are not to be had, `least` bytes will do.
    result<std::uint32_t, status> open_area(kind k, std::size_t bytes, std::size_t least) {
        make_room_to_retire();
        std::uint32_t a = 0;
        while (a < areas_.size() && areas_[a].window != none) ++a;
        if (a == areas_.size()) areas_.emplace_back();
        result<window_id, status> w = windows_.open(bytes);
        if (!w && w.error() == status::out_of_memory) w = windows_.open(least);
        if (!w) return w.error();
        areas_[a] = {*w, k, 0, 0, {}};
        return a;
    }

    // ---- showing ----

    /// `usable`: as above.
    template <class... Usable>
    [[nodiscard]] supply look_around(Usable... usable) const {
        supply s;
        for_each_home([&](handle_id id, const home& h) {
            const std::size_t tail = blocks_.free_tail(h, usable...);
            if (tail == h.size) {
                s.whole.emplace_back(h.size, id);
                s.whole_bytes += h.size;
                return;
            }
            if (h.of != kind::large) return;
            if (tail >= least_fragment && tail > s.tail) s.tail = tail, s.tail_of = id;
        });
        for_each_home([&](handle_id id, const home& h) {
            if (h.of != kind::large || id == s.tail_of) return;
            const std::size_t head = blocks_.free_head(h, usable...);
            if (head != h.size && head >= least_fragment && head > s.head) s.head = head, s.head_of = id;
        });
        std::sort(s.whole.begin(), s.whole.end(),
                  [](const auto& x, const auto& y) { return x.first > y.first; });
        return s;
    }

    /// Returns: the handles to show so that the request fits, from what there is.
    [[nodiscard]] std::optional<handle_list> assemble(const supply& have, const demand& n) const {
        handle_list handles;
        const auto with = [&](std::size_t tail, std::size_t head) {
            if (have.whole_bytes + tail + head < n.behind(tail)) return false;
            if (tail != 0) handles.push_back(have.tail_of);
            pick(have, n.behind(tail) - std::min(n.behind(tail), tail + head), handles);
            if (head != 0) handles.push_back(have.head_of);
            return true;
        };
        if (with(0, 0) || (have.tail != 0 && with(have.tail, 0)) ||
            (have.head != 0 && with(have.tail, have.head)))
            return handles;
        return std::nullopt;
    }

    /// Appends whole free handles that are together n bytes or more: few of them, and little more.
    static void pick(const supply& have, std::size_t n, handle_list& handles) {
        const auto& whole = have.whole;
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

    /// Effects: shows the handles in a new view, where the request fits.
    status show(const handle_list& handles, const demand& n) {
        std::size_t bytes = 0;
        for (const handle_id h : handles) bytes += homes_[h].size;
        make_room_for_view();
        const result<window_id, status> w = windows_.open(bytes);
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

    /// Effects: fills a new window with the handles, as far as the device does. Throws: `std::bad_alloc`, the same.
    status fill(window_id w, const handle_list& handles, std::vector<place>& places) {
        places.reserve(handles.size());
        for (const handle_id h : handles) {
            const std::uint64_t at = windows_.at(w).end();
            if (const status s = windows_.show(w, h); s != status::ok) return s;
            places.push_back({homes_[h], at});
        }
        return status::ok;
    }

    status enter(window_id w, std::vector<place> places, std::size_t n) {
        try {
            views_.reserve(std::size_t{blocks_.view_limit()} + 1);
            const std::uint32_t v = blocks_.add_view(std::move(places), n);
            if (views_.size() <= v) views_.resize(std::size_t{v} + 1, none);
            views_[v] = w;
        } catch (...) {
            abandon(w);
            throw;
        }
        return status::ok;
    }

    /// No block has been in this window, but in homes.
    void abandon(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none && windows_.of(slot.handle).home != slot.address)
                (void)windows_.hide(w, slot.handle);
        for (area& a : areas_)
            if (a.window == w) return drop_if_empty(a);
        retire(w);
    }

    /// Effects: buys the least that free memory leaves missing, right behind that memory in a new window.
    /// Returns: `ok`, the device's answer, or `not_supported` if a handle shown saves less than `worth` bytes.
    status join(const supply& have, const demand& n, std::size_t missing, layout::domain color,
                std::size_t worth) {
        handle_list before;
        std::size_t got = 0;
        const auto use = [&](handle_id h, std::size_t bytes) {
            before.push_back(h);
            got += bytes;
        };
        const std::size_t tail = have.tail >= worth ? have.tail : 0;
        const std::size_t head = have.head >= worth ? have.head : 0;
        if (tail != 0) use(have.tail_of, tail);
        for (const auto& [size, h] : have.whole)
            if (size >= worth) use(h, size);
        const std::size_t shown = before.size() + (head != 0 ? 1 : 0);
        const std::size_t wanted = n.behind(tail);
        if (shown == 0 || got + head >= wanted) return status::not_supported; // nothing to join, or to buy
        const std::size_t rest = round_up(wanted - got - head, step_);
        if (missing <= rest || missing - rest < worth * shown) return status::not_supported;

        make_room_for_view();
        std::size_t bytes = rest;
        for (const handle_id h : before) bytes += homes_[h].size;
        if (head != 0) bytes += homes_[have.head_of].size;
        // If nothing is shown behind what is bought, later homes follow there.
        const result<std::uint32_t, status> a =
            open_area(kind::large, head != 0 ? bytes : std::max(large_window, 2 * bytes), bytes);
        if (!a) return a.error();
        const window_id w = areas_[*a].window;
        std::vector<place> places;
        handle_list bought;
        status s = status::ok;
        try {
            s = fill(w, before, places);
            if (s == status::ok) s = buy_into(*a, rest, color, &bought);
            places.reserve(places.size() + bought.size() + 1);
        } catch (...) {
            abandon(w);
            throw;
        }
        if (s != status::ok) {
            abandon(w);
            return s;
        }
        for (const handle_id h : bought) places.push_back({homes_[h], homes_[h].base});
        if (head != 0) {
            const std::uint64_t at = windows_.at(w).end();
            s = windows_.show(w, have.head_of);
            if (s != status::ok) return s; // what was bought stays, as free memory
            places.push_back({homes_[have.head_of], at});
        } else {
            growing_[index(kind::large)] = *a;
        }
        return enter(w, std::move(places), n.bytes);
    }

    // ---- giving back ----

    /// Requires: all of it is free, and all work on it over. Returns: whether the device took it.
    bool give_back(handle_id id) {
        const home h = homes_[id];
        area& a = area_of(h);
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

    area& area_of(const home& h) noexcept {
        return *std::find_if(areas_.begin(), areas_.end(), [&](const area& a) {
            return a.window != none && h.base >= a.base && h.base - a.base < a.bytes;
        });
    }

    void drop_empty_windows() noexcept {
        for (std::uint32_t v = 0; v < views_.size(); ++v)
            if (views_[v] != none && blocks_.spans_in(v) == 0 && windows_.at(views_[v]).mapped == 0)
                forget_view(v);
        for (area& a : areas_) drop_if_empty(a);
        drop_retired();
    }

    /// Effects: an area that has no homes left, and is no view, goes; its window is retired.
    void drop_if_empty(area& a) noexcept {
        // A handle that the device did not take back still counts as one of its homes.
        if (a.window == none || windows_.at(a.window).homes != 0) return;
        if (std::find(views_.begin(), views_.end(), a.window) != views_.end()) return;
        for (const layout::block_id hole : a.holes) blocks_.fill(hole);
        if (a.bytes != 0) blocks_.remove(a.base);
        for (std::uint32_t& g : growing_)
            if (g != none && &areas_[g] == &a) g = none;
        const window_id w = a.window;
        a = area{};
        retire(w);
    }

    /// Effects: the view is not searched any more.
    void forget_view(std::uint32_t v) noexcept {
        const window_id w = std::exchange(views_[v], none);
        blocks_.remove_view(v);
        for (area& a : areas_)
            if (a.window == w) return drop_if_empty(a);
        retire(w);
    }

    /// Effects: a window that is neither an area nor a view goes as far as that is proven safe, the rest later.
    void retire(window_id w) noexcept {
        hide_settled(w);
        if (windows_.at(w).mapped == 0 && windows_.drop(w) == status::ok) return;
        retired_.push_back(w); // has room for all areas and views
    }

    void drop_retired() noexcept {
        for (window_id& w : retired_)
            if (windows_.at(w).mapped == 0 && windows_.drop(w) == status::ok) w = none;
        std::erase(retired_, none);
    }

    /// Effects: one more area and one more view can be retired, too. Throws: `std::bad_alloc`.
    void make_room_to_retire() { retired_.reserve(retired_.size() + areas_.size() + views_.size() + 2); }

    /// Requires: all work on what the window shows is over.
    void hide_all(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none) (void)windows_.hide(w, slot.handle);
    }

    void hide_settled(window_id w) noexcept {
        for (const auto& slot : windows_.at(w).slots)
            if (slot.handle != none && windows_.of(slot.handle).home != slot.address &&
                is_settled(homes_[slot.handle]))
                (void)windows_.hide(w, slot.handle);
    }

    /// Effects: there is room for one more view; the least recently used one goes if there are too many.
    void make_room_for_view() {
        std::size_t count = 0;
        std::uint32_t oldest = none;
        for (std::uint32_t v = 0; v < views_.size(); ++v) {
            if (views_[v] == none) continue;
            ++count;
            if (blocks_.spans_in(v) != 0) continue;
            if (oldest == none || blocks_.last_used(v) < blocks_.last_used(oldest)) oldest = v;
        }
        make_room_to_retire();
        // Retired views whose handles never fall free: in the end only waiting proves that nobody uses them.
        const bool waited =
            retired_.size() / most_retired >= options_.max_views && device_->synchronize() == status::ok;
        for (const window_id w : retired_) waited ? hide_all(w) : hide_settled(w);
        drop_retired();
        if (count >= options_.max_views && oldest != none) forget_view(oldest);
    }

    template <class F>
    void for_each_run(const area& a, F&& f) const {
        if (a.window == none) return;
        segment_range run;
        for (const auto& slot : windows_.at(a.window).slots) {
            if (slot.handle != none && homes_[slot.handle].base == slot.address) {
                if (run.size == 0) run.base = slot.address;
                run.size += slot.size;
            } else if (run.size != 0) {
                f(std::exchange(run, {}));
            }
        }
        if (run.size != 0) f(run);
    }

    /// Times `max_views`: retired views that may wait for a proof before the host waits instead.
    static constexpr std::size_t most_retired = 8;
    static constexpr std::size_t small_window = std::size_t{4} << 30;  ///< bytes of addresses
    static constexpr std::size_t large_window = std::size_t{64} << 30; ///< the same

    Device* device_;
    remap_options options_;
    std::size_t step_; ///< the device's granularity, bytes
    windows<Device> windows_;
    remap_blocks blocks_;
    std::vector<home> homes_; ///< by handle, for all that there are
    std::vector<area> areas_;
    std::array<std::uint32_t, 2> growing_{none, none}; ///< by kind: the area that grows
    std::vector<window_id> views_;                     ///< by the layout's number of the view
    std::vector<window_id> retired_; ///< areas and views that are gone but for mappings in use
    handle_list stuck_;              ///< nobody's, but the device did not take them
};

} // namespace tenure
