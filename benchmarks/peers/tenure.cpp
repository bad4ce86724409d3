/// \file
/// tenure's policies, each in an arena with a hard limit.

#include "contender.hpp"

#include "support/policies.hpp"
#include "support/subjects.hpp"

#include <tenure/core/version.hpp>
#include <tenure/device/cuda_device.hpp>
#include <tenure/tenancy/arena.hpp>

#include <type_traits>

namespace bench {

namespace {

using device = tenure::cuda::device;

template <template <class> class Policy>
class of_tenure final : public allocator {
  public:
    void* allocate(cudaStream_t stream, std::size_t bytes) override { return arena_.allocate(stream, bytes); }
    void deallocate(cudaStream_t stream, void* p, std::size_t bytes) noexcept override {
        arena_.deallocate(stream, p, bytes);
    }

  private:
    device device_;
    tenure::arena<Policy, device> arena_{device_, tenant_options()};
};

} // namespace

void add_tenure(contender_list& all) {
    for_each_policy([&](auto entry) {
        using policy = decltype(entry);
        constexpr bool is_nothing = std::is_same_v<policy, policy_entry<nothing, true>>;
        if constexpr (policy::has_all_doors)
            all.push_back({entry.name, TENURE_VERSION_STRING,
                           is_nothing ? contender::side::nobody : contender::side::ours,
                           [] { return std::make_unique<of_tenure<policy::template pool>>(); }});
    });
}

} // namespace bench
