#pragma once

/// \file
/// `checked_resource`: a resource watched by the simulated device.
///
///     test --> checked_resource --> resource under test --> device
///                    |                                          ^
///                    +---- block_allocated, used, freed --------+   the overlap check, in stream order
///
/// It also keeps its own book of live blocks, by address, and complains when the resource
///   1. hands out bytes that are live, or misaligned ones, or null for a size that is not zero,
///   2. refuses the correct free of a live block,
///   3. accepts a free that is wrong.
///
/// A block leaves the book before the resource hears of its free, and enters it after the resource has handed it out;
/// so threads may share one, and no complaint is made up by their interleaving.
/// Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/resource/resource.hpp>

#include "support/world_device.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace tenure::test {

template <resource R>
class checked_resource {
  public:
    checked_resource(R& checked, world_device& device) : resource_(&checked), device_(&device) {}

    checked_resource(const checked_resource&) = delete;
    checked_resource& operator=(const checked_resource&) = delete;

    /// Returns: everything that was wrong so far, in the eyes of the device and of the book.
    [[nodiscard]] std::vector<std::string> violations() const {
        std::vector<std::string> all = device_->violations();
        const std::lock_guard lock(mutex_);
        all.insert(all.end(), complaints_.begin(), complaints_.end());
        return all;
    }

    /// A live block, as the book has it.
    struct live_block {
        void* pointer = nullptr;
        std::size_t bytes = 0;
        std::size_t alignment = 0;
        stream_handle stream = default_stream;
        bool sync = false;
    };

    /// Returns: the live blocks by address.
    [[nodiscard]] std::vector<live_block> live() const {
        const std::lock_guard lock(mutex_);
        std::vector<live_block> blocks;
        for (const auto& [address, b] : book_) blocks.push_back(b);
        return blocks;
    }

    void* allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) {
        return enter({resource_->allocate(s, n, a), n, a, s, false});
    }

    allocate_result try_allocate(stream_handle s, std::size_t n, std::size_t a = default_alignment) noexcept {
        allocate_result r = resource_->try_allocate(s, n, a);
        if (r) enter({*r, n, a, s, false});
        return r;
    }

    void* allocate_sync(std::size_t n, std::size_t a = default_alignment) {
        return enter({resource_->allocate_sync(n, a), n, a, default_stream, true});
    }

    deallocate_result try_deallocate(stream_handle s, void* p, std::size_t n,
                                     std::size_t a = default_alignment) noexcept {
        const std::optional<live_block> b = leave(p, n);
        if (b) device_->block_freed(p, s);
        deallocate_result r = resource_->try_deallocate(s, p, n, a);
        if (b && !r) complain("refused a correct free: " + r.error().text());
        if (!b && r && p != nullptr) complain("accepted a wrong free of " + name(p, n));
        return r;
    }

    void deallocate(stream_handle s, void* p, std::size_t n, std::size_t a = default_alignment) noexcept {
        if (leave(p, n)) device_->block_freed(p, s);
        resource_->deallocate(s, p, n, a);
    }

    void deallocate_sync(void* p, std::size_t n, std::size_t a = default_alignment) noexcept {
        if (leave(p, n)) device_->block_freed_sync(p);
        resource_->deallocate_sync(p, n, a);
    }

    /// A block of `allocate_sync` is no stream's: its recorded uses are waited for, no others.
    void release(void* p) noexcept {
        if (const std::optional<live_block> b = leave(p, std::nullopt))
            device_->block_freed(p, b->sync ? no_stream() : b->stream);
        resource_->release(p);
    }

    void record_use(void* p, stream_handle s) noexcept { resource_->record_use(p, s); }

    /// Effects: work of the given length on `s`, which uses the block; `record_use` first where the contract asks for
    /// it.
    void use(void* p, stream_handle s, std::chrono::nanoseconds length) {
        record_use(p, s);
        use_own(p, s, length);
    }

    /// The same without `record_use`: on a stream that is in order with the block's allocation and free anyway.
    void use_own(void* p, stream_handle s, std::chrono::nanoseconds length) {
        device_->launch(s, length);
        device_->block_used(p, s);
    }

    [[nodiscard]] bool owns(void* p) const noexcept { return resource_->owns(p); }
    [[nodiscard]] usage_counters usage() const { return resource_->usage(); }
    std::size_t trim(std::size_t keep) { return resource_->trim(keep); }
    [[nodiscard]] memory_snapshot snapshot() const { return resource_->snapshot(); }
    [[nodiscard]] bool validate() const noexcept { return resource_->validate(); }

  private:
    /// A handle that never is a stream's.
    static stream_handle no_stream() noexcept { return static_cast<stream_handle>(to_pointer(1)); }

    static std::string name(const void* p, std::size_t n) {
        std::ostringstream text;
        text << p << " (" << n << " bytes)";
        return text.str();
    }

    void complain(const std::string& text) {
        const std::lock_guard lock(mutex_);
        complaints_.push_back(text);
    }

    void* enter(const live_block& b) {
        void* const p = b.pointer;
        if (p == nullptr) {
            if (b.bytes != 0) complain("null for " + std::to_string(b.bytes) + " bytes");
            return p;
        }
        {
            const std::lock_guard lock(mutex_);
            const std::uint64_t address = to_address(p);
            if (b.bytes == 0) complaints_.push_back("a block for zero bytes: " + name(p, 0));
            if (!is_aligned(address, b.alignment))
                complaints_.push_back(name(p, b.bytes) + " is not aligned to " + std::to_string(b.alignment));
            const auto next = book_.lower_bound(address);
            if (next != book_.end() && next->first < address + b.bytes)
                complaints_.push_back(name(p, b.bytes) + " runs into the live " +
                                      name(next->second.pointer, next->second.bytes));
            if (next != book_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address)
                complaints_.push_back(name(p, b.bytes) + " lies inside the live " +
                                      name(std::prev(next)->second.pointer, std::prev(next)->second.bytes));
            book_.insert_or_assign(address, b);
        }
        b.sync ? device_->block_allocated_sync(p, b.bytes) : device_->block_allocated(p, b.bytes, b.stream);
        return p;
    }

    /// Effects: takes the block out of the book if there is one, of this size if it is given.
    std::optional<live_block> leave(void* p, std::optional<std::size_t> n) {
        const std::lock_guard lock(mutex_);
        const auto it = book_.find(to_address(p));
        if (it == book_.end() || (n && it->second.bytes != *n)) return std::nullopt;
        const live_block b = it->second;
        book_.erase(it);
        return b;
    }

    R* resource_;
    world_device* device_;
    mutable std::mutex mutex_;
    std::map<std::uint64_t, live_block> book_;
    std::vector<std::string> complaints_;
};

} // namespace tenure::test
