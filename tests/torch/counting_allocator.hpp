#pragma once

/// \file
/// `counting_allocator`: another of torch's allocators, as the source of a MemPool and as the one that was there before.
/// It gives segments of 2 MiB steps from numbers of its own, counts, and remembers what is asked about pools.

#include "allocator.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/units.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace tenure::test {

struct counting_allocator final : torch::native::CUDAAllocator {
    using pool_id = c10::MempoolId_t;

    std::size_t allowed = no_limit, held = 0, calls = 0, frees = 0;
    std::function<void()> on_alloc{}, on_delete{}, on_empty_cache{};
    std::map<pool_id, int> pool_users{};
    std::vector<std::string> pool_calls{};
    double fraction = 1;
    int recorded_streams = 0;
    std::map<void*, std::size_t> live;
    std::uintptr_t next = 0x10'0000'0000;

    void* raw_alloc(std::size_t n) override {
        ++calls;
        if (on_alloc) on_alloc();
        if (n > allowed - std::min(allowed, held)) return nullptr;
        void* const p = to_pointer(next);
        next += round_up(n, 2_MiB);
        live[p] = n;
        held += n;
        return p;
    }
    void raw_delete(void* p) override {
        ++frees;
        if (on_delete) on_delete();
        held -= live.at(p);
        live.erase(p);
    }

    c10::DataPtr allocate(std::size_t) override { return {}; }
    void copy_data(void*, const void*, std::size_t) const override {}
    bool initialized() override { return true; }
    void emptyCache(pool_id) override {
        if (on_empty_cache) on_empty_cache();
    }
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override {}
    void* raw_alloc_with_stream(std::size_t n, cudaStream_t) override { return raw_alloc(n); }
    void init(int) override {}
    double getMemoryFraction(c10::DeviceIndex) override { return fraction; }
    void setMemoryFraction(double, c10::DeviceIndex) override {}
    std::vector<torch::native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
        return {};
    }
    void enable(bool) override {}
    bool isEnabled() const override { return true; }
    void cacheInfo(c10::DeviceIndex, std::size_t*) override {}
    void* getBaseAllocation(void* p, std::size_t*) override { return p; }
    void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override { ++recorded_streams; }
    static void deleter(void*) {}
    c10::DeleterFnPtr raw_deleter() const override { return &deleter; }
    torch::native::SnapshotInfo snapshot(pool_id, bool) override { return {}; }
    void beginAllocateToPool(c10::DeviceIndex, pool_id id, std::function<bool(cudaStream_t)>) override {
        ++pool_users[id];
        pool_calls.emplace_back("begin");
    }
    void endAllocateToPool(c10::DeviceIndex, pool_id) override { pool_calls.emplace_back("end"); }
    void releasePool(c10::DeviceIndex, pool_id id) override {
        --pool_users[id];
        pool_calls.emplace_back("release");
    }
    int getPoolUseCount(c10::DeviceIndex, pool_id id) override { return pool_users[id]; }
    void setUseOnOOM(c10::DeviceIndex, pool_id, bool) override { pool_calls.emplace_back("use_on_oom"); }
    void setNoSplit(c10::DeviceIndex, pool_id) override { pool_calls.emplace_back("no_split"); }
    bool checkPoolLiveAllocations(c10::DeviceIndex, pool_id, const std::unordered_set<void*>&) override {
        pool_calls.emplace_back("check");
        return true;
    }
    torch::native::ShareableHandle shareIpcHandle(void*) override { return {0, "source"}; }
    std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
    void recordHistory(bool, c10::CachingDeviceAllocator::CreateContextFn, std::size_t,
                       c10::CachingDeviceAllocator::RecordContext, bool,
                       const std::vector<std::string>&) override {}
    void attachOutOfMemoryObserver(torch::native::OutOfMemoryObserver) override {}
    void attachAllocatorTraceTracker(torch::trace_tracker) override {}
    void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
    cudaError_t memcpyAsync(void*, int, const void*, int, std::size_t, cudaStream_t, bool) override {
        return cudaSuccess;
    }
    std::shared_ptr<torch::native::AllocatorState> getCheckpointState(c10::DeviceIndex, pool_id) override {
        return nullptr;
    }
    torch::native::CheckpointDelta
    setCheckpointPoolState(c10::DeviceIndex, std::shared_ptr<torch::native::AllocatorState>) override {
        return {};
    }
    std::string name() override { return "counting"; }
};

} // namespace tenure::test
