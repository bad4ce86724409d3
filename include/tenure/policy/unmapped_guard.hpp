#pragma once

/// \file
/// `unmapped_guard<Pool>`: a pool of which some blocks end where the address space does, so that a kernel that writes behind
/// one dies at once. For debugging, where the device has virtual memory.
///
///     reservation  [ mapped: whole granules          | one granule, never mapped ]
///                          [ block, rounded up to its alignment ]
///
/// Each k-th block is such a one (`every`); the rest is the pool's. A guarded block has memory and addresses of its own, which
/// go back to the device once all work on it has passed, so a kernel that uses it after that dies too. It takes whole granules
/// (2 MiB) and some 100 us: sample.
///
/// Not caught: writes within the rounding to the alignment (`guard_canary` finds those), and before the block's granule.
/// Unguarded, and so the pool's: what is allocated during a capture or by `allocate_sync`, what needs an alignment above the
/// granule, is larger than `max_bytes`, or cannot be had guarded. Before the pool's refusal stands, what freed guarded blocks
/// hold goes back to the device, as far as the work on it has passed, and the pool is asked again. But a live guarded block
/// takes a granule where the pool would have found a place for a small one: under a tight limit that can be the difference.
///
/// Used as a policy, `arena<guarded_pool, Device>`, its memory is charged as the pool's is.
///
/// Invariants: a guarded block's range is unmapped only after the events that its free recorded have passed; peaks are sums of
/// the peaks of both parts, so upper bounds. Thread-safety: thread-safe, except construction and destruction.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tenure {

template <class PoolOptions>
struct unmapped_guard_options {
    PoolOptions pool{};
    std::size_t every = 64;                         ///< each how manieth block is guarded; at least 1
    std::size_t max_bytes = std::size_t{256} << 20; ///< larger blocks are not
};

template <resource Pool>
    requires vmm_device<typename Pool::device_type>
class unmapped_guard {
  public:
    using device_type = typename Pool::device_type;
    using options_type = unmapped_guard_options<typename Pool::options_type>;

    /// Throws: what the pool's construction throws.
    explicit unmapped_guard(device_type& device, options_type options = {})
        : device_(&device)
        , every_(device.supports_vmm() ? std::max<std::size_t>(options.every, 1) : 0)
        , max_bytes_(options.max_bytes) {
        pool_.emplace(device, std::move(options.pool));
    }

    unmapped_guard(const unmapped_guard&) = delete;
    unmapped_guard& operator=(const unmapped_guard&) = delete;

    /// As the pool's: what is still live is reported and goes back.
    ~unmapped_guard() {
        if (!live_.empty()) {
            std::size_t bytes = 0;
            for (const auto& [address, b] : live_) bytes += b.bytes;
            report_misuse(
                {.kind = misuse_kind::live_at_destruction, .bytes = bytes, .expected = live_.size()});
        }
        if (live_.empty() && leaving_.empty()) return;
        (void)device_->synchronize();
        for (const auto& [address, b] : live_) (void)give_back(b);
        for (leaving& l : leaving_) finish(l);
    }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        const allocate_result r = try_allocate(stream, bytes, alignment);
        if (!r) throw_failure(r.error());
        return *r;
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        if (void* const p = allocate_guarded(stream, bytes, alignment)) return p;
        allocate_result r = pool_->try_allocate(stream, bytes, alignment);
        if (!r && reap(true) != 0) r = pool_->try_allocate(stream, bytes, alignment);
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        try {
            return pool_->allocate_sync(bytes, alignment);
        } catch (const out_of_memory&) {
            if (reap(true) == 0) throw;
        }
        return pool_->allocate_sync(bytes, alignment);
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        if (const deallocate_result r = try_deallocate(stream, p, bytes, alignment); !r)
            report_misuse(r.error());
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        const std::optional<deallocate_result> r = free_guarded(p, bytes, {stream});
        return r ? *r : pool_->try_deallocate(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        const std::optional<deallocate_result> r = free_guarded(p, bytes, {});
        if (!r) return pool_->deallocate_sync(p, bytes, alignment);
        if (!*r) report_misuse(r->error());
    }

    /// The streams of a guarded block may be gone by now, so it goes back when the whole device was waited for.
    void release(void* p) noexcept {
        std::size_t bytes = 0;
        {
            const std::lock_guard lock(mutex_);
            if (const auto it = live_.find(to_address(p)); it != live_.end()) {
                bytes = it->second.bytes;
                it->second.after_device = true;
            }
        }
        const std::optional<deallocate_result> r = free_guarded(p, bytes, {});
        if (!r) return pool_->release(p);
        if (!*r) report_misuse(r->error());
    }

    void record_use(void* p, stream_handle stream) noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (const auto it = live_.find(to_address(p)); it != live_.end()) {
                const result<stream_state, status> now = device_->describe(stream);
                if (now && now->capturing()) {
                    it->second.captured = true;
                    return;
                }
                try {
                    it->second.uses.push_back(stream);
                } catch (...) {
                    it->second.after_device = true;
                }
                return;
            }
        }
        pool_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(const void* p) const noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (live_.count(to_address(p)) != 0) return true;
        }
        return pool_->owns(const_cast<void*>(p));
    }

    [[nodiscard]] usage_counters usage() const {
        usage_counters u = pool_->usage();
        const std::lock_guard lock(mutex_);
        const auto add = [](gauge& to, const gauge& g) {
            to.current += g.current;
            to.peak += g.peak;
            to.total_in += g.total_in;
            to.total_out += g.total_out;
        };
        add(u.requested, counts_.requested);
        add(u.allocated, counts_.allocated);
        add(u.reserved, counts_.reserved);
        add(u.blocks, counts_.blocks);
        add(u.segments, counts_.segments);
        u.pending += counts_.pending;
        return u;
    }

    /// Effects: guarded ranges whose work has passed go back too. May wait for the device, as giving back does.
    std::size_t trim(std::size_t bytes_to_keep) {
        std::size_t gone = reap(true);
        std::size_t held = 0;
        {
            const std::lock_guard lock(mutex_);
            held = counts_.reserved.current;
        }
        gone += pool_->trim(bytes_to_keep - std::min(bytes_to_keep, held));
        return gone;
    }

    [[nodiscard]] memory_snapshot snapshot() const {
        memory_snapshot picture = pool_->snapshot();
        const std::lock_guard lock(mutex_);
        const auto show = [&](const block& b, block_state state) {
            segment_snapshot s{.address = to_address(b.base), .size = b.mapped, .blocks = {}};
            const std::uint64_t before = b.address - s.address;
            if (before != 0) s.blocks.push_back({.address = s.address, .size = before});
            s.blocks.push_back({.address = b.address,
                                .size = b.mapped - before,
                                .requested = b.bytes,
                                .state = state,
                                .stream = 0,
                                .block = 0});
            picture.segments.push_back(std::move(s));
        };
        for (const auto& [address, b] : live_) show(b, block_state::allocated);
        for (const leaving& l : leaving_) show(l.what, block_state::pending);
        std::sort(picture.segments.begin(), picture.segments.end(),
                  [](const auto& a, const auto& b) { return a.address < b.address; });
        return picture;
    }

    [[nodiscard]] bool validate() const noexcept {
        {
            const std::lock_guard lock(mutex_);
            std::size_t mapped = 0;
            for (const auto& [address, b] : live_) mapped += b.mapped;
            for (const leaving& l : leaving_) mapped += l.what.mapped;
            if (mapped != counts_.reserved.current || live_.size() != counts_.blocks.current) return false;
        }
        return pool_->validate();
    }

    void release_captured(std::uint64_t capture) noexcept requires capture_resource<Pool> {
        pool_->release_captured(capture);
    }

    // ---- beyond resource ----

    /// Returns: whether the live block at p ends before an unmapped granule.
    [[nodiscard]] bool guards(const void* p) const noexcept {
        const std::lock_guard lock(mutex_);
        return live_.count(to_address(p)) != 0;
    }

    [[nodiscard]] Pool& pool() noexcept { return *pool_; }

  private:
    struct block {
        void* base = nullptr;
        std::uint64_t address = 0;
        std::size_t mapped = 0;
        std::size_t bytes = 0; ///< as requested
        stream_handle stream = default_stream;
        std::vector<stream_handle> uses{};
        bool after_device = false; ///< not all that it was used on is known, or can be asked
        bool captured = false;     ///< used in a capture: a graph may use it at any time
    };
    /// A freed block, and what has to pass before it can go.
    struct leaving {
        block what;
        std::vector<event_handle> events{};
    };

    [[nodiscard]] std::size_t allocated_bytes(const block& b) const noexcept {
        return b.mapped - (b.address - to_address(b.base));
    }

    void* allocate_guarded(stream_handle stream, std::size_t bytes, std::size_t alignment) noexcept {
        if (every_ == 0 || bytes == 0 || bytes > max_bytes_ || !is_power_of_two(alignment)) return nullptr;
        const std::size_t granule = device_->allocation_granularity();
        if (alignment > granule) return nullptr;
        {
            const std::lock_guard lock(mutex_);
            if (number_++ % every_ != 0) return nullptr;
        }
        (void)reap(false);
        const result<stream_state, status> now = device_->describe(stream);
        if (!now || now->capturing()) return nullptr;
        block b;
        b.mapped = round_up(bytes, granule);
        b.bytes = bytes;
        b.stream = stream;
        const result<void*, status> base = device_->reserve_address(b.mapped + granule, granule, 0);
        if (!base) return nullptr;
        b.base = *base;
        b.address = to_address(b.base) + b.mapped - round_up(bytes, alignment);
        if (!map(b)) {
            (void)device_->free_address(b.base, b.mapped + granule);
            return nullptr;
        }
        void* const p = to_pointer(b.address);
        const std::lock_guard lock(mutex_);
        try {
            leaving_.reserve(leaving_.size() + live_.size() + 1); // so that its free needs no memory
            const block& kept = live_.emplace(b.address, b).first->second;
            counts_.requested.add(bytes);
            counts_.allocated.add(allocated_bytes(kept));
            counts_.reserved.add(kept.mapped);
            counts_.blocks.add(1);
            counts_.segments.add(1);
            return p;
        } catch (...) {
            (void)give_back(b);
            return nullptr;
        }
    }

    bool map(const block& b) noexcept {
        const result<memory_handle, status> memory = device_->create_memory(b.mapped);
        if (!memory) return false;
        const bool mapped = device_->map(b.base, *memory) == status::ok;
        const bool usable = mapped && device_->set_access(b.base, b.mapped) == status::ok;
        (void)device_->release_memory(*memory); // the mapping keeps it
        if (mapped && !usable) (void)device_->unmap(b.base, b.mapped);
        return usable;
    }

    /// Requires: all work on the block has passed.
    status give_back(const block& b) noexcept {
        if (const status s = device_->unmap(b.base, b.mapped); s != status::ok) return s;
        return device_->free_address(b.base, b.mapped + device_->allocation_granularity());
    }

    /// Effects: frees the block if it is a guarded one; without `stream`, no stream has to be asked.
    /// Returns: nothing if the pool is to be asked.
    std::optional<deallocate_result> free_guarded(void* p, std::size_t bytes,
                                                  std::optional<stream_handle> stream) noexcept {
        const std::uint64_t address = to_address(p);
        const auto wrong = [&](misuse_kind kind, std::size_t expected = 0) {
            return deallocate_result(
                misuse{.kind = kind, .pointer = p, .bytes = bytes, .expected = expected});
        };
        const std::lock_guard lock(mutex_);
        auto it = live_.upper_bound(address);
        if (it == live_.begin() || address >= std::prev(it)->first + allocated_bytes(std::prev(it)->second)) {
            for (const leaving& l : leaving_)
                if (l.what.address == address) return wrong(misuse_kind::double_free);
            return std::nullopt;
        }
        --it;
        if (it->first != address) return wrong(misuse_kind::interior_pointer);
        if (it->second.bytes != bytes) return wrong(misuse_kind::size_mismatch, it->second.bytes);
        leaving l{std::move(it->second)};
        live_.erase(it);
        counts_.requested.subtract(bytes);
        counts_.blocks.subtract(1);
        counts_.pending += allocated_bytes(l.what);
        if (stream) {
            record(l, *stream);
            for (const stream_handle s : l.what.uses) record(l, s);
        }
        leaving_.push_back(std::move(l)); // there is room
        return deallocate_result(freed{});
    }

    void record(leaving& l, stream_handle stream) noexcept {
        const result<stream_state, status> now = device_->describe(stream);
        if (now && now->capturing()) {
            l.what.captured = true;
            return;
        }
        const result<event_handle, status> event = device_->create_event();
        if (event && now && device_->record(*event, stream) == status::ok) {
            try {
                l.events.push_back(*event);
                return;
            } catch (...) { // no host memory to keep it
            }
        }
        if (event) (void)device_->destroy_event(*event);
        l.what.after_device = true;
    }

    void finish(leaving& l) noexcept {
        for (const event_handle e : l.events) (void)device_->destroy_event(e);
        if (const status s = give_back(l.what); s != status::ok)
            report_misuse({.kind = misuse_kind::driver, .pointer = l.what.base, .driver_status = s});
    }

    /// Effects: what all work has passed on goes back to the device; where only the device knows, it is waited for, if that
    /// is allowed. Returns: bytes.
    std::size_t reap(bool may_wait) noexcept {
        std::size_t bytes = 0;
        const std::lock_guard lock(mutex_);
        const auto unknown = [](const leaving& l) { return l.what.after_device && !l.what.captured; };
        if (may_wait && std::any_of(leaving_.begin(), leaving_.end(), unknown) &&
            device_->synchronize() == status::ok)
            for (leaving& l : leaving_) l.what.after_device = false;
        for (std::size_t i = 0; i < leaving_.size();) {
            leaving& l = leaving_[i];
            while (!l.events.empty() && device_->query(l.events.back()) == status::ok) {
                (void)device_->destroy_event(l.events.back());
                l.events.pop_back();
            }
            if (!l.events.empty() || l.what.after_device || l.what.captured) {
                ++i;
                continue;
            }
            const std::size_t allocated = allocated_bytes(l.what);
            if (give_back(l.what) != status::ok) { // later, or at the end
                ++i;
                continue;
            }
            bytes += l.what.mapped;
            counts_.pending -= allocated;
            counts_.allocated.subtract(allocated);
            counts_.reserved.subtract(l.what.mapped);
            counts_.segments.subtract(1);
            if (i + 1 != leaving_.size()) l = std::move(leaving_.back());
            leaving_.pop_back();
        }
        return bytes;
    }

    device_type* const device_;
    const std::size_t every_; ///< 0: the device cannot
    const std::size_t max_bytes_;
    std::optional<Pool> pool_; ///< always engaged between construction and destruction

    mutable std::mutex mutex_; ///< guards what follows; the pool is called without it
    std::map<std::uint64_t, block> live_;
    std::vector<leaving> leaving_;
    usage_counters counts_; ///< of guarded blocks
    std::size_t number_ = 0;
};

} // namespace tenure
