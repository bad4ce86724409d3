/// \file
/// Random programs over every layout, against the oracle of intervals. A new layout joins each list of types.

#include "support/catch.hpp"
#include "support/layout_oracle.hpp"
#include "support/layout_program.hpp"
#include "support/random.hpp"

#include <tenure/layout/best_fit.hpp>
#include <tenure/layout/bitmap.hpp>
#include <tenure/layout/buddy.hpp>
#include <tenure/layout/first_fit.hpp>
#include <tenure/layout/slab.hpp>

namespace tenure::test {
template <>
struct layout_traits<layout::best_fit> : exact_layout_traits {
    static constexpr bool best_fit = true;
};

template <>
struct layout_traits<layout::first_fit> : exact_layout_traits {
    static constexpr bool first_fit = true;
};

template <>
struct layout_traits<layout::buddy> : exact_layout_traits {
    static constexpr bool merges_fully = false;

    /// The base of the block's range is not known here, but a block of at least `a` bytes is aligned if and only if
    /// its base is.
    template <class L>
    static bool could_hold(const layout::block_view& block, std::size_t n, std::size_t a) {
        return L::rounded(n, a) <= block.size && is_aligned(block.offset, a);
    }
};

template <>
struct layout_traits<layout::slab> : exact_layout_traits {
    static constexpr bool merges_fully = false;
    static constexpr bool size_is_rounded = false;
    static constexpr bool largest_is_exact = false;
    static constexpr bool across_recolors_range = true;

    /// What a block can hold depends on the class that its range is bound to, which no view shows. The slab's
    /// own random programs know it.
    template <class L>
    static bool could_hold(const layout::block_view&, std::size_t, std::size_t) {
        return false;
    }
};
} // namespace tenure::test

using namespace tenure;

TEMPLATE_TEST_CASE("random programs in a wide space agree with the oracle", "[layout][model]", //
                   layout::best_fit, layout::first_fit, layout::bitmap, layout::buddy, layout::slab) {
    CAPTURE(test::seed());
    for (std::uint64_t round = 0; round < 4; ++round) {
        CAPTURE(round);
        test::layout_program<TestType>(test::seed() + round, test::wide_program()).run();
    }
}

TEMPLATE_TEST_CASE("random programs in a narrow space agree with the oracle", "[layout][model]", //
                   layout::best_fit, layout::first_fit, layout::bitmap, layout::buddy, layout::slab) {
    CAPTURE(test::seed());
    for (std::uint64_t round = 0; round < 4; ++round) {
        CAPTURE(round);
        test::layout_program<TestType>(test::seed() + round, test::narrow_program()).run();
    }
}

TEMPLATE_TEST_CASE("random programs with many blocks agree with the oracle", "[layout][model]", //
                   layout::best_fit, layout::first_fit, layout::bitmap, layout::buddy, layout::slab) {
    CAPTURE(test::seed());
    test::layout_program<TestType>(test::seed(), test::dense_program()).run();
}
