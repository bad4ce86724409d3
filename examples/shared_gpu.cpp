// Several worker processes share one GPU, each with arenas of its own. Watch them: tenure top
//
//     shared_gpu [workers] [steps]       on the simulated device, which each worker has for itself
//
// Nothing crosses processes here: what a worker may have of the card is the operating system's and the driver's business
// (MPS, MIG, a container), and is read at its start. Within a worker, arenas divide it exactly. On a GPU the device is
// tenure::cuda::device; under MPS start the workers with CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, see docs/shared-gpu.md.

#include <tenure/tenure.hpp>

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

using device = tenure::sim::device;
using arena = tenure::arena<tenure::caching_pool, device>;

/// What an operator says of a worker's arenas, unless TENURE_ARENAS says otherwise.
constexpr const char* limits = "worker        max=none\n"
                               "worker/model  min=2GiB max=6GiB\n"
                               "worker/batch  max=1GiB high=768MiB\n";

/// One worker. Returns: its exit status.
int work(int number, int steps) {
    device gpu{{.capacity = 16_GiB}};

    // What this process may have, whoever set the limit.
    tenure::capacity_watch card(tenure::sources_of(gpu));

    tenure::arena_config config = tenure::arena_config::from_environment();
    if (config.empty()) config = tenure::arena_config::parse(limits, "built in");
    tenure::group_options root;
    config.apply("worker", root);
    root.name = "worker" + std::to_string(number);
    root.max = std::min(root.max, card.capacity());
    tenure::arena_group worker(root);

    tenure::arena_options for_model;
    tenure::arena_options for_batch;
    config.apply("worker/model", for_model);
    config.apply("worker/batch", for_batch);
    arena model(worker, gpu, for_model);
    arena batch(worker, gpu, for_batch);

    // Shown to `tenure top` if TENURE_PUBLISH=1; otherwise this does nothing.
    tenure::arenas_view view;
    const auto seen_worker = view.add(worker);
    const auto seen_model = view.add(model);
    const auto seen_batch = view.add(batch);
    const tenure::publisher shown(view);

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
    const bool good = refused == steps / 5 && batch.limits().peak <= batch.limits().max &&
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
        if (waitpid(child, &ended, 0) != child || !WIFEXITED(ended) || WEXITSTATUS(ended) != EXIT_SUCCESS)
            status = EXIT_FAILURE;
    }
    return status;
}
