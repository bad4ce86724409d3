#pragma once

/// \file
/// Random programs over a layout, checked against `layout_oracle` and `validate()` after every step.

#include "support/catch.hpp"
#include "support/layout_oracle.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tenure::test {

/// Bytes, unless the name says otherwise.
struct program_options {
    std::size_t steps = 1500;
    layout::address space = layout::address{1} << 44;
    std::size_t largest_range = std::size_t{1} << 40;
    std::size_t largest_request = std::size_t{1} << 35;
    std::size_t largest_alignment = std::size_t{1} << 22;
    std::size_t ranges = 10;       ///< at most so many at a time
    std::size_t live_blocks = 150; ///< frees outnumber allocations beyond it
    unsigned domains = 4;
};

template <class L>
class layout_program {
  public:
    layout_program(std::uint64_t seed, program_options options) : rng_(seed), options_(options) {}

    /// Effects: runs the program; fails the running test case at the first step after which anything differs.
    void run() {
        for (std::size_t step = 0; step < options_.steps; ++step) {
            CAPTURE(step);
            act();
            check();
        }
        drain();
    }

  private:
    using traits = layout_traits<L>;
    struct live_block {
        layout::block_id id;
        layout::address offset;
    };

    void check() {
        REQUIRE(layout_.validate());
        REQUIRE(oracle_.see(layout_) == "");
    }

    void act() {
        const std::uint64_t dice = below(rng_, 100);
        const unsigned allocations = live_.size() < options_.live_blocks ? 50 : 25;
        if (dice < allocations) return allocate();
        if (dice < 80) return deallocate();
        if (dice < 84) return recolor();
        if (dice < 90) return allocate_across();
        if (dice < 95) return add();
        return remove();
    }

    layout::domain any_domain() { return static_cast<layout::domain>(below(rng_, options_.domains)); }

    /// A random selection in random order; it may be empty.
    std::vector<layout::domain> any_domains() {
        std::vector<layout::domain> all;
        for (unsigned d = 0; d < options_.domains; ++d)
            if (chance(rng_, 60)) all.push_back(static_cast<layout::domain>(d));
        std::shuffle(all.begin(), all.end(), rng_);
        return all;
    }

    void allocate() {
        const std::size_t n = log_uniform(rng_, 1, options_.largest_request);
        const std::size_t a =
            chance(rng_, 70) ? std::size_t{256} : log_uniform_power(options_.largest_alignment);
        const std::vector<layout::domain> domains = any_domains();
        CAPTURE(n, a, domains);
        if (allocate_one(n, a, domains) || domains.empty() || !chance(rng_, 30)) return;

        const layout::range_request want = L::range_for(n, a, chance(rng_, 50) ? 0 : std::size_t{1} << 21);
        REQUIRE(is_aligned(want.size, layout::granule));
        REQUIRE(want.size >= L::rounded(n, a));
        for (int attempt = 0; attempt < 8; ++attempt) {
            const layout::range r{
                round_down(below(rng_, options_.space), std::max(want.alignment, layout::granule)),
                want.size};
            if (!oracle_.is_vacant(r.base, r.size, options_.space)) continue;
            add_range(r, domains.front());
            REQUIRE(allocate_one(n, a, domains));
            return;
        }
    }

    bool allocate_one(std::size_t n, std::size_t a, const std::vector<layout::domain>& domains) {
        bool could = false;
        layout_.for_each_block([&](const layout::block_view& b) {
            could |= b.free && std::find(domains.begin(), domains.end(), b.color) != domains.end() &&
                     traits::template could_hold<L>(b, n, a);
        });
        const auto expected = oracle_.exact_fit<L>(n, a, domains);
        const layout::block_id id = layout_.allocate(n, a, domains);
        if (id == layout::no_block) {
            REQUIRE_FALSE(could);
            return false;
        }
        const layout::address offset = layout_.offset(id);
        const std::size_t size = layout_.size(id);
        CAPTURE(id, offset, size);
        REQUIRE(is_aligned(offset, std::max(a, layout::granule)));
        REQUIRE(size >= L::rounded(n, a));
        if (traits::size_is_rounded) REQUIRE(size == L::rounded(n, a));
        REQUIRE(size >= n);
        if (traits::best_fit || traits::first_fit) REQUIRE(expected == offset);
        REQUIRE(oracle_.allocated(id, offset, size, domains) == "");
        live_.push_back({id, offset});
        return true;
    }

    void deallocate() {
        if (live_.empty()) return;
        std::swap(live_[below(rng_, live_.size())], live_.back());
        const live_block b = live_.back();
        live_.pop_back();
        const layout::domain d = any_domain();
        CAPTURE(b.id, b.offset, d);
        layout_.deallocate(b.id, d);
        oracle_.freed(b.offset, d);
        check();
    }

    void recolor() {
        const layout::domain from = any_domain(), to = any_domain();
        CAPTURE(from, to);
        layout_.recolor(from, to);
        oracle_.recolor(from, to);
        check();
    }

    void allocate_across() {
        const std::size_t n = log_uniform(rng_, 1, options_.largest_request);
        const std::size_t a =
            chance(rng_, 70) ? std::size_t{256} : log_uniform_power(options_.largest_alignment);
        const std::vector<layout::domain> domains = any_domains();
        const layout::domain rest = any_domain();
        CAPTURE(n, a, domains, rest);
        const auto expected = oracle_.smallest_run<L>(n, a, domains);
        const layout::block_id id = layout_.allocate_across(n, a, domains, rest);
        if constexpr (traits::merges_fully) REQUIRE((id != layout::no_block) == expected.has_value());
        if (id == layout::no_block) return;
        const layout::address offset = layout_.offset(id);
        const std::size_t size = layout_.size(id);
        CAPTURE(id, offset, size);
        REQUIRE(is_aligned(offset, std::max(a, layout::granule)));
        REQUIRE(size >= L::rounded(n, a));
        if constexpr (traits::size_is_rounded) REQUIRE(size == L::rounded(n, a));
        if constexpr (traits::merges_fully) REQUIRE(*expected == offset);
        REQUIRE(oracle_.allocated_across(id, offset, size, domains) == "");
        if constexpr (traits::across_recolors_range) oracle_.recolor_range(offset, rest);
        live_.push_back({id, offset});
        check();
    }

    void add() {
        if (oracle_.ranges().size() >= options_.ranges) return;
        layout::range r{0, round_up(log_uniform(rng_, 1, options_.largest_range), layout::granule)};
        if (!oracle_.ranges().empty() && chance(rng_, 50)) { // right behind another: these may not merge
            auto neighbour = oracle_.ranges().begin();
            std::advance(neighbour, static_cast<std::ptrdiff_t>(below(rng_, oracle_.ranges().size())));
            r.base = neighbour->first + neighbour->second;
        } else {
            r.base = round_down(below(rng_, options_.space), log_uniform_power(std::size_t{1} << 22));
        }
        r.base = round_down(r.base, layout::granule);
        if (oracle_.is_vacant(r.base, r.size, options_.space)) add_range(r, any_domain());
    }

    void add_range(layout::range r, layout::domain d) {
        CAPTURE(r.base, r.size, d);
        layout_.add(r, d);
        oracle_.add(r, d);
        check();
    }

    void remove() {
        layout::address base = below(rng_, options_.space);
        if (!oracle_.ranges().empty() && chance(rng_, 90)) {
            auto r = oracle_.ranges().begin();
            std::advance(r, static_cast<std::ptrdiff_t>(below(rng_, oracle_.ranges().size())));
            base = r->first + (chance(rng_, 5) ? layout::granule : 0);
        }
        CAPTURE(base);
        const bool whole = oracle_.is_wholly_free(base);
        REQUIRE(layout_.remove(base) == whole);
        if (whole) oracle_.remove(base);
    }

    /// Frees and removes everything: nothing may be left.
    void drain() {
        while (!live_.empty()) deallocate();
        while (!oracle_.ranges().empty()) {
            const layout::address base = oracle_.ranges().begin()->first;
            REQUIRE(layout_.remove(base));
            oracle_.remove(base);
            check();
        }
        REQUIRE(layout_.total_bytes() == 0);
    }

    std::size_t log_uniform_power(std::size_t most) {
        return std::size_t{1} << below(rng_, log2_floor(most) + 1);
    }

    std::mt19937_64 rng_;
    program_options options_;
    L layout_;
    layout_oracle oracle_;
    std::vector<live_block> live_;
};

/// A space so large that blocks of more than 4 GiB come and go; mostly far apart.
inline program_options wide_program() {
    return {};
}

/// A space so small that neighbours meet all the time.
inline program_options narrow_program() {
    return {.space = layout::address{1} << 20,
            .largest_range = std::size_t{1} << 19,
            .largest_request = std::size_t{1} << 15,
            .largest_alignment = std::size_t{1} << 14,
            .ranges = 6,
            .live_blocks = 60,
            .domains = 3};
}

/// One domain for nearly everything and many blocks in it: what a domain has an index for.
inline program_options dense_program() {
    return {.steps = 2500,
            .space = layout::address{1} << 23,
            .largest_range = std::size_t{1} << 22,
            .largest_request = std::size_t{1} << 13,
            .largest_alignment = std::size_t{1} << 12,
            .ranges = 4,
            .live_blocks = 500,
            .domains = 2};
}

} // namespace tenure::test
