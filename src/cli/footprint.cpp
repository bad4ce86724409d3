#include "footprint.hpp"

#include <algorithm>

namespace tenure::cli {

void memory_picture::add(const memory_snapshot& pool) {
    const auto state_of = [](block_state s) {
        switch (s) {
        case block_state::free: return state::free;
        case block_state::allocated: return state::live;
        case block_state::pending:
        case block_state::captured: return state::waiting;
        }
        return state::free;
    };
    for (const segment_snapshot& segment : pool.segments) {
        boundaries.push_back(runs.size());
        for (const block_snapshot& b : segment.blocks) {
            const state now = state_of(b.state);
            if (now == state::live) {
                live += b.size;
                rounding += b.size - std::min(b.size, b.requested);
            } else if (now == state::free) {
                free += b.size;
            } else {
                waiting += b.size;
            }
            if (runs.size() > boundaries.back() && runs.back().what == now)
                runs.back().bytes += b.size;
            else
                runs.push_back({b.address, b.size, now});
        }
    }
}

void memory_picture::finish(std::uint64_t reserved) {
    const std::uint64_t shown = live + free + waiting;
    unplaced = reserved - std::min(reserved, shown);
    for (const run& r : runs) {
        if (r.what != state::free) continue;
        ++free_pieces;
        largest_free = std::max(largest_free, r.bytes);
    }
}

void footprint_recorder::add(std::uint64_t event, std::uint64_t t_us, std::uint64_t live,
                             std::uint64_t reserved) {
    if (seen_.spans.empty() || event / width_ != seen_.spans.back().event / width_)
        seen_.spans.push_back({event, t_us, live, live, reserved, reserved});
    footprint::span& s = seen_.spans.back();
    s.live_low = std::min(s.live_low, live);
    s.live_high = std::max(s.live_high, live);
    s.reserved_low = std::min(s.reserved_low, reserved);
    s.reserved_high = std::max(s.reserved_high, reserved);
    most_reserved_ = std::max(most_reserved_, reserved);
    const auto near_the_most = [&](std::uint64_t bytes) {
        return most_reserved_ - bytes <= most_reserved_ / 100;
    };
    const bool outgrown = !near_the_most(seen_.peak_reserved); // only by this event: it reserves the most
    const bool better = near_the_most(reserved) && live > seen_.peak_live;
    if (event != 0 && !outgrown && !better) return;
    seen_.peak_event = event;
    seen_.peak_reserved = reserved;
    seen_.peak_live = live;
}

} // namespace tenure::cli
