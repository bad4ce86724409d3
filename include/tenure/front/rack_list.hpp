#pragma once

/// \file
/// `rack_list`: the racks of a front end, of all threads and streams; and the one way for another thread into them.
///
/// Whoever visits racks holds the list's mutex, so there is one visitor at a time. The owner takes the mutex too where it
/// changes the set of its magazines or removes the rack; what a hit does is kept apart by the rack's section alone.
///
/// Invariants:
///   1. Every rack is found under its number until its owner removes it, which only its own thread does (or the
///      front end's destructor).
///   2. What a removed rack has counted is kept.
///
/// Complexity: a visit is linear in the racks and executes one heavy fence. Thread-safety: thread-safe.

#include <tenure/core/asymmetric_fence.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/pointer_map.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/rack.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace tenure {

/// Sums over racks. Bytes as requested, except `parked`.
struct front_totals {
    std::uint64_t bytes_out = 0;
    std::uint64_t bytes_in = 0;
    std::uint64_t blocks_out = 0;
    std::uint64_t blocks_in = 0;
    std::uint64_t parked = 0; ///< bytes, as rounded

    void add(const rack& r) noexcept {
        bytes_out += r.traffic.bytes_out.value();
        bytes_in += r.traffic.bytes_in.value();
        blocks_out += r.traffic.blocks_out.value();
        blocks_in += r.traffic.blocks_in.value();
        parked += r.parked_granules.value() * layout::granule;
    }
};

class rack_list {
  public:
    using mutex_type = ordered_mutex<lock_level::front>;

    /// For those who change their own rack's set of magazines.
    [[nodiscard]] mutex_type& mutex() const noexcept { return mutex_; }

    /// Effects: adds a rack of the calling thread. Throws: `std::bad_alloc`, changing nothing.
    rack* add(std::uint64_t thread, stream_handle stream, std::uint64_t identity, bool asks,
              std::size_t limit) {
        const std::uint64_t number = front_registry::instance().new_number();
        if (number > block_word::max_rack) throw std::bad_alloc();
        auto fresh = std::make_unique<rack>(number, thread, stream, identity, asks, limit);
        const std::lock_guard lock(mutex_);
        by_number_.reserve(racks_.size() + 1);
        racks_.push_back(std::move(fresh));
        by_number_.insert(number, static_cast<std::uint32_t>(racks_.size() - 1));
        return racks_.back().get();
    }

    /// Effects: empties the rack by empty(rack&) and removes it. Requires: it is the calling thread's.
    template <class Empty>
    void remove(rack* r, Empty&& empty) noexcept {
        std::unique_ptr<rack> gone;
        const std::lock_guard lock(mutex_);
        gone = take(*by_number_.find(r->number), empty);
    }

    /// The same for all racks of a thread, which calls this itself.
    template <class Empty>
    void remove_thread(std::uint64_t thread, Empty&& empty) noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = racks_.size(); i-- > 0;)
            if (racks_[i]->thread == thread) take(static_cast<std::uint32_t>(i), empty);
    }

    /// Returns: the rack that this thread has had longest, if it has `most` of them.
    [[nodiscard]] rack* oldest_if_full(std::uint64_t thread, std::size_t most) const noexcept {
        const std::lock_guard lock(mutex_);
        rack* oldest = nullptr;
        std::size_t n = 0;
        for (const auto& r : racks_) {
            if (r->thread != thread) continue;
            ++n;
            if (oldest == nullptr || r->number < oldest->number) oldest = r.get();
        }
        return n < most ? nullptr : oldest;
    }

    /// Returns: identity of the stream of the rack with that number, if there is one here.
    [[nodiscard]] std::optional<std::uint64_t> stream_of(std::uint64_t number) const noexcept {
        const std::lock_guard lock(mutex_);
        const std::optional<std::uint32_t> i = by_number_.find(number);
        if (!i) return std::nullopt;
        return racks_[*i]->stream_id;
    }

    /// Effects: calls f(rack&) for each rack of which select(rack) is true, with its owner outside and kept outside.
    template <class Select, class F>
    void visit(Select&& select, F&& f) noexcept {
        const std::lock_guard lock(mutex_);
        bool any = false;
        for (const auto& r : racks_) {
            r->selected = select(*r);
            if (!r->selected) continue;
            r->section.stop();
            any = true;
        }
        if (!any) return;
        asymmetric_fence::heavy();
        for (const auto& r : racks_) {
            if (!r->selected) continue;
            r->section.wait();
            f(*r);
            r->section.resume();
        }
    }

    /// Effects: f(rack&) for each, whose owners may be inside.
    template <class F>
    void for_each(F&& f) const noexcept {
        const std::lock_guard lock(mutex_);
        for (const auto& r : racks_) f(*r);
    }

    [[nodiscard]] front_totals totals() const noexcept {
        const std::lock_guard lock(mutex_);
        front_totals sum = removed_;
        for (const auto& r : racks_) sum.add(*r);
        return sum;
    }

  private:
    template <class Empty>
    std::unique_ptr<rack> take(std::uint32_t i, Empty&& empty) noexcept {
        empty(*racks_[i]);
        removed_.add(*racks_[i]);
        by_number_.erase(racks_[i]->number);
        std::unique_ptr<rack> gone = std::move(racks_[i]);
        if (std::size_t{i} + 1 != racks_.size()) {
            racks_[i] = std::move(racks_.back());
            by_number_.erase(racks_[i]->number);
            by_number_.insert(racks_[i]->number, i); // there is room: one has just gone
        }
        racks_.pop_back();
        return gone;
    }

    mutable mutex_type mutex_; ///< guards what follows; before the pool's
    std::vector<std::unique_ptr<rack>> racks_;
    pointer_map by_number_; ///< number of a rack -> its index
    front_totals removed_;
};

} // namespace tenure
