#pragma once

/// \file
/// `trace_recorder`: a resource that writes down what a program asks of another one, to be replayed.
///
///     program  -->  trace_recorder  -->  upstream
///                        |
///                        +-->  t_us,op,id,bytes,stream      a  allocation          f  free
///                                                           u  use on a stream     c  the free completed
///
/// Streams are numbered in order of first use; 0 is the default stream, and the stream of `allocate_sync`.
/// Ids number the allocations. `bytes` are as requested.
///
///   1. A free that no other stream's use can delay is complete at once: `f` and `c`, one behind the other.
///      That is every free of a block without `record_use`, and every `deallocate_sync`. When others
///      complete, only upstream knows: they are a plain `f`, and a replay finds out from the `u` before it.
///   2. What does not happen is not recorded: refused allocations, requests of 0 bytes, and the free of a
///      pointer that did not come from here or with a size that it was not allocated with. Upstream gets them
///      all the same and reports the misuse.
///   3. Lines are in an order in which upstream may have seen the calls: a free is written before upstream
///      gets it, an allocation after. So memory is never allocated again before its `f`.
///   4. Failing to write fails no allocation. It ends the trace; `good` and `flush` say so.
///
/// Cost of a call: a lock, a hash lookup, and a clock reading for each line.
///
/// Thread-safety: as thread-safe as upstream; upstream is called without a lock held.

#include <tenure/adapt/live_blocks.hpp>
#include <tenure/adapt/trace_writer.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/resource/resource.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <ostream>
#include <string_view>
#include <unordered_map>

namespace tenure {

template <resource Upstream>
class trace_recorder {
  public:
    using upstream_type = Upstream;

    /// Effects: records to `out`. With `arena`, lines name it in a sixth column.
    /// Requires: upstream and `out` outlive the recorder. Throws: `std::invalid_argument`, see
    /// `trace_writer`.
    trace_recorder(Upstream& upstream, std::ostream& out, std::string_view arena = {})
        : upstream_(&upstream), writer_(out, arena) {}

    /// Effects: records to a file, which is emptied first.
    /// Throws: `std::system_error` if it cannot be opened; `std::invalid_argument`, see `trace_writer`.
    trace_recorder(Upstream& upstream, const std::filesystem::path& file, std::string_view arena = {})
        : upstream_(&upstream), writer_(file, arena) {}

    trace_recorder(const trace_recorder&) = delete;
    trace_recorder& operator=(const trace_recorder&) = delete;

    [[nodiscard]] Upstream& upstream() const noexcept { return *upstream_; }

    /// Returns: whether the trace is whole so far. Thread-safe.
    [[nodiscard]] bool good() const noexcept {
        const std::lock_guard lock(mutex_);
        return writer_.good();
    }

    /// Effects: writes out what is buffered. Returns: whether the trace is whole. Thread-safe.
    bool flush() noexcept {
        const std::lock_guard lock(mutex_);
        return writer_.flush();
    }

    // ---- the resource concept ----

    void* allocate(stream_handle stream, std::size_t bytes, std::size_t alignment = default_alignment) {
        return allocated(upstream_->allocate(stream, bytes, alignment), bytes, stream);
    }

    allocate_result try_allocate(stream_handle stream, std::size_t bytes,
                                 std::size_t alignment = default_alignment) noexcept {
        const allocate_result r = upstream_->try_allocate(stream, bytes, alignment);
        if (r) allocated(*r, bytes, stream);
        return r;
    }

    void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
        return allocated(upstream_->allocate_sync(bytes, alignment), bytes, default_stream);
    }

    void deallocate(stream_handle stream, void* p, std::size_t bytes,
                    std::size_t alignment = default_alignment) noexcept {
        freed_on(stream, p, bytes);
        upstream_->deallocate(stream, p, bytes, alignment);
    }

    deallocate_result try_deallocate(stream_handle stream, void* p, std::size_t bytes,
                                     std::size_t alignment = default_alignment) noexcept {
        freed_on(stream, p, bytes);
        return upstream_->try_deallocate(stream, p, bytes, alignment);
    }

    void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (const std::optional<block> b = blocks_.take(p, bytes)) write_free(*b, b->stream, true);
        }
        upstream_->deallocate_sync(p, bytes, alignment);
    }

    void release(void* p) noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (const std::optional<block> b = blocks_.take(p)) write_free(*b, b->stream, !b->shared);
        }
        upstream_->release(p);
    }

    void record_use(void* p, stream_handle stream) noexcept {
        {
            const std::lock_guard lock(mutex_);
            if (block* const b = blocks_.find(p)) {
                b->shared = true;
                if (const auto number = number_of(stream)) writer_.line('u', b->id, b->bytes, *number);
            }
        }
        upstream_->record_use(p, stream);
    }

    [[nodiscard]] bool owns(void* p) const noexcept { return upstream_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return upstream_->usage(); }
    std::size_t trim(std::size_t bytes_to_keep) { return upstream_->trim(bytes_to_keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return upstream_->snapshot(); }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        return blocks_.validate() && upstream_->validate();
    }

  private:
    struct block {
        std::uint64_t id = 0;
        std::size_t bytes = 0;
        std::uint32_t stream = 0; ///< number
        bool shared = false;      ///< `record_use` was called
    };

    /// Returns: p.
    void* allocated(void* p, std::size_t bytes, stream_handle stream) noexcept {
        if (p == nullptr) return p;
        const std::lock_guard lock(mutex_);
        const auto number = number_of(stream);
        if (!number) return p;
        const block b{next_id_++, bytes, *number, false};
        try {
            if (const std::optional<block> stale = blocks_.insert(p, b))
                write_free(*stale, stale->stream, true);
            writer_.line('a', b.id, bytes, *number);
        } catch (...) { // no host memory: its free could not be recorded
            writer_.fail();
        }
        return p;
    }

    void freed_on(stream_handle stream, const void* p, std::size_t bytes) noexcept {
        const std::lock_guard lock(mutex_);
        const std::optional<block> b = blocks_.take(p, bytes);
        if (!b) return;
        if (const auto number = number_of(stream)) write_free(*b, *number, !b->shared);
    }

    void write_free(const block& b, std::uint32_t stream, bool complete) noexcept {
        writer_.line('f', b.id, b.bytes, stream);
        if (complete) writer_.line('c', b.id, b.bytes, stream);
    }

    /// Returns: the stream's number; nothing if host memory for a new one is missing, and then the trace has
    /// ended.
    std::optional<std::uint32_t> number_of(stream_handle stream) noexcept {
        try {
            return streams_.try_emplace(stream, static_cast<std::uint32_t>(streams_.size())).first->second;
        } catch (...) {
            writer_.fail();
            return std::nullopt;
        }
    }

    Upstream* upstream_;
    mutable std::mutex mutex_; ///< guards all below
    trace_writer writer_;
    live_blocks<block> blocks_;
    std::unordered_map<stream_handle, std::uint32_t> streams_{{default_stream, 0}};
    std::uint64_t next_id_ = 0;
};

} // namespace tenure
