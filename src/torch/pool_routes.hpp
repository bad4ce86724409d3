#pragma once

/// \file
/// `pool_routes`: which private pool an allocation goes to, and whether a capture is under way.
///
///     begin(pool A, accepts)   begin(pool B, accepts)        end(pool B)
///     routes:  [A]             [A, B]                        [A]         the latest that accepts the stream is the one
///
/// Two kinds of callers begin to allocate to a pool, in the same words:
///   * a thread (`torch.cuda.use_mem_pool`), whose filter accepts the stream that it stands on, and
///   * a graph about to be captured, whose filter accepts only streams in that capture, so not yet any.
/// So the filter's answer at `begin` tells which it is, and for a capture also on which stream it will begin.
///
/// A capture that fails never says so: torch's `CUDAGraph` throws before it ends its route, and releases nothing later.
/// Therefore a capture is under way as long as its stream says so, and no longer; but from `begin` on, since other threads
/// cannot know when its stream will begin. When it is over and the thread that began it does anything else here than
/// ending the route, it has failed; `drop_failed` then ends the route in its place.
///
/// Invariants:
///   1. A filter of a graph is not asked after its capture is over: the graph may be gone.
///   2. A pool that has served a capture is marked `captured` for good.
///
/// Complexity: O(routes), with a driver query a route of a capture. Filters are called under the heap's mutex.
/// Thread-safety: externally synchronised, by the heap's mutex.

#include "private_pool.hpp"

#include <tenure/core/handles.hpp>
#include <tenure/device/device.hpp>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace tenure::torch {

template <device Device>
class pool_routes {
  public:
    using pool_id = c10::MempoolId_t;
    using filter = std::function<bool(cudaStream_t)>;

    explicit pool_routes(Device& device) noexcept : device_(&device) {}
    pool_routes(const pool_routes&) = delete;
    pool_routes& operator=(const pool_routes&) = delete;

    [[nodiscard]] bool empty() const noexcept { return routes_.empty(); }

    /// Effects: what `accepts` accepts goes to the pool from now on. `current`: the stream that the calling thread
    /// stands on. Throws: what the filter throws, and `std::bad_alloc`, changing nothing.
    /// Requires: no route leads to the pool (`leads_to`).
    void begin(private_pool& pool, filter accepts, stream_handle current) {
        const bool of_capture = !in_capture(current) && !accepts(current);
        routes_.push_back(
            {&pool, std::move(accepts), current, of_capture, false, std::this_thread::get_id()});
        pool.captured = pool.captured || pool.id().first != 0;
    }

    /// Returns: whether a route leads to the pool.
    [[nodiscard]] bool leads_to(pool_id id) const noexcept {
        return std::any_of(routes_.begin(), routes_.end(),
                           [&](const route& r) { return r.pool->id() == id; });
    }

    /// Returns: whether there was a route to the pool; there is none now.
    bool end(pool_id id) noexcept {
        const auto it =
            std::find_if(routes_.begin(), routes_.end(), [&](const route& r) { return r.pool->id() == id; });
        if (it == routes_.end()) return false;
        routes_.erase(it);
        return true;
    }

    /// Effects: no route leads to the pool.
    void forget(const private_pool& pool) noexcept {
        routes_.erase(
            std::remove_if(routes_.begin(), routes_.end(), [&](const route& r) { return r.pool == &pool; }),
            routes_.end());
    }

    /// Effects: ends the routes of captures that this thread began and that have failed; then f(pool) for each.
    template <class F>
    void drop_failed(F&& f) {
        drop_if([this](route& r) { return r.thread == std::this_thread::get_id() && over(r); }, f);
    }

    /// The same when this thread is about to begin anew, standing on `current`: to capture in the pool again, or on the
    /// stream again, proves that what was to be captured there is over, though nobody has seen it.
    template <class F>
    void drop_failed(F&& f, pool_id again, stream_handle current) {
        drop_if(
            [&](route& r) {
                const bool anew = r.pool->id() == again;
                if (r.thread != std::this_thread::get_id()) return anew && over(r);
                return over(r) || (r.of_capture && (anew || r.stream == current) && !in_capture(r.stream));
            },
            f);
    }

    /// Returns: the pool that serves an allocation on the stream; null: none. Throws: what filters throw.
    [[nodiscard]] private_pool* pool_for(stream_handle stream) {
        for (auto r = routes_.rbegin(); r != routes_.rend(); ++r) {
            if (over(*r)) continue;
            if (!r->accepts(stream)) continue;
            if (in_capture(stream)) {
                r->pool->captured = true;
                if (!r->seen) r->stream = stream;
                r->seen = true;
            }
            return r->pool;
        }
        return nullptr;
    }

    /// Returns: whether a capture that a pool serves is under way.
    [[nodiscard]] bool capture_under_way() noexcept {
        bool any = false;
        for (route& r : routes_) any = under_way(r) || any;
        return any;
    }

    /// Returns: whether the stream is being captured, by whomever.
    [[nodiscard]] bool in_capture(stream_handle stream) noexcept {
        const auto state = device_->describe(stream);
        return state && state->capturing();
    }

  private:
    struct route {
        private_pool* pool;
        filter accepts;
        stream_handle stream; ///< of the capture that it serves, if it is of one or has served one
        bool of_capture;      ///< begun by a capture, not by a thread
        bool seen;            ///< `stream` has been seen captured
        std::thread::id thread;
    };

    /// Returns: whether the stream of the route is being captured now.
    bool look(route& r) noexcept {
        const bool now = in_capture(r.stream);
        // A thread's route goes on after a capture inside it; a graph's is over then.
        if (now || !r.of_capture) r.seen = now;
        return now;
    }
    bool over(route& r) noexcept { return r.of_capture && !look(r) && r.seen; }
    bool under_way(route& r) noexcept {
        if (!r.of_capture && !r.seen) return false;
        return look(r) || (r.of_capture && !r.seen && r.thread != std::this_thread::get_id());
    }

    template <class Test, class F>
    void drop_if(Test&& test, F& f) {
        for (std::size_t i = routes_.size(); i-- > 0;) {
            if (!test(routes_[i])) continue;
            private_pool* const pool = routes_[i].pool;
            routes_.erase(routes_.begin() + static_cast<std::ptrdiff_t>(i));
            f(*pool);
            i = std::min(i, routes_.size()); // f may have ended others
        }
    }

    Device* device_;
    std::vector<route> routes_; ///< the latest begun is last
};

} // namespace tenure::torch
