#pragma once

/// \file
/// `graph_pool`: the memory of captured graphs, kept for as long as somebody holds a copy of the handle.
///
///     graph_pool memory(pool, device);
///     cudaStreamBeginCapture(stream, ...);
///     memory.keep(stream);                       // what this capture takes from the pool is kept by `memory`
///     ... pool.allocate(stream, n), kernels, pool.deallocate(stream, p, n) ...
///     cudaStreamEndCapture(stream, &graph);
///     cudaGraphInstantiate(&exec, graph);        // keep a copy of `memory` beside exec
///
/// Whatever is allocated on a capturing stream belongs to that capture alone: its addresses are not given to anybody
/// else, freed or not, until the capture is released, because a replay writes to them again. Releasing is what the last
/// copy of the handle does. One handle may keep several captures, whose graphs live and die together. Several handles may
/// keep one capture of a resource, as the parts of a program do that know nothing of each other: the last one releases it.
/// They must have been given one and the same object: a pool and the arena or front end around it are two, whose handles
/// count apart, so that the first to go would release memory that the other's graphs replay into.
///
/// Model: a counted reference to a list of captures, and, for the whole process, how many lists a capture of a resource is
/// in. Invariant: each kept capture of a resource is released exactly once, when no handle keeps it any more.
/// Requires: when the last copy goes, the graphs are destroyed and their work is over; the resource and the device
/// outlive all copies.
///
/// Cost: `keep` asks the device about the stream once and takes a lock of the process; copies cost an atomic increment.
/// Thread-safety: as `std::shared_ptr`: different copies may be used and destroyed by different threads at once.

#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/resource/resource.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure {

namespace detail {

/// How many `graph_pool`s keep a capture of a resource. Thread-safe.
class capture_keepers {
  public:
    /// Returns: those of the process. Never destroyed: a handle may be the last thing that goes.
    static capture_keepers& of_process() {
        static capture_keepers* const all = new capture_keepers;
        return *all;
    }

    /// Throws: `std::bad_alloc`, changing nothing.
    void add(const void* resource, std::uint64_t capture) {
        const std::lock_guard lock(mutex_);
        ++keepers_[{resource, capture}];
    }
    /// Returns: whether that was the last one.
    bool remove(const void* resource, std::uint64_t capture) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = keepers_.find({resource, capture});
        if (--it->second != 0) return false;
        keepers_.erase(it);
        return true;
    }

  private:
    std::mutex mutex_; ///< guards `keepers_`
    std::map<std::pair<const void*, std::uint64_t>, std::size_t> keepers_;
};

} // namespace detail

class graph_pool {
  public:
    /// Throws: `std::bad_alloc`.
    template <capture_resource R, device D>
    graph_pool(R& resource, D& device)
        : kept_(std::make_shared<captures>(
              &resource, &device,
              [](void* r, std::uint64_t capture) noexcept { static_cast<R*>(r)->release_captured(capture); },
              [](void* d, stream_handle stream) noexcept { return static_cast<D*>(d)->describe(stream); })) {}

    /// Effects: what the capture that `stream` is in takes from the resource is kept, what it took before, too.
    /// Returns: the capture, as `device.describe` numbers it; `invalid_value` if the stream is in none; or the
    /// device's answer. Throws: `std::bad_alloc`, changing nothing.
    result<std::uint64_t, status> keep(stream_handle stream) {
        const result<stream_state, status> state = kept_->describe(kept_->device, stream);
        if (!state) return state.error();
        if (!state->capturing()) return status::invalid_value;
        const std::lock_guard lock(kept_->mutex);
        if (std::find(kept_->list.begin(), kept_->list.end(), state->capture) == kept_->list.end()) {
            kept_->list.reserve(kept_->list.size() + 1);
            detail::capture_keepers::of_process().add(kept_->resource, state->capture);
            kept_->list.push_back(state->capture);
        }
        return state->capture;
    }

    /// Returns: number of captures kept.
    [[nodiscard]] std::size_t size() const {
        const std::lock_guard lock(kept_->mutex);
        return kept_->list.size();
    }

  private:
    struct captures {
        using release_function = void (*)(void*, std::uint64_t) noexcept;
        using describe_function = result<stream_state, status> (*)(void*, stream_handle) noexcept;

        captures(void* r, void* d, release_function on_release, describe_function on_describe) noexcept
            : resource(r), device(d), release(on_release), describe(on_describe) {}
        captures(const captures&) = delete;
        captures& operator=(const captures&) = delete;
        ~captures() {
            for (const std::uint64_t capture : list)
                if (detail::capture_keepers::of_process().remove(resource, capture))
                    release(resource, capture);
        }

        void* resource;
        void* device;
        release_function release;
        describe_function describe;
        std::mutex mutex; ///< guards `list`; no resource or device is called under it
        std::vector<std::uint64_t> list;
    };
    std::shared_ptr<captures> kept_;
};

} // namespace tenure
