// The ear in torch's GPU trace: what it passes on, and to whom first.

#include "support/catch.hpp"

#ifdef TENURE_TORCH_TRACES

#include "trace_hook.hpp"

#include <c10/core/impl/GPUTrace.h>

#include <cstdint>
#include <string>
#include <vector>

using namespace tenure;

namespace {

/// Writes down what it hears.
struct scribe {
    std::vector<std::string>* heard;
    std::string name;

    void note(const std::string& what, const void* first = nullptr, const void* second = nullptr) noexcept {
        heard->push_back(name + " " + what + " " + std::to_string(reinterpret_cast<std::uintptr_t>(first)) +
                         " " + std::to_string(reinterpret_cast<std::uintptr_t>(second)));
    }
    void fresh(event_handle e) noexcept { note("fresh", e); }
    void recorded(event_handle e, stream_handle s) noexcept { note("recorded", e, s); }
    void waited(stream_handle s, event_handle e) noexcept { note("waited", s, e); }
    void host_waits(event_handle e) noexcept { note("event", e); }
    void host_waits(stream_handle s) noexcept { note("stream", s); }
    void host_waits() noexcept { note("device"); }
};
using hook = tenure::torch::trace_hook<scribe>;

} // namespace

TEST_CASE("the hook hears of CUDA before whoever was there", "[torch][waits]") {
    std::vector<std::string> heard;
    scribe inner{&heard, "former"};
    scribe outer{&heard, "mine"};
    const hook there_before(inner);
    const c10::impl::PyInterpreter former(&there_before);
    const hook h(outer, &former);

    h.trace_gpu_event_creation(c10::kCUDA, 1);
    h.trace_gpu_event_record(c10::kCUDA, 1, 2);
    h.trace_gpu_event_wait(c10::kCUDA, 1, 3);
    h.trace_gpu_event_synchronization(c10::kCUDA, 1);
    h.trace_gpu_stream_synchronization(c10::kCUDA, 2);
    h.trace_gpu_device_synchronization(c10::kCUDA);
    h.trace_gpu_event_deletion(c10::kCUDA, 1);
    h.trace_gpu_memory_allocation(c10::kCUDA, 7);
    h.trace_gpu_memory_deallocation(c10::kCUDA, 7);
    h.trace_gpu_stream_creation(c10::kCUDA, 2);
    const std::vector<std::string> what{"fresh 1 0",  "recorded 1 2", "waited 3 1", "event 1 0",
                                        "stream 2 0", "device 0 0",   "fresh 1 0"};
    std::vector<std::string> expected;
    for (const std::string& w : what) {
        expected.push_back("mine " + w);
        expected.push_back("former " + w);
    }
    CHECK(heard == expected);

    heard.clear();
    h.trace_gpu_event_record(c10::kXPU, 1, 2);
    h.trace_gpu_device_synchronization(c10::kXPU);
    CHECK(heard.empty());
    CHECK(h.name() == "tenure");
    CHECK_THROWS_AS(h.incref(nullptr), c10::Error); // it is no interpreter
}

TEST_CASE("the hook takes the place in the trace and passes on to who had it", "[torch][waits]") {
    using c10::impl::GPUTrace;
    static std::vector<std::string> heard; // the listeners live for ever
    static scribe first{&heard, "first"};
    static scribe second{&heard, "second"};
    REQUIRE(GPUTrace::get_trace() == nullptr);
    hook::listen(first);
    hook::listen(second);
    (*GPUTrace::get_trace())->trace_gpu_device_synchronization(c10::kCUDA);
    CHECK(heard == std::vector<std::string>{"second device 0 0", "first device 0 0"});
    GPUTrace::gpuTraceState.store(nullptr);
    GPUTrace::haveState = false;
}

#endif
