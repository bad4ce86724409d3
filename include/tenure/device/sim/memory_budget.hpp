#pragma once

/// \file
/// `sim::memory_budget`: the bytes of the device, shared by everything that takes memory from it.
///
/// `reserved <= capacity` always. Thread-compatible.

#include <algorithm>
#include <cstddef>

namespace tenure::sim {

class memory_budget {
  public:
    explicit memory_budget(std::size_t capacity) noexcept : capacity_(capacity) {}

    /// Effects: takes n bytes if there are as many. Returns: whether.
    [[nodiscard]] bool take(std::size_t n) noexcept {
        if (n > capacity_ - reserved_) return false;
        reserved_ += n;
        peak_ = std::max(peak_, reserved_);
        return true;
    }
    void give_back(std::size_t n) noexcept { reserved_ -= n; }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
    [[nodiscard]] std::size_t peak() const noexcept { return peak_; }

  private:
    std::size_t capacity_;
    std::size_t reserved_ = 0;
    std::size_t peak_ = 0;
};

} // namespace tenure::sim
