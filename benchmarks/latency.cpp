/// \file
/// How long does a warm allocation and its free take, together, on one thread?
///
///   * `pair/<policy>/<door>/<stream>/<bytes>`: allocate a block and free it at once.
///   * `replace/<policy>/<door>/<stream>/<live>`: free a random one of so many live blocks and allocate
///     another; 64 sizes from 512 B to 4 MiB.
///
/// Doors: `concrete`, the policy's own type; `arena`, the same in an arena with a hard limit; `resource_ref` and
/// `any_resource`, the policy erased. `replace` goes through the first two. Streams: the default stream, and one
/// created.

#include "support/harness.hpp"
#include "support/policies.hpp"
#include "support/subjects.hpp"
#include "support/workload.hpp"

#include <tenure/resource/any_resource.hpp>
#include <tenure/resource/resource_ref.hpp>
#include <tenure/tenancy/arena.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace {

using namespace bench;

/// What a program holds that comes to a policy through its own type.
template <class Resource>
struct direct {
    template <class... Arguments>
    explicit direct(Arguments&&... arguments) : resource(std::forward<Arguments>(arguments)...) {}
    Resource resource;
};

/// The same for a policy erased; Handle is `resource_ref` or `any_resource`.
template <class Handle>
struct erased {
    explicit erased(tenure::any_resource r) : owner(std::move(r)) {}
    tenure::any_resource owner;
    Handle resource{owner};
};

/// An owner and the blocks that are live in its resource.
template <class Owner>
struct replaced {
    replaced(std::unique_ptr<Owner> o, tenure::stream_handle s, std::size_t live)
        : owner(std::move(o)), blocks(owner->resource, s, live, 4_MiB) {}
    std::unique_ptr<Owner> owner;
    replacement<decltype(Owner::resource)> blocks;
};

struct named_stream {
    const char* name;
    tenure::stream_handle handle;
};

template <class Make>
void add_pairs(const std::string& door, named_stream stream, Make make) {
    using owner = typename decltype(make())::element_type;
    const tenure::stream_handle s = stream.handle;
    for (const std::size_t bytes : {512_B, 64_KiB, 1_MiB, 20_MiB}) {
        add(
            "pair/" + door + "/" + stream.name + "/" + std::to_string(bytes),
            [=] {
                auto o = make();
                for (int i = 0; i < 1000; ++i) allocate_and_free(o->resource, s, bytes);
                return o;
            },
            [=](owner& o) { allocate_and_free(o.resource, s, bytes); });
    }
}

template <class Make>
void add_replacements(const std::string& door, named_stream stream, Make make) {
    using owner = typename decltype(make())::element_type;
    for (const std::size_t live : {4'096u, 100'000u}) {
        if (smoke() && live > 10'000) continue;
        add(
            "replace/" + door + "/" + stream.name + "/" + std::to_string(live),
            [=] { return std::make_unique<replaced<owner>>(make(), stream.handle, live); },
            [](replaced<owner>& r) { r.blocks.step(); });
    }
}

template <template <class> class Policy, class World, class Subject>
void add_policy(World& world, const Subject& subject) {
    using device = typename World::device_type;
    device& d = world.device();
    const std::string policy = subject.name;
    const auto concrete = [&d] { return std::make_unique<direct<Policy<device>>>(d); };
    const auto tenant = [&d] {
        return std::make_unique<direct<tenure::arena<Policy, device>>>(d, tenant_options());
    };
    const auto ref = [=, &d] { return std::make_unique<erased<tenure::resource_ref>>(subject.make(d)); };
    const auto any = [=, &d] { return std::make_unique<erased<tenure::any_resource>>(subject.make(d)); };
    for (const named_stream s :
         {named_stream{"default", tenure::default_stream}, named_stream{"created", world.stream(0)}}) {
        add_pairs(policy + "/concrete", s, concrete);
        add_pairs(policy + "/arena", s, tenant);
        add_pairs(policy + "/resource_ref", s, ref);
        add_pairs(policy + "/any_resource", s, any);
        add_replacements(policy + "/concrete", s, concrete);
        add_replacements(policy + "/arena", s, tenant);
    }
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        auto subject = subjects_for(world).begin(); // the same policies in the same order
        for_each_policy([&](auto entry) {
            using policy = decltype(entry);
            const auto& erased = *subject++;
            if constexpr (policy::has_all_doors) add_policy<policy::template pool>(world, erased);
        });
    });
}
