// Records what a program asks of its pool, to be replayed through every policy: tenure compare trace.csv

#include <tenure/tenure.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

using namespace tenure::literals;

namespace {

/// Three steps of a small training loop. It knows only that it has a resource, not that somebody writes
/// along.
template <tenure::resource Resource>
void train(Resource& memory, tenure::stream_handle compute, tenure::stream_handle copy) {
    void* weights = memory.allocate(compute, 96_MiB);
    for (int step = 0; step < 3; ++step) {
        void* batch = memory.allocate(copy, 24_MiB);
        memory.record_use(batch, compute); // its free waits for the compute stream, too
        void* activations = memory.allocate(compute, 180_MiB + static_cast<std::size_t>(step) * 1_MiB);
        memory.deallocate(copy, batch, 24_MiB);
        memory.deallocate(compute, activations, 180_MiB + static_cast<std::size_t>(step) * 1_MiB);
    }
    memory.deallocate(compute, weights, 96_MiB);
}

} // namespace

int main(int argc, char** argv) {
    const char* file = argc > 1 ? argv[1] : "trace.csv";
    tenure::sim::device gpu;
    tenure::caching_pool<tenure::sim::device> pool{gpu};
    tenure::trace_recorder recorder{pool, std::filesystem::path(file)};

    train(recorder, gpu.create_stream(), gpu.create_stream());

    if (!recorder.flush()) {
        std::fprintf(stderr, "%s could not be written\n", file);
        return EXIT_FAILURE;
    }
    std::printf("replay it: tenure compare %s\n", file);
}
