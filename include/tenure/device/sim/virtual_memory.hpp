#pragma once

/// \file
/// `sim::virtual_memory`: reservations, physical memory, and the mappings that join them.
///
/// Physical memory gets numbers of its own from 2^48 up, above all addresses and never used twice, so that
/// two addresses that show the same bytes can be told to do so.
///
///   1. Mappings are disjoint, lie inside one reservation each, and show whole handles.
///   2. Memory counts against the device from `create` until its handle is released *and* nothing shows it.
///
/// Complexity: logarithmic, plus the mappings touched. Thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/sim/address_space.hpp>
#include <tenure/device/sim/interval_map.hpp>
#include <tenure/device/sim/memory_budget.hpp>
#include <tenure/device/vmm_device.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tenure::sim {

class virtual_memory {
  public:
    /// `addresses`: the part of the address space from which reservations come.
    virtual_memory(memory_budget& budget, extent addresses, std::size_t granularity)
        : budget_(budget), space_(addresses.begin, addresses.end), granularity_(granularity) {}

    result<void*, status> reserve(std::size_t n, std::size_t alignment, std::uint64_t near) {
        if (alignment == 0) alignment = granularity_;
        if (!whole(n) || !is_power_of_two(alignment)) return status::invalid_value;
        if (alignment < granularity_) alignment = granularity_;
        auto base = is_aligned(near, alignment) ? space_.take_at(near, n) : std::nullopt;
        if (!base) base = space_.take(n, alignment);
        if (!base) return status::out_of_memory;
        reservations_.emplace(*base, n);
        return to_pointer(*base);
    }

    status free(std::uint64_t base, std::size_t n) {
        const auto it = reservations_.find(base);
        if (it == reservations_.end() || it->second != n || overlaps_mapping({base, base + n}))
            return status::invalid_value;
        space_.give_back(base, n);
        reservations_.erase(it);
        return status::ok;
    }

    result<memory_handle, status> create(std::size_t n) {
        if (!whole(n)) return status::invalid_value;
        if (n > no_limit - next_physical_ || !budget_.take(n)) return status::out_of_memory;
        const memory_handle handle = ++last_handle_;
        memory_[handle] = {next_physical_, n, 0, false};
        next_physical_ += n;
        return handle;
    }

    /// Effects: adds the physical bytes that went back to the device to `gone`.
    status release(memory_handle handle, std::vector<extent>& gone) {
        const auto it = memory_.find(handle);
        if (it == memory_.end() || it->second.released) return status::invalid_value;
        it->second.released = true;
        drop_if_unused(it, gone);
        return status::ok;
    }

    status map(std::uint64_t address, memory_handle handle) {
        const auto it = memory_.find(handle);
        if (it == memory_.end() || it->second.released) return status::invalid_value;
        const std::size_t n = it->second.size;
        if (!is_aligned(address, granularity_) || !inside_reservation(address, n) ||
            overlaps_mapping({address, address + n}))
            return status::invalid_value;
        mappings_[address] = {n, handle, false};
        ++it->second.mappings;
        return status::ok;
    }

    status set_access(std::uint64_t address, std::size_t n) {
        if (!whole_mappings(address, n)) return status::invalid_value;
        for (auto it = mappings_.find(address); it != mappings_.end() && it->first < address + n; ++it)
            it->second.access = true;
        return status::ok;
    }

    /// Returns: whether [address, address + n) is exactly one or more mappings without a gap.
    [[nodiscard]] bool whole_mappings(std::uint64_t address, std::size_t n) const {
        if (n == 0 || address + n < address) return false;
        std::uint64_t at = address;
        for (auto it = mappings_.find(address); it != mappings_.end() && it->first == at && at < address + n;
             ++it)
            at += it->second.size;
        return at == address + n;
    }

    /// Requires: `whole_mappings(address, n)`. Effects: adds the physical bytes that went back to the device
    /// to `gone`.
    void unmap(std::uint64_t address, std::size_t n, std::vector<extent>& gone) {
        auto it = mappings_.find(address);
        while (it != mappings_.end() && it->first < address + n) {
            const auto shown = memory_.find(it->second.handle);
            --shown->second.mappings;
            it = mappings_.erase(it);
            drop_if_unused(shown, gone);
        }
    }

    /// Returns: bytes; 0 for a handle that names nothing.
    [[nodiscard]] std::size_t size_of(memory_handle handle) const {
        const auto it = memory_.find(handle);
        return it == memory_.end() ? 0 : it->second.size;
    }

    /// Effects: f(bytes) for each handle mapped in [address, address + n).
    template <class F>
    void for_each_handle(std::uint64_t address, std::size_t n, F&& f) const {
        for (auto it = mappings_.lower_bound(address); it != mappings_.end() && it->first - address < n; ++it)
            f(it->second.size);
    }

    /// Returns: the physical bytes behind `e`, if all of it is mapped and accessible.
    [[nodiscard]] std::optional<std::vector<extent>> translate(extent e) const {
        std::vector<extent> physical;
        auto it = mappings_.upper_bound(e.begin);
        if (it == mappings_.begin()) return std::nullopt;
        --it;
        for (std::uint64_t at = e.begin; at < e.end; ++it) {
            if (it == mappings_.end() || it->first > at) return std::nullopt;
            const std::uint64_t end = it->first + it->second.size;
            if (end <= at || !it->second.access) return std::nullopt;
            const std::uint64_t base = memory_.at(it->second.handle).base;
            physical.push_back({base + (at - it->first), base + ((end < e.end ? end : e.end) - it->first)});
            at = end;
        }
        return physical;
    }

  private:
    struct piece {
        std::uint64_t base = 0;
        std::size_t size = 0;
        std::size_t mappings = 0;
        bool released = false;
    };
    struct mapping {
        std::size_t size = 0;
        memory_handle handle = 0;
        bool access = false;
    };
    using memory_map = std::unordered_map<memory_handle, piece>;

    [[nodiscard]] bool whole(std::size_t n) const noexcept { return n != 0 && is_aligned(n, granularity_); }

    [[nodiscard]] bool inside_reservation(std::uint64_t address, std::size_t n) const {
        auto it = reservations_.upper_bound(address);
        if (it == reservations_.begin()) return false;
        --it;
        return address - it->first <= it->second && n <= it->second - (address - it->first);
    }

    [[nodiscard]] bool overlaps_mapping(extent e) const {
        const auto it = mappings_.lower_bound(e.begin);
        if (it != mappings_.end() && it->first < e.end) return true;
        return it != mappings_.begin() && std::prev(it)->first + std::prev(it)->second.size > e.begin;
    }

    void drop_if_unused(memory_map::iterator it, std::vector<extent>& gone) {
        const piece& m = it->second;
        if (!m.released || m.mappings != 0) return;
        gone.push_back({m.base, m.base + m.size});
        budget_.give_back(m.size);
        memory_.erase(it);
    }

    memory_budget& budget_;
    address_space space_;
    std::size_t granularity_;
    std::map<std::uint64_t, std::size_t> reservations_; // base to size
    std::map<std::uint64_t, mapping> mappings_;         // by address
    memory_map memory_;
    memory_handle last_handle_ = 0;
    std::uint64_t next_physical_ = std::uint64_t{1} << 48;
};

} // namespace tenure::sim
