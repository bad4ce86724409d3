#pragma once

/// \file
/// `guard_canary`: a resource that finds out, at a block's free, that bytes behind it were written. For debugging.
///
///     [ block: n bytes as asked | canary: the rest of its last granule ]
///            allocate: the canary is filled, in stream order       free: it is read back, in stream order, then compared
///
/// It uses what rounding leaves, so no block grows and no address changes: a block whose size is a multiple of the granule
/// has no canary. Upstream must leave the rest of a block's last granule unused, as all pools here do.
///
/// The bytes are on a GPU. So both ends are enqueued on the caller's streams (a memset of at most 511 bytes, and a copy of
/// as many to the host), nothing is waited for, and a damage is *reported later*: at the first call after the copy has
/// passed, or by `flush`, or at destruction; at once by `deallocate_sync`. It is `misuse_kind::overrun` with the offset of the
/// first byte that was changed. Written bytes that happen to equal the canary are not noticed; neither is what is written
/// further away (`unmapped_guard` finds that). `release` checks nothing: the stream on which that would have to be enqueued,
/// that of the allocation, may be gone by then.
///
/// Off, it is not there: a program that does not name it has none of it. With `every = k` only each k-th block is guarded.
///
/// How memory is filled and read is the model's: `canary_memory`. `cuda::canary_memory` is the one for GPUs.
///
/// Cost of a guarded block: two small operations on its stream, an event, a lock and a hash entry. Thread-safety: thread-safe.

#include <tenure/adapt/live_blocks.hpp>
#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/resource/resource.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

namespace tenure {

/// | expression | effect |
/// |---|---|
/// | `m.fill(s, p, n)` | noexcept: n canary bytes at p, in the order of `s`. Returns whether that was enqueued |
/// | `m.check(s, p, n, block)` | noexcept: the bytes are read in the order of `s`. Returns whether that was enqueued |
/// | `m.quiet_stream()` | noexcept: a stream to read on what nobody uses any more |
/// | `m.collect(wait, f)` | noexcept: f(block, p - block, offset in the block of the first wrong byte) for each check that has come back and found one; all that are under way, if `wait` |
///
/// Thread-safe. Where a stream is being captured both answer false and enqueue nothing.
template <class M>
concept canary_memory = requires(M& m, stream_handle s, void* p, std::size_t n,
                                 void (*f)(void*, std::size_t, std::size_t) noexcept) {
    { m.fill(s, p, n) }
    noexcept->std::same_as<bool>;
    { m.check(s, p, n, p) }
    noexcept->std::same_as<bool>;
    { m.quiet_stream() }
    noexcept->std::same_as<stream_handle>;
    { m.collect(true, f) }
    noexcept;
};

struct canary_options {
    /// Each how manieth block is guarded; 1: all.
    std::size_t every = 1;
    /// What upstream's blocks are multiples of, bytes: 512 in all pools here.
    std::size_t granule = 512;
};

template <resource Upstream, canary_memory Memory>
class guard_canary {
  public:
    using upstream_type = Upstream;

    /// Requires: both outlive the guard, `every` and `granule` are not 0, `granule` is a power of two.
    guard_canary(Upstream& upstream, Memory& memory, canary_options options = {})
        : upstream_(&upstream), memory_(&memory), options_(options) {}

    guard_canary(const guard_canary&) = delete;
    guard_canary& operator=(const guard_canary&) = delete;

    /// Effects: waits for what is being read, and reports it.
    ~guard_canary() { flush(); }

    /// Effects: the same. Returns: number of damages found since construction.
    std::size_t flush() noexcept {
        collect(true);
        return damages_.load(std::memory_order_relaxed);
    }

    [[nodiscard]] Upstream& upstream() const noexcept { return *upstream_; }

    // ---- resource ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        void* const p = upstream_->allocate(stream, bytes, alignment);
        guard(stream, p, bytes);
        return p;
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        const allocate_result r = upstream_->try_allocate(stream, bytes, alignment);
        if (r) guard(stream, *r, bytes);
        return r;
    }

    /// Other streams may use the block at once, so it gets no canary: the fill would have to be waited for.
    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return upstream_->allocate_sync(bytes, alignment);
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        check(stream, p, bytes);
        upstream_->deallocate(stream, p, bytes, alignment);
        collect(false);
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        check(stream, p, bytes);
        const deallocate_result r = upstream_->try_deallocate(stream, p, bytes, alignment);
        collect(false);
        return r;
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        if (check(memory_->quiet_stream(), p, bytes)) collect(true); // before others may have it
        upstream_->deallocate_sync(p, bytes, alignment);
    }

    void release(void* p) noexcept {
        {
            const std::lock_guard lock(mutex_);
            (void)guarded_.take(p);
        }
        upstream_->release(p);
        collect(false);
    }

    void record_use(void* p, stream_handle stream) noexcept { upstream_->record_use(p, stream); }
    [[nodiscard]] bool owns(void* p) const noexcept { return upstream_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return upstream_->usage(); }
    std::size_t trim(std::size_t bytes_to_keep) { return upstream_->trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return upstream_->snapshot(); }
    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        return guarded_.validate() && upstream_->validate();
    }

  private:
    struct guarded_block {
        std::size_t bytes = 0;
    };

    static void* behind(void* p, std::size_t bytes) noexcept { return static_cast<std::byte*>(p) + bytes; }
    [[nodiscard]] std::size_t slack(std::size_t bytes) const noexcept {
        return (options_.granule - bytes % options_.granule) % options_.granule;
    }

    void guard(stream_handle stream, void* p, std::size_t bytes) noexcept {
        if (p == nullptr || slack(bytes) == 0) return;
        if (number_.fetch_add(1, std::memory_order_relaxed) % options_.every != 0) return;
        if (!memory_->fill(stream, behind(p, bytes), slack(bytes))) return;
        const std::lock_guard lock(mutex_);
        try {
            guarded_.insert(p, {bytes});
        } catch (...) { // no host memory: it goes unguarded
        }
    }

    /// Returns: whether a check is under way.
    bool check(stream_handle stream, void* p, std::size_t bytes) noexcept {
        std::optional<guarded_block> b;
        {
            const std::lock_guard lock(mutex_);
            b = guarded_.take(p, bytes);
        }
        return b && memory_->check(stream, behind(p, bytes), slack(bytes), p);
    }

    void collect(bool wait) noexcept {
        memory_->collect(wait, [this](void* block, std::size_t bytes, std::size_t first) noexcept {
            damages_.fetch_add(1, std::memory_order_relaxed);
            report_misuse(
                {.kind = misuse_kind::overrun, .pointer = block, .bytes = bytes, .expected = first});
        });
    }

    Upstream* upstream_;
    Memory* memory_;
    const canary_options options_;
    std::atomic<std::size_t> number_{0};
    std::atomic<std::size_t> damages_{0};
    mutable std::mutex mutex_; ///< guards what follows; upstream and the memory are called without it
    live_blocks<guarded_block> guarded_;
};

} // namespace tenure
