#pragma once

/// \file
/// `remap_stock<Device>`: how a `remap_pool` gets memory, and in which order it prefers to.
///
/// A request that no home and no view holds is met by the first of these that works:
///
///   1. buy what is missing, while the pool stays within its slack over the most that was ever used at once
///   2. show free memory in a view, a new one or the end of one that there is, where fewest handles must be shown: the
///      free end of a handle, whole free handles, the free beginning of one; fragments as large as a handle at least
///   3. buy the rest and show it behind free memory, where that saves enough for the driver's time it costs
///   4. buy what is missing; if the device refuses, buy the least that all free memory together leaves missing, smaller
///      fragments included
///
/// "What is missing" is the request less what is free at the end of the newest home: a new handle is put right behind
/// it, and merges. So a pool that only grows buys what it uses.
///
/// Before 3 the pool may wait a while for what other streams have freed (`patience_us`) and come again with 1.
///
/// Nothing is unmapped to serve a request: a view is one more place where memory is shown, and the stream that uses
/// memory there is the one that may use it at home. Only giving back, and the removal of views that nobody has used
/// for long, unmap; both only what is wholly free and *settled*, that is, what the host has seen all work on pass.
/// (Should handles under removed views never fall free, the host waits for the device once in a thousand views.)
///
/// Four parts: `windows` makes the driver's calls, `remap_blocks` knows where bytes are free, `remap_homes` buys and gives
/// back, `remap_views` shows. Here is decided which of them meets a request.
///
/// Invariants: those of the four parts.
///
/// Complexity: linear in the handles and the free blocks, and driver calls. Thread-safety: thread-compatible.

#include <tenure/backing/windows.hpp>
#include <tenure/core.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/policy/range_stock.hpp>
#include <tenure/policy/remap/blocks.hpp>
#include <tenure/policy/remap/homes.hpp>
#include <tenure/policy/remap/options.hpp>
#include <tenure/policy/remap/supply.hpp>
#include <tenure/policy/remap/views.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
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
        : device_(&device)
        , options_(options)
        , step_(device.allocation_granularity())
        , windows_(device)
        , homes_(device, options_, windows_, blocks_)
        , views_(device, options_, windows_, blocks_, homes_) {
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
        if (options.patience_us > most_patience_us)
            throw std::invalid_argument("remap_options: patience_us is more than a minute");
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
            stock_->homes_.for_each_run(f);
        }

      private:
        const remap_stock* stock_;
    };
    [[nodiscard]] backing_view backing() const noexcept { return backing_view(*this); }

    /// Returns: the longest that a pool should wait before it asks for more than `within_slack`.
    [[nodiscard]] std::chrono::microseconds patience() const noexcept {
        return std::chrono::microseconds(options_.patience_us);
    }

    /// Effects: the request finds memory now. Returns: `ok`, or the device's answer; `not_supported` if only what is beyond the
    /// slack would do, and is not wanted. Throws: `std::bad_alloc`.
    status grow(const stock_request& q, stock_amount how_much) {
        const remap_demand n{remap_blocks::rounded(q.bytes, q.alignment), q.alignment};
        if (n.bytes > max_block_bytes) return status::out_of_memory;
        const kind k = remap_blocks::kind_of(n.bytes);
        views_.make_room();
        const purchase missing = homes_.missing(n, k, q.usable);
        const auto buy = [&] { return homes_.buy(k, missing, n.alignment, q.color); };
        status s = status::not_supported;
        if (how_much != stock_amount::least && is_within_slack(n.bytes, missing.bytes))
            if ((s = buy()) == status::ok) return s;
        if (k == kind::small) {
            const bool may_buy = s == status::not_supported && how_much != stock_amount::within_slack;
            return may_buy ? buy() : s;
        }
        const remap_supply have = supply(options_.least_handle_bytes, n.alignment, q.usable);
        if (show(have, n, q.usable) == status::ok) return status::ok;
        if (how_much == stock_amount::within_slack) return s;
        if (how_much == stock_amount::preferred) {
            if (join(have, n, missing.bytes, q.color, options_.worth_showing_bytes) == status::ok)
                return status::ok;
            if (s == status::not_supported && (s = buy()) == status::ok) return s;
        }
        const remap_supply all = supply(step_, n.alignment, q.usable);
        if (show(all, n, q.usable) == status::ok) return status::ok;
        const status least = join(all, n, missing.bytes, q.color, 0);
        if (least != status::not_supported) return least;
        return s == status::not_supported ? buy() : s;
    }

    /// Returns: whether the request could be met if all that is free were settled, after the answer `s`.
    [[nodiscard]] bool could_grow(std::size_t bytes, std::size_t alignment, status s) const {
        const remap_demand n{remap_blocks::rounded(bytes, alignment), alignment};
        const kind k = remap_blocks::kind_of(n.bytes);
        allocation_failure limit;
        limit.driver_status = s;
        device_->explain(limit);
        const std::size_t room = limit.max - std::min(limit.max, limit.used);
        if (homes_.in_steps(k, homes_.missing(n, k).bytes) <= room) return true;
        if (k == kind::small) return false;
        const std::size_t shown = supply(step_, n.alignment).bytes();
        return round_up(n.bytes - std::min(n.bytes, shown), step_) <= room;
    }

    /// Returns: whether neighbouring free blocks of any domains are together as large as `rounded` bytes at this alignment.
    [[nodiscard]] bool fit_together(std::size_t rounded, std::size_t alignment) const {
        if (blocks_.free_bytes() < rounded) return false;
        bool found = false;
        std::uint64_t begin = 0, end = 0;
        const kind k = remap_blocks::kind_of(rounded);
        blocks_.for_each_block([&](const layout::block_view& b) {
            if (k == kind::large && remap_blocks::kind_at(b.id) == kind::small) return;
            if (b.offset != end) begin = b.offset;
            end = b.offset + b.size;
            if (!b.free)
                begin = end;
            else
                found = found || round_up(begin, alignment) + rounded <= end;
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
        homes_.offer_stuck();
        std::vector<std::pair<std::size_t, handle_id>> free;
        homes_.for_each([&](handle_id id, const home& h) {
            if (homes_.is_free(h)) free.emplace_back(h.size, id);
        });
        std::sort(free.begin(), free.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        bool waited = false;
        for (const auto& [size, id] : free) {
            if (windows_.bytes() <= bytes_to_keep) break;
            if (!waited && !homes_.is_settled(homes_[id])) {
                waited = device_->synchronize() == status::ok;
                if (!waited) continue;
            }
            if (!homes_.give_back(id)) break;
        }
        views_.drop_empty();
        return {before - windows_.bytes(), waited};
    }

    /// Returns: whether there are more views than should be, and what they show is not known to be out of use.
    [[nodiscard]] bool wants_proof() const noexcept { return views_.wants_proof(); }

    [[nodiscard]] bool validate() const noexcept {
        return windows_.validate() && homes_.validate() && blocks_.validate();
    }

  private:
    using kind = remap_blocks::kind;
    using home = remap_blocks::home;
    using place = remap_blocks::place;
    using purchase = typename remap_homes<Device>::purchase;
    using window_id = typename windows<Device>::window_id;
    using handle_id = typename windows<Device>::handle_id;
    using handle_list = std::vector<handle_id>;

    [[nodiscard]] bool is_within_slack(std::size_t n, std::size_t missing) const noexcept {
        if (options_.slack_divisor == 0) return false;
        const std::size_t peak = std::max(blocks_.peak_bytes(), blocks_.used_bytes() + n);
        return windows_.bytes() + missing <= peak + peak / options_.slack_divisor;
    }

    template <class... Usable>
    [[nodiscard]] remap_supply supply(std::size_t least_fragment, std::size_t alignment,
                                      Usable... usable) const {
        remap_supply s = remap_supply::of([this](auto f) { homes_.for_each(f); }, blocks_, least_fragment,
                                          alignment, usable...);
        s.in_order = options_.show_in_order;
        return s;
    }

    /// Effects: shows free memory so that the request fits, in a new view or behind what an old one shows.
    /// Returns: `ok`, the device's answer, or `not_supported` if there is not so much.
    status show(const remap_supply& have, const remap_demand& n, remap_blocks::domain_span usable) {
        const std::optional<handle_list> handles = have.assemble(n.bytes);
        // A new view costs an address range, too.
        const std::size_t most = handles ? handles->size() + 1 : std::numeric_limits<std::size_t>::max();
        if (const auto x = views_.longer(have, n, usable, most))
            if (const status s = views_.extend(*x); s == status::ok) return s;
        return handles ? views_.show(*handles, n) : status::not_supported;
    }

    /// Effects: buys the least that free memory leaves missing, right behind that memory in a new window.
    /// Returns: `ok`, the device's answer, or `not_supported` if a handle shown saves less than `worth` bytes.
    status join(const remap_supply& have, const remap_demand& n, std::size_t missing, layout::domain color,
                std::size_t worth) {
        handle_list before;
        std::size_t got = 0;
        const auto use = [&](handle_id h, std::size_t bytes) {
            before.push_back(h);
            got += bytes;
        };
        const std::size_t head = have.head >= worth ? have.head : 0;
        if (have.tail != 0 && have.tail >= worth) use(have.tail_of, have.tail);
        for (const auto& [size, h] : have.whole)
            if (size >= worth) use(h, size);
        const std::size_t shown = before.size() + (head != 0 ? 1 : 0);
        if (shown == 0 || got + head >= n.bytes) return status::not_supported; // nothing to join, or to buy
        const std::size_t rest = round_up(n.bytes - got - head, step_);
        if (missing <= rest || missing - rest < worth * shown) return status::not_supported;

        std::size_t bytes = rest;
        for (const handle_id h : before) bytes += homes_[h].size;
        if (head != 0) bytes += homes_[have.head_of].size;
        // If nothing is shown behind what is bought, later homes follow there.
        const result<std::uint32_t, status> a = homes_.open(
            kind::large, head != 0 ? bytes : std::max(join_window, 2 * bytes), bytes, n.alignment);
        if (!a) return a.error();
        const window_id w = homes_.window_of(*a);
        std::vector<place> places;
        handle_list bought;
        status s = status::ok;
        try {
            s = views_.fill(w, before, places);
            if (s == status::ok) s = homes_.buy_into(*a, rest, color, &bought);
            places.reserve(places.size() + bought.size() + 1);
        } catch (...) {
            views_.abandon(w);
            throw;
        }
        if (s != status::ok) {
            views_.abandon(w);
            return s;
        }
        for (const handle_id h : bought) places.push_back({homes_[h], homes_[h].base});
        if (head != 0) {
            s = views_.fill(w, {have.head_of}, places);
            if (s != status::ok) return s; // what was bought stays, as free memory
        } else {
            homes_.grow_in(*a);
        }
        return views_.enter(w, std::move(places), n.bytes);
    }

    static constexpr std::size_t most_patience_us = 60'000'000;
    static constexpr std::size_t join_window = std::size_t{64} << 30; ///< bytes of addresses

    Device* device_;
    remap_options options_;
    std::size_t step_; ///< the device's granularity, bytes
    windows<Device> windows_;
    remap_blocks blocks_;
    remap_homes<Device> homes_;
    remap_views<Device> views_;
};

} // namespace tenure
