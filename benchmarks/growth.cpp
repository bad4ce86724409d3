/// \file
/// What does the number of live blocks do to the time of an allocation and its free?
///
///   * `replace/<policy>/<live>`: free a random one of so many live blocks and allocate another; 64 sizes
///     from 512 B to 256 KiB, 43 GiB together for a million blocks. Default stream, no arena.
///
/// The benchmark's own table of blocks outgrows the caches too: see `nothing`.

#include "support/harness.hpp"
#include "support/subjects.hpp"
#include "support/workload.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

namespace {

using namespace bench;

/// A policy and the blocks that are live in it.
struct subject_in_use {
    subject_in_use(tenure::any_resource policy, std::size_t live)
        : resource(std::move(policy)), blocks(resource, tenure::default_stream, live, 256_KiB) {}
    tenure::any_resource resource;
    replacement<tenure::any_resource> blocks;
};

} // namespace

int main(int argc, char** argv) {
    return bench::run(argc, argv, [](auto& world) {
        for (const auto& s : subjects_for(world)) {
            for (const std::size_t live : {1'000u, 10'000u, 100'000u, 1'000'000u}) {
                if (smoke() && live > 1'000) continue;
                add(
                    std::string("replace/") + s.name + "/" + std::to_string(live),
                    [=, &s, &world] {
                        return std::make_unique<subject_in_use>(s.make(world.device()), live);
                    },
                    [](subject_in_use& u) { u.blocks.step(); });
            }
        }
    });
}
