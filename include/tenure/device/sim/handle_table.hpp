#pragma once

/// \file
/// `sim::handle_table`: objects behind made-up driver handles.
///
/// A freed handle is given to the very next object, as drivers like to do: code that takes a handle for an
/// identity breaks at once, not once a month. Handles are never null and never dereferenced.
///
/// Complexity: constant. Thread-compatible. Objects keep their address while others come and go.

#include <tenure/core/bits.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace tenure::sim {

template <class Handle, class T>
class handle_table {
  public:
    /// `base`: the first handle's number, which tells kinds of handles apart in a debugger. Requires: not 0.
    explicit handle_table(std::uint64_t base) noexcept : base_(base) {}

    Handle insert(T object) {
        std::size_t slot = 0;
        if (free_.empty()) {
            slot = slots_.size();
            slots_.emplace_back(std::move(object));
        } else {
            slot = free_.back();
            free_.pop_back();
            slots_[slot].emplace(std::move(object));
        }
        return static_cast<Handle>(to_pointer(base_ + stride * slot));
    }

    /// Returns: the object, or null when the handle names none (never given out, or freed).
    [[nodiscard]] T* find(Handle handle) noexcept {
        const std::uint64_t offset = to_address(handle) - base_; // wraps to something large below the base
        if (offset % stride != 0 || offset / stride >= slots_.size()) return nullptr;
        std::optional<T>& slot = slots_[offset / stride];
        return slot ? &*slot : nullptr;
    }

    /// Requires: the handle names an object.
    void erase(Handle handle) {
        const std::size_t slot = (to_address(handle) - base_) / stride;
        slots_[slot].reset();
        free_.push_back(slot);
    }

    [[nodiscard]] std::size_t size() const noexcept { return slots_.size() - free_.size(); }

    template <class F>
    void for_each(F&& f) {
        for (std::optional<T>& slot : slots_)
            if (slot) f(*slot);
    }

  private:
    static constexpr std::uint64_t stride = 64;
    std::uint64_t base_;
    std::deque<std::optional<T>> slots_;
    std::vector<std::size_t> free_; // the last one is the next to be used
};

} // namespace tenure::sim
