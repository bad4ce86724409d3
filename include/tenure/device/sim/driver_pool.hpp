#pragma once

/// \file
/// `sim::driver_pool`: a model of `cudaMemPool_t`.
///
///     chunk (n x 32 MiB)  |used|free, settled|used|free, stream 4|free, stream 7|used|
///
///   1. Grows by whole chunks, each a multiple of the step; a block lies inside one chunk. The limit is
///      rounded up to the step.
///   2. Best fit with 512 B granules: the smallest free block that the stream may use, the lowest address
///      among equals.
///   3. A free block may be used by the stream that freed it, at once; by a stream that stands after the
///      free (through events); by every stream when the work before the free has passed; the last two as
///      far as the pool's properties allow. The pool never makes a stream wait, whatever they say.
///   4. Blocks are never moved: a pool at its limit with enough free bytes in pieces fails.
///   5. A chunk goes back only when it is wholly free and the host has seen that all work before its frees
///      is over.
///
/// Complexity: allocating is logarithmic in the free blocks while the pool has room, linear in all blocks on
/// a miss; freeing is logarithmic. Thread-compatible.

#include <tenure/core/bits.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim/interval_map.hpp>
#include <tenure/device/sim/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::sim {

class driver_pool {
  public:
    /// `step`: bytes, a power of two.
    driver_pool(schedule& world, const pool_properties& properties, std::size_t step)
        : world_(world)
        , step_(step)
        , threshold_(properties.release_threshold)
        , follows_events_(properties.reuse_follows_events)
        , looks_at_passed_(properties.reuse_when_passed)
        , limit_(properties.max_bytes == 0 ? no_limit : round_up(properties.max_bytes, step)) {}
    driver_pool(const driver_pool&) = delete;
    driver_pool& operator=(const driver_pool&) = delete;

    /// Returns: n bytes for the stream from what the pool holds, if it has them. Requires: n > 0.
    std::optional<std::uint64_t> allocate(std::size_t n, stream& s) {
        n = round_up(n, granule);
        auto found = best(n, s.id);
        if (!found && looks_at_passed_ && settle()) found = best(n, s.id);
        if (!found) found = best_run(n, s.id);
        if (!found) return std::nullopt;
        take(*found, n, s);
        return (*found)->first;
    }

    /// Returns: the bytes of a new chunk that would hold n, if the limit admits it.
    [[nodiscard]] std::optional<std::size_t> growth_for(std::size_t n) const {
        const std::size_t bytes = round_up(n, step_);
        if (bytes < n || bytes > limit_ - reserved_) return std::nullopt;
        return bytes;
    }

    /// Effects: holds a new chunk, one free block.
    void grow(extent chunk) {
        chunks_.emplace(chunk.begin, chunk.end);
        reserved_ += chunk.end - chunk.begin;
        insert(chunk.begin, {chunk.end - chunk.begin, chunk.begin, false, settled, {}, {}});
    }

    /// Effects: the block that starts at `address` is free for `s` now, and for others as invariant 3 says.
    /// Returns: false when none starts there.
    bool deallocate(std::uint64_t address, stream& s) {
        const auto it = blocks_.find(address);
        if (it == blocks_.end() || !it->second.used) return false;
        block freed = std::move(it->second);
        blocks_.erase(it);
        used_ -= freed.size;
        world_.lines().advance(s.id);
        freed.used = false;
        freed.owner = s.id;
        freed.past = world_.lines().clock(s.id);
        freed.ready = s.ready;
        merge(insert(address, std::move(freed)));
        return true;
    }

    [[nodiscard]] bool owns(std::uint64_t address) const {
        const auto it = blocks_.find(address);
        return it != blocks_.end() && it->second.used;
    }

    /// One chunk that went back to the device, and what is known to have passed before.
    struct returned {
        extent chunk;
        vector_clock past;
    };

    /// Returns: chunks given back (rule 5) until at most `keep` bytes are held or no more can go.
    std::vector<returned> trim(std::size_t keep) {
        return give_back(keep, [this](block& b) {
            for (const point& p : b.past.entries())
                if (!world_.lines().seen(p)) return false;
            return true;
        });
    }

    /// For a pool that was destroyed. Returns: chunks whose blocks are all freed and whose work has passed.
    std::vector<returned> drain() {
        return give_back(0, [this](block& b) { return world_.passed(b.ready); });
    }

    [[nodiscard]] std::size_t release_threshold() const noexcept { return threshold_; }
    [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }

    /// Effects: adds the timelines whose order the pool may still ask for.
    void mention(std::unordered_set<timeline_id>& asked_for) const {
        for (const auto& [address, b] : blocks_)
            for (const point& p : b.past.entries()) asked_for.insert(p.timeline);
    }

  private:
    static constexpr std::size_t granule = 512;
    static constexpr std::uint64_t settled = 0; ///< owner of free blocks that every stream may use

    struct block {
        std::size_t size = 0;
        std::uint64_t chunk = 0;
        bool used = false;
        std::uint64_t owner = settled; ///< of a free block: identity of the stream that freed it
        vector_clock past;             ///< of a free block: what its next user must stand after
        moment ready;                  ///< of a free block: when that has passed
    };
    using block_map = std::map<std::uint64_t, block>;
    using iterator = block_map::iterator;

    iterator insert(std::uint64_t address, block b) {
        const iterator it = blocks_.insert_or_assign(address, std::move(b)).first;
        if (!it->second.used) free_[it->second.owner].emplace(it->second.size, address);
        return it;
    }

    void unlist(iterator it) {
        const auto list = free_.find(it->second.owner);
        list->second.erase({it->second.size, it->first});
        if (list->second.empty()) free_.erase(list);
    }

    std::optional<iterator> best(std::size_t n, std::uint64_t id) {
        std::optional<std::pair<std::size_t, std::uint64_t>> found;
        for (const std::uint64_t owner : {settled, id}) {
            const auto list = free_.find(owner);
            if (list == free_.end()) continue;
            const auto it = list->second.lower_bound({n, 0});
            if (it != list->second.end() && (!found || *it < *found)) found = *it;
        }
        if (!found) return std::nullopt;
        return blocks_.find(found->second);
    }

    /// Joins `right` to `left`, its neighbour; the result is free as `left` is.
    iterator fuse(iterator left, iterator right) {
        unlist(left);
        unlist(right);
        left->second.size += right->second.size;
        left->second.past.join(right->second.past);
        left->second.ready.join(right->second.ready);
        blocks_.erase(right);
        free_[left->second.owner].emplace(left->second.size, left->first);
        return left;
    }

    [[nodiscard]] bool adjacent(iterator left, iterator right) const {
        return right != blocks_.end() && !left->second.used && !right->second.used &&
               left->second.chunk == right->second.chunk;
    }

    /// Fuses a free block with its free neighbours of the same owner.
    iterator merge(iterator it) {
        const auto same = [&](iterator a, iterator b) {
            return adjacent(a, b) && a->second.owner == b->second.owner;
        };
        if (same(it, std::next(it))) it = fuse(it, std::next(it));
        if (it != blocks_.begin() && same(std::prev(it), it)) it = fuse(std::prev(it), it);
        return it;
    }

    void reown(iterator it, std::uint64_t owner) {
        unlist(it);
        it->second.owner = owner;
        free_[owner].emplace(it->second.size, it->first);
    }

    /// Gives free blocks whose work has passed to every stream. Returns: whether there were any.
    bool settle() {
        bool any = false;
        for (iterator it = blocks_.begin(); it != blocks_.end(); ++it) {
            if (it->second.used || it->second.owner == settled || !world_.passed(it->second.ready)) continue;
            reown(it, settled);
            it = merge(it);
            any = true;
        }
        return any;
    }

    [[nodiscard]] bool usable(const block& b, std::uint64_t id) {
        if (b.used) return false;
        if (b.owner == settled || b.owner == id) return true;
        if (!follows_events_) return false;
        for (const point& p : b.past.entries())
            if (!world_.lines().ordered(p, id)) return false;
        return true;
    }

    /// The smallest run of neighbouring blocks that the stream may use, made one block.
    std::optional<iterator> best_run(std::size_t n, std::uint64_t id) {
        iterator best_first = blocks_.end();
        std::size_t best_size = no_limit;
        for (iterator it = blocks_.begin(); it != blocks_.end();) {
            if (!usable(it->second, id)) {
                ++it;
                continue;
            }
            const iterator first = it;
            std::size_t size = 0;
            while (it != blocks_.end() && it->second.chunk == first->second.chunk && usable(it->second, id))
                size += (it++)->second.size;
            if (size >= n && size < best_size) {
                best_first = first;
                best_size = size;
            }
        }
        if (best_first == blocks_.end()) return std::nullopt;
        // The run stands before this stream only, so what is left of it may not look settled.
        reown(best_first, id);
        while (best_first->second.size < best_size) fuse(best_first, std::next(best_first));
        return best_first;
    }

    void take(iterator it, std::size_t n, stream& s) {
        unlist(it);
        block& b = it->second;
        // The driver knows that this stream's work comes after all that used the block, however it came to
        // know it.
        world_.lines().join(s.id, b.past);
        if (b.size > n) insert(it->first + n, {b.size - n, b.chunk, false, b.owner, b.past, b.ready});
        b = {n, b.chunk, true, settled, {}, {}};
        used_ += n;
    }

    template <class Passed>
    std::vector<returned> give_back(std::size_t keep, Passed&& has_passed) {
        std::vector<returned> gone;
        for (auto chunk = chunks_.begin(); chunk != chunks_.end();) {
            const auto [begin, end] = *chunk;
            const std::size_t size = end - begin;
            const iterator first = blocks_.find(begin);
            bool whole = reserved_ >= size && reserved_ - size >= keep;
            iterator last = first;
            for (; whole && last != blocks_.end() && last->first < end; ++last)
                whole = !last->second.used && has_passed(last->second);
            if (!whole) {
                ++chunk;
                continue;
            }
            returned r{{begin, end}, {}};
            for (iterator it = first; it != last;) {
                r.past.join(it->second.past);
                unlist(it);
                it = blocks_.erase(it);
            }
            reserved_ -= size;
            gone.push_back(std::move(r));
            chunk = chunks_.erase(chunk);
        }
        return gone;
    }

    schedule& world_;
    std::size_t step_;
    std::size_t threshold_;
    bool follows_events_;
    bool looks_at_passed_;
    std::size_t limit_;
    std::size_t reserved_ = 0;
    std::size_t used_ = 0;
    std::map<std::uint64_t, std::uint64_t> chunks_; // begin to end
    block_map blocks_;                              // tile the chunks exactly
    std::map<std::uint64_t, std::set<std::pair<std::size_t, std::uint64_t>>>
        free_; // by owner: (size, address)
};

} // namespace tenure::sim
