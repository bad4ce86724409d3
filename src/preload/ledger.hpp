#pragma once

/// \file
/// `ledger`: what the program holds, by address: from the arena, or from the runtime and only counted.
///
/// Invariant: an address is in it from before the program has it until the program has given it back.
///
/// Cost: one lock of many and a look into a hash table. Thread-safety: thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace tenure::preload {

enum class origin : std::uint8_t {
    arena,   ///< a block of the device's arena
    counted, ///< the runtime's own, charged
};

struct held {
    std::size_t bytes = 0; ///< as charged or asked
    int device = 0;
    origin from = origin::arena;
};

class ledger {
  public:
    /// Throws: `std::bad_alloc`.
    void put(const void* p, const held& h) {
        shard& s = shard_of(p);
        const std::lock_guard lock(s.mutex);
        s.all[p] = h;
    }
    /// Returns: what was there, which is taken out.
    std::optional<held> take(const void* p) noexcept {
        shard& s = shard_of(p);
        const std::lock_guard lock(s.mutex);
        const auto it = s.all.find(p);
        if (it == s.all.end()) return std::nullopt;
        const held h = it->second;
        s.all.erase(it);
        return h;
    }
    [[nodiscard]] std::optional<held> find(const void* p) noexcept {
        shard& s = shard_of(p);
        const std::lock_guard lock(s.mutex);
        const auto it = s.all.find(p);
        return it == s.all.end() ? std::nullopt : std::optional<held>(it->second);
    }
    /// Effects: all that is on this device is gone.
    void forget(int device) noexcept {
        for (shard& s : shards_) {
            const std::lock_guard lock(s.mutex);
            for (auto it = s.all.begin(); it != s.all.end();)
                it = it->second.device == device ? s.all.erase(it) : std::next(it);
        }
    }

  private:
    struct shard {
        std::mutex mutex;
        std::unordered_map<const void*, held> all;
    };
    static constexpr std::size_t count = 64;

    shard& shard_of(const void* p) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(p);
        return shards_[((address >> 9) ^ (address >> 21)) % count];
    }
    std::array<shard, count> shards_;
};

} // namespace tenure::preload
