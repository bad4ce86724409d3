#pragma once

/// \file
/// The policies that every suite of the contract runs over, and in which points they may differ.
///
///     POLICY_TEST_CASE("...", "[contract]") { policy_world w(subject); ... }
///
/// is one test case for each policy of the list. Its body is compiled once: the policies stand behind
/// `policy_subject`, and are instantiated in one file for each suite, which includes `policy_subjects.hpp`.
///
/// To add a policy: its name in `TENURE_POLICIES`, and one line in `policy_subjects.hpp`. Where a policy
/// legitimately differs from the others it says so with a reason, `.x = because("...")`; the suite then checks the
/// difference instead of the rule, and shows the reason when that fails. Nothing is skipped silently.

#include <tenure/resource/resource_ref.hpp>

#include "support/catch.hpp"
#include "support/world_device.hpp"

#include <cstdint>
#include <memory>

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
    /// Destruction is reported by each part.
    deviation has_parts{};
    /// Peaks are upper bounds.
    deviation bounds_peaks{};
    /// Free memory serves only the stream that has it, until it goes back to the device.
    deviation does_not_share{};
    /// A pointer of another pool of the same kind is a `wrong_arena`.
    deviation names_other_owner{};
    /// An alignment beyond the device's granularity costs bytes that are reserved and in no block.
    deviation pads_segments{};
    /// `release` asks the stream of the allocation, so that stream must exist.
    deviation release_needs_stream{};
    /// Memory that another stream still uses is handed out, and the new stream made to wait for it.
    deviation makes_streams_wait{};
    /// A request that is refused may have made the policy take memory first.
    deviation grows_when_refused{};
};

/// A policy that lives on a device.
class live_policy {
  public:
    virtual ~live_policy() = default;
    [[nodiscard]] virtual resource_ref ref() = 0;
    /// Effects: what the policy keeps for a graph may be reused from now on, where it keeps anything.
    virtual void release_captured(std::uint64_t capture) = 0;
};

/// A policy of the list.
struct policy_subject {
    policy_traits traits;
    std::unique_ptr<live_policy> (*make)(world_device&);
};

/// Returns: the policy of that name. Defined in `policy_subjects.hpp`.
template <class Name>
const policy_subject& subject_of();

} // namespace tenure::test

namespace policy {
struct direct;
struct async;
struct best_fit;
struct exact_best_fit;
struct buddy;
struct slab;
struct caching;
struct caching_sharing;
struct remap;
struct binned;
struct arena_of_best_fit;
struct arena_of_caching;
struct arena_of_async;
struct arena_of_remap;
struct fronted_best_fit;
struct fronted_caching;
struct fronted_remap;
struct arena_of_fronted_best_fit;
struct arena_of_fronted_remap;
struct account_of_best_fit;
struct account_of_fronted_remap;
} // namespace policy

#define TENURE_POLICIES                                                                                      \
    policy::direct, policy::async, policy::best_fit, policy::exact_best_fit, policy::buddy, policy::slab,    \
        policy::caching, policy::caching_sharing, policy::remap, policy::binned, policy::arena_of_best_fit,  \
        policy::arena_of_caching, policy::arena_of_async, policy::arena_of_remap, policy::fronted_best_fit,  \
        policy::fronted_caching, policy::fronted_remap, policy::arena_of_fronted_best_fit,                   \
        policy::arena_of_fronted_remap, policy::account_of_best_fit, policy::account_of_fronted_remap

#define TENURE_POLICY_TEST_NAME_2(line) policy_test_##line
#define TENURE_POLICY_TEST_NAME_1(line) TENURE_POLICY_TEST_NAME_2(line)

/// A test case for each policy, with `subject` in its body.
#define POLICY_TEST_CASE(name, tags)                                                                         \
    static void TENURE_POLICY_TEST_NAME_1(__LINE__)(const tenure::test::policy_subject& subject);            \
    TEMPLATE_TEST_CASE(name, tags, TENURE_POLICIES) {                                                        \
        TENURE_POLICY_TEST_NAME_1(__LINE__)(tenure::test::subject_of<TestType>());                           \
    }                                                                                                        \
    static void TENURE_POLICY_TEST_NAME_1(__LINE__)(const tenure::test::policy_subject& subject)
