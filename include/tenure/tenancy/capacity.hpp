#pragma once

/// \file
/// `read_capacity`: how much of a device this process may really have: the `max` of the root of its arenas.
///
///     total   [ held by our arenas | external: context, other libraries, other processes | free | what a limit forbids ]
///     capacity = min(limit, held + free) - headroom
///
/// Sources, all of which can be replaced (tests need no GPU):
///
/// | source | tells |
/// |---|---|
/// | `memory` | `cudaMemGetInfo`: total and free, of the MIG instance or under MPS of what the client may have |
/// | `nvml` | the whole card, whether it is partitioned, other processes |
/// | `mps_limit` | CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: "0=1G,1=512MB" |
/// | `visible_devices` | CUDA_VISIBLE_DEVICES: whether it names a MIG instance |
///
/// On a shared card free memory comes and goes. So the capacity is a reading, not a promise: an arena tree is made with the
/// one of the start. What vanishes later makes requests fail with cause `device`, and no limit or guarantee is changed by it;
/// the program sees it through a `capacity_watch`, and an operator where that was added to a view (`arenas_view`).
///
/// Thread-safety: functions of values; the watch is thread-safe if its sources are.

#include <tenure/core/error.hpp>
#include <tenure/core/result.hpp>
#include <tenure/core/status.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/device.hpp>
#include <tenure/tenancy/nvml.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tenure {

/// Reads CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: a size for each device number, "0=1G,1=512MB". K, M, G and T (with or without a B,
/// in either case) are powers of 1024; a plain number is bytes.
/// Returns: bytes for `device`; nothing if the text does not name it. Throws: `std::invalid_argument`, which quotes it.
inline std::optional<std::size_t> parse_mps_limit(std::string_view text, int device) {
    const auto fail = [text](const char* why) {
        throw std::invalid_argument("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=\"" + std::string(text) + "\": " + why +
                                    " (expected DEVICE=SIZE[,DEVICE=SIZE...], as 0=1G,1=512MB)");
    };
    std::optional<std::size_t> found;
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        const std::string_view part = rest.substr(0, comma);
        const char* const end = part.data() + part.size();
        int number = 0;
        const auto [equals, no_number] = std::from_chars(part.data(), end, number);
        if (no_number != std::errc{} || number < 0) fail("no device number");
        if (equals == end || *equals != '=') fail("no = after the device number");
        std::uint64_t size = 0;
        const auto [unit, no_size] = std::from_chars(equals + 1, end, size);
        if (no_size != std::errc{}) fail("no size");
        std::string name(unit, end);
        for (char& c : name)
            if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
        if (name.size() == 2 && name[0] != 'B' && name[1] == 'B') name.pop_back();
        constexpr std::string_view units = "BKMGT";
        const std::size_t power = name.empty() ? 0 : units.find(name[0]);
        if (name.size() > 1 || power == std::string_view::npos) fail("unknown unit");
        if (size > (no_limit >> (10 * power))) fail("more than 64 bits");
        if (number == device) found = static_cast<std::size_t>(size) << (10 * power);
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
        if (rest.empty()) fail("nothing after the last comma");
    }
    return found;
}

/// Where a capacity is read from. What is empty is not asked.
struct capacity_sources {
    std::function<result<device_memory, status>()> memory; ///< required
    std::function<std::optional<nvml_reading>()> nvml{};
    std::string mps_limit{};
    std::string visible_devices{};
    int device = 0; ///< its number in CUDA, to which `mps_limit` refers
};

/// Returns: the sources of a device of this process. `bus_id`: as `cudaDeviceGetPCIBusId` gives it; empty: NVML is not asked.
/// Requires: the device outlives them.
template <class Device>
capacity_sources sources_of(Device& device, int number = 0, const std::string& bus_id = {}) {
    capacity_sources s;
    s.memory = [&device] { return device.memory(); };
    if (!bus_id.empty())
        if (std::shared_ptr<tenure::nvml> library = tenure::nvml::open(bus_id))
            s.nvml = [library] { return library->read(); };
    const auto environment = [](const char* name) {
        const char* const text = std::getenv(name);
        return std::string(text == nullptr ? "" : text);
    };
    s.mps_limit = environment("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    s.visible_devices = environment("CUDA_VISIBLE_DEVICES");
    s.device = number;
    return s;
}

enum class capacity_limit : std::uint8_t {
    device, ///< the card itself
    mig,    ///< a part of it
    mps,    ///< the limit of an MPS client
};

constexpr const char* to_string(capacity_limit l) noexcept {
    switch (l) {
    case capacity_limit::device: return "device";
    case capacity_limit::mig: return "mig";
    case capacity_limit::mps: return "mps";
    }
    return "unknown";
}

/// Bytes unless the name says otherwise.
struct capacity_reading {
    std::size_t capacity = 0; ///< what all arenas together may have, what they hold included
    std::size_t limit = 0;    ///< what the process may have at most, if nobody else had anything
    capacity_limit limited_by = capacity_limit::device;
    std::size_t headroom = 0;  ///< left to what is not allocated through arenas
    std::size_t held = 0;      ///< by our arenas, and by a hub between them
    std::size_t free = 0;      ///< now, for this process
    std::size_t external = 0;  ///< used by others: context, other libraries, other processes
    std::size_t processes = 0; ///< number that compute on the card, as far as they are shown; 0: not known
};

/// What a root leaves free: for cuBLAS workspaces, for NCCL, for local memory of kernels, for a module that is loaded late.
/// 512 MiB: about what a context itself takes on an H200 (529 MiB), and so about what one more library takes.
inline constexpr std::size_t default_headroom = std::size_t{512} << 20;

/// `held`: bytes that the arenas hold from the device now, and a `hub` on its shelf if `sources.memory` is not asked through
/// it: `held + memory.free` is what the process could have.
/// Returns: the reading, or why the device did not answer. Throws: `std::invalid_argument` for an MPS limit that is none.
inline result<capacity_reading, status> read_capacity(const capacity_sources& sources, std::size_t held = 0,
                                                      std::size_t headroom = default_headroom) {
    const std::size_t mps = sources.mps_limit.empty()
                                ? no_limit
                                : parse_mps_limit(sources.mps_limit, sources.device).value_or(no_limit);
    const result<device_memory, status> memory = sources.memory();
    if (!memory) return memory.error();
    capacity_reading r;
    r.limit = memory->total;
    r.free = std::min(memory->free, memory->total);
    r.headroom = headroom;
    r.held = held;
    if (sources.visible_devices.rfind("MIG-", 0) == 0) r.limited_by = capacity_limit::mig;
    if (sources.nvml) {
        if (const std::optional<nvml_reading> card = sources.nvml()) {
            r.processes = card->processes;
            if (card->mig) r.limited_by = capacity_limit::mig;
            // A part of a card has a total of its own, and what is free elsewhere on the card is not for it.
            if (!card->mig && card->total != 0) {
                r.limit = std::min(r.limit, card->total);
                r.free = std::min(r.free, card->free);
            }
        }
    }
    r.external = r.limit - std::min(r.limit, r.free + held);
    if (mps < r.limit) {
        r.limit = mps;
        r.limited_by = capacity_limit::mps;
    }
    const std::size_t reachable = std::min(r.limit, r.free > no_limit - held ? no_limit : held + r.free);
    r.capacity = reachable - std::min(reachable, headroom);
    return r;
}

/// What an operator is shown of a device over time. Bytes.
struct capacity_history {
    capacity_reading start;
    capacity_reading now;
    std::size_t most_external = 0;
    std::size_t least_capacity = no_limit;
    /// By how much the arenas' limits of the start are not covered any more: requests up to them may fail with cause `device`.
    std::size_t vanished = 0;
};

/// Looks again and again, when it is asked to. Thread-safe.
class capacity_watch {
  public:
    /// Throws: `driver_error` if the device does not answer; as `read_capacity`.
    explicit capacity_watch(capacity_sources sources, std::size_t headroom = default_headroom)
        : sources_(std::move(sources)), headroom_(headroom) {
        const result<capacity_reading, status> first = read_capacity(sources_, 0, headroom_);
        if (!first) throw driver_error(first.error(), "the device's memory cannot be read");
        history_.start = *first;
        keep(*first);
    }

    capacity_watch(const capacity_watch&) = delete;
    capacity_watch& operator=(const capacity_watch&) = delete;

    /// Effects: looks, with the device asked once. `held`: bytes that the arenas hold. Returns: what was seen so far; if the
    /// device does not answer, what was seen last.
    capacity_history look(std::size_t held) {
        const result<capacity_reading, status> now = read_capacity(sources_, held, headroom_);
        const std::lock_guard lock(mutex_);
        if (now) keep(*now);
        return history_;
    }

    /// Returns: the capacity of the start, for the root's `max`.
    [[nodiscard]] std::size_t capacity() const noexcept { return history_.start.capacity; }

  private:
    void keep(const capacity_reading& r) {
        history_.now = r;
        history_.most_external = std::max(history_.most_external, r.external);
        history_.least_capacity = std::min(history_.least_capacity, r.capacity);
        history_.vanished = history_.start.capacity - std::min(history_.start.capacity, r.capacity);
    }

    const capacity_sources sources_;
    const std::size_t headroom_;
    std::mutex mutex_; ///< guards what changes of `history_`
    capacity_history history_;
};

} // namespace tenure
