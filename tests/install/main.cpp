#include <tenure/tenure.hpp>

#include <cstdio>

using namespace tenure::literals;

int main() {
    tenure::sim::device gpu{{.capacity = 1_GiB}};
    tenure::caching_pool<tenure::sim::device> pool{gpu};
    void* block = pool.allocate(tenure::default_stream, 3_MiB);
    const std::size_t requested = pool.usage().requested.current;
    pool.deallocate(tenure::default_stream, block, 3_MiB);
    std::printf("tenure %s: %zu bytes allocated, %zu left\n", TENURE_VERSION_STRING, requested,
                pool.usage().requested.current);
    return requested == 3_MiB && pool.usage().requested.current == 0 ? 0 : 1;
}
