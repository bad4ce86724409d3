#pragma once

/// \file
/// The policies that the benchmarks run over. To add one: a line in `for_each_policy`.
///
/// `nothing` is a policy that does nothing. What a benchmark shows for it is the cost of the benchmark itself,
/// which is in every other figure too.

#include <tenure/core/bits.hpp>
#include <tenure/front/fronted_pools.hpp>
#include <tenure/policy/async_pool.hpp>
#include <tenure/policy/best_fit_pool.hpp>
#include <tenure/policy/buddy_pool.hpp>
#include <tenure/policy/caching_pool.hpp>
#include <tenure/policy/remap_pool.hpp>
#include <tenure/policy/slab_and_caching.hpp>
#include <tenure/policy/slab_pool.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>

namespace bench {

/// Models `tenure::resource` and hands out one address again and again.
template <class Device>
class nothing {
  public:
    using device_type = Device;
    struct options_type {};

    explicit nothing(Device&, options_type = {}) {}
    nothing(const nothing&) = delete;
    nothing& operator=(const nothing&) = delete;

    void* allocate(tenure::stream_handle, std::size_t, std::size_t = tenure::default_alignment) {
        return tenure::to_pointer(somewhere);
    }
    tenure::allocate_result try_allocate(tenure::stream_handle, std::size_t,
                                         std::size_t = tenure::default_alignment) noexcept {
        return tenure::to_pointer(somewhere);
    }
    void* allocate_sync(std::size_t, std::size_t) { return tenure::to_pointer(somewhere); }
    void deallocate(tenure::stream_handle, void*, std::size_t,
                    std::size_t = tenure::default_alignment) noexcept {}
    tenure::deallocate_result try_deallocate(tenure::stream_handle, void*, std::size_t,
                                             std::size_t = tenure::default_alignment) noexcept {
        return tenure::freed{};
    }
    void deallocate_sync(void*, std::size_t, std::size_t) noexcept {}
    void release(void*) noexcept {}
    void record_use(void*, tenure::stream_handle) noexcept {}
    [[nodiscard]] bool owns(const void*) const noexcept { return true; }
    [[nodiscard]] tenure::usage_counters usage() const { return {}; }
    std::size_t trim(std::size_t) { return 0; }
    [[nodiscard]] tenure::memory_snapshot snapshot() const { return {}; }
    [[nodiscard]] bool validate() const noexcept { return true; }

  private:
    static constexpr std::uint64_t somewhere = std::uint64_t{1} << 40;
};

/// Magazines whose caller announces what happens to streams, so that no driver call is on the way, and that keep large
/// blocks, too: as fast as it gets.
template <class Device>
class announced_remap_pool : public tenure::fronted_remap_pool<Device> {
  public:
    using options_type = typename tenure::fronted_remap_pool<Device>::options_type;
    explicit announced_remap_pool(Device& device, options_type options = {})
        : tenure::fronted_remap_pool<Device>(device, announced(options)) {}

  private:
    static options_type announced(options_type options) {
        options.magazines.check = tenure::stream_check::announced;
        options.magazines.max_block_bytes = std::size_t{32} << 20;
        return options;
    }
};

/// A policy and the name it has in results. `doors`: it is measured through every door, which takes long to compile.
template <template <class> class Policy, bool doors = false>
struct policy_entry {
    static constexpr bool has_all_doors = doors;
    const char* name;
    template <class Device>
    using pool = Policy<Device>;
};

/// Effects: calls `visit(policy_entry<Policy>{name})` for each, `nothing` first.
template <class Visitor>
void for_each_policy(Visitor visit) {
    visit(policy_entry<nothing, true>{"nothing"});
    visit(policy_entry<tenure::best_fit_pool, true>{"best_fit"});
    visit(policy_entry<tenure::exact_best_fit_pool>{"exact_best_fit"});
    visit(policy_entry<tenure::buddy_pool>{"buddy"});
    visit(policy_entry<tenure::slab_pool>{"slab"});
    visit(policy_entry<tenure::caching_pool, true>{"caching"});
    visit(policy_entry<tenure::slab_and_caching>{"slab_and_caching"});
    visit(policy_entry<tenure::remap_pool, true>{"remap"});
    visit(policy_entry<tenure::fronted_best_fit_pool>{"fronted_best_fit"});
    visit(policy_entry<tenure::fronted_remap_pool, true>{"fronted_remap"});
    visit(policy_entry<announced_remap_pool, true>{"announced_remap"});
    visit(policy_entry<tenure::async_pool>{"async"});
}

} // namespace bench
