// Two tenants share a device. One reaches its limit; the other does not notice.

#include <tenure/tenure.hpp>

#include <cstdio>
#include <cstdlib>
#include <vector>

using namespace tenure::literals;

namespace {

using device = tenure::sim::device;
using arena = tenure::arena<tenure::caching_pool, device>;

void report(const char* name, const arena& a) {
    const tenure::usage_counters u = a.usage();
    std::printf("%-6s allocated %-9s reserved %-9s refused %zu\n", name,
                tenure::format_bytes(u.allocated.current).c_str(),
                tenure::format_bytes(u.reserved.current).c_str(), u.failures);
}

} // namespace

int main() {
    device gpu{{.capacity = 16_GiB}};
    tenure::stream_handle stream = gpu.create_stream();
    arena alice{gpu, {.name = "alice", .max = 4_GiB}};
    arena bob{gpu, {.name = "bob", .max = 8_GiB}};

    // Alice asks for more and more until she is told why there is no more.
    std::vector<void*> blocks;
    try {
        while (true) blocks.push_back(alice.allocate(stream, 512_MiB));
    } catch (const tenure::out_of_memory& e) {
        std::printf("%s\n", e.what());
        if (e.failure().cause != tenure::failure_cause::arena_limit) return EXIT_FAILURE;
    }

    // The device has room left, and it is Bob's.
    void* batch = bob.allocate(stream, 6_GiB);
    report("alice", alice);
    report("bob", bob);

    bob.deallocate(stream, batch, 6_GiB);
    for (void* block : blocks) alice.deallocate(stream, block, 512_MiB);
    gpu.destroy_stream(stream);
    return alice.usage().allocated.current == 0 && bob.usage().allocated.current == 0 ? EXIT_SUCCESS
                                                                                      : EXIT_FAILURE;
}
