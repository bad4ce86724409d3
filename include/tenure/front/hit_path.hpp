#pragma once

/// \file
/// `hit_path<Device>`: an allocation that finds a block in the thread's magazine, and a free that finds room there.
///
///     thread, stream --> rack --enter--> magazine of the size --> block, and its word
///
/// No lock, no driver call (but see `stream_check`), no event, no meter, and no instruction with a lock prefix, but for
/// a block that another thread has allocated: its word is changed by compare-exchange.
///
/// Two reaches: `near` is what nearly all calls need, in code that calls nothing and so saves no registers; `far` also
/// asks the device, executes fences where light ones are not to be had, looks next to the first place of a hash, and
/// takes blocks that another thread has allocated on the same stream.
///
/// A base of `magazines`, which says what makes it correct.
/// Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/core/result.hpp>
#include <tenure/device/device.hpp>
#include <tenure/front/block_table.hpp>
#include <tenure/front/block_word.hpp>
#include <tenure/front/front_registry.hpp>
#include <tenure/front/rack.hpp>
#include <tenure/front/thread_racks.hpp>
#include <tenure/layout/layout.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tenure {

template <device Device>
class hit_path {
  protected:
    using word = block_table::word;
    enum class reach : bool { near, far };

    /// Bytes: no larger block is ever parked.
    static constexpr std::size_t largest_block = std::size_t{32} << 20;
    static_assert(largest_block <= block_word::max_bytes);

    /// `most`: bytes: larger blocks are not parked; 0: none is.
    hit_path(Device& device, std::size_t most) noexcept : device_(&device), most_(most) {}
    ~hit_path() = default;

    static block_table& table() noexcept { return block_table::instance(); }

    static block_word word_of(const void* p) noexcept {
        const word* const w = table().find(p);
        return w == nullptr ? block_word() : block_word(w->load(std::memory_order_acquire));
    }

    static std::uint32_t granules_of(std::size_t bytes) noexcept {
        return static_cast<std::uint32_t>((bytes + layout::granule - 1) / layout::granule);
    }

    /// Whether blocks of this kind have words.
    [[nodiscard]] TENURE_ALWAYS_INLINE bool is_tracked(std::size_t bytes,
                                                       std::size_t alignment) const noexcept {
        return bytes - 1 < most_ && alignment - 1 < layout::granule && is_power_of_two(alignment);
    }

    [[nodiscard]] TENURE_NOINLINE bool is_same_stream(const rack& r, stream_handle stream) noexcept {
        const result<stream_state, status> now = device_->describe(stream);
        return now && now->id == r.stream_id && !now->capturing();
    }

    /// Returns: the thread's rack, entered, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE rack* enter(stream_handle stream) noexcept {
        rack* const r = Reach == reach::near ? thread_racks::find_at_once(number_, stream)
                                             : thread_racks::find(number_, stream);
        if (r == nullptr) return nullptr;
        if (r->ask_device && (Reach == reach::near || !is_same_stream(*r, stream))) return nullptr;
        if (Reach == reach::near ? !r->section.try_enter_lightly() : !r->section.try_enter()) return nullptr;
        return r;
    }

    /// Returns: the magazine of that size, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE static magazine* magazine_of(rack& r, std::uint32_t granules) noexcept {
        magazine& home = r.magazines.home(granules);
        if (home.granules == granules) [[likely]]
            return &home;
        return Reach == reach::near ? nullptr : r.magazines.find(granules);
    }

    /// Returns: a parked block, now live, or null.
    template <reach Reach>
    TENURE_ALWAYS_INLINE void* pop(stream_handle stream, std::size_t bytes, std::size_t alignment) noexcept {
        if (!is_tracked(bytes, alignment)) return nullptr;
        rack* const r = enter<Reach>(stream);
        if (r == nullptr) return nullptr;
        const std::uint32_t granules = granules_of(bytes);
        magazine* const m = magazine_of<Reach>(*r, granules);
        void* p = nullptr;
        if (m != nullptr && m->count != 0) [[likely]] {
            p = m->blocks[--m->count];
            r->parked_granules.subtract(granules);
            word& w = table().at(p);
            if (w.load(std::memory_order_relaxed) == r->parked_word) [[likely]] {
                w.store(r->live_word | bytes, std::memory_order_relaxed);
                r->traffic.bytes_out.add(bytes);
                r->traffic.blocks_out.add(1);
            } else {
                stale_.store(p, std::memory_order_relaxed);
                p = nullptr;
            }
        }
        r->section.leave();
        return p;
    }

    /// Returns: whether the block is parked now.
    template <reach Reach>
    TENURE_ALWAYS_INLINE bool push(stream_handle stream, void* p, std::size_t bytes) noexcept {
        word* const w = table().find(p);
        if (w == nullptr || bytes > largest_block) return false;
        rack* const r = enter<Reach>(stream);
        if (r == nullptr) return false;
        const std::uint32_t granules = granules_of(bytes);
        magazine* const m = magazine_of<Reach>(*r, granules);
        bool parked = false;
        if (m != nullptr && m->count < magazine::most_blocks && has_room(*r, granules)) [[likely]] {
            std::uint64_t bits = w->load(std::memory_order_relaxed);
            if (bits == (r->live_word | bytes)) [[likely]] {
                w->store(r->parked_word, std::memory_order_relaxed);
                parked = true;
            } else if constexpr (Reach == reach::far) {
                const block_word v(bits);
                parked = v.what() == block_word::state::live && v.bytes() == bytes && r->is_peer(v.rack()) &&
                         w->compare_exchange_strong(bits, r->parked_word);
            }
            if (parked) put(*r, *m, p, bytes);
        }
        r->section.leave();
        return parked;
    }

    TENURE_ALWAYS_INLINE static bool has_room(const rack& r, std::uint32_t granules) noexcept {
        const std::uint64_t parked = r.parked_granules.value();
        return parked + granules <= r.granule_limit || parked == 0;
    }

    TENURE_ALWAYS_INLINE static void put(rack& r, magazine& m, void* p, std::size_t bytes) noexcept {
        m.blocks[m.count++] = p;
        r.parked_granules.add(m.granules);
        r.traffic.bytes_in.add(bytes);
        r.traffic.blocks_in.add(1);
    }

    const std::uint64_t number_ = front_registry::instance().new_front_number();
    Device* const device_;
    const std::size_t most_;

    /// An entry that came up in a magazine though its block is not parked there: to be reported.
    alignas(own_lines) std::atomic<void*> stale_{nullptr};
};

} // namespace tenure
