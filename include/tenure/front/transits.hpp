#pragma once

/// \file
/// `transits`: how many threads have blocks in hand, between a magazine, the depot and the pool, where nobody can find
/// them.
///
/// Before a request fails, whoever made it waits until those that were under way have arrived, and asks again; also if
/// any have set out meanwhile, which may have passed behind its back.
///
/// Thread-safety: thread-safe.

#include <atomic>
#include <cstdint>
#include <thread>

namespace tenure {

class transits {
  public:
    /// One is under way as long as this lives.
    class passage {
      public:
        explicit passage(transits& all) noexcept : all_(&all) {
            all_->state_.fetch_add(one_set_out + 1, std::memory_order_seq_cst);
        }
        ~passage() { all_->state_.fetch_sub(1, std::memory_order_seq_cst); }
        passage(const passage&) = delete;
        passage& operator=(const passage&) = delete;

      private:
        transits* all_;
    };

    /// Returns: the number of passages that have set out so far; it may wrap.
    [[nodiscard]] std::uint64_t set_out() const noexcept {
        return state_.load(std::memory_order_seq_cst) / one_set_out;
    }

    /// Returns: whether there was anything to wait for. Gives up after a while, as there may be ever new ones.
    bool wait() const noexcept {
        if (under_way() == 0) return false;
        for (int i = 0; i < 1000 && under_way() != 0; ++i) std::this_thread::yield();
        return true;
    }

  private:
    static constexpr std::uint64_t one_set_out = std::uint64_t{1} << 32;

    [[nodiscard]] std::uint64_t under_way() const noexcept {
        return state_.load(std::memory_order_seq_cst) % one_set_out;
    }

    std::atomic<std::uint64_t> state_{0}; ///< how many set out | how many are under way
};

} // namespace tenure
