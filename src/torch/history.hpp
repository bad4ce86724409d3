#pragma once

/// \file
/// `recorder`: what torch's memory history asks for (`_record_memory_history`), for all devices; and `trace`, the ring
/// of events of one device.
///
/// The order of locks is why this is in two parts. A context (a Python stack) is gathered with Python's lock, so it is
/// gathered by `gather` *before* a heap is locked; the ring is written under the heap's lock, and nothing in it touches
/// Python. Trackers are called under the heap's lock, as torch promises them.
///
/// Thread-safety: `recorder` is thread-safe; `trace` is externally synchronised, by the heap's mutex, except `active()`.

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tenure::torch {

using trace_entry = c10::CachingDeviceAllocator::TraceEntry;
using trace_tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;
using context_ptr = std::shared_ptr<c10::GatheredContext>;
using context_level = c10::CachingDeviceAllocator::RecordContext;

/// What this thread has said about itself, for the entries that it causes.
struct thread_notes {
    std::vector<std::string> compile_contexts{};
    std::string user_metadata{};

    static thread_notes& mine() {
        thread_local thread_notes notes;
        return notes;
    }
    [[nodiscard]] std::string compile_context() const {
        return compile_contexts.empty() ? std::string() : compile_contexts.back();
    }
};

class recorder {
  public:
    using create_context = c10::CachingDeviceAllocator::CreateContextFn;

    void set(bool enabled, create_context create, context_level when) noexcept {
        create_.store(enabled ? create : nullptr);
        level_.store(enabled ? when : context_level::NEVER);
        enabled_.store(enabled);
    }
    [[nodiscard]] bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
    [[nodiscard]] context_level level() const noexcept { return level_.load(std::memory_order_relaxed); }

    /// Returns: a context, if ones of this level are wanted. Requires: no lock of this library is held.
    [[nodiscard]] context_ptr gather(context_level wanted) const {
        if (level() < wanted) [[likely]]
            return nullptr;
        const create_context create = create_.load();
        return create != nullptr ? create() : nullptr;
    }

  private:
    std::atomic<bool> enabled_{false};
    std::atomic<create_context> create_{nullptr};
    std::atomic<context_level> level_{context_level::NEVER};
};

class trace {
  public:
    explicit trace(const recorder& r) noexcept : recorder_(&r) {}

    [[nodiscard]] bool active() const noexcept { return recorder_->enabled() || !trackers_.empty(); }

    void set(bool enabled, std::size_t max_entries, bool clear, std::vector<trace_entry::Action> skipped) {
        skipped_ = std::move(skipped);
        max_entries_ = std::max<std::size_t>(max_entries, 1);
        if (!enabled || clear || entries_.size() > max_entries_) {
            entries_.clear();
            oldest_ = 0;
        } else {
            std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                        entries_.end());
            oldest_ = 0;
        }
    }

    void track(trace_tracker t) { trackers_.push_back(std::move(t)); }

    /// Effects: tells the trackers, and remembers the event if history is on. Host memory: if it runs out, the event is
    /// lost.
    void add(trace_entry::Action action, c10::DeviceIndex device, std::size_t address, std::size_t bytes,
             stream_handle stream, c10::MempoolId_t pool, context_ptr context) noexcept {
        if (!active()) return;
        try {
            const thread_notes& notes = thread_notes::mine();
            trace_entry e(action, device, address, bytes, stream, pool, c10::getApproximateTime(),
                          recorder_->level() >= context_level::ALLOC ? std::move(context) : nullptr,
                          notes.compile_context(), notes.user_metadata);
            for (const trace_tracker& t : trackers_) t(e);
            if (!recorder_->enabled() ||
                std::find(skipped_.begin(), skipped_.end(), action) != skipped_.end())
                return;
            if (entries_.size() < max_entries_) {
                entries_.push_back(std::move(e));
            } else {
                entries_[oldest_] = std::move(e);
                oldest_ = (oldest_ + 1) % entries_.size();
            }
        } catch (...) {
            ++lost_;
        }
    }

    /// Returns: the events, oldest first.
    [[nodiscard]] std::vector<trace_entry> entries() const {
        std::vector<trace_entry> in_order;
        in_order.reserve(entries_.size());
        for (std::size_t i = 0; i < entries_.size(); ++i)
            in_order.push_back(entries_[(oldest_ + i) % entries_.size()]);
        return in_order;
    }

  private:
    const recorder* recorder_;
    std::vector<trace_tracker> trackers_;
    std::vector<trace_entry::Action> skipped_;
    std::vector<trace_entry> entries_; ///< a ring once it is full
    std::size_t oldest_ = 0;
    std::size_t max_entries_ = 1;
    std::size_t lost_ = 0;
};

} // namespace tenure::torch
