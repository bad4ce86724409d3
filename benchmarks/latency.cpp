/// \file
/// How long does a warm allocation and its free take, together, on one thread?
///
///   * `pair/<policy>/<door>/<stream>/<bytes>`: allocate a block and free it at once.
///   * `replace/<policy>/<door>/<stream>/<live>`: free a random one of so many live blocks and allocate
///     another; 64 sizes from 512 B to 4 MiB.
///
/// Doors: see `support/doors.hpp`; `replace` goes through the first two. Streams: the default stream, and one created.

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
class pair_of {
  public:
    pair_of(typename Door::device_type& d, tenure::stream_handle s, std::size_t bytes) : door_(d) {
        for (int i = 0; i < 1000; ++i) once(s, bytes);
    }
    void once(tenure::stream_handle s, std::size_t bytes) { allocate_and_free(door_.resource(), s, bytes); }

  private:
    Door door_;
};

template <class Door>
class replacement_in {
  public:
    replacement_in(typename Door::device_type& d, tenure::stream_handle s, std::size_t live)
        : door_(d), blocks_(door_.resource(), s, live, 4_MiB) {}
    void once() { blocks_.step(); }

  private:
    Door door_;
    replacement<resource_of<Door>> blocks_;
};

template <class Door>
void add_pair(const std::string& name, typename Door::device_type& d, tenure::stream_handle s,
              std::size_t bytes) {
    benchmark::RegisterBenchmark(name.c_str(), [=, &d](benchmark::State& state) {
        guarded(state, [&] {
            auto& subject =
                keep<pair_of<Door>>(name, [&] { return std::make_shared<pair_of<Door>>(d, s, bytes); });
            for (auto _ : state) subject.once(s, bytes);
        });
    });
}

template <class Door>
void add_replacement(const std::string& name, typename Door::device_type& d, tenure::stream_handle s,
                     std::size_t live) {
    benchmark::RegisterBenchmark(name.c_str(), [=, &d](benchmark::State& state) {
        guarded(state, [&] {
            auto& subject = keep<replacement_in<Door>>(
                name, [&] { return std::make_shared<replacement_in<Door>>(d, s, live); });
            for (auto _ : state) subject.once();
        });
    });
}

template <class Door, class World>
void add_door(World& world, const std::string& policy) {
    struct named_stream {
        const char* name;
        tenure::stream_handle handle;
    };
    for (const named_stream s :
         {named_stream{"default", tenure::default_stream}, named_stream{"created", world.stream(0)}}) {
        const std::string rest = "/" + policy + "/" + Door::name + "/" + s.name + "/";
        for (const std::size_t bytes : {512_B, 64_KiB, 1_MiB, 20_MiB})
            add_pair<Door>("pair" + rest + std::to_string(bytes), world.device(), s.handle, bytes);
        if constexpr (Door::indirect) continue; // that its calls cost the same is seen above
        for (const std::size_t live : {4'096u, 100'000u})
            if (!smoke() || live < 10'000)
                add_replacement<Door>("replace" + rest + std::to_string(live), world.device(), s.handle, live);
    }
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        using device = typename std::remove_reference_t<decltype(world)>::device_type;
        for_each_policy([&](auto entry) {
            using policy = decltype(entry);
            for_each_door<device, policy::template pool>([&](auto door) {
                add_door<typename decltype(door)::type>(world, entry.name);
            });
        });
    });
}
