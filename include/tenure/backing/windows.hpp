#pragma once

/// \file
/// `windows`: physical memory in handles, shown in disposable ranges of addresses.
///
///     handles     [h0 32 MiB] [h1 2 MiB] [h2 64 MiB]              bought from the device, each of one size for life
///     window A    | h0 | h1 | . . . reserved . . . |              slots, one handle each, without a gap
///     window B    | h0 | h2 |                                     the same bytes of h0 once more
///
/// A window is a reservation of addresses that is filled from its front. A handle is bought into one slot, its *home*,
/// and may be shown in any number of further slots, its *views*. Addresses cost nothing but a driver call of
/// microseconds; so windows are never rearranged, only filled, emptied slot by slot, and dropped.
///
/// Windows follow each other, as far as the device grants it, and one takes the place of one that went where it fits: what a
/// pool that prefers low addresses does is then the same on any device, and not a matter of where a driver happens to put
/// ranges. Where somebody else is in the way, windows go on behind him.
///
/// Invariants:
///   1. A slot shows a whole handle, readable and writable by the device, or nothing.
///   2. `bytes()` is the sum of the handles: what the device has given and not got back.
///   3. A handle goes back to the device after its last slot was emptied.
///   4. A failed call changes nothing, except that what the device refuses to take back stays: a mapping in its slot,
///      and a handle whose purchase failed for `take_refused`.
///
/// **Nothing here waits for work.** Whoever empties a slot has proof that all work on the handle is over.
///
/// Cost: each slot filled or emptied is a driver call or two (some 30 us to fill, 20 us to empty, whatever its size up
/// to 128 MiB, on an H200). Thread-safety: thread-compatible.

#include <tenure/core.hpp>
#include <tenure/device/vmm_device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tenure {

template <vmm_device Device>
class windows {
  public:
    using window_id = std::uint32_t;
    using handle_id = std::uint32_t;
    static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

    struct slot {
        handle_id handle = none; ///< none: nothing is mapped
        std::uint64_t address = 0;
        std::size_t size = 0; ///< bytes
    };

    struct window {
        std::uint64_t base = 0;
        std::size_t reserved = 0; ///< bytes of addresses; 0: the window was dropped
        std::size_t filled = 0;   ///< bytes from the front that slots take, emptied ones included
        std::size_t mapped = 0;   ///< number of slots that show something
        std::size_t homes = 0;    ///< number of them that are homes
        std::vector<slot> slots;  ///< in address order
        [[nodiscard]] std::size_t room() const noexcept { return reserved - filled; }
        [[nodiscard]] std::uint64_t end() const noexcept { return base + filled; }
    };

    struct handle {
        memory_handle memory = 0; ///< 0: the handle went back
        std::size_t size = 0;     ///< bytes
        std::uint64_t home = 0;
        window_id window = none; ///< where its home is
        std::vector<window_id> shown_in;
    };

    explicit windows(Device& device) noexcept : device_(&device) {}
    windows(const windows&) = delete;
    windows& operator=(const windows&) = delete;

    /// Gives everything back, once the host has waited for all work of the device. Memory that the device refuses
    /// twice is reported as misuse of kind `driver`, once, unless the driver is shutting down.
    ~windows() {
        if (handles_.size() == idle_handles_.size() && windows_.size() == idle_windows_.size()) return;
        status worst = device_->synchronize();
        // After an error that ends the context nothing runs any more: what can go back does.
        if (worst == status::failed || worst == status::shutting_down) worst = status::ok;
        const std::uint64_t first = windows_.empty() ? 0 : windows_.front().base;
        if (worst == status::ok) {
            for (handle_id h = 0; h < handles_.size(); ++h)
                if (handles_[h].memory != 0 && release(h) != status::ok) note(worst, release(h));
            for (window_id w = 0; w < windows_.size(); ++w)
                if (windows_[w].reserved != 0 && drop(w) != status::ok) note(worst, drop(w));
        }
        if (worst != status::ok && worst != status::shutting_down && worst != status::failed)
            report_misuse({.kind = misuse_kind::driver,
                           .pointer = to_pointer(first),
                           .bytes = bytes_,
                           .driver_status = worst});
    }

    /// Returns: a new, empty window of that many bytes, whose base is a multiple of `alignment` (a power of two) and of the
    /// device's granularity, or the device's answer. Throws: `std::bad_alloc`.
    result<window_id, status> open(std::size_t bytes, std::size_t alignment = 1) {
        if (idle_windows_.empty()) {
            idle_windows_.reserve(windows_.size() + 1);
            windows_.emplace_back();
            idle_windows_.push_back(static_cast<window_id>(windows_.size() - 1));
        }
        alignment = std::max(alignment, device_->allocation_granularity());
        const std::uint64_t wish = place_for(bytes, alignment);
        const result<void*, status> base = device_->reserve_address(bytes, alignment, wish);
        if (!base) return base.error();
        const window_id w = idle_windows_.back();
        idle_windows_.pop_back();
        windows_[w].base = to_address(*base);
        windows_[w].reserved = bytes;
        if (windows_[w].base > wish) // no wish, or somebody is there: go on behind what was given
            floor_ = windows_[w].base;
        else if (windows_[w].base < wish) // given below: not that place again
            floor_ = wish + bytes;
        return w;
    }

    /// Requires: nothing is mapped in w. Effects: its addresses go back. Returns: `ok`, or the device's answer.
    status drop(window_id w) noexcept {
        window& x = windows_[w];
        if (x.mapped != 0) return status::invalid_value;
        const status s = device_->free_address(to_pointer(x.base), x.reserved);
        if (s != status::ok) return s;
        x = window{};
        idle_windows_.push_back(w); // has room for all
        if (idle_windows_.size() == windows_.size()) floor_ = 0;
        return s;
    }

    /// Requires: w has room. Effects: buys a handle of `bytes` bytes, at home in w's next slot.
    /// Returns: it, or the device's answer; then `take_refused`. Throws: `std::bad_alloc`.
    result<handle_id, status> buy(window_id w, std::size_t bytes) {
        if (idle_handles_.empty()) {
            idle_handles_.reserve(handles_.size() + 1);
            handles_.emplace_back();
            idle_handles_.push_back(static_cast<handle_id>(handles_.size() - 1));
        }
        const handle_id h = idle_handles_.back();
        handles_[h].shown_in.reserve(1);
        windows_[w].slots.reserve(windows_[w].slots.size() + 1);
        const result<memory_handle, status> memory = device_->create_memory(bytes);
        if (!memory) return memory.error();
        handle& x = handles_[h];
        x.memory = *memory;
        x.size = bytes;
        x.home = windows_[w].end();
        x.window = w;
        const status s = fill(w, h);
        if (s != status::ok && x.shown_in.empty() && device_->release_memory(*memory) == status::ok) {
            x = handle{};
            return s;
        }
        ++windows_[w].homes;
        idle_handles_.pop_back();
        bytes_ += bytes;
        if (s == status::ok) return h;
        if (x.shown_in.empty()) append(w, none, bytes); // its home is nobody else's
        refused_ = h;
        return s;
    }

    /// Returns: the handle that the last `buy` could neither show nor give back, once; or `none`. It is only good for
    /// `release`.
    handle_id take_refused() noexcept { return std::exchange(refused_, none); }

    /// Requires: w has room. Effects: shows h in w's next slot, too. Returns: `ok`, or the device's answer.
    /// Throws: `std::bad_alloc`.
    status show(window_id w, handle_id h) {
        handles_[h].shown_in.reserve(handles_[h].shown_in.size() + 1);
        windows_[w].slots.reserve(windows_[w].slots.size() + 1);
        return fill(w, h);
    }

    /// Requires: all work on h is over. Effects: h is not shown in w any more. Requires: w is not its home.
    status hide(window_id w, handle_id h) noexcept {
        for (slot& s : windows_[w].slots) {
            if (s.handle != h) continue;
            if (const status failure = empty(w, s); failure != status::ok) return failure;
        }
        std::erase(handles_[h].shown_in, w);
        return status::ok;
    }

    /// Requires: all work on h is over. Effects: h is not shown any more, at home last, and goes back to the device.
    /// Returns: `ok`, or the device's answer; then it is kept, and asking again goes on from there.
    status release(handle_id h) noexcept {
        handle& x = handles_[h];
        while (!x.shown_in.empty())
            if (const status s = hide(x.shown_in.back(), h); s != status::ok) return s;
        if (const status s = device_->release_memory(x.memory); s != status::ok) return s;
        if (x.window != none && windows_[x.window].homes != 0) --windows_[x.window].homes;
        bytes_ -= x.size;
        x = handle{};
        idle_handles_.push_back(h); // has room for all
        return status::ok;
    }

    /// Effects: emptied slots at the end of w, behind its first `filled` bytes, can be filled again.
    void unfill(window_id w, std::size_t filled = 0) noexcept {
        window& x = windows_[w];
        while (x.filled > filled && x.slots.back().handle == none) {
            x.filled -= x.slots.back().size;
            x.slots.pop_back();
        }
    }

    /// Returns: whether the slot shows a handle at its home.
    [[nodiscard]] bool is_home(const slot& s) const noexcept {
        return s.handle != none && handles_[s.handle].home == s.address;
    }

    /// Returns: whether h is still shown at home. It is, unless a `release` failed half way.
    [[nodiscard]] bool is_at_home(handle_id h) const noexcept {
        const handle& x = handles_[h];
        return std::find(x.shown_in.begin(), x.shown_in.end(), x.window) != x.shown_in.end();
    }

    [[nodiscard]] const window& at(window_id w) const noexcept { return windows_[w]; }
    [[nodiscard]] const handle& of(handle_id h) const noexcept { return handles_[h]; }
    /// Ids below these may be in use: those whose `reserved`, or `memory`, is not 0.
    [[nodiscard]] window_id window_limit() const noexcept { return static_cast<window_id>(windows_.size()); }
    [[nodiscard]] handle_id handle_limit() const noexcept { return static_cast<handle_id>(handles_.size()); }

    /// Returns: bytes held from the device.
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
    /// Returns: number of handles.
    [[nodiscard]] std::size_t count() const noexcept { return handles_.size() - idle_handles_.size(); }

    /// Returns: whether something is mapped at `address`. Linear in the windows.
    [[nodiscard]] bool shows(std::uint64_t address) const noexcept {
        for (const window& w : windows_) {
            if (address < w.base || address - w.base >= w.filled) continue;
            for (const slot& s : w.slots)
                if (s.handle != none && address >= s.address && address - s.address < s.size) return true;
        }
        return false;
    }

    /// Returns: whether slots, handles and sums agree. Linear.
    [[nodiscard]] bool validate() const noexcept {
        std::size_t bytes = 0, count = 0;
        for (handle_id h = 0; h < handles_.size(); ++h) {
            const handle& x = handles_[h];
            if (x.memory == 0) continue;
            ++count;
            bytes += x.size;
            std::size_t homes = 0;
            for (const window_id w : x.shown_in)
                for (const slot& s : windows_[w].slots)
                    if (s.handle == h && is_home(s)) ++homes;
            if (homes > 1) return false;
        }
        if (bytes != bytes_ || count != this->count()) return false;
        for (const window& w : windows_) {
            std::uint64_t end = w.base;
            std::size_t mapped = 0;
            for (const slot& s : w.slots) {
                if (s.address != end) return false;
                end += s.size;
                if (s.handle == none) continue;
                ++mapped;
                if (s.handle >= handles_.size() || handles_[s.handle].size != s.size) return false;
            }
            if (end != w.end() || mapped != w.mapped || w.filled > w.reserved) return false;
        }
        return true;
    }

  private:
    /// Returns: the lowest address from `floor_` up at which no window of ours lies in the way; 0 where there is none yet.
    /// Complexity: quadratic in the windows at worst, of which there are some dozens; a driver's call follows.
    [[nodiscard]] std::uint64_t place_for(std::size_t bytes, std::size_t alignment) const noexcept {
        std::uint64_t at = round_up(floor_, alignment);
        for (bool moved = at != 0; moved;) {
            moved = false;
            for (const window& w : windows_) {
                if (w.reserved == 0 || at >= w.base + w.reserved || w.base >= at + bytes) continue;
                at = round_up(w.base + w.reserved, alignment);
                moved = true;
            }
        }
        return at;
    }

    static void note(status& worst, status s) noexcept {
        if (s != status::ok) worst = s;
    }

    /// Has room for the slot and for the window's name in the handle. A mapping that cannot be made accessible, nor taken
    /// away, is a slot all the same.
    status fill(window_id w, handle_id h) noexcept {
        window& x = windows_[w];
        void* const place = to_pointer(x.end());
        if (const status s = device_->map(place, handles_[h].memory); s != status::ok) return s;
        const status s = device_->set_access(place, handles_[h].size);
        if (s != status::ok && device_->unmap(place, handles_[h].size) == status::ok) return s;
        append(w, h, handles_[h].size);
        ++x.mapped;
        std::vector<window_id>& shown = handles_[h].shown_in;
        if (std::find(shown.begin(), shown.end(), w) == shown.end()) shown.push_back(w);
        return s;
    }

    /// Has room for the slot.
    void append(window_id w, handle_id h, std::size_t bytes) noexcept {
        window& x = windows_[w];
        x.slots.push_back({h, x.end(), bytes});
        x.filled += bytes;
    }

    status empty(window_id w, slot& s) noexcept {
        const status failure = device_->unmap(to_pointer(s.address), s.size);
        if (failure != status::ok) return failure;
        s.handle = none;
        --windows_[w].mapped;
        return status::ok;
    }

    Device* device_;
    own_lines_vector<window> windows_;
    own_lines_vector<window_id> idle_windows_;
    own_lines_vector<handle> handles_;
    own_lines_vector<handle_id> idle_handles_;
    handle_id refused_ = none;
    std::size_t bytes_ = 0;
    std::uint64_t floor_ = 0; ///< from here up windows are wished for; 0 where there is none yet
};

} // namespace tenure
