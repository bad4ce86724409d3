/// \file
/// `cuda::device` on a real GPU: every member, and the promises that only a driver can break (captures
/// survive, no last error is left, the caller's state is put back). The case that ruins its process
/// runs in another one.
///
///     device           all cases
///     device sticky    the case that needs a process of its own
///     device costs     prints what the scopes around a call cost here
///     device versions  prints what this was built with

#include <tenure/core/bits.hpp>
#include <tenure/device/cuda_device.hpp>

#include "cuda/check.hpp"

#include <chrono>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include <sys/wait.h>

namespace {

using namespace tenure::literals;
using tenure::status;
using gpu = tenure::cuda::device;

__global__ void spin(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}
__global__ void write_to(int* p) {
    *p = 1;
}

constexpr long long about_100_ms = 180'000'000;

bool clean() {
    return cudaPeekAtLastError() == cudaSuccess;
}

tenure::stream_handle make_stream() {
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    return s;
}

std::unique_ptr<gpu> open_or_skip() {
    try {
        return std::make_unique<gpu>();
    } catch (const tenure::driver_error& e) {
        if (e.code() != status::no_device) throw;
        tenure::test::skip(e.what());
    }
}

void unknown_ordinals_are_refused() {
    int count = 0;
    TENURE_REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
    for (const int ordinal : {-1, count, std::numeric_limits<int>::max()}) {
        bool refused = false;
        try {
            gpu d(ordinal);
        } catch (const tenure::driver_error& e) {
            refused = e.code() == status::no_device;
        }
        TENURE_CHECK(refused);
        TENURE_CHECK(clean());
    }
}

void allocate_and_deallocate(gpu& d) {
    const auto before = d.memory();
    TENURE_REQUIRE(before.has_value());
    for (const std::size_t n : {2_MiB, 20_MiB, 66_MiB, 1_GiB}) {
        const auto p = d.allocate(n);
        TENURE_REQUIRE(p.has_value());
        TENURE_CHECK(tenure::to_address(*p) % d.allocation_granularity() == 0);
        TENURE_CHECK(d.memory()->free + n <= before->free);
        TENURE_CHECK(d.deallocate(*p, n) == status::ok);
    }
    TENURE_CHECK(d.memory()->free == before->free);
    TENURE_CHECK(clean());

    int on_host = 0;
    TENURE_CHECK(d.deallocate(&on_host, sizeof on_host) == status::invalid_value);
    TENURE_CHECK(clean());
}

void out_of_memory_leaves_nothing_behind(gpu& d) {
    const std::size_t total = d.memory()->total;
    const auto p = d.allocate(2 * total);
    TENURE_REQUIRE(!p.has_value());
    TENURE_CHECK(p.error() == status::out_of_memory);
    TENURE_CHECK(clean());

    tenure::allocation_failure f;
    f.cause = tenure::failure_cause::fragmentation;
    f.driver_status = p.error();
    d.explain(f);
    TENURE_CHECK(f.cause == tenure::failure_cause::device);
    TENURE_CHECK(f.max == total);
    TENURE_CHECK(f.used > 0 && f.used < total);

    tenure::allocation_failure refused_above;
    refused_above.cause = tenure::failure_cause::arena_limit;
    refused_above.driver_status = status::over_limit;
    refused_above.used = 7;
    d.explain(refused_above);
    TENURE_CHECK(refused_above.cause == tenure::failure_cause::arena_limit);
    TENURE_CHECK(refused_above.used == 7);
}

void errors_of_the_application_stay(gpu& d) {
    const auto s = make_stream();
    const auto e = d.create_event();
    TENURE_REQUIRE(e.has_value());
    spin<<<1, 1, 0, s>>>(about_100_ms);
    TENURE_CHECK(d.record(*e, s) == status::ok);
    spin<<<1, 1 << 20, 0, s>>>(0); // no GPU has blocks of that size
    const cudaError_t theirs = cudaPeekAtLastError();
    TENURE_REQUIRE(theirs != cudaSuccess);

    TENURE_CHECK(d.query(*e) == status::not_ready);
    TENURE_CHECK(d.describe(s).has_value());
    const auto p = d.allocate(2_MiB);
    TENURE_CHECK(p.has_value());
    TENURE_CHECK(d.deallocate(*p, 2_MiB) == status::ok);
    TENURE_CHECK(d.synchronize(*e) == status::ok);
    TENURE_CHECK(cudaGetLastError() == theirs);

    TENURE_CHECK(d.destroy_event(*e) == status::ok);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

void events_mark_work(gpu& d) {
    const auto a = make_stream();
    const auto b = make_stream();
    const auto e = d.create_event();
    const auto f = d.create_event();
    TENURE_REQUIRE(e.has_value() && f.has_value());
    TENURE_CHECK(d.query(*e) == status::ok); // nothing marked yet

    spin<<<1, 1, 0, a>>>(about_100_ms);
    TENURE_CHECK(d.record(*e, a) == status::ok);
    TENURE_CHECK(d.query(*e) == status::not_ready);
    TENURE_CHECK(clean());
    TENURE_CHECK(d.wait(b, *e) == status::ok);
    TENURE_CHECK(d.record(*f, b) == status::ok);
    TENURE_CHECK(d.query(*f) == status::not_ready);
    TENURE_CHECK(d.synchronize(*f) == status::ok);
    TENURE_CHECK(d.query(*e) == status::ok);

    spin<<<1, 1, 0, a>>>(about_100_ms);
    TENURE_CHECK(d.record(*e, a) == status::ok);
    TENURE_CHECK(d.synchronize(a) == status::ok);
    TENURE_CHECK(d.query(*e) == status::ok);
    TENURE_CHECK(d.synchronize(tenure::default_stream) == status::ok);

    TENURE_CHECK(d.destroy_event(*e) == status::ok);
    TENURE_CHECK(d.destroy_event(*f) == status::ok);
    TENURE_CHECK(cudaStreamDestroy(a) == cudaSuccess);
    TENURE_CHECK(cudaStreamDestroy(b) == cudaSuccess);
    TENURE_CHECK(clean());
}

std::uint64_t id_of(gpu& d, tenure::stream_handle s) {
    const auto state = d.describe(s);
    TENURE_REQUIRE(state.has_value());
    TENURE_CHECK(!state->capturing());
    TENURE_CHECK(state->id != 0);
    return state->id;
}

void streams_have_identities(gpu& d) {
    const auto a = make_stream();
    const auto b = make_stream();
    const std::uint64_t first = id_of(d, a);
    TENURE_CHECK(first == id_of(d, a));
    TENURE_CHECK(first != id_of(d, b));
    TENURE_CHECK(first != id_of(d, cudaStreamLegacy));
    TENURE_CHECK(!d.permanent(a));
    TENURE_CHECK(d.permanent(cudaStreamLegacy));
    TENURE_CHECK(!d.permanent(cudaStreamPerThread));

    // A handle names another stream after its own is destroyed.
    TENURE_CHECK(cudaStreamDestroy(a) == cudaSuccess);
    for (int i = 0; i < 64; ++i) {
        const auto next = make_stream();
        TENURE_CHECK(id_of(d, next) != first);
        TENURE_CHECK(cudaStreamDestroy(next) == cudaSuccess);
    }
    TENURE_CHECK(cudaStreamDestroy(b) == cudaSuccess);

    // One handle, a stream for each thread.
    const std::uint64_t mine = id_of(d, cudaStreamPerThread);
    std::uint64_t theirs = 0;
    std::thread([&] { theirs = id_of(d, cudaStreamPerThread); }).join();
    TENURE_CHECK(mine != theirs);
    TENURE_CHECK(mine != id_of(d, cudaStreamLegacy));

    // What null means was chosen when this was compiled.
    if (tenure::cuda::null_is_legacy) {
        TENURE_CHECK(d.permanent(tenure::default_stream));
        TENURE_CHECK(id_of(d, tenure::default_stream) == id_of(d, cudaStreamLegacy));
    } else {
        TENURE_CHECK(!d.permanent(tenure::default_stream));
        TENURE_CHECK(id_of(d, tenure::default_stream) == mine);
    }
    TENURE_CHECK(clean());
}

void pools_have_limits(gpu& d) {
    const auto s = make_stream();
    const auto pool = d.create_pool({.max_bytes = 2 * d.pool_step(), .release_threshold = tenure::no_limit});
    if (!pool && pool.error() == status::not_supported) return;
    TENURE_REQUIRE(pool.has_value());
    TENURE_CHECK(d.memory_of(*pool)->reserved == 0);

    const auto p = d.allocate_from(*pool, 8_MiB, s);
    TENURE_REQUIRE(p.has_value());
    TENURE_CHECK(d.memory_of(*pool)->used == 8_MiB);
    TENURE_CHECK(d.memory_of(*pool)->reserved == d.pool_step());

    const auto too_much = d.allocate_from(*pool, 2 * d.pool_step(), s);
    TENURE_CHECK(!too_much.has_value() && too_much.error() == status::out_of_memory);
    TENURE_CHECK(clean());

    TENURE_CHECK(d.deallocate_to(*pool, *p, s) == status::ok);
    TENURE_CHECK(d.synchronize(s) == status::ok);
    TENURE_CHECK(d.memory_of(*pool)->used == 0);
    // The threshold keeps it, and what the refused request made the pool take.
    TENURE_CHECK(d.memory_of(*pool)->reserved >= d.pool_step());
    TENURE_CHECK(d.memory_of(*pool)->reserved <= 2 * d.pool_step());
    TENURE_CHECK(d.deallocate_to(*pool, *p, s) == status::invalid_value);
    TENURE_CHECK(clean());

    TENURE_CHECK(d.trim_pool(*pool, 0) == status::ok);
    TENURE_CHECK(d.memory_of(*pool)->reserved == 0);
    TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

/// Every member, while some stream is captured. None of it may fail or disturb that capture.
void use_everything(gpu& d) {
    const auto s = make_stream();
    const auto p = d.allocate(2_MiB);
    TENURE_CHECK(p.has_value());
    TENURE_CHECK(d.memory().has_value());
    TENURE_CHECK(d.describe(s).has_value());
    TENURE_CHECK(d.describe(tenure::default_stream).has_value());
    const auto e = d.create_event();
    TENURE_CHECK(e.has_value());
    TENURE_CHECK(d.record(*e, s) == status::ok);
    TENURE_CHECK(d.wait(s, *e) == status::ok);
    TENURE_CHECK(d.synchronize(*e) == status::ok);
    TENURE_CHECK(d.query(*e) == status::ok);
    TENURE_CHECK(d.synchronize(s) == status::ok);
    const auto pool = d.create_pool({});
    if (pool) {
        const auto q = d.allocate_from(*pool, 1_MiB, s);
        TENURE_CHECK(q.has_value());
        TENURE_CHECK(d.deallocate_to(*pool, *q, s) == status::ok);
        TENURE_CHECK(d.synchronize(s) == status::ok);
        TENURE_CHECK(d.memory_of(*pool).has_value());
        TENURE_CHECK(d.trim_pool(*pool, 0) == status::ok);
        TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
    }
    TENURE_CHECK(d.destroy_event(*e) == status::ok);
    TENURE_CHECK(d.deallocate(*p, 2_MiB) == status::ok);
    gpu again(d.ordinal());
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

void captures_survive(gpu& d, cudaStreamCaptureMode mode, bool from_another_thread, unsigned stream_flags) {
    const bool blocking = stream_flags == cudaStreamDefault;
    cudaStream_t s = nullptr;
    TENURE_REQUIRE(cudaStreamCreateWithFlags(&s, stream_flags) == cudaSuccess);
    const auto event = d.create_event();
    TENURE_REQUIRE(event.has_value());
    const auto pool = d.create_pool({});
    void* outside = nullptr;
    if (pool) outside = *d.allocate_from(*pool, 1_MiB, s);

    TENURE_REQUIRE(cudaStreamBeginCapture(s, mode) == cudaSuccess);
    spin<<<1, 1, 0, s>>>(1);

    const auto state = d.describe(s);
    TENURE_CHECK(state.has_value() && state->capturing());
    // The legacy default stream waits for blocking streams: while one is captured it must not be used.
    for (const tenure::stream_handle refused : {s, static_cast<tenure::stream_handle>(cudaStreamLegacy)}) {
        if (refused != s && !blocking) continue;
        if (pool) {
            const auto p = d.allocate_from(*pool, 1_MiB, refused);
            TENURE_CHECK(!p.has_value() && p.error() == status::capture_violation);
            TENURE_CHECK(d.deallocate_to(*pool, outside, refused) == status::capture_violation);
        }
        TENURE_CHECK(d.synchronize(refused) == status::capture_violation);
        if (refused != s) {
            TENURE_CHECK(d.record(*event, refused) == status::capture_violation);
            TENURE_CHECK(d.wait(refused, *event) == status::capture_violation);
        }
    }
    if (from_another_thread) {
        std::thread([&] { use_everything(d); }).join();
    } else {
        use_everything(d);
    }
    TENURE_CHECK(d.describe(s)->capture == state->capture);

    cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal; // the thread's own mode is the default again
    TENURE_CHECK(cudaThreadExchangeStreamCaptureMode(&now) == cudaSuccess);
    TENURE_CHECK(now == cudaStreamCaptureModeGlobal);

    cudaGraph_t graph = nullptr;
    TENURE_CHECK(cudaStreamEndCapture(s, &graph) == cudaSuccess);
    std::size_t nodes = 0;
    TENURE_CHECK(graph != nullptr && cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
    TENURE_CHECK(nodes == 1); // the kernel, and nothing of ours
    if (graph) TENURE_CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    TENURE_CHECK(!d.describe(s)->capturing());

    if (pool) {
        TENURE_CHECK(d.deallocate_to(*pool, outside, s) == status::ok);
        TENURE_CHECK(d.synchronize(s) == status::ok);
        TENURE_CHECK(d.destroy_pool(*pool) == status::ok);
    }
    TENURE_CHECK(d.destroy_event(*event) == status::ok);
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

void invalidated_captures_are_told_apart(gpu& d) {
    const auto s = make_stream();
    TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
    TENURE_REQUIRE(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported);
    (void)cudaGetLastError();
    const auto state = d.describe(s);
    TENURE_CHECK(state.has_value() && state->capture == std::numeric_limits<std::uint64_t>::max());
    TENURE_CHECK(d.synchronize(s) == status::capture_violation);
    cudaGraph_t graph = nullptr;
    TENURE_CHECK(cudaStreamEndCapture(s, &graph) != cudaSuccess);
    (void)cudaGetLastError();
    TENURE_CHECK(!d.describe(s)->capturing());
    TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    TENURE_CHECK(clean());
}

/// An event recorded inside a capture cannot be asked: that is an answer, not a crash.
void captured_events_are_refused(gpu& d) {
    for (const bool wait : {false, true}) {
        const auto s = make_stream();
        const auto e = d.create_event();
        TENURE_REQUIRE(e.has_value());
        TENURE_REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal) == cudaSuccess);
        TENURE_CHECK(d.record(*e, s) == status::ok);
        TENURE_CHECK((wait ? d.synchronize(*e) : d.query(*e)) == status::capture_violation);
        TENURE_CHECK(clean());
        cudaGraph_t graph = nullptr;
        (void)cudaStreamEndCapture(s, &graph);
        if (graph) (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();
        TENURE_CHECK(d.destroy_event(*e) == status::ok);
        TENURE_CHECK(cudaStreamDestroy(s) == cudaSuccess);
    }
}

int free_after_a_sticky_error() {
    gpu d;
    const auto p = d.allocate(2_MiB);
    TENURE_REQUIRE(p.has_value());
    write_to<<<1, 1>>>(nullptr);
    TENURE_REQUIRE(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    TENURE_CHECK(d.deallocate(*p, 2_MiB) == status::device_lost);
    TENURE_CHECK(!d.allocate(2_MiB).has_value());
    TENURE_CHECK(!clean()); // not ours to hide
    return tenure::test::finish("sticky");
}

template <class Call>
double nanoseconds_each(Call call) {
    constexpr int rounds = 100'000;
    for (int i = 0; i < rounds / 10; ++i) call();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) call();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
           rounds;
}

/// Lasts until somebody writes to the word.
__global__ void wait_for_word(const volatile unsigned* word) {
    while (*word == 0) {
    }
}

/// What it costs to ask about an event, once work has been enqueued on other streams than its own.
void print_costs_of_queries(gpu& d) {
    const auto s = make_stream();
    const auto busy = make_stream();
    const auto passed = d.create_event();
    const auto waits = d.create_event();
    unsigned* word = nullptr;
    TENURE_REQUIRE(passed.has_value() && waits.has_value());
    TENURE_REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&word), sizeof *word, cudaHostAllocDefault) ==
                   cudaSuccess);
    *word = 0;
    TENURE_REQUIRE(d.record(*passed, s) == status::ok && d.synchronize(s) == status::ok);
    wait_for_word<<<1, 1, 0, busy>>>(word);
    TENURE_REQUIRE(d.record(*waits, busy) == status::ok);
    std::printf("query, passed, beside  %6.1f ns\n", nanoseconds_each([&] { (void)d.query(*passed); }));
    TENURE_CHECK(d.query(*waits) == status::not_ready);
    std::printf("query, not passed      %6.1f ns\n", nanoseconds_each([&] { (void)d.query(*waits); }));
    cudaEvent_t shared = nullptr; // for other processes: another mechanism
    constexpr unsigned flags = cudaEventDisableTiming | cudaEventInterprocess;
    TENURE_REQUIRE(cudaEventCreateWithFlags(&shared, flags) == cudaSuccess);
    std::printf("record, interprocess   %6.1f ns\n",
                nanoseconds_each([&] { (void)cudaEventRecord(shared, s); }));
    TENURE_REQUIRE(d.synchronize(s) == status::ok);
    std::printf("query, interprocess    %6.1f ns\n", nanoseconds_each([&] { (void)cudaEventQuery(shared); }));
    TENURE_CHECK(cudaEventDestroy(shared) == cudaSuccess);
    *reinterpret_cast<volatile unsigned*>(word) = 1;
    TENURE_REQUIRE(d.synchronize(busy) == status::ok);
    std::printf("query, passed, after   %6.1f ns\n", nanoseconds_each([&] { (void)d.query(*passed); }));
    TENURE_CHECK(cudaFreeHost(word) == cudaSuccess);
    TENURE_CHECK(d.destroy_event(*passed) == status::ok && d.destroy_event(*waits) == status::ok);
}

int print_costs() {
    gpu d;
    const auto s = make_stream();
    const auto e = d.create_event();
    TENURE_REQUIRE(e.has_value() && d.record(*e, s) == status::ok && d.synchronize(s) == status::ok);
    std::printf("relaxed_capture        %6.1f ns\n",
                nanoseconds_each([] { const tenure::cuda::relaxed_capture r; }));
    std::printf("current_device, one    %6.1f ns\n",
                nanoseconds_each([] { const tenure::cuda::current_device c(0, true); }));
    std::printf("current_device, same   %6.1f ns\n",
                nanoseconds_each([] { const tenure::cuda::current_device c(0, false); }));
    std::printf("describe               %6.1f ns\n", nanoseconds_each([&] { (void)d.describe(s); }));
    std::printf("describe, default      %6.1f ns\n", nanoseconds_each([&] { (void)d.describe(nullptr); }));
    std::printf("record                 %6.1f ns\n", nanoseconds_each([&] { (void)d.record(*e, s); }));
    TENURE_REQUIRE(d.synchronize(s) == status::ok);
    std::printf("query, bare            %6.1f ns\n", nanoseconds_each([&] { (void)cudaEventQuery(*e); }));
    std::printf("query                  %6.1f ns\n", nanoseconds_each([&] { (void)d.query(*e); }));
    print_costs_of_queries(d);
    std::printf("synchronize(stream)    %6.1f ns\n", nanoseconds_each([&] { (void)d.synchronize(s); }));
    if (const auto pool = d.create_pool({})) {
        std::printf("pool pair              %6.1f ns\n", nanoseconds_each([&] {
                        const auto p = d.allocate_from(*pool, 1_MiB, s);
                        if (p) (void)d.deallocate_to(*pool, *p, s);
                    }));
    }
    return 0;
}

/// Returns: whether this program, started anew with `argument`, ended well.
bool passes_alone(const char* program, const char* argument) {
    const int rc = std::system(("\"" + std::string(program) + "\" " + argument).c_str());
    return WIFEXITED(rc) && WEXITSTATUS(rc) == 0;
}

} // namespace

int main(int argc, char** argv) {
    const std::string only = argc > 1 ? argv[1] : "";
    if (only == "versions") {
        std::printf("CUDA runtime %d.%d, nvcc %d.%d, g++ %s\n", CUDART_VERSION / 1000,
                    CUDART_VERSION % 1000 / 10, __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__, __VERSION__);
        return 0;
    }
    if (only == "sticky") return free_after_a_sticky_error();
    const auto device = open_or_skip();
    if (only == "costs") return print_costs();
    gpu& d = *device;

    unknown_ordinals_are_refused();
    allocate_and_deallocate(d);
    out_of_memory_leaves_nothing_behind(d);
    errors_of_the_application_stay(d);
    events_mark_work(d);
    streams_have_identities(d);
    pools_have_limits(d);
    for (const auto mode :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
        for (const unsigned flags : {unsigned{cudaStreamNonBlocking}, unsigned{cudaStreamDefault}}) {
            captures_survive(d, mode, false, flags);
            captures_survive(d, mode, true, flags);
        }
    }
    invalidated_captures_are_told_apart(d);
    captured_events_are_refused(d);
    TENURE_CHECK(passes_alone(argv[0], "sticky"));
    return tenure::test::finish("device");
}
