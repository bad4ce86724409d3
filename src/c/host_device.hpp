#pragma once

/// \file
/// `host_device`: the device "sim": the host's own memory with the manners of a GPU, so that a program can be written and
/// tested where there is none.
///
///     streams, events, captures     a `sim::device`, on which work takes no time
///     memory                        the host's, and whoever has a block may read and write it
///     virtual memory                one file in memory: a handle is a part of it, and may be shown at several addresses
///
/// Invariants:
///   1. `reserved <= capacity`, counting allocations, driver pools and created memory together.
///   2. Memory that was taken reads zero.
///   3. A failing call changes nothing.
///
/// Not modelled: work that is still running (there is none but what somebody writes himself), and so also no block that
/// waits for it.
///
/// Complexity: a system call for each piece of memory; small tables otherwise. Thread-safety: thread-safe.

#include <tenure/core/bits.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/sim_device.hpp>
#include <tenure/device/vmm_device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tenure::c {

class host_device {
  public:
    explicit host_device(std::size_t capacity = 1_GiB)
        : capacity_(capacity), clock_({.capacity = capacity, .cost = {}, .check_overlap = false}) {}
    host_device(const host_device&) = delete;
    host_device& operator=(const host_device&) = delete;
    ~host_device() {
        for (const auto& [address, bytes] : reservations_) ::munmap(to_pointer(address), bytes);
        for (const auto& [address, bytes] : pieces_) ::munmap(to_pointer(address), bytes);
        if (file_ >= 0) ::close(file_);
    }

    // ---- `device` ----

    result<void*, status> allocate(std::size_t n) noexcept {
        const std::lock_guard lock(mutex_);
        return take_piece(n);
    }

    status deallocate(void* p, std::size_t) noexcept {
        if (p == nullptr) return status::ok;
        if (const status s = clock_.synchronize(); s != status::ok) return s;
        const std::lock_guard lock(mutex_);
        return give_back_piece(p);
    }

    [[nodiscard]] std::size_t allocation_granularity() const noexcept { return granularity; }

    result<device_memory, status> memory() noexcept {
        const std::lock_guard lock(mutex_);
        return device_memory{capacity_ - reserved_, capacity_};
    }

    result<stream_state, status> describe(stream_handle s) noexcept { return clock_.describe(s); }
    [[nodiscard]] bool permanent(stream_handle s) const noexcept { return clock_.permanent(s); }
    result<event_handle, status> create_event() noexcept { return clock_.create_event(); }
    status destroy_event(event_handle e) noexcept { return clock_.destroy_event(e); }
    status record(event_handle e, stream_handle s) noexcept { return clock_.record(e, s); }
    status query(event_handle e) noexcept { return clock_.query(e); }
    status synchronize(event_handle e) noexcept { return clock_.synchronize(e); }
    status synchronize(stream_handle s) noexcept { return clock_.synchronize(s); }
    status synchronize() noexcept { return clock_.synchronize(); }
    status wait(stream_handle s, event_handle e) noexcept { return clock_.wait(s, e); }

    void explain(allocation_failure& f) noexcept {
        const std::lock_guard lock(mutex_);
        f.used = reserved_;
        f.max = capacity_;
    }

    // ---- `filling_device` ----

    result<stream_handle, status> own_stream() noexcept { return clock_.own_stream(); }
    status fill_zero(void* p, std::size_t n, stream_handle on) noexcept {
        const result<stream_state, status> state = clock_.describe(on);
        if (!state) return state.error();
        if (state->capturing()) return status::capture_violation;
        if (n != 0) std::memset(p, 0, n);
        return status::ok;
    }

    // ---- `pool_device` ----

    [[nodiscard]] std::size_t pool_step() const noexcept { return granularity; }

    result<pool_handle, status> create_pool(const pool_properties& properties) noexcept {
        if (properties.peers != 0) return status::not_supported;
        const std::lock_guard lock(mutex_);
        const pool_handle handle = to_handle(++last_pool_);
        const std::size_t max =
            properties.max_bytes == 0 ? no_limit : saturating_round_up(properties.max_bytes);
        if (!noted(pools_, handle, {max, 0})) return status::out_of_memory;
        return handle;
    }

    /// Blocks of it that are live stay, and count.
    status destroy_pool(pool_handle pool) noexcept {
        const std::lock_guard lock(mutex_);
        return pools_.erase(pool) == 1 ? status::ok : status::invalid_value;
    }

    result<void*, status> allocate_from(pool_handle pool, std::size_t n, stream_handle on) noexcept {
        if (const status s = not_captured(on); s != status::ok) return s;
        const std::lock_guard lock(mutex_);
        const auto it = pools_.find(pool);
        if (it == pools_.end()) return status::invalid_value;
        const std::size_t taken = saturating_round_up(n);
        if (taken > it->second.max - it->second.used) return status::out_of_memory;
        result<void*, status> p = take_piece(n);
        if (p && *p != nullptr) it->second.used += taken;
        return p;
    }

    status deallocate_to(pool_handle pool, void* p, stream_handle on) noexcept {
        if (p == nullptr) return status::ok;
        if (const status s = not_captured(on); s != status::ok) return s;
        const std::lock_guard lock(mutex_);
        const auto piece = pieces_.find(to_address(p));
        if (piece == pieces_.end()) return status::invalid_value;
        if (const auto it = pools_.find(pool); it != pools_.end()) it->second.used -= piece->second;
        return give_back_piece(p);
    }

    status trim_pool(pool_handle pool, std::size_t) noexcept {
        const std::lock_guard lock(mutex_);
        return pools_.count(pool) == 1 ? status::ok : status::invalid_value;
    }

    result<pool_memory, status> memory_of(pool_handle pool) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = pools_.find(pool);
        if (it == pools_.end()) return status::invalid_value;
        return pool_memory{it->second.used, it->second.used};
    }

    // ---- `vmm_device` ----

    [[nodiscard]] bool supports_vmm() const noexcept { return true; }

    result<void*, status> reserve_address(std::size_t n, std::size_t alignment,
                                          std::uint64_t near = 0) noexcept {
        if (n == 0 || !is_aligned(n, granularity)) return status::invalid_value;
        if (alignment == 0) alignment = granularity;
        if (!is_power_of_two(alignment)) return status::invalid_value;
        alignment = std::max(alignment, granularity);
        const std::lock_guard lock(mutex_);
        void* const p = map_aligned(n, alignment, PROT_NONE, is_aligned(near, alignment) ? near : 0);
        if (p == nullptr) return status::out_of_memory;
        if (!noted(reservations_, to_address(p), n)) {
            ::munmap(p, n);
            return status::out_of_memory;
        }
        return p;
    }

    status free_address(void* p, std::size_t n) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = reservations_.find(to_address(p));
        if (it == reservations_.end() || it->second != n || mapped_in(to_address(p), n))
            return status::invalid_value;
        ::munmap(p, n);
        reservations_.erase(it);
        return status::ok;
    }

    result<memory_handle, status> create_memory(std::size_t n) noexcept {
        if (n == 0 || !is_aligned(n, granularity)) return status::invalid_value;
        const std::lock_guard lock(mutex_);
        if (n > capacity_ - reserved_) return status::out_of_memory;
        if (file_ < 0) file_ = ::memfd_create("tenure", MFD_CLOEXEC);
        if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(end_of_file_ + n)) != 0) return status::failed;
        const memory_handle handle = ++last_memory_;
        if (!noted(memory_, handle, {end_of_file_, n, 0, false})) return status::out_of_memory;
        end_of_file_ += n; // offsets are never used twice, so that what is new reads zero
        reserved_ += n;
        return handle;
    }

    status release_memory(memory_handle h) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = memory_.find(h);
        if (it == memory_.end() || it->second.released) return status::invalid_value;
        it->second.released = true;
        drop_if_unused(it);
        return status::ok;
    }

    status map(void* p, memory_handle h) noexcept {
        const std::lock_guard lock(mutex_);
        const auto it = memory_.find(h);
        if (it == memory_.end() || it->second.released) return status::invalid_value;
        const std::uint64_t address = to_address(p);
        if (!is_aligned(address, granularity) || !reserved_at(address, it->second.bytes) ||
            mapped_in(address, it->second.bytes))
            return status::invalid_value;
        if (!noted(mappings_, address, h)) return status::out_of_memory;
        if (::mmap(p, it->second.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                   static_cast<off_t>(it->second.offset)) == MAP_FAILED) {
            mappings_.erase(address);
            return status::out_of_memory;
        }
        ++it->second.mappings;
        return status::ok;
    }

    /// What is mapped can be used at once here.
    status set_access(void* p, std::size_t n) noexcept {
        const std::lock_guard lock(mutex_);
        return whole_mappings(to_address(p), n) ? status::ok : status::invalid_value;
    }

    status unmap(void* p, std::size_t n) noexcept {
        const std::lock_guard lock(mutex_);
        const std::uint64_t address = to_address(p);
        if (!whole_mappings(address, n)) return status::invalid_value;
        if (::mmap(p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
            MAP_FAILED)
            return status::failed;
        for (auto it = mappings_.find(address); it != mappings_.end() && it->first < address + n;) {
            const auto shown = memory_.find(it->second);
            --shown->second.mappings;
            it = mappings_.erase(it);
            drop_if_unused(shown);
        }
        return status::ok;
    }

    // ---- for its users ----

    [[nodiscard]] stream_handle create_stream() { return clock_.create_stream(); }
    void destroy_stream(stream_handle s) { clock_.destroy_stream(s); }

  private:
    static constexpr std::size_t granularity = 2_MiB;

    struct driver_pool {
        std::size_t max = no_limit;
        std::size_t used = 0;
    };
    struct physical {
        std::uint64_t offset = 0; ///< in the file
        std::size_t bytes = 0;
        std::size_t mappings = 0;
        bool released = false;
    };
    using memory_map = std::map<memory_handle, physical>;

    static pool_handle to_handle(std::uintptr_t n) noexcept { return reinterpret_cast<pool_handle>(n); }

    /// Returns: whether the host had memory for the new entry.
    template <class Map>
    static bool noted(Map& map, const typename Map::key_type& key,
                      const typename Map::mapped_type& value) noexcept {
        try {
            map.emplace(key, value);
            return true;
        } catch (const std::bad_alloc&) {
            return false;
        }
    }

    static std::size_t saturating_round_up(std::size_t n) noexcept {
        return n > no_limit - granularity ? no_limit : round_up(n, granularity);
    }

    status not_captured(stream_handle s) noexcept {
        const result<stream_state, status> state = clock_.describe(s);
        if (!state) return state.error();
        return state->capturing() ? status::capture_violation : status::ok;
    }

    /// Returns: null if the host has no such range.
    static void* map_aligned(std::size_t n, std::size_t alignment, int access,
                             std::uint64_t near = 0) noexcept {
        constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        if (n > no_limit - alignment) return nullptr;
        if (near != 0) {
            void* const wished = ::mmap(to_pointer(near), n, access, flags, -1, 0);
            if (to_address(wished) == near) return wished;
            if (wished != MAP_FAILED) ::munmap(wished, n);
        }
        void* const all = ::mmap(nullptr, n + alignment, access, flags, -1, 0);
        if (all == MAP_FAILED) return nullptr;
        const std::uint64_t begin = to_address(all);
        const std::uint64_t base = round_up(begin, alignment);
        if (base != begin) ::munmap(all, base - begin);
        if (base + n != begin + n + alignment) ::munmap(to_pointer(base + n), begin + alignment - base);
        return to_pointer(base);
    }

    result<void*, status> take_piece(std::size_t n) noexcept {
        if (n == 0) return static_cast<void*>(nullptr);
        const std::size_t taken = saturating_round_up(n);
        if (taken > capacity_ - reserved_) return status::out_of_memory;
        void* const p = map_aligned(taken, granularity, PROT_READ | PROT_WRITE);
        if (p == nullptr) return status::out_of_memory;
        if (!noted(pieces_, to_address(p), taken)) {
            ::munmap(p, taken);
            return status::out_of_memory;
        }
        reserved_ += taken;
        return p;
    }

    status give_back_piece(void* p) noexcept {
        const auto it = pieces_.find(to_address(p));
        if (it == pieces_.end()) return status::invalid_value;
        ::munmap(p, it->second);
        reserved_ -= it->second;
        pieces_.erase(it);
        return status::ok;
    }

    [[nodiscard]] bool reserved_at(std::uint64_t address, std::size_t n) const {
        auto it = reservations_.upper_bound(address);
        if (it == reservations_.begin()) return false;
        --it;
        return address - it->first <= it->second && n <= it->second - (address - it->first);
    }

    [[nodiscard]] bool mapped_in(std::uint64_t address, std::size_t n) const {
        auto it = mappings_.lower_bound(address);
        if (it != mappings_.end() && it->first - address < n) return true;
        return it != mappings_.begin() && (--it)->first + memory_.at(it->second).bytes > address;
    }

    [[nodiscard]] bool whole_mappings(std::uint64_t address, std::size_t n) const {
        if (n == 0) return false;
        std::uint64_t at = address;
        for (auto it = mappings_.find(address); it != mappings_.end() && it->first == at && at - address < n;
             ++it)
            at += memory_.at(it->second).bytes;
        return at - address == n;
    }

    void drop_if_unused(memory_map::iterator it) {
        const physical& m = it->second;
        if (!m.released || m.mappings != 0) return;
        (void)::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(m.offset),
                          static_cast<off_t>(m.bytes));
        reserved_ -= m.bytes;
        memory_.erase(it);
    }

    const std::size_t capacity_;
    sim::device clock_;
    std::mutex mutex_; ///< guards what follows
    std::size_t reserved_ = 0;
    std::map<std::uint64_t, std::size_t> pieces_;       ///< allocations and blocks of pools: address to bytes
    std::map<std::uint64_t, std::size_t> reservations_; ///< address to bytes
    std::map<std::uint64_t, memory_handle> mappings_;   ///< by address
    memory_map memory_;
    std::map<pool_handle, driver_pool> pools_;
    memory_handle last_memory_ = 0;
    std::uintptr_t last_pool_ = 0;
    std::uint64_t end_of_file_ = 0;
    int file_ = -1;
};

static_assert(tenure::device<host_device>);
static_assert(tenure::filling_device<host_device>);
static_assert(tenure::pool_device<host_device>);
static_assert(tenure::vmm_device<host_device>);

} // namespace tenure::c
