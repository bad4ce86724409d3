/// \file
/// What does the number of live blocks do to the time of an allocation and its free?
///
///   * `replace/<policy>/<live>`: free a random one of so many live blocks and allocate another; 64 sizes
///     from 512 B to 256 KiB, 43 GiB together for a million blocks. Default stream, concrete type.
///
/// The benchmark's own table of blocks outgrows the caches too: see `nothing`.

#include "support/doors.hpp"
#include "support/harness.hpp"
#include "support/policies.hpp"
#include "support/workload.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

namespace {

using namespace bench;

template <class Door>
class subject {
  public:
    subject(typename Door::device_type& d, std::size_t live)
        : door_(d), blocks_(door_.resource(), tenure::default_stream, live, 256_KiB) {}
    void once() { blocks_.step(); }

  private:
    Door door_;
    replacement<resource_of<Door>> blocks_;
};

template <class Door>
void add(const std::string& policy, typename Door::device_type& d, std::size_t live) {
    const std::string name = "replace/" + policy + "/" + std::to_string(live);
    benchmark::RegisterBenchmark(name.c_str(), [=, &d](benchmark::State& state) {
        guarded(state, [&] {
            auto& s = keep<subject<Door>>(name, [&] { return std::make_shared<subject<Door>>(d, live); });
            for (auto _ : state) s.once();
        });
    });
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        using device = typename std::remove_reference_t<decltype(world)>::device_type;
        for_each_policy([&](auto entry) {
            using policy = decltype(entry);
            for (const std::size_t live : {1'000u, 10'000u, 100'000u, 1'000'000u})
                if (!smoke() || live <= 1'000)
                    add<concrete_door<device, policy::template pool>>(entry.name, world.device(), live);
        });
    });
}
