#pragma once

/// \file
/// The policies that every suite of the contract runs over, one line each in `TENURE_POLICIES`:
///
///     TEMPLATE_TEST_CASE("...", "[contract]", TENURE_POLICIES) { ... TestType::policy<sim::device> ... }
///
/// To add a policy: a struct with its name, its template and its options for tests, and its name in the list. Where
/// a policy legitimately differs from the others it says so with a reason, `.x = because("...")`; the suite then
/// checks the difference instead of the rule, and shows the reason when that fails. Nothing is skipped silently.

#include <tenure/device/sim_device.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/binned.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/resource/resource.hpp>
#include <tenure/tenancy/arena.hpp>

#include <utility>

#include "support/direct_resource.hpp"

namespace tenure::test {

/// A point in which a policy differs, and why.
struct deviation {
    const char* reason = nullptr;
    explicit constexpr operator bool() const noexcept { return reason != nullptr; }
};
constexpr deviation because(const char* reason) {
    return {reason};
}

struct policy_traits {
    /// Freed memory is not kept: a free on a stream is a device call, and the next allocation another.
    deviation keeps_nothing{};
    /// An allocation on a capturing stream is refused, cause `capture`.
    deviation refuses_in_capture{};
    /// `snapshot` shows only the blocks, not the free memory beside them.
    deviation shows_only_blocks{};
    /// `largest_free` of a failure is 0.
    deviation does_not_know_largest_free{};
    /// A failure that frees pending on other streams would avert is not named `stream_pending`.
    deviation does_not_know_pending{};
    /// Freed memory that other streams' work still delays is not counted in `usage().pending`.
    deviation leaves_pending_to_driver{};
    /// Peaks are upper bounds.
    deviation sums_peaks{};
    /// `release` asks the stream of the allocation, so that stream must exist.
    deviation release_needs_stream{};
};

/// Every block a device allocation: the contract without a pool.
struct direct {
    template <class Device>
    using policy = direct_resource<Device>;
    static constexpr policy_traits traits{
        .keeps_nothing = because("every block is an allocation of the device"),
        .does_not_know_largest_free = because("it holds nothing free"),
    };
    static direct_options options() { return {}; }
};

struct async {
    template <class Device>
    using policy = async_pool<Device>;
    static constexpr policy_traits traits{
        .refuses_in_capture = because("an allocation node of a graph bypasses every limit"),
        .shows_only_blocks = because("the driver does not show what it holds free"),
        .does_not_know_largest_free = because("the driver does not tell"),
        .does_not_know_pending = because("the driver does not tell pending from fragmented"),
        .leaves_pending_to_driver = because("the driver orders frees by itself"),
        .release_needs_stream = because("the driver's free names a stream"),
    };
    static async_options options() { return {}; }
};

struct best_fit {
    template <class Device>
    using policy = best_fit_pool<Device>;
    static constexpr policy_traits traits{};
    static pool_options options() { return {}; }
};

struct exact_best_fit {
    template <class Device>
    using policy = exact_best_fit_pool<Device>;
    static constexpr policy_traits traits{};
    static pool_options options() { return {}; }
};

struct caching {
    template <class Device>
    using policy = caching_pool<Device>;
    static constexpr policy_traits traits{};
    static caching_options options() { return {}; }
};

struct binned_best_fit_caching {
    template <class Device>
    using policy = binned<best_fit_pool<Device>, caching_pool<Device>>;
    static constexpr policy_traits traits{
        .sums_peaks = because("its parts may have their peaks at different times"),
    };
    static typename policy<sim::device>::options_type options() { return {}; }
};

/// The arena around a policy of the list, without a limit: it promises all that the policy does.
template <class Subject>
struct arena_of {
    template <class Device>
    struct policy : arena<Subject::template policy, Device> {
        using options_type = typename arena<Subject::template policy, Device>::policy_options;
        explicit policy(Device& device, options_type options = {})
            : arena<Subject::template policy, Device>(device, {.name = "tenant"}, std::move(options)) {}
    };
    static constexpr policy_traits traits = Subject::traits;
    static auto options() { return Subject::options(); }
};
using arena_of_best_fit = arena_of<best_fit>;
using arena_of_async = arena_of<async>;

} // namespace tenure::test

#define TENURE_POLICIES                                                                                      \
    tenure::test::direct, tenure::test::async, tenure::test::best_fit, tenure::test::exact_best_fit,         \
        tenure::test::caching, tenure::test::binned_best_fit_caching, tenure::test::arena_of_best_fit,       \
        tenure::test::arena_of_async
