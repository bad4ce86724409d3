#pragma once

/// \file
/// `hub<Device>`: one device's memory between its tenants. It stands below the meters, models what the device models,
/// and is shared by all arenas of the device.
///
///     alice's arena   bob's arena          charged
///           |  ^          |  ^
///           v  |          v  |             whole segments, whole physical handles
///           hub: the shelf                 belongs to nobody, charged to nobody
///                |  ^
///                v  |
///               driver
///
/// What an arena gives back goes to the shelf instead of to the driver, which would wait, unmap and map again for it. What
/// an arena takes comes from, in this order: its own former memory; memory that nobody has written; another's, wiped; the
/// driver, whose memory is zero. So no tenant ever reads what another wrote, and a tenant's own memory is not wiped for it.
///
/// Invariants:
///   1. Memory crosses from one tenant to another only as a whole segment or a whole handle, and only wiped
///      (but see `scrub::none`): all work of the old tenant is over, then it is filled with zero, then the host has seen
///      that end, and only then the new tenant has an address for it. Of a block that its owner passes on, with what is in
///      it (`arena::transfer`), that holds for the rest of its segment.
///   2. Memory on the shelf is shown nowhere and charged to nobody.
///   3. A request that the driver has no memory for finds the whole shelf given to the driver before it is refused. So
///      while the charges of all tenants are together at most the device's capacity, none is refused.
///   4. Where wiping fails, memory stays on the shelf, and somebody else's request fails or is served elsewise.
///
/// Is the old tenant's work over? A segment: `deallocate` waits for the device, as every device's does, so its caller
/// may rely on that. A handle: `vmm_device` asks callers to prove it before they unmap. Wiping happens at the address
/// that the new tenant will use, before it gets it (`allocate`, `set_access`), in one fill for handles side by side.
///
/// Driver pools are passed on: the driver hands their memory out again only within one pool, and each arena has its own.
///
/// Cost: a lock and a search by size for each piece taken or given back, instead of a driver call; wiping runs on
/// the device's own stream at the speed of memset, and only its caller waits for it. No lock is held meanwhile.
/// Thread-safety: thread-safe, except construction and destruction. Requires: the hub outlives every arena over it, and
/// every group to which one of them may leave its blocks; a meter outlives the memory taken under it. So declare device,
/// hub, groups and arenas in this order.

#include <tenure/core/bits.hpp>
#include <tenure/core/cache_lines.hpp>
#include <tenure/core/error.hpp>
#include <tenure/core/ordered_mutex.hpp>
#include <tenure/core/result.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/standing_on.hpp>
#include <tenure/device/vmm_device.hpp>
#include <tenure/tenancy/hub_stock.hpp>
#include <tenure/tenancy/meter.hpp>
#include <tenure/tenancy/metered.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tenure {

/// When memory that a tenant gave back is filled with zero.
enum class scrub : std::uint8_t {
    on_transfer, ///< before another tenant gets it. The default: what nobody else gets is not wiped
    on_free,     ///< when it is given back: nothing of a tenant stays behind, and the next is served faster
    none,        ///< never: tenants that trust each other
};

struct hub_options {
    scrub wipe = scrub::on_transfer;
    /// Bytes on the shelf; what is given back beyond them goes to the driver. No limit, because what is on the shelf is
    /// given to the driver when that runs short; lower it where other processes share the device.
    std::size_t max_shelved = no_limit;
};

/// Bytes since construction, unless the name says otherwise.
struct hub_reading {
    std::size_t shelved = 0;     ///< now
    std::size_t pieces = 0;      ///< number on the shelf now
    std::size_t from_shelf = 0;  ///< taken from it
    std::size_t from_driver = 0; ///< bought
    std::size_t to_driver = 0;   ///< given back for good
    std::size_t crossed = 0;     ///< taken from the shelf by another tenant than had written it
    std::size_t scrubbed = 0;    ///< filled with zero
};

/// On cache lines of its own, like the meters of its tenants.
template <filling_device Device>
class alignas(own_lines) hub : public standing_on<Device> {
    using standing_on<Device>::device_;

  public:
    using device_type = Device;

    explicit hub(Device& device, hub_options options = {}) noexcept
        : standing_on<Device>(device), options_(options) {}
    ~hub() {
        trim(0);
        hide_strays();
    }

    /// Effects: gives memory on the shelf to the driver until at most `bytes_to_keep` bytes are left there. For segments
    /// that waits for the device, as `cudaFree` does. Returns: bytes given.
    std::size_t trim(std::size_t bytes_to_keep) noexcept {
        const std::lock_guard leaving(leaving_);
        std::size_t given = 0;
        for (;;) {
            const std::size_t shelved = read().shelved;
            if (shelved <= bytes_to_keep) return given;
            const std::size_t now = give_to_driver(shelved - bytes_to_keep);
            if (now == 0) return given;
            given += now;
        }
    }

    [[nodiscard]] hub_reading read() const noexcept {
        const std::lock_guard lock(mutex_);
        hub_reading r = reading_;
        r.shelved = segments_.shelved() + handles_.shelved();
        r.pieces = segments_.shelved_pieces() + handles_.shelved_pieces();
        return r;
    }

    [[nodiscard]] bool validate() const noexcept {
        const std::lock_guard lock(mutex_);
        return segments_.validate() && handles_.validate();
    }

    /// Effects: memory at `p` is `tenant`'s from now on, with what is in it.
    void pass_on(void* p, meter& tenant) noexcept {
        const std::lock_guard lock(mutex_);
        if (hub_piece* const piece = segments_.find(to_address(p))) {
            piece->tenant = &tenant;
            piece->writer = tenant.id();
        }
    }

    /// Effects: of the segment at `allocation`, all but the block of `bytes` bytes at `p` is zero; for a block that is about to
    /// be passed on, while its old owner may have left something before and behind it. Waits for the device then, so that
    /// nobody writes there later. Nothing where nothing is wiped, or the block fills the segment. Returns: `ok`, or why not.
    status wipe_around(void* allocation, std::size_t allocated, void* p, std::size_t bytes) noexcept {
        const std::uint64_t begin = to_address(allocation);
        const std::uint64_t end = begin + round_up(allocated, this->allocation_granularity());
        const std::uint64_t block = to_address(p);
        if (options_.wipe == scrub::none || (block == begin && block + bytes == end)) return status::ok;
        status s = device_->synchronize();
        if (s == status::ok && block != begin) s = wipe(allocation, block - begin, nullptr);
        if (s == status::ok && block + bytes != end)
            s = wipe(to_pointer(block + bytes), end - block - bytes, nullptr);
        return s;
    }

    // ---- `device` ----

    result<void*, status> allocate(std::size_t bytes) noexcept { return take_segment(bytes, nullptr); }
    result<void*, status> allocate(std::size_t bytes, meter& tenant) noexcept {
        return take_segment(bytes, &tenant);
    }

    /// Waits for the device, as its own does.
    status deallocate(void* p, std::size_t bytes) noexcept {
        std::size_t size = 0;
        {
            const std::lock_guard lock(mutex_);
            if (const hub_piece* const piece = segments_.find(to_address(p)))
                size = piece->bytes;
            else if (segments_.on_shelf(to_address(p)))
                return status::invalid_value; // given back already
        }
        if (size == 0) return device_->deallocate(p, bytes); // not from here
        status s = device_->synchronize();
        if (s == status::out_of_memory) { // what it needs for that is not there; freeing waits, too
            s = device_->deallocate(p, size);
            if (s != status::ok) return s;
            const std::lock_guard lock(mutex_);
            (void)segments_.take_live(to_address(p));
            reading_.to_driver += size;
            return s;
        }
        if (s != status::ok) return s;
        const bool clean = options_.wipe == scrub::on_free && wipe(p, size, nullptr) == status::ok;
        {
            const std::lock_guard lock(mutex_);
            hub_stock::node piece = segments_.take_live(to_address(p));
            if (clean) piece.mapped().writer = 0;
            segments_.shelve(std::move(piece));
        }
        if (options_.max_shelved != no_limit) trim(options_.max_shelved);
        return status::ok;
    }

    /// What is on the shelf counts as free.
    result<device_memory, status> memory() noexcept {
        result<device_memory, status> m = device_->memory();
        if (m) m->free += read().shelved;
        return m;
    }
    void explain(allocation_failure& failure) noexcept { device_->explain(failure); }

    // ---- `filling_device` ----

    result<stream_handle, status> own_stream() noexcept { return device_->own_stream(); }
    status fill_zero(void* p, std::size_t n, stream_handle s) noexcept { return device_->fill_zero(p, n, s); }

    // ---- `pool_device`: passed on, with room made for growth ----

    result<pool_handle, status>
    create_pool(const pool_properties& properties) noexcept requires pool_device<Device> {
        return device_->create_pool(properties);
    }
    status destroy_pool(pool_handle pool) noexcept requires pool_device<Device> {
        return device_->destroy_pool(pool);
    }
    result<void*, status> allocate_from(pool_handle pool, std::size_t bytes,
                                        stream_handle stream) noexcept requires pool_device<Device> {
        return with_room(round_up(bytes, this->pool_step()),
                         [&] { return device_->allocate_from(pool, bytes, stream); });
    }
    status trim_pool(pool_handle pool, std::size_t keep) noexcept requires pool_device<Device> {
        return device_->trim_pool(pool, keep);
    }
    result<pool_memory, status> memory_of(pool_handle pool) noexcept requires pool_device<Device> {
        return device_->memory_of(pool);
    }

    // ---- `vmm_device` ----

    result<memory_handle, status> create_memory(std::size_t bytes) noexcept requires vmm_device<Device> {
        return take_handle(bytes, nullptr);
    }
    result<memory_handle, status> create_memory(std::size_t bytes,
                                                meter& tenant) noexcept requires vmm_device<Device> {
        return take_handle(bytes, &tenant);
    }

    status release_memory(memory_handle handle) noexcept requires vmm_device<Device> {
        bool here = false;
        {
            const std::lock_guard lock(mutex_);
            hub_piece* const piece = handles_.find(handle);
            if (piece != nullptr && piece->released) return status::invalid_value;
            if (piece != nullptr) {
                piece->released = true;
                if (piece->mappings != 0) return status::ok;
                here = true;
            } else if (handles_.on_shelf(handle)) {
                return status::invalid_value; // given back already
            }
        }
        if (!here) return device_->release_memory(handle);
        put_away(handle);
        if (options_.max_shelved != no_limit) trim(options_.max_shelved);
        return status::ok;
    }

    status map(void* p, memory_handle handle) noexcept requires vmm_device<Device> {
        bool fresh = false;
        try {
            const std::lock_guard lock(mutex_);
            if (hub_piece* const piece = handles_.find(handle)) {
                if (piece->released) return status::invalid_value;
                fresh = mappings_.emplace(to_address(p), handle).second;
                if (fresh) ++piece->mappings;
            }
        } catch (...) {
            return status::failed;
        }
        const status s = device_->map(p, handle);
        if (s == status::ok || !fresh) return s;
        const std::lock_guard lock(mutex_);
        mappings_.erase(to_address(p));
        --handles_.find(handle)->mappings;
        return s;
    }

    /// Wipes what comes from another tenant before it returns. Where that fails, so does the call, and the caller, to
    /// whom the range is not accessible then, unmaps it.
    status set_access(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        if (const status s = device_->set_access(p, bytes); s != status::ok) return s;
        std::vector<dirty_range> dirty;
        try {
            const std::lock_guard lock(mutex_);
            for_each_mapping(p, bytes, [&](std::uint64_t at, hub_piece& piece) {
                if (!must_wipe(piece.writer, piece.tenant)) return;
                if (!dirty.empty() && dirty.back().at + dirty.back().bytes == at &&
                    dirty.back().tenant == piece.tenant)
                    dirty.back().bytes += piece.bytes;
                else
                    dirty.push_back({at, piece.bytes, piece.tenant});
            });
        } catch (...) {
            return status::failed;
        }
        if (const status s = wipe_all(dirty); s != status::ok) return s;
        const std::lock_guard lock(mutex_);
        for_each_mapping(
            p, bytes, [](std::uint64_t, hub_piece& piece) { piece.writer = hub_stock::id_of(piece.tenant); });
        return status::ok;
    }

    status unmap(void* p, std::size_t bytes) noexcept requires vmm_device<Device> {
        if (const status s = device_->unmap(p, bytes); s != status::ok) return s;
        for (;
             ;) { // one piece at a time: a piece that goes to the shelf may have to be wiped without the lock
            memory_handle gone = 0;
            {
                const std::lock_guard lock(mutex_);
                const auto it = mappings_.lower_bound(to_address(p));
                if (it == mappings_.end() || it->first - to_address(p) >= bytes) break;
                hub_piece& piece = *handles_.find(it->second);
                if (--piece.mappings == 0 && piece.released) gone = it->second;
                mappings_.erase(it);
            }
            if (gone != 0) put_away(gone);
        }
        if (options_.max_shelved != no_limit) trim(options_.max_shelved);
        return status::ok;
    }

  private:
    struct dirty_range {
        std::uint64_t at;
        std::size_t bytes;
        meter* tenant;
    };

    static bool crosses(std::uint64_t writer, const meter* tenant) noexcept {
        return writer != 0 && (tenant == nullptr || writer != tenant->id());
    }
    [[nodiscard]] bool must_wipe(std::uint64_t writer, const meter* tenant) const noexcept {
        return options_.wipe != scrub::none && crosses(writer, tenant);
    }

    // ---- wiping: no lock is held ----

    /// Effects: fills the range with zero and waits for the end of that.
    status wipe(void* p, std::size_t bytes, meter* tenant) noexcept {
        const result<stream_handle, status> on = device_->own_stream();
        if (!on) return on.error();
        status s = device_->fill_zero(p, bytes, *on);
        if (s == status::ok) s = device_->synchronize(*on);
        if (s == status::ok) count_wiped(bytes, tenant);
        return s;
    }

    status wipe_all(const std::vector<dirty_range>& dirty) noexcept {
        if (dirty.empty()) return status::ok;
        const result<stream_handle, status> on = device_->own_stream();
        if (!on) return on.error();
        status s = status::ok;
        for (const dirty_range& d : dirty)
            if (s == status::ok) s = device_->fill_zero(to_pointer(d.at), d.bytes, *on);
        // Also after a failure: the range may be unmapped next, and nothing may run on it then.
        const status over = device_->synchronize(*on);
        if (s == status::ok) s = over;
        if (s == status::ok)
            for (const dirty_range& d : dirty) count_wiped(d.bytes, d.tenant);
        return s;
    }

    /// Effects: the same for a handle that is shown nowhere, at an address of its own.
    status wipe_handle(memory_handle handle, std::size_t bytes) noexcept requires vmm_device<Device> {
        try {
            const std::lock_guard lock(mutex_);
            strays_.reserve(strays_.size() + wipers_ + 1);
            ++wipers_;
        } catch (...) {
            return status::failed;
        }
        status s = status::ok;
        const result<void*, status> at = device_->reserve_address(bytes, 0, 0);
        stray left{at ? *at : nullptr, bytes, false};
        if (!at) {
            s = at.error();
        } else if (s = device_->map(*at, handle); s == status::ok) {
            left.mapped = true;
            s = device_->set_access(*at, bytes);
            if (s == status::ok) s = wipe(*at, bytes, nullptr);
        }
        hide(left);
        const std::lock_guard lock(mutex_);
        --wipers_;
        if (left.at != nullptr) strays_.push_back(left);
        return s;
    }

    /// An address at which something was wiped, and which the driver did not take back. What it shows may be used and
    /// handed on, but does not go back to the driver before.
    struct stray {
        void* at;
        std::size_t bytes;
        bool mapped;
    };

    /// Effects: gives the address back as far as the driver takes it; all of it: `at` is null.
    void hide(stray& s) noexcept requires vmm_device<Device> {
        if (s.at != nullptr && s.mapped && device_->unmap(s.at, s.bytes) == status::ok) s.mapped = false;
        if (s.at != nullptr && !s.mapped && device_->free_address(s.at, s.bytes) == status::ok)
            s.at = nullptr;
    }

    /// Effects: offers the driver all such addresses again.
    void hide_strays() noexcept {
        if constexpr (vmm_device<Device>) {
            std::size_t n = 0;
            {
                const std::lock_guard lock(mutex_);
                n = strays_.size();
            }
            for (; n != 0; --n) {
                stray s{};
                {
                    const std::lock_guard lock(mutex_);
                    if (strays_.empty()) return;
                    s = strays_.front();
                    strays_.erase(strays_.begin());
                    ++wipers_; // its room is kept
                }
                hide(s);
                const std::lock_guard lock(mutex_);
                --wipers_;
                if (s.at != nullptr) strays_.push_back(s);
            }
        }
    }

    void count_wiped(std::size_t bytes, meter* tenant) noexcept {
        if (tenant != nullptr) tenant->count_scrubbed(bytes);
        const std::lock_guard lock(mutex_);
        reading_.scrubbed += bytes;
    }

    // ---- segments ----

    result<void*, status> take_segment(std::size_t bytes, meter* tenant) noexcept {
        if (bytes == 0) return device_->allocate(0);
        const std::size_t size = round_up(bytes, this->allocation_granularity());
        if (size < bytes) return status::out_of_memory;
        hub_stock::node piece = take_shelved(segments_, size, tenant);
        if (!piece.empty()) {
            void* const p = to_pointer(piece.mapped().key);
            const bool dirty = must_wipe(piece.mapped().writer, tenant);
            if (!dirty || wipe(p, size, tenant) == status::ok) {
                count_taken(piece.mapped(), tenant);
                piece.mapped().writer = hub_stock::id_of(tenant);
                const std::lock_guard lock(mutex_);
                segments_.set_live(std::move(piece));
                return p;
            }
            const std::lock_guard lock(mutex_);
            segments_.shelve(std::move(piece));
        }
        try {
            piece = hub_stock::make();
        } catch (...) {
            return status::failed;
        }
        const result<void*, status> p = with_room(size, [&] { return device_->allocate(size); });
        if (!p) return p;
        piece.mapped() = {
            .key = to_address(*p), .bytes = size, .tenant = tenant, .writer = hub_stock::id_of(tenant)};
        const std::lock_guard lock(mutex_);
        reading_.from_driver += size;
        segments_.set_live(std::move(piece));
        return p;
    }

    // ---- handles ----

    result<memory_handle, status> take_handle(std::size_t bytes, meter* tenant) noexcept {
        hub_stock::node piece = take_shelved(handles_, bytes, tenant);
        if (!piece.empty()) {
            const memory_handle handle = piece.mapped().key;
            count_taken(piece.mapped(), tenant);
            const std::lock_guard lock(mutex_);
            handles_.set_live(std::move(piece));
            return handle;
        }
        try {
            piece = hub_stock::make();
        } catch (...) {
            return status::failed;
        }
        const result<memory_handle, status> made =
            with_room(bytes, [&] { return device_->create_memory(bytes); });
        if (!made) return made;
        piece.mapped() = {.key = *made, .bytes = bytes, .tenant = tenant};
        const std::lock_guard lock(mutex_);
        reading_.from_driver += bytes;
        handles_.set_live(std::move(piece));
        return made;
    }

    /// Effects: shelves a handle that is released and shown nowhere.
    void put_away(memory_handle handle) noexcept {
        std::size_t bytes = 0;
        bool written = false;
        {
            const std::lock_guard lock(mutex_);
            const hub_piece& piece = *handles_.find(handle);
            bytes = piece.bytes;
            written = piece.writer != 0;
        }
        const bool clean =
            options_.wipe == scrub::on_free && written && wipe_handle(handle, bytes) == status::ok;
        const std::lock_guard lock(mutex_);
        hub_stock::node piece = handles_.take_live(handle);
        if (clean) piece.mapped().writer = 0;
        handles_.shelve(std::move(piece));
    }

    /// Requires: the lock is held.
    template <class F>
    void for_each_mapping(void* p, std::size_t bytes, F&& f) {
        const std::uint64_t begin = to_address(p);
        for (auto it = mappings_.lower_bound(begin); it != mappings_.end() && it->first - begin < bytes; ++it)
            f(it->first, *handles_.find(it->second));
    }

    // ---- the shelf and the driver ----

    hub_stock::node take_shelved(hub_stock& stock, std::size_t bytes, const meter* tenant) noexcept {
        const std::lock_guard lock(mutex_);
        return stock.take(bytes, hub_stock::id_of(tenant));
    }

    void count_taken(hub_piece& piece, meter* tenant) noexcept {
        piece.tenant = tenant;
        const std::lock_guard lock(mutex_);
        reading_.from_shelf += piece.bytes;
        if (crosses(piece.writer, tenant)) reading_.crossed += piece.bytes;
    }

    /// Effects: asks the driver; while it has no memory and there is some on the shelf, gives it some and asks again.
    /// Who gives holds `leaving_`, so that nobody is refused because of memory that is on its way.
    template <class Take>
    auto with_room(std::size_t bytes, Take&& take) noexcept -> decltype(take()) {
        auto got = take();
        if (got || got.error() != status::out_of_memory) return got;
        const std::lock_guard leaving(leaving_);
        for (;;) {
            got = take();
            if (got || got.error() != status::out_of_memory) return got;
            if (give_to_driver(bytes) == 0) return got;
        }
    }

    /// Effects: gives pieces from the shelf to the driver, until they are `bytes` bytes. Requires: `leaving_` is held.
    std::size_t give_to_driver(std::size_t bytes) noexcept {
        std::size_t given = 0;
        hide_strays();
        while (given < bytes) {
            hub_stock::node piece;
            bool segment = false;
            {
                const std::lock_guard lock(mutex_);
                // Handles first: giving them back waits for nothing.
                piece = handles_.take_any(bytes - given);
                if (piece.empty()) {
                    piece = segments_.take_any(bytes - given);
                    segment = true;
                }
            }
            if (piece.empty()) break;
            const hub_piece& p = piece.mapped();
            status s = status::not_supported;
            if (segment) {
                s = device_->deallocate(to_pointer(p.key), p.bytes);
            } else {
                if constexpr (vmm_device<Device>) s = device_->release_memory(p.key);
            }
            const std::lock_guard lock(mutex_);
            if (s != status::ok && !beyond_reach(s)) { // it stays, and so does the rest
                (segment ? segments_ : handles_).shelve(std::move(piece));
                break;
            }
            given += p.bytes;
            reading_.to_driver += p.bytes;
        }
        return given;
    }

    const hub_options options_;
    ordered_mutex<lock_level::hub_leaving> leaving_; ///< held over driver calls that make room
    mutable ordered_mutex<lock_level::hub> mutex_;   ///< guards what follows; no device is called under it
    hub_stock segments_;
    hub_stock handles_;
    std::map<std::uint64_t, memory_handle> mappings_; ///< by address
    hub_reading reading_;
    std::vector<stray> strays_; ///< has room for all that wipe now
    std::size_t wipers_ = 0;
};

} // namespace tenure
