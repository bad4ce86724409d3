#pragma once

/// \file
/// Which segments of a `caching_pool` go back to the device, and when: garbage collection before growing, and
/// the steps after the device had no more memory. Only wholly free segments can go, and none that a capture
/// needs.
///
/// The device waits for its work before it takes memory back, so it does not matter whose a segment was. A
/// segment that the device refuses is kept, and tried again the next time.
///
/// Complexity: linear in the segments, and a driver call for each that goes. Thread-safety:
/// thread-compatible; all functions may throw `std::bad_alloc`, and have then given nothing back.

#include <tenure/policy/caching/heap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tenure::caching {

/// A segment that could go back. Bytes.
struct releasable {
    std::uint64_t base = 0;
    std::size_t size = 0;
    std::uint64_t freed_at = 0;
    bool small = false;
};

template <device Device>
std::vector<releasable> releasable_segments(const heap<Device>& h) {
    std::vector<releasable> all;
    h.for_each_releasable([&](const layout::range& r, const auto& s) {
        all.push_back({r.base, r.size, s.freed_at, s.small});
    });
    return all;
}

/// Returns: the bytes that `garbage_collection_threshold` is a fraction of: the least limit of the arena that this
/// device stands for and of those above it, or else what the device has. `no_limit` if the device does not say.
template <device Device>
std::size_t memory_limit(Device& d) noexcept {
    if constexpr (requires { d.limit(); }) {
        if (const std::size_t limit = d.limit(); limit != no_limit) return limit;
    } else {
        allocation_failure f;
        f.driver_status = status::over_limit; // asks who would refuse
        d.explain(f);
        if (f.max != no_limit) return f.max;
    }
    const result<device_memory, status> memory = d.memory();
    return memory ? memory->total : no_limit;
}

/// Effects: when more than `threshold * limit` bytes are reserved, large segments that have been free for at
/// least the average time go back, oldest rule first, until the excess is gone or nothing more can go. One
/// round takes all that are older than average, rather than just enough: collecting costs, and should not be
/// needed again at once. (PyTorch's rule.)
template <device Device>
void collect_garbage(heap<Device>& h, double threshold, std::size_t limit) {
    const std::size_t reserved = h.backing().bytes();
    const auto allowed = static_cast<std::size_t>(threshold * static_cast<double>(limit));
    if (limit == no_limit || reserved <= allowed) return;

    std::vector<releasable> left = releasable_segments(h);
    std::erase_if(left, [](const releasable& r) { return r.small; });
    const auto age = [&](const releasable& r) { return static_cast<double>(h.searches() - r.freed_at); };
    while (!left.empty() && h.backing().bytes() > allowed) {
        double total = 0;
        for (const releasable& r : left) total += age(r);
        const double average = total / static_cast<double>(left.size());
        const std::size_t before = h.backing().bytes();
        std::erase_if(left, [&](const releasable& r) {
            return age(r) >= average && h.give_back(r.base) == status::ok;
        });
        if (h.backing().bytes() == before) return; // the device refuses
    }
}

/// Effects: makes room for a block of `bytes` bytes by giving back blocks that `max_split` has kept whole:
/// the smallest of this lane that is large enough, or else its largest ones until their sum is. Returns:
/// whether there was enough. (PyTorch's rule.)
template <device Device>
bool release_oversize(heap<Device>& h, lane_id lane, std::size_t bytes, std::size_t max_split) {
    const layout::domain mine[] = {lane_table::domain_of(lane, false)};
    const std::size_t wanted = std::max(bytes, max_split);
    if (const auto one = h.blocks().find(wanted, layout::granule, mine)) {
        if (h.blocks().is_whole_range(one->id)) return h.give_back(one->offset) == status::ok;
        return false;
    }
    std::size_t released = 0;
    while (released < wanted) {
        const std::size_t largest = h.blocks().largest_free(mine);
        if (largest < max_split) return false;
        const auto next = h.blocks().find(largest, layout::granule, mine);
        if (!next || !h.blocks().is_whole_range(next->id) || h.give_back(next->offset) != status::ok)
            return false;
        released += largest;
    }
    return true;
}

/// Effects: segments go back, largest first, while more than `keep` bytes are reserved. Returns: bytes given
/// back.
template <device Device>
std::size_t release_until(heap<Device>& h, std::size_t keep) {
    const std::size_t before = h.backing().bytes();
    if (before <= keep) return 0;
    std::vector<releasable> all = releasable_segments(h);
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.size > b.size; });
    for (const releasable& r : all) {
        if (h.backing().bytes() <= keep) break;
        if (h.give_back(r.base) == status::capture_violation) break; // so would all others be
    }
    return before - h.backing().bytes();
}

/// Effects: gives back at least `bytes` bytes in as few driver calls as possible: the smallest segment that
/// is large enough, or else the largest ones. Returns: bytes given back.
template <device Device>
std::size_t release_enough(heap<Device>& h, std::size_t bytes) {
    const std::size_t before = h.backing().bytes();
    const std::vector<releasable> all = releasable_segments(h);
    const releasable* best = nullptr;
    for (const releasable& r : all)
        if (r.size >= bytes && (best == nullptr || r.size < best->size)) best = &r;
    if (best != nullptr && h.give_back(best->base) == status::ok) return before - h.backing().bytes();
    return release_until(h, bytes < before ? before - bytes : 0);
}

} // namespace tenure::caching
