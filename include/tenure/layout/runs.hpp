#pragma once

/// \file
/// `smallest_run`: free neighbours of several domains that hold a request only together.
///
///     [ used | free d0 | free d2 | used | free d1 | free d0 | used ]      for domains {0, 2}
///            |<------ a run ---->|                |<- no run ->|
///
/// A *run* is two or more free neighbours in one range, all of domains asked for, as many as there are. Two
/// neighbours of one domain have merged, so every second block of a run, at least, is of another domain than the
/// one with the most blocks: it is enough to start from the blocks of all other domains.
///
/// Complexity: linear in the free blocks of the domains asked for, without the domain that has the most. Thread-safety: none
/// needed; reads only.

#include <tenure/core/bits.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/layout/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace tenure::layout {

/// `first` is `no_node` if there is none. Bytes.
struct block_run {
    node_index first = no_node;
    address begin = 0;
    std::size_t size = 0;
};

/// Returns: the smallest run that holds `bytes` at alignment a, the lowest among equals.
///
/// `Blocks` shows a layout's nodes: `neighbours(n)` has `previous`, `next`, `free`, `color`; `offset(n)` and `size(n)` are
/// bytes; `count(d)` the number of free blocks of a domain, and `for_each_free(d, f)` calls f(n) for each.
template <class Blocks>
[[nodiscard]] block_run smallest_run(const Blocks& blocks, std::size_t bytes, std::size_t a,
                                     std::span<const domain> domains) {
    block_run best;
    const auto most = std::max_element(domains.begin(), domains.end(),
                                       [&](domain x, domain y) { return blocks.count(x) < blocks.count(y); });
    if (most == domains.end()) return best;
    const auto is_usable = [&](node_index n) {
        return n != no_node && blocks.neighbours(n).free && is_in(blocks.neighbours(n).color, domains);
    };
    const auto look_at = [&](node_index n) {
        node_index first = n;
        if (const node_index p = blocks.neighbours(n).previous; is_usable(p)) {
            // The run is met once more from each block before this one that is not of the largest domain.
            if (blocks.neighbours(p).color != *most || is_usable(blocks.neighbours(p).previous)) return;
            first = p;
        }
        block_run run{first, blocks.offset(first), 0};
        std::size_t number = 0;
        for (node_index i = first; is_usable(i); i = blocks.neighbours(i).next, ++number)
            run.size += blocks.size(i);
        const std::size_t skipped = round_up(run.begin, a) - run.begin;
        if (number < 2 || skipped >= run.size || bytes > run.size - skipped) return;
        const bool better = run.size != best.size ? run.size < best.size : run.begin < best.begin;
        if (best.first == no_node || better) best = run;
    };
    for (const domain d : domains)
        if (d != *most) blocks.for_each_free(d, look_at);
    return best;
}

} // namespace tenure::layout
