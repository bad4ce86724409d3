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

    /// Returns: this moment, for `any_since`.
    [[nodiscard]] std::uint64_t now() const noexcept { return state_.load(std::memory_order_seq_cst); }

    /// Returns: whether any were under way at that moment or have set out since. The count of the latter may wrap.
    [[nodiscard]] bool any_since(std::uint64_t moment) const noexcept {
        return moment % one_set_out != 0 || now() / one_set_out != moment / one_set_out;
    }

    /// Effects: waits for those under way. Gives up after a while, as there may be ever new ones.
    void wait() const noexcept {
        for (int i = 0; i < 1000 && now() % one_set_out != 0; ++i) std::this_thread::yield();
    }

  private:
    static constexpr std::uint64_t one_set_out = std::uint64_t{1} << 32;

    std::atomic<std::uint64_t> state_{0}; ///< how many set out | how many are under way
};

} // namespace tenure
