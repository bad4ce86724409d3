#pragma once

/// \file
/// `block_table`: from an address to the `block_word` of its granule, for all front ends of the process.
///
///     address, 48 bits      [ leaf: 13 | chunk: 14 | granule: 12 | 9 bits, zero ]
///     root ----------------> leaf ----> words of a chunk of 2 MiB ---> word
///
/// Invariants:
///   1. What has been published stays for the life of the process: reading needs no lock.
///   2. Where nothing was published, no front end has ever had a block.
///
/// The words of 64 chunks, 128 MiB of device memory, fill one huge page of 2 MiB: 1.6 % of the device memory that was ever
/// in use. With many live blocks nearly each has a line of its own here, and with small pages a page of its own: then the
/// walk to the page costs more than the line. Where the system has no huge pages, only pages are touched in which a block
/// starts (one covers 256 KiB of device memory).
///
/// Complexity: three dependent loads, of which the first two hit the cache. Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/core/inlining.hpp>
#include <tenure/layout/layout.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tenure {

class block_table {
  public:
    using word = std::atomic<std::uint64_t>;

    constexpr block_table() noexcept = default;
    block_table(const block_table&) = delete;
    block_table& operator=(const block_table&) = delete;

    /// The one of the front ends. Others that keep a word a block have tables of their own, which live as long.
    static block_table& instance() noexcept { return table_; }

    /// Returns: the word of the granule at `p`; null if there is none: `p` is not a multiple of a granule, no address of
    /// 48 bits, or where no front end has had a block.
    [[nodiscard]] TENURE_ALWAYS_INLINE word* find(const void* p) noexcept {
        const std::uint64_t granule =
            std::rotr(to_address(p), granule_bits); // what is not zero below ends on top
        if (granule >> (leaf_bits + chunk_bits + word_bits) != 0) return nullptr;
        const leaf* const l = root_[granule >> (chunk_bits + word_bits)].load(std::memory_order_acquire);
        if (l == nullptr) return nullptr;
        word* const words = l->chunks[chunk_of(granule)].load(std::memory_order_acquire);
        return words == nullptr ? nullptr : words + (granule & (words_per_chunk - 1));
    }

    /// The same for an address that is known to have one.
    [[nodiscard]] TENURE_ALWAYS_INLINE word& at(const void* p) noexcept {
        const std::uint64_t granule = to_address(p) >> granule_bits;
        const leaf* const l = root_[granule >> (chunk_bits + word_bits)].load(std::memory_order_acquire);
        return l->chunks[chunk_of(granule)].load(std::memory_order_acquire)[granule & (words_per_chunk - 1)];
    }

    /// The same, but publishes words where there are none. Null if `p` can have none or host memory is missing.
    [[nodiscard]] word* make(const void* p) noexcept {
        word* const w = find(p);
        if (w != nullptr) return w;
        const std::uint64_t granule = std::rotr(to_address(p), granule_bits);
        if (granule >> (leaf_bits + chunk_bits + word_bits) != 0) return nullptr;
        return publish(granule) ? find(p) : nullptr;
    }

    /// Effects: the block at `p` is the pool's own business.
    void forget(const void* p) noexcept {
        word* const w = find(p);
        if (w != nullptr && w->load(std::memory_order_relaxed) != 0) w->store(0, std::memory_order_relaxed);
    }

  private:
    static constexpr unsigned granule_bits = 9;
    static constexpr unsigned word_bits = 12;
    static constexpr unsigned chunk_bits = 14;
    static constexpr unsigned leaf_bits = 13;
    static constexpr std::size_t words_per_chunk = std::size_t{1} << word_bits;
    static constexpr std::size_t chunks_per_leaf = std::size_t{1} << chunk_bits;
    static constexpr std::size_t bytes_per_chunk = words_per_chunk * sizeof(word);
    static constexpr std::size_t chunks_at_once = 64;
    static_assert(layout::granule == std::size_t{1} << granule_bits);
    static_assert(granule_bits + word_bits + chunk_bits + leaf_bits == 48);
    static_assert(word::is_always_lock_free);

    struct leaf {
        std::array<std::atomic<word*>, chunks_per_leaf> chunks{};
    };

    static constexpr std::size_t chunk_of(std::uint64_t granule) noexcept {
        return granule >> word_bits & (chunks_per_leaf - 1);
    }

    bool publish(std::uint64_t granule) noexcept {
        const std::lock_guard lock(mutex_);
        std::atomic<leaf*>& at = root_[granule >> (chunk_bits + word_bits)];
        leaf* l = at.load(std::memory_order_relaxed);
        if (l == nullptr) {
            l = new (std::nothrow) leaf;
            if (l == nullptr) return false;
            at.store(l, std::memory_order_release);
        }
        std::atomic<word*>& chunk = l->chunks[chunk_of(granule)];
        if (chunk.load(std::memory_order_relaxed) != nullptr) return true; // somebody was faster
        if (spare_ == 0 && !reserve()) return false;
        chunk.store(next_, std::memory_order_release);
        next_ += words_per_chunk;
        --spare_;
        return true;
    }

    /// Effects: gets zeroed words for `chunks_at_once` chunks, untouched as far as the system allows.
    bool reserve() noexcept {
        constexpr std::size_t bytes = chunks_at_once * bytes_per_chunk;
#if defined(__linux__)
        static_assert(bytes == std::size_t{2} << 20, "one huge page");
        void* const mapped = mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) return false;
        // The part that is aligned is kept.
        const std::uint64_t begin = to_address(mapped), start = round_up(begin, bytes);
        if (start != begin) munmap(mapped, start - begin);
        munmap(to_pointer(start + bytes), begin + bytes - start);
        void* const memory = to_pointer(start);
#if defined(MADV_HUGEPAGE)
        madvise(memory, bytes, MADV_HUGEPAGE); // a wish
#endif
        next_ =
            static_cast<word*>(memory); // zero bytes are atomics that hold 0, as they are lock-free integers
#else
        next_ = new (std::nothrow) word[chunks_at_once * words_per_chunk]();
        if (next_ == nullptr) return false;
#endif
        spare_ = chunks_at_once;
        return true;
    }

    std::array<std::atomic<leaf*>, std::size_t{1} << leaf_bits> root_{};
    std::mutex mutex_; ///< guards what follows and publishing; nothing is called under it
    word* next_ = nullptr;
    std::size_t spare_ = 0; ///< chunks at `next_`

    static block_table table_;
};

inline constinit block_table block_table::table_;

} // namespace tenure
