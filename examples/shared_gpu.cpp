// Several worker processes share one GPU, each with arenas of its own. Watch them: tenure top
//
//     shared_gpu [workers] [steps]            on the simulated device, which each worker has for itself
//     shared_gpu_cuda [workers] [steps]       on GPU 0, which they share; the same source
//
// Nothing crosses processes here: what a worker may have of the card is the operating system's and the driver's business
// (MPS, MIG, a container), and is read at its start. Within a worker, arenas divide it exactly. Where an MPS daemon runs,
// each worker is a client of it with a limit of 12 GiB, unless CUDA_MPS_PINNED_DEVICE_MEM_LIMIT says otherwise; how to start
// one is in docs/shared-gpu.md. TENURE_ARENAS and TENURE_PUBLISH hold without a word about them here.

#include <tenure/tenure.hpp>

#if defined(TENURE_EXAMPLE_ON_GPU)
#include <tenure/device/cuda_device.hpp>

#include <cuda_runtime_api.h>
#endif

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

using namespace tenure::literals;

namespace {

#if defined(TENURE_EXAMPLE_ON_GPU)
/// GPU 0, with a stream of this program.
struct device : tenure::cuda::device {
    device() : tenure::cuda::device(0) {}
    static tenure::stream_handle create_stream() {
        cudaStream_t s = nullptr;
        return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess ? s : nullptr;
    }
    static void destroy_stream(tenure::stream_handle s) { (void)cudaStreamDestroy(s); }
};
bool there_is_a_gpu() {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}
#else
struct device : tenure::sim::device {
    device() : tenure::sim::device({.capacity = 16_GiB}) {}
};
bool there_is_a_gpu() {
    return true;
}
#endif
using arena = tenure::arena<tenure::caching_pool, device>;

/// What a worker's arenas may have, where TENURE_ARENAS says nothing else.
constexpr const char* limits = "worker        max=none\n"
                               "worker/model  min=2GiB max=6GiB\n"
                               "worker/batch  max=1GiB high=768MiB\n";

constexpr int no_gpu = 77; // what test programs exit with where they cannot run

/// One worker. Returns: its exit status.
int work(int number, int steps) {
    ::setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=12G",
             0); // read by MPS, where there is one, and by `sources_of`
    if (!there_is_a_gpu()) return no_gpu;
    device gpu;

    // What this process may have, whoever set the limit.
    tenure::capacity_watch card(tenure::sources_of(gpu));

    const tenure::arena_config config = tenure::arena_config::parse(limits, "built in");
    tenure::group_options root;
    config.apply("worker", root);
    root.max = std::min(root.max, card.capacity());
    tenure::arena_group worker(root);
    const auto shown = // in `tenure top`, with what others use of the device
        tenure::environment::instance().show("0", card, [&] { return worker.limits().used; });

    tenure::arena_options for_model;
    tenure::arena_options for_batch;
    config.apply("worker/model", for_model);
    config.apply("worker/batch", for_batch);
    arena model(worker, gpu, for_model);
    arena batch(worker, gpu, for_batch);

    tenure::stream_handle stream = gpu.create_stream();
    void* const weights = model.allocate(stream, 3_GiB);
    int refused = 0;
    for (int step = 0; step < steps; ++step) {
        const std::size_t bytes =
            (100_MiB << (step % 5)) + static_cast<std::size_t>(number) * 1_MiB; // 1.6 GiB is too much
        if (const auto p = batch.try_allocate(stream, bytes)) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20)); // the work
            batch.deallocate(stream, *p, bytes);
        } else {
            ++refused; // a smaller batch would be tried here; the model does not notice
            if (refused == 1) std::printf("worker %d: %s\n", number, p.error().text().c_str());
        }
    }
    model.deallocate(stream, weights, 3_GiB);
    std::printf("worker %d: capacity %s, %d of %d steps refused, batch peak %s\n", number,
                tenure::format_bytes(card.capacity()).c_str(), refused, steps,
                tenure::format_bytes(batch.limits().peak).c_str());
    const bool too_small = batch.limits().max < 1600_MiB; // of every five batches one does not fit
    const bool good = (refused == (too_small ? steps / 5 : 0)) && batch.limits().peak <= batch.limits().max &&
                      model.usage().allocated.current == 0;
    gpu.destroy_stream(stream);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

} // namespace

int main(int argc, char** argv) {
    const int workers = argc > 1 ? std::atoi(argv[1]) : 3;
    const int steps = argc > 2 ? std::atoi(argv[2]) : 10;

    // Fork before CUDA is started: a context does not survive a fork.
    std::vector<pid_t> children;
    for (int i = 0; i < workers; ++i) {
        const pid_t child = fork();
        if (child < 0) {
            std::perror("fork");
            return EXIT_FAILURE;
        }
        if (child == 0) {
            const int status = work(i, steps);
            std::fflush(stdout);
            _exit(status);
        }
        children.push_back(child);
    }
    int status = EXIT_SUCCESS;
    for (const pid_t child : children) {
        int ended = 0;
        if (waitpid(child, &ended, 0) != child || !WIFEXITED(ended))
            status = EXIT_FAILURE;
        else if (WEXITSTATUS(ended) != EXIT_SUCCESS)
            status = WEXITSTATUS(ended);
    }
    return status;
}
