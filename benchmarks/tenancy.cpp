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

#include "support/harness.hpp"
#include "support/subjects.hpp"
#include "support/workload.hpp"

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace bench;

constexpr std::size_t block_bytes = 64_KiB;
constexpr std::size_t limit = 64_MiB;

class tenants {
  public:
    tenants(std::vector<tenure::any_resource> arenas, tenure::stream_handle s)
        : arenas_(std::move(arenas)), stream_(s) {
        for (tenure::any_resource& a : arenas_)
            for (int k = 0; k < 100; ++k) allocate_and_free(a, stream_, block_bytes);
    }
    void once() { allocate_and_free(arenas_[random_.below(arenas_.size())], stream_, block_bytes); }

  private:
    std::vector<tenure::any_resource> arenas_;
    tenure::stream_handle stream_;
    quick_random random_{1};
};

/// An arena in which there is room for nothing more.
class full {
  public:
    full(tenure::any_resource arena, tenure::stream_handle s) : arena_(std::move(arena)), stream_(s) {
        while (blocks_.size() <= limit / block_bytes) {
            const tenure::allocate_result got = arena_.try_allocate(stream_, block_bytes);
            if (!got) return;
            blocks_.push_back(*got);
        }
        throw std::logic_error("more was granted than the limit allows");
    }
    full(const full&) = delete;
    full& operator=(const full&) = delete;
    ~full() {
        for (void* p : blocks_) arena_.deallocate(stream_, p, block_bytes);
    }
    void replace() {
        void*& p = blocks_[random_.below(blocks_.size())];
        arena_.deallocate(stream_, std::exchange(p, nullptr), block_bytes);
        p = arena_.allocate(stream_, block_bytes);
    }
    void refuse() {
        if (arena_.try_allocate(stream_, block_bytes)) throw std::logic_error("a full arena granted more");
    }

  private:
    tenure::any_resource arena_;
    tenure::stream_handle stream_;
    quick_random random_{1};
    std::vector<void*> blocks_;
};

template <class World, class Subject>
void add_subject(World& world, const Subject& subject) {
    const std::string policy = subject.name;
    const auto arena = [=, &world] { return subject.make_tenant(world.device(), limit); };
    for (const std::size_t n : {1u, 10u, 1000u}) {
        add(
            "tenants/" + policy + "/" + std::to_string(n),
            [=, &world] {
                std::vector<tenure::any_resource> arenas;
                while (arenas.size() < n) arenas.push_back(arena());
                return std::make_unique<tenants>(std::move(arenas), world.stream(0));
            },
            [](tenants& t) { t.once(); });
    }
    if (policy == "nothing") return; // it knows no limit
    const auto full_arena = [=, &world] { return std::make_unique<full>(arena(), world.stream(0)); };
    add("at_limit/" + policy, full_arena, [](full& f) { f.replace(); });
    add("refused/" + policy, full_arena, [](full& f) { f.refuse(); });
}

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        for (const auto& s : subjects_for(world)) add_subject(world, s);
    });
}
