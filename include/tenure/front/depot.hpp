#pragma once

/// \file
/// `depot`: bundles of free blocks on their way from one thread of a stream to another.
///
///     frees more than it allocates                        allocates more than it frees
///       magazine full --oldest half--> depot --bundle--> magazine empty
///                                        | no room
///                                        v
///                                      pool
///
/// Where one thread allocates and another frees, blocks come back to the first without the pool and its lock: one short
/// lock of a shard for every bundle, shared only by threads that move the same size of the same stream. (Full and empty
/// magazines that threads exchange through a depot: Bonwick and Adams, 2001.)
///
/// Invariants:
///   1. A bundle's blocks are of one size, were freed on one stream identity and used on no other; their words say
///      `gone`, so that a second free is found out.
///   2. `parked_granules` is the sum over all bundles, off by those that are being moved.
///   3. A shard has its bundles in the order in which they came.
///
/// Room is lacking for one of two reasons, and who leaves goes by it: a shard is full, which only its own bundles can
/// mend, and whoever frees much of one size takes nothing from others; or there is too much in all, which everybody
/// mends in turn.
///
/// Complexity: constant. Cost: 4 KiB, and 136 bytes for each bundle that a shard has ever held at once.
/// Thread-safety: thread-safe. Nothing is called under a shard's lock.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/front/magazine.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

namespace tenure {

class depot {
  public:
    /// Free blocks of one size and stream.
    struct bundle {
        std::uint64_t stream_id = 0; ///< identity
        std::uint32_t granules = 0;  ///< size of each block
        std::uint32_t count = 0;
        std::array<void*, magazine::half> blocks;

        [[nodiscard]] std::span<void* const> view() const noexcept { return {blocks.data(), count}; }
    };

    /// `share`: granules that may lie here for each rack.
    explicit depot(std::uint64_t share) noexcept : share_(share) {}

    depot(const depot&) = delete;
    depot& operator=(const depot&) = delete;

    void rack_comes() noexcept { racks_.fetch_add(1, std::memory_order_relaxed); }
    void rack_goes() noexcept { racks_.fetch_sub(1, std::memory_order_relaxed); }

    /// Returns: whether there was room; if not, the blocks stay the caller's.
    bool put(const bundle& b) noexcept {
        const std::uint64_t more = std::uint64_t{b.count} * b.granules;
        if (parked_granules() + more > limit()) return false;
        shard& s = shard_of(b.stream_id, b.granules);
        const std::lock_guard lock(s.mutex);
        if (s.bundles.size() == most_bundles) return false;
        try {
            s.bundles.push_back(b);
        } catch (...) { // host memory
            return false;
        }
        parked_.fetch_add(more, std::memory_order_relaxed);
        return true;
    }

    /// Effects: `out` is a bundle of this stream and size, the last that came. Returns: whether there was one.
    bool take(std::uint64_t stream_id, std::uint32_t granules, bundle& out) noexcept {
        if (parked_granules() == 0) return false;
        shard& s = shard_of(stream_id, granules);
        const std::lock_guard lock(s.mutex);
        for (std::size_t i = s.bundles.size(); i-- > 0;) {
            if (s.bundles[i].granules != granules || s.bundles[i].stream_id != stream_id) continue;
            remove(s, i, out);
            return true;
        }
        return false;
    }

    /// Effects: `out` is a bundle that leaves to make room for `b`, the oldest of its shard: of b's if that is full; if
    /// not, of one shard after the other. So what a stream that is gone has left here does not lie in the way for ever.
    /// Returns: whether there was one.
    bool evict(const bundle& b, bundle& out) noexcept {
        if (shard& own = shard_of(b.stream_id, b.granules); take_oldest(own, most_bundles, out)) return true;
        for (std::size_t i = 0; i < shards; ++i)
            if (take_oldest(shards_[evict_at_.fetch_add(1, std::memory_order_relaxed) % shards], 1, out))
                return true;
        return false;
    }

    /// Effects: f(bundle) for each of which select(bundle) is true, after it was taken out. Returns: whether there was any.
    template <class Select, class F>
    bool empty(Select&& select, F&& f) noexcept {
        bool any = false;
        for (shard& s : shards_) {
            bundle b;
            while (parked_granules() != 0 && take_any(s, select, b)) {
                f(b);
                any = true;
            }
        }
        return any;
    }

    /// Granules that may lie here.
    [[nodiscard]] std::uint64_t limit() const noexcept {
        return share_ * std::max(racks_.load(std::memory_order_relaxed), 1u);
    }

    [[nodiscard]] std::uint64_t parked_granules() const noexcept {
        return parked_.load(std::memory_order_relaxed);
    }

  private:
    static constexpr std::size_t shards = 32;
    static constexpr std::size_t most_bundles = 32; ///< in a shard

    struct alignas(own_lines) shard {
        ordered_mutex<lock_level::depot> mutex; ///< guards `bundles`
        std::vector<bundle> bundles;
    };

    shard& shard_of(std::uint64_t stream_id, std::uint32_t granules) noexcept {
        return shards_[((stream_id * 0xd1b54a32d192ed03u) ^ granules) * 0x9e3779b97f4a7c15u >> 59];
    }
    static_assert(shards == std::size_t{1} << (64 - 59));

    void remove(shard& s, std::size_t i, bundle& out) noexcept {
        out = s.bundles[i];
        s.bundles.erase(s.bundles.begin() + static_cast<std::ptrdiff_t>(i));
        parked_.fetch_sub(std::uint64_t{out.count} * out.granules, std::memory_order_relaxed);
    }

    /// Returns: false if there are fewer bundles than `least`, which is not 0.
    bool take_oldest(shard& s, std::size_t least, bundle& out) noexcept {
        const std::lock_guard lock(s.mutex);
        if (s.bundles.size() < least) return false;
        remove(s, 0, out);
        return true;
    }

    template <class Select>
    bool take_any(shard& s, const Select& select, bundle& out) noexcept {
        const std::lock_guard lock(s.mutex);
        for (std::size_t i = s.bundles.size(); i-- > 0;) {
            if (!select(s.bundles[i])) continue;
            remove(s, i, out);
            return true;
        }
        return false;
    }

    const std::uint64_t share_;
    std::atomic<std::uint32_t> racks_{0};
    alignas(own_lines) std::atomic<std::uint64_t> parked_{0};
    std::atomic<std::uint32_t> evict_at_{0};
    std::array<shard, shards> shards_;
};

} // namespace tenure
