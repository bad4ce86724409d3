#pragma once

/// \file
/// The policies of the list, instantiated. To be included by exactly one file of each suite.

#include <tenure/front.hpp>
#include <tenure/policy.hpp>
#include <tenure/policy/slab_and_caching.hpp>
#include <tenure/tenancy/accounts.hpp>
#include <tenure/tenancy/arena.hpp>

#include "support/direct_resource.hpp"
#include "support/policy_list.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace tenure::test {

template <resource Policy>
class live_policy_of final : public live_policy {
  public:
    template <class... Arguments>
    explicit live_policy_of(Arguments&&... arguments) : policy_(std::forward<Arguments>(arguments)...) {}
    resource_ref ref() override { return policy_; }
    void release_captured(std::uint64_t capture) override { release(policy_, capture); }

  private:
    template <class P>
    static void release(P& p, std::uint64_t capture) {
        if constexpr (requires { p.release_captured(capture); })
            p.release_captured(capture);
        else if constexpr (requires { p.policy(); })
            release(p.policy(), capture);
    }
    Policy policy_;
};

template <class Policy, class... Arguments>
std::unique_ptr<live_policy> alive(Arguments&&... arguments) {
    return std::make_unique<live_policy_of<Policy>>(std::forward<Arguments>(arguments)...);
}

/// The default options, but that pools of one layout grow by less: the suites count in tens of MiB.
template <class Options>
Options options_for_tests() {
    constexpr std::size_t segment_bytes = 32_MiB;
    Options o{};
    if constexpr (requires { o.segment_bytes; }) o.segment_bytes = segment_bytes;
    if constexpr (requires { o.pool.segment_bytes; }) o.pool.segment_bytes = segment_bytes;
    if constexpr (requires { o.small.segment_bytes; }) o.small.segment_bytes = segment_bytes;
    return o;
}

template <template <class> class Policy>
policy_subject plain(const policy_traits& traits) {
    return {traits, [](world_device& d) {
                using policy = Policy<world_device>;
                return alive<policy>(d, options_for_tests<typename policy::options_type>());
            }};
}

/// The policy in an arena without a limit, which promises all that the policy does.
template <template <class> class Policy>
policy_subject in_arena(policy_traits traits) {
    traits.names_other_owner = because("arenas know of each other");
    return {traits, [](world_device& d) {
                using tenant = arena<Policy, world_device>;
                return alive<tenant>(d, arena_options{.name = "tenant"},
                                     options_for_tests<typename tenant::policy_options>());
            }};
}

/// An account without a limit, below another, in a pool that nobody else uses. It leaves it to the pool to report what is
/// live at its end.
template <class Pool>
class live_account final : public live_policy {
  public:
    explicit live_account(world_device& device)
        : pool_(device, options_for_tests<typename Pool::options_type>())
        , book_(pool_)
        , group_(book_, {.name = "group", .at_destruction = leftovers::release})
        , account_(group_, {.name = "tenant", .at_destruction = leftovers::release}) {}
    resource_ref ref() override { return account_; }
    void release_captured(std::uint64_t capture) override { account_.release_captured(capture); }

  private:
    Pool pool_;
    accounts<Pool> book_;
    account<Pool> group_;
    account<Pool> account_;
};

template <template <class> class Policy>
policy_subject in_account(policy_traits traits) {
    traits.names_other_owner = because("accounts know of each other");
    return {traits, [](world_device& d) -> std::unique_ptr<live_policy> {
                return std::make_unique<live_account<Policy<world_device>>>(d);
            }};
}

inline constexpr deviation pads_segments =
    because("a segment aligned further than the device aligns begins inside of its allocation");
inline constexpr deviation keeps_to_one_stream =
    because("as in PyTorch, a cached block belongs to one stream for as long as its segment lives");

inline constexpr policy_traits of_range_pools{.pads_segments = pads_segments};
inline constexpr policy_traits of_caching{.does_not_share = keeps_to_one_stream};
inline constexpr deviation counts_parked_blocks =
    because("the pool behind the magazines keeps the peaks, and parked blocks are live to it");
inline constexpr policy_traits of_fronted_range_pools{.bounds_peaks = counts_parked_blocks,
                                                      .pads_segments = pads_segments};
inline constexpr policy_traits of_fronted_caching{.bounds_peaks = counts_parked_blocks,
                                                  .does_not_share = keeps_to_one_stream};
inline constexpr policy_traits of_fronted_remap{.bounds_peaks = counts_parked_blocks};
inline constexpr policy_traits of_async{
    .refuses_in_capture = because("an allocation node of a graph bypasses every limit"),
    .shows_only_blocks = because("the driver does not show what it holds free"),
    .does_not_know_largest_free = because("the driver does not tell"),
    .does_not_know_pending = because("the driver does not tell pending from fragmented"),
    .release_needs_stream = because("the driver's free names a stream"),
    .makes_streams_wait =
        world_is_simulated
            ? deviation{}
            : because("the driver reuses memory of other streams with a dependency of its own"),
    .grows_when_refused =
        world_is_simulated ? deviation{} : because("a driver pool grows as far as it can before it gives up"),
};

#define TENURE_POLICY(NAME, ...)                                                                             \
    template <>                                                                                              \
    const policy_subject& subject_of<NAME>() {                                                               \
        static const policy_subject subject = __VA_ARGS__;                                                   \
        return subject;                                                                                      \
    }

TENURE_POLICY(policy::direct, plain<direct_resource>({
                                  .keeps_nothing = because("every block is an allocation of the device"),
                                  .does_not_know_largest_free = because("it holds nothing free"),
                              }))
TENURE_POLICY(policy::async, plain<async_pool>(of_async))
TENURE_POLICY(policy::best_fit, plain<best_fit_pool>(of_range_pools))
TENURE_POLICY(policy::exact_best_fit, plain<exact_best_fit_pool>(of_range_pools))
TENURE_POLICY(policy::buddy, plain<buddy_pool>(of_range_pools))
TENURE_POLICY(policy::slab, plain<slab_pool>(of_range_pools))
TENURE_POLICY(policy::caching, plain<caching_pool>(of_caching))
TENURE_POLICY(policy::caching_sharing, policy_subject{{}, [](world_device& d) {
                                                          return alive<caching_pool<world_device>>(
                                                              d, caching_options{.cross_stream_reuse = true});
                                                      }})
TENURE_POLICY(policy::remap, plain<remap_pool>({}))
TENURE_POLICY(policy::binned, plain<slab_and_caching>({
                                  .has_parts = because("each part reports for itself"),
                                  .bounds_peaks = because("its parts have their peaks at different times"),
                                  .does_not_share = keeps_to_one_stream,
                                  .pads_segments = pads_segments,
                              }))
TENURE_POLICY(policy::arena_of_best_fit, in_arena<best_fit_pool>(of_range_pools))
TENURE_POLICY(policy::arena_of_caching, in_arena<caching_pool>(of_caching))
TENURE_POLICY(policy::arena_of_async, in_arena<async_pool>(of_async))
TENURE_POLICY(policy::arena_of_remap, in_arena<remap_pool>({}))
TENURE_POLICY(policy::fronted_best_fit, plain<fronted_best_fit_pool>(of_fronted_range_pools))
TENURE_POLICY(policy::fronted_caching, plain<fronted_caching_pool>(of_fronted_caching))
TENURE_POLICY(policy::fronted_remap, plain<fronted_remap_pool>(of_fronted_remap))
TENURE_POLICY(policy::arena_of_fronted_best_fit, in_arena<fronted_best_fit_pool>(of_fronted_range_pools))
TENURE_POLICY(policy::arena_of_fronted_remap, in_arena<fronted_remap_pool>(of_fronted_remap))
TENURE_POLICY(policy::account_of_best_fit, in_account<best_fit_pool>(of_range_pools))
TENURE_POLICY(policy::account_of_fronted_remap, in_account<fronted_remap_pool>(of_fronted_remap))

} // namespace tenure::test
