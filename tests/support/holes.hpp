#pragma once

/// \file
/// `with_holes`: a layout whose free blocks have chosen sizes.

#include <tenure/layout/layout.hpp>

#include <array>
#include <cstddef>
#include <vector>

namespace tenure::test {

/// A range from `base` on whose holes have the given sizes, each between two used granules; hole i in domain
/// i % domains.
template <class Layout>
Layout with_holes(layout::address base, const std::vector<std::size_t>& holes, unsigned domains = 1) {
    constexpr std::array<layout::domain, 1> d0{0};
    Layout l;
    std::size_t total = layout::granule;
    for (const std::size_t h : holes) total += h + layout::granule;
    l.add({base, total}, 0);
    std::vector<layout::block_id> blocks;
    (void)l.allocate(layout::granule, 1, d0);
    for (const std::size_t h : holes) {
        blocks.push_back(l.allocate(h, 1, d0));
        (void)l.allocate(layout::granule, 1, d0);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i)
        l.deallocate(blocks[i], static_cast<layout::domain>(i % domains));
    return l;
}

} // namespace tenure::test
