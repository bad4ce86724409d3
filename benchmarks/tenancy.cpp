/// \file
/// What do many tenants cost, and what does a limit cost that has been reached?
///
///   * `tenants/<policy>/<arenas>`: allocate and free 64 KiB in a random one of so many arenas on one device,
///     each with a limit of 64 MiB.
///   * `at_limit/<policy>`: an arena that is full of live 64 KiB blocks, up to its limit of 64 MiB; free a random
///     one and allocate it again.
///   * `refused/<policy>`: the same arena; a request for 64 KiB more, which is refused.
///
/// All on a created stream.

#include "support/doors.hpp"
#include "support/harness.hpp"
#include "support/policies.hpp"
#include "support/workload.hpp"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace bench;

constexpr std::size_t block_bytes = 64_KiB;
constexpr std::size_t limit = 64_MiB;

template <class Door>
class tenants {
  public:
    tenants(typename Door::device_type& d, tenure::stream_handle s, std::size_t n) : stream_(s) {
        for (std::size_t i = 0; i < n; ++i) {
            doors_.push_back(std::make_unique<Door>(d, limit));
            for (int k = 0; k < 100; ++k) in(*doors_.back());
        }
    }
    void once() { in(*doors_[random_.below(doors_.size())]); }

  private:
    void in(Door& door) { allocate_and_free(door.resource(), stream_, block_bytes); }

    tenure::stream_handle stream_;
    quick_random random_{1};
    std::vector<std::unique_ptr<Door>> doors_;
};

/// An arena in which there is room for nothing more.
template <class Door>
class full {
  public:
    full(typename Door::device_type& d, tenure::stream_handle s) : door_(d, limit), stream_(s) {
        while (blocks_.size() <= limit / block_bytes) {
            const tenure::allocate_result got = door_.resource().try_allocate(stream_, block_bytes);
            if (!got) return;
            blocks_.push_back(*got);
        }
        throw std::logic_error("more was granted than the limit allows");
    }
    full(const full&) = delete;
    full& operator=(const full&) = delete;
    ~full() {
        for (void* p : blocks_) door_.resource().deallocate(stream_, p, block_bytes);
    }
    void replace() {
        void*& p = blocks_[random_.below(blocks_.size())];
        door_.resource().deallocate(stream_, std::exchange(p, nullptr), block_bytes);
        p = door_.resource().allocate(stream_, block_bytes);
    }
    void refuse() {
        if (door_.resource().try_allocate(stream_, block_bytes))
            throw std::logic_error("a full arena granted more");
    }

  private:
    Door door_;
    tenure::stream_handle stream_;
    quick_random random_{1};
    std::vector<void*> blocks_;
};

/// Effects: registers a benchmark whose iteration is `once(subject)`.
template <class Subject, class Make, class Once>
void add(const std::string& name, Make make, Once once) {
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
        guarded(state, [&] {
            auto& subject = keep<Subject>(name, make);
            for (auto _ : state) once(subject);
        });
    });
}

template <class Door, class World>
void add_tenants(World& world, const std::string& policy) {
    for (const std::size_t n : {1u, 10u, 1000u})
        add<tenants<Door>>(
            "tenants/" + policy + "/" + std::to_string(n),
            [n, &world] {
                return std::make_shared<tenants<Door>>(world.device(), world.stream(0), n);
            },
            [](auto& t) { t.once(); });
}

template <class Door, class World>
void add_full(World& world, const std::string& policy) {
    const auto make = [&world] { return std::make_shared<full<Door>>(world.device(), world.stream(0)); };
    add<full<Door>>("at_limit/" + policy, make, [](auto& f) { f.replace(); });
    add<full<Door>>("refused/" + policy, make, [](auto& f) { f.refuse(); });
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        using device = typename std::remove_reference_t<decltype(world)>::device_type;
        for_each_policy([&](auto entry) {
            using policy = decltype(entry);
            using door = arena_door<device, policy::template pool>;
            add_tenants<door>(world, entry.name);
            // What does nothing knows no limit.
            if constexpr (!std::is_same_v<policy, policy_entry<nothing>>) add_full<door>(world, entry.name);
        });
    });
}
