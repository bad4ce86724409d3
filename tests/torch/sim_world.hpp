#pragma once

/// \file
/// `sim_world`: the simulated device in the place of CUDA, for tests of the whole allocator interface; and `torch_world`,
/// one allocator in it with what a test usually needs.

#include "allocator.hpp"
#include "outside_captures.hpp"

#include <tenure/device/sim_device.hpp>

#include <memory>
#include <string>
#include <utility>

namespace tenure::torch {

/// Counts how many such scopes this thread is in.
template <>
struct outside_captures<sim::device> {
    outside_captures() { ++depth(); }
    ~outside_captures() { --depth(); }
    outside_captures(const outside_captures&) = delete;
    outside_captures& operator=(const outside_captures&) = delete;
    static int& depth() {
        thread_local int n = 0;
        return n;
    }
};

} // namespace tenure::torch

namespace tenure::test {

struct sim_world {
    using device_type = sim::device;

    sim::device_options options{};
    int device = 0;                 ///< the current one
    stream_handle stream = nullptr; ///< the current one
    std::string last_copy{};
    int gates_opened_to_peers = 0;

    [[nodiscard]] std::unique_ptr<sim::device> open(int, torch::sharing) const {
        return std::make_unique<sim::device>(options);
    }
    [[nodiscard]] int current_device() const { return device; }
    [[nodiscard]] stream_handle current_stream(int) const { return stream; }
    [[nodiscard]] status wait_for_current_device(sim::device& d) const { return d.synchronize(); }
    void copy(void*, const void*, std::size_t) { last_copy = "copy"; }
    cudaError_t copy_async(void*, int to, const void*, int from, std::size_t, cudaStream_t, bool peer) {
        last_copy = to == from || peer ? "plain" : "peer";
        return cudaSuccess;
    }
    template <class Gate>
    torch::native::ShareableHandle share(Gate& through, void* p, std::size_t n) {
        return {0, std::to_string(through.extents(p, n).size())};
    }
    std::shared_ptr<void> open_shared(sim::device&, const std::string&) { return nullptr; }
    template <class Gate>
    void enable_peer(int, Gate&) {}
    template <class Gate>
    void admit_peers(Gate&) {
        ++gates_opened_to_peers;
    }
};

using sim_allocator = torch::allocator<sim_world>;

} // namespace tenure::test

// Compiled once, in sim_world.cpp.
extern template class tenure::torch::heap<tenure::sim::device>;
extern template class tenure::torch::allocator<tenure::test::sim_world>;

namespace tenure::test {

/// Capacity and policy, and an allocator that has been initialised for one device.
struct torch_world {
    explicit torch_world(std::size_t capacity = 1_GiB, const std::string& options = {},
                         torch::heap_settings heaps = {}) {
        world.options.capacity = capacity;
        world.options.cost = sim::costs{};
        a = std::make_unique<sim_allocator>(world, torch::parse_settings(options),
                                            with_limit(heaps, options));
        a->init(1);
    }

    static torch::heap_settings with_limit(torch::heap_settings h, const std::string& options) {
        h.limit = torch::parse_settings(options).limit;
        return h;
    }

    [[nodiscard]] sim::device& gpu() { return a->heap_of(0).upstream(); }
    [[nodiscard]] auto stats() { return a->getDeviceStats(0); }

    /// Effects: the allocator looks whether pending frees have passed, as at every allocation.
    void look() { a->raw_delete(a->raw_alloc(1)); }

    /// Returns: a block that this thread has allocated in the arena `who`.
    [[nodiscard]] void* raw_alloc_in(const std::shared_ptr<torch::tenant>& who, std::size_t bytes) {
        torch::tenants::push(who);
        void* const p = a->raw_alloc(bytes);
        torch::tenants::pop();
        return p;
    }

    /// As that of `at::cuda::CUDAGraph`: accepts streams that are being captured.
    [[nodiscard]] auto graph_filter() {
        return [&device = gpu()](cudaStream_t s) {
            const auto state = device.describe(s);
            return state && state->capturing();
        };
    }

    sim_world world{};
    std::unique_ptr<sim_allocator> a;
};

inline std::int64_t now(const c10::CachingAllocator::StatArray& s) {
    return s[0].current;
}

} // namespace tenure::test
