#pragma once

/// \file
/// `allocator<World>`: torch's CUDA allocator, all of its interface, over one `heap` a device.
///
///     torch  --CUDAAllocator-->  allocator  --heap of the device-->  arenas and private pools
///                                    |
///                                    +-- what it does not know: the allocator that was there before
///
/// A `World` is what stands between this and CUDA, so that the whole interface is tested on the simulated device:
///
/// | member | meaning |
/// |---|---|
/// | `device_type` | a model of `vmm_device` and `pool_device` |
/// | `open(ordinal, sharing)` | the device: `std::unique_ptr<device_type>` |
/// | `current_device()`, `current_stream(device)` | of the calling thread |
/// | `copy(to, from, n)` | returns when done |
/// | `copy_async(to, to_device, from, from_device, n, stream, peer)` | |
/// | `share(gate, p, n)`, `open_shared(device, handle)` | see `ipc.hpp` |
/// | `wait_for_current_device(device)` | the status of waiting for it, as torch does: for `told_waits` |
/// | `enable_peer(device, gate)` | the device may use the memory behind the gate |
/// | `admit_peers(gate)` | so may those that may have been told before the gate was there that they may |
///
/// Invariants:
///   1. `raw_deleter()` is one function as long as caching is on, every `DataPtr` made here has it, and its context is
///      the pointer.
///   2. Heaps are made on first use, and never destroyed while the process lives.
///   3. No lock is held over torch's callbacks, observers, other allocators, and the gathering of contexts.
///
/// Thread-safety: thread-safe, after construction.

#include "heap.hpp"
#include "host_wait_note.hpp"
#include "policies.hpp"

#include <tenure/core/bits.hpp>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenure::torch {

template <class World>
class allocator final : public native::CUDAAllocator, private out_of_memory_watch {
  public:
    using device_type = typename World::device_type;
    using heap_type = heap<device_type>;
    using pool_id = c10::MempoolId_t;

    /// `former`: the allocator whose place this takes; null: none. Throws: `std::invalid_argument` for settings that no
    /// policy knows.
    allocator(World& world, const settings& s, heap_settings h, native::CUDAAllocator* former = nullptr)
        : world_(&world)
        , settings_(s)
        , heap_settings_(std::move(h))
        , former_(former)
        , never_cached_(c10::utils::has_env("PYTORCH_NO_CUDA_MEMORY_CACHING")) {
        check_policy(s.policy);
        default_ = tenants_.create("torch", no_limit, s.policy);
        instance_.store(this);
    }

    ~allocator() override {
        allocator* self = this;
        instance_.compare_exchange_strong(self, nullptr);
    }
    allocator(const allocator&) = delete;
    allocator& operator=(const allocator&) = delete;

    // ----------------------------------------------------------------------------------------------------------------
    // c10::Allocator
    // ----------------------------------------------------------------------------------------------------------------

    c10::DataPtr allocate(std::size_t n) override {
        constexpr std::size_t one_exabyte = std::size_t{1} << 60;
        TORCH_CHECK_WITH(OutOfMemoryError, n < one_exabyte,
                         "CUDA out of memory. Tried to allocate more than 1EB memory.");
        const int device = world_->current_device();
        void* p = nullptr;
        if (n != 0)
            p = caching() ? take(n, device, world_->current_stream(device)) : take_uncached(n, device);
        return {p, p, raw_deleter(), c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device))};
    }

    c10::DeleterFnPtr raw_deleter() const override { return caching() ? &delete_block : &delete_uncached; }

    void copy_data(void* dest, const void* src, std::size_t count) const override {
        world_->copy(dest, src, count);
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Blocks
    // ----------------------------------------------------------------------------------------------------------------

    void* raw_alloc(std::size_t n) override {
        if (n == 0) return nullptr;
        const int device = world_->current_device();
        return take(n, device, world_->current_stream(device));
    }

    void* raw_alloc_with_stream(std::size_t n, cudaStream_t stream) override {
        return n == 0 ? nullptr : take(n, world_->current_device(), stream);
    }

    void raw_delete(void* p) override {
        if (p == nullptr) return;
        host_wait_note<device_type>::settle();
        context_ptr context = recorder_.gather(context_level::ALL);
        if (const c10::impl::PyInterpreter* const py = c10::impl::GPUTrace::get_trace()) [[unlikely]]
            (*py)->trace_gpu_memory_deallocation(c10::kCUDA, to_address(p));
        typename heap_type::change done;
        heap_type* const mine = owner_of([&](heap_type& h) { return h.release(p, context, done); });
        if (mine == nullptr) return give_back_foreign(p);
        c10::reportMemoryUsageToProfiler(p, -static_cast<std::int64_t>(done.size), done.allocated,
                                         done.reserved, device_of(*mine));
    }

    void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
        if (data.get() && data.get_deleter() != nullptr && data.get_deleter() != &delete_block &&
            former_in_use() && data.get_deleter() == former_->raw_deleter())
            return former_->recordStream(data, stream);
        record_stream(data, stream.stream());
    }

    /// `recordStream` of this allocator's memory, with a plain handle. Other memory is none of its business.
    void record_stream(const c10::DataPtr& data, cudaStream_t stream) {
        if (!data.get()) return;
        if (data.get_deleter() != &delete_block) return;
        (void)owner_of([&](heap_type& h) { return h.record_stream(data.get(), stream); });
    }

    void* getBaseAllocation(void* p, std::size_t* size) override {
        std::pair<void*, std::size_t> found{nullptr, 0};
        if (owner_of([&](heap_type& h) { return (found = h.base_of(p)).first != nullptr; }) == nullptr) {
            if (former_in_use()) return former_->getBaseAllocation(p, size);
            TORCH_CHECK(false, "invalid device pointer: ", p);
        }
        if (size != nullptr) *size = found.second;
        return found.first;
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Life, limits, giving back
    // ----------------------------------------------------------------------------------------------------------------

    void init(int device_count) override {
        const std::lock_guard lock(mutex_);
        count_ = std::max(count_.load(), std::min(device_count, max_devices));
        initialized_ = true;
    }
    bool initialized() override { return initialized_.load(); }

    /// Effects: `init`, and what can be read back of the former allocator's settings holds here: its memory fractions.
    void take_over(int device_count) {
        init(device_count);
        for (int d = 0; d < this->device_count(); ++d) {
            try {
                const double f = former_->getMemoryFraction(static_cast<c10::DeviceIndex>(d));
                if (f < 1.0) setMemoryFraction(f, static_cast<c10::DeviceIndex>(d));
            } catch (const c10::Error&) { // it knows no such thing
                return;
            }
        }
    }

    double getMemoryFraction(c10::DeviceIndex device) override {
        checked(device);
        const std::lock_guard lock(mutex_);
        return fraction_of(device);
    }
    /// A device that is not used yet stays so.
    void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
        TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
                    ". Please set within [0, 1].");
        checked(device);
        {
            const std::lock_guard lock(mutex_);
            fractions_[device] = fraction;
        }
        if (heap_type* const h = heap_if_any(device)) h->set_fraction(fraction);
    }

    void emptyCache(pool_id only = {0, 0}) override {
        for_each_heap([&](heap_type& h) { h.empty_cache(only); });
        // It knows nothing of captures here, and its frees and queries would end them.
        if (former_in_use() && !capture_under_way()) empty_former(only);
    }

    void enable(bool value) override { enabled_.store(value); }
    bool isEnabled() const override { return enabled_.load(); }

    void cacheInfo(c10::DeviceIndex device, std::size_t* largest) override {
        heap_type& h = heap_of(device);
        std::size_t could_buy = 0;
        if (const auto m = h.upstream().memory()) could_buy = m->free;
        const meter_reading l = h.limits();
        if (l.max != no_limit) could_buy = std::min(could_buy, l.max - std::min(l.max, l.charged));
        *largest = std::max({*largest, could_buy, h.largest_free()});
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Statistics, history, snapshots
    // ----------------------------------------------------------------------------------------------------------------

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        checked(device);
        heap_type* const h = heap_if_any(device);
        auto s = h != nullptr ? h->read_statistics() : c10::CachingDeviceAllocator::DeviceStats{};
        s.max_split_size =
            static_cast<std::int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
        return s;
    }
    void resetAccumulatedStats(c10::DeviceIndex device) override {
        checked(device);
        if (heap_type* const h = heap_if_any(device)) h->reset_accumulated();
    }
    void resetPeakStats(c10::DeviceIndex device) override {
        checked(device);
        if (heap_type* const h = heap_if_any(device)) h->reset_peak();
    }

    native::SnapshotInfo snapshot(pool_id only = {0, 0}, bool include_traces = true) override {
        native::SnapshotInfo all;
        c10::ApproximateClockToUnixTimeConverter& clock = this->clock();
        const auto to_nanoseconds = clock.makeConverter();
        const auto to_epoch = [&](c10::CachingDeviceAllocator::trace_time_& t) {
            t.t_ = to_nanoseconds(t.approx_t_) / 1000;
        };
        for (int d = 0; d < count_; ++d) {
            heap_type* const h = heap_if_any(d);
            // Its own entry, which the snapshot adds, belongs to the next one.
            if (include_traces) all.device_traces.push_back(h != nullptr ? h->trace_entries() : no_entries());
            if (h != nullptr) h->snapshot(only, all.segments);
        }
        for (auto& traces : all.device_traces)
            for (trace_entry& e : traces) to_epoch(e.time_);
        if (include_traces) {
            const std::lock_guard lock(mutex_);
            all.external_annotations = annotations_;
        }
        for (auto& a : all.external_annotations) to_epoch(a.time_);
        all.config_metadata = config();
        return all;
    }

    bool isHistoryEnabled() override { return recorder_.enabled(); }

    void recordHistory(bool enabled, c10::CachingDeviceAllocator::CreateContextFn create,
                       std::size_t max_entries, c10::CachingDeviceAllocator::RecordContext when, bool clear,
                       const std::vector<std::string>& skip_actions) override {
        TORCH_CHECK(when == context_level::NEVER || create != nullptr,
                    "a context needs a function that makes it");
        std::vector<trace_entry::Action> skipped;
        for (const std::string& name : skip_actions)
            skipped.push_back(c10::CachingDeviceAllocator::parseTraceEntryAction(name));
        (void)clock(); // times of entries are measured against this moment
        history made{enabled, max_entries, clear, std::move(skipped)};
        const std::lock_guard lock(mutex_);
        recorder_.set(enabled, create, when);
        history_ = made;
        history_.clear = false;
        if (!enabled || clear) annotations_.clear();
        for (int d = 0; d < max_devices; ++d)
            if (heap_type* const h = heap_if_any(d))
                h->set_history(enabled, max_entries, clear, made.skipped);
    }

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& md) override {
        if (!recorder_.enabled()) return;
        c10::CachingDeviceAllocator::AnnotationEntry e(
            static_cast<c10::DeviceIndex>(world_->current_device()), c10::getApproximateTime());
        for (const auto& [key, value] : md) e.recordUserMetadata(key, value);
        const std::lock_guard lock(mutex_);
        annotations_.push_back(std::move(e));
    }
    void pushCompileContext(std::string& md) override { thread_notes::mine().compile_contexts.push_back(md); }
    void popCompileContext() override {
        auto& stack = thread_notes::mine().compile_contexts;
        if (!stack.empty()) stack.pop_back();
    }
    void setUserMetadata(const std::string& metadata) override {
        thread_notes::mine().user_metadata = metadata;
    }
    std::string getUserMetadata() override { return thread_notes::mine().user_metadata; }

    void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
        const std::lock_guard lock(mutex_);
        auto more =
            observers_ ? std::make_shared<observer_list>(*observers_) : std::make_shared<observer_list>();
        more->push_back(std::move(observer));
        observers_ = std::move(more);
    }

    void attachAllocatorTraceTracker(trace_tracker tracker) override {
        const std::lock_guard lock(mutex_);
        trackers_.push_back(tracker);
        for (int d = 0; d < max_devices; ++d)
            if (heap_type* const h = heap_if_any(d)) h->track(tracker);
    }

    std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
        checked(device);
        std::vector<native::StreamSegmentSize> sizes;
        if (heap_type* const h = heap_if_any(device)) h->expandable(sizes);
        return sizes;
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Pools and checkpoints
    // ----------------------------------------------------------------------------------------------------------------

    // Pools from before this allocator are the former one's, to the end of their lives: their users let go of them in
    // destructors, where an error would end the process.

    void beginAllocateToPool(c10::DeviceIndex device, pool_id id,
                             std::function<bool(cudaStream_t)> filter) override {
        TORCH_CHECK(
            !former_has(device, id),
            "tenure: this pool was made before tenure became torch's allocator, and cannot be allocated to "
            "any more: make a new MemPool, or capture the graph again");
        heap_of(device).begin(id, std::move(filter), world_->current_stream(device));
    }
    void endAllocateToPool(c10::DeviceIndex device, pool_id id) override {
        if (former_has(device, id)) return former_->endAllocateToPool(device, id);
        heap_of(device).end(id);
    }
    void releasePool(c10::DeviceIndex device, pool_id id) override {
        if (former_in_use() && !has(device, id)) return former_->releasePool(device, id);
        heap_of(device).release_pool(id);
    }
    int getPoolUseCount(c10::DeviceIndex device, pool_id id) override {
        if (former_has(device, id)) return former_->getPoolUseCount(device, id);
        return heap_of(device).use_count(id);
    }
    void createOrIncrefPool(c10::DeviceIndex device, pool_id id,
                            std::shared_ptr<native::CUDAAllocator> source = nullptr) override {
        heap_of(device).create_or_incref(id, std::move(source));
    }
    void setUseOnOOM(c10::DeviceIndex device, pool_id id, bool on) override {
        if (former_has(device, id)) return former_->setUseOnOOM(device, id, on);
        heap_of(device).set_use_on_oom(id, on);
    }
    void setNoSplit(c10::DeviceIndex device, pool_id id) override {
        if (former_has(device, id)) return former_->setNoSplit(device, id);
        heap_of(device).set_no_split(id);
    }

    bool checkPoolLiveAllocations(c10::DeviceIndex device, pool_id id,
                                  const std::unordered_set<void*>& expected) override {
        if (former_has(device, id)) return former_->checkPoolLiveAllocations(device, id, expected);
        return heap_of(device).live_blocks_are(id, expected);
    }
    std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, pool_id id) override {
        if (former_has(device, id)) return former_->getCheckpointState(device, id);
        return heap_of(device).checkpoint(id);
    }
    native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                   std::shared_ptr<native::AllocatorState> state) override {
        if (const auto* const mine = dynamic_cast<const pool_checkpoint*>(state.get()))
            return heap_of(device).restore(*mine, &delete_block);
        TORCH_CHECK(former_in_use(), "the checkpoint was made by another allocator");
        return former_->setCheckpointPoolState(device, std::move(state));
    }

    // ----------------------------------------------------------------------------------------------------------------
    // Other devices, other processes
    // ----------------------------------------------------------------------------------------------------------------

    native::ShareableHandle shareIpcHandle(void* p) override {
        native::ShareableHandle shared{};
        heap_type* const mine = owner_of([&](heap_type& h) {
            const std::size_t n = h.size_of(p);
            if (n == 0) return false;
            shared = world_->share(h.through(), p, n);
            return true;
        });
        if (mine != nullptr) return shared;
        TORCH_CHECK(former_in_use(), "invalid device pointer: ", p);
        return former_->shareIpcHandle(p);
    }
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
        const int device = world_->current_device();
        return world_->open_shared(heap_of(device).upstream(), std::move(handle));
    }

    void enablePeerAccess(c10::DeviceIndex dev, c10::DeviceIndex dev_to_access) override {
        world_->enable_peer(dev, heap_of(dev_to_access).through());
    }
    cudaError_t memcpyAsync(void* dst, int dst_device, const void* src, int src_device, std::size_t count,
                            cudaStream_t stream, bool p2p_enabled) override {
        return world_->copy_async(dst, dst_device, src, src_device, count, stream, p2p_enabled);
    }

    std::string name() override { return "tenure"; }

    // ----------------------------------------------------------------------------------------------------------------
    // What torch has no word for
    // ----------------------------------------------------------------------------------------------------------------

    [[nodiscard]] tenants& arenas() noexcept { return tenants_; }
    [[nodiscard]] const settings& chosen() const noexcept { return settings_; }
    [[nodiscard]] int device_count() const noexcept { return count_; }
    [[nodiscard]] std::uint64_t foreign_frees() const noexcept { return foreign_frees_.load(); }
    [[nodiscard]] bool former_in_use() const { return former_ != nullptr && former_->initialized(); }
    [[nodiscard]] native::CUDAAllocator* former() const noexcept { return former_; }

    /// Returns: the device's heap, made now if there is none. Throws: `c10::Error` for a device that is not there.
    heap_type& heap_of(int device) {
        checked(device);
        if (heap_type* const h = heap_if_any(device)) [[likely]]
            return *h;
        return make_heap(device);
    }
    [[nodiscard]] heap_type* heap_if_any(int device) const noexcept {
        return heaps_[static_cast<std::size_t>(device)].load(std::memory_order_acquire);
    }

    template <class F>
    void for_each_heap(F&& f) const {
        for (int d = 0; d < max_devices; ++d)
            if (heap_type* const h = heap_if_any(d)) f(*h);
    }

    /// Effects: `bytes` is the most all arenas of each device may hold together.
    void set_limit(int device, std::size_t bytes) {
        {
            const std::lock_guard lock(mutex_);
            if (device < 0) heap_settings_.limit = bytes;
        }
        if (device >= 0) return heap_of(device).set_limit(bytes);
        for_each_heap([&](heap_type& h) { h.set_limit(bytes); });
    }

    [[nodiscard]] bool validate() {
        bool good = true;
        for_each_heap([&](heap_type& h) { good = h.validate() && good; });
        return good;
    }

  private:
    using observer_list = std::vector<native::OutOfMemoryObserver>;

    struct history {
        bool enabled = false;
        std::size_t max_entries = 1;
        bool clear = false;
        std::vector<trace_entry::Action> skipped{};
    };

    [[nodiscard]] bool caching() const noexcept {
        return !never_cached_ && enabled_.load(std::memory_order_relaxed);
    }

    void* take(std::size_t n, int device, cudaStream_t stream) {
        host_wait_note<device_type>::settle();
        heap_type& h = heap_of(device);
        tenant* const who = tenants::current();
        context_ptr context = recorder_.gather(context_level::STATE);
        const auto got = h.allocate(n, stream, who != nullptr ? *who : *default_, std::move(context), *this);
        hint() = device;
        if (const c10::impl::PyInterpreter* const py = c10::impl::GPUTrace::get_trace()) [[unlikely]]
            (*py)->trace_gpu_memory_allocation(c10::kCUDA, to_address(got.ptr));
        c10::reportMemoryUsageToProfiler(got.ptr, static_cast<std::int64_t>(got.size), got.allocated,
                                         got.reserved, device_of(h));
        return got.ptr;
    }

    // ---- without caching ----

    void* take_uncached(std::size_t n, int device) {
        heap_type& h = heap_of(device);
        const result<void*, status> p = h.upstream().allocate(n);
        TORCH_CHECK_WITH(OutOfMemoryError, p.has_value(), "CUDA out of memory. Tried to allocate ",
                         torch_bytes(n), " without caching. GPU ", device, ". tenure: the device said ",
                         p ? "" : to_string(p.error()));
        const std::lock_guard lock(mutex_);
        uncached_[*p] = {&h, n};
        return *p;
    }

    /// Returns: whether it was allocated without caching.
    bool give_back_uncached(void* p) {
        std::pair<heap_type*, std::size_t> from{nullptr, 0};
        {
            const std::lock_guard lock(mutex_);
            const auto it = uncached_.find(p);
            if (it == uncached_.end()) return false;
            from = it->second;
            uncached_.erase(it);
        }
        (void)from.first->upstream().deallocate(p, from.second);
        return true;
    }

    static void delete_uncached(void* p) {
        if (p == nullptr) return;
        allocator* const self = instance_.load();
        if (self != nullptr && !self->give_back_uncached(p)) self->raw_delete(p);
    }

    static void delete_block(void* p) {
        if (allocator* const self = instance_.load(std::memory_order_relaxed)) self->raw_delete(p);
    }

    /// Effects: memory of the former allocator goes back to it.
    void give_back_foreign(void* p) {
        if (give_back_uncached(p)) return;
        TORCH_CHECK(former_in_use(), "invalid device pointer: ", p);
        foreign_frees_.fetch_add(1, std::memory_order_relaxed);
        former_->raw_delete(p);
    }

    // ---- heaps ----

    /// Returns: the heap for which `f` says true, or null. The one that this thread used last is asked first.
    template <class F>
    heap_type* owner_of(F&& f) {
        const int first = hint();
        if (heap_type* const h = heap_if_any(first); h != nullptr && f(*h)) [[likely]]
            return h;
        for (int d = 0; d < max_devices; ++d) {
            if (d == first) continue;
            heap_type* const h = heap_if_any(d);
            if (h == nullptr || !f(*h)) continue;
            hint() = d;
            return h;
        }
        return nullptr;
    }

    static int& hint() noexcept {
        thread_local int device = 0;
        return device;
    }

    void checked(int device) const {
        TORCH_CHECK(0 <= device && device < count_, "Allocator not initialized for device ", device,
                    ": did you call init?");
    }

    heap_type& make_heap(int device) {
        // Opening a device calls CUDA, which may take long; two threads may do it at once, and one of them wins.
        std::unique_ptr<device_type> gpu = world_->open(device, settings_.share);
        const std::lock_guard lock(mutex_);
        if (heap_type* const h = heap_if_any(device)) return *h;
        heap_settings its_own = heap_settings_;
        its_own.fraction = fraction_of(device);
        auto fresh = std::make_unique<heap_type>(device, std::move(gpu), its_own, recorder_);
        if (former_in_use() && count_ > 1) world_->admit_peers(fresh->through());
        fresh->set_history(history_.enabled, history_.max_entries, true, history_.skipped);
        for (const trace_tracker& t : trackers_) fresh->track(t);
        heap_type* const h = fresh.get();
        owned_.push_back(std::move(fresh));
        heaps_[static_cast<std::size_t>(device)].store(h, std::memory_order_release);
        return *h;
    }

    static c10::Device device_of(const heap_type& h) noexcept {
        return {c10::kCUDA, static_cast<c10::DeviceIndex>(h.ordinal())};
    }

    // ---- the former allocator ----

    [[nodiscard]] bool has(int device, pool_id id) const {
        const heap_type* const h = heap_if_any(device);
        return h != nullptr && h->use_count(id) != 0;
    }
    /// Returns: whether it is a pool of the former allocator's.
    [[nodiscard]] bool former_has(int device, pool_id id) const {
        if (!former_in_use() || has(device, id)) return false;
        try {
            return former_->getPoolUseCount(static_cast<c10::DeviceIndex>(device), id) > 0;
        } catch (const c10::Error&) { // a kind without pools
            return false;
        }
    }

    void empty_former(pool_id only) {
        try {
            former_->emptyCache(only);
        } catch (const c10::Error&) {
            if (only == pool_id{0, 0}) throw; // else: a pool that it does not know
        }
    }

    [[nodiscard]] bool capture_under_way() const {
        bool any = false;
        for_each_heap([&](heap_type& h) { any = any || h.capture_active(); });
        return any;
    }

    double fraction_of(int device) const {
        const auto it = fractions_.find(device);
        return it == fractions_.end() ? heap_settings_.fraction : it->second;
    }

    bool make_room() override {
        if (!former_in_use() || capture_under_way()) return false;
        empty_former({0, 0});
        return true;
    }

    void ran_out(int device, std::size_t requested, std::size_t total, std::size_t free) override {
        std::shared_ptr<const observer_list> now;
        {
            const std::lock_guard lock(mutex_);
            now = observers_;
        }
        if (!now) return;
        for (const native::OutOfMemoryObserver& o : *now) o(device, requested, total, free);
    }

    static std::vector<trace_entry> no_entries() { return {}; }

    static c10::ApproximateClockToUnixTimeConverter& clock() {
        static c10::ApproximateClockToUnixTimeConverter converter;
        return converter;
    }

    static native::AllocatorConfigInfo config() {
        using accelerator = c10::CachingAllocator::AcceleratorAllocatorConfig;
        using cuda = native::CUDAAllocatorConfig;
        native::AllocatorConfigInfo c{};
        c.garbage_collection_threshold = accelerator::garbage_collection_threshold();
        c.max_split_size = accelerator::max_split_size();
        c.pinned_num_register_threads = cuda::pinned_num_register_threads();
        c.expandable_segments = accelerator::use_expandable_segments();
        c.release_lock_on_malloc = cuda::release_lock_on_cudamalloc();
        c.pinned_use_host_register = cuda::pinned_use_cuda_host_register();
        c.graph_capture_record_stream_reuse = cuda::graph_capture_record_stream_reuse();
        c.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
        c.roundup_power2_divisions = accelerator::roundup_power2_divisions();
        return c;
    }

    static inline std::atomic<allocator*> instance_{nullptr}; ///< whom the deleters speak for

    World* world_;
    const settings settings_;
    heap_settings heap_settings_;
    native::CUDAAllocator* const former_;
    const bool never_cached_;
    std::atomic<bool> enabled_{true};
    std::atomic<bool> initialized_{false};
    std::atomic<int> count_{0};
    std::atomic<std::uint64_t> foreign_frees_{0};
    tenants tenants_;
    tenant_ptr default_;
    recorder recorder_;
    std::array<std::atomic<heap_type*>, max_devices> heaps_{};
    std::mutex mutex_; ///< guards what follows; a heap may be called under it, never the reverse
    std::vector<std::unique_ptr<heap_type>> owned_;
    std::shared_ptr<const observer_list> observers_;
    std::vector<trace_tracker> trackers_;
    std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
    history history_;
    std::map<int, double> fractions_; ///< of devices for which one was set
    std::unordered_map<void*, std::pair<heap_type*, std::size_t>> uncached_; ///< bytes
};

} // namespace tenure::torch
