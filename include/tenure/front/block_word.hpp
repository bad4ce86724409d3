#pragma once

/// \file
/// `block_word`: what a front end knows of the granule in which a block starts, in 64 bits.
///
///      63                      29 28  26 25                      0
///     +--------------------------+------+-------------------------+
///     |      number of a rack    | state|    bytes, as requested  |
///     +--------------------------+------+-------------------------+
///
///     state     meaning                                               who may change it
///     unknown   the pool knows what is here, the front end does not   who gets the block from the pool
///     live      handed out through this rack                          its rack's thread by a plain store; others by
///                                                                     compare-exchange, also to park it themselves
///     shared    live, but its free must go through the pool           anybody, by compare-exchange
///     parked    in a magazine of this rack (bytes 0)                  who has the rack to itself
///     gone      in the depot, in the pool, or on the way there        who gets the block from there
///
/// A rack is one thread's magazines for one stream of one front end, and its number is never used again in the life
/// of the process. So a single comparison with `live(rack, n)` says at a free: the start of a live block, of this tenant,
/// last allocated on this stream by this thread, used on no other, of exactly n bytes. A word that nobody has cleared
/// (a front end destroyed with live blocks) can never be mistaken for one that is valid.
///
/// Thread-safety: values are thread-compatible; words in memory are `std::atomic`.

#include <cstddef>
#include <cstdint>

namespace tenure {

class block_word {
  public:
    enum class state : std::uint8_t { unknown, gone, parked, live, shared };

    static constexpr unsigned byte_bits = 26;
    static constexpr unsigned state_bits = 3;
    /// The largest size that fits, in bytes.
    static constexpr std::size_t max_bytes = (std::size_t{1} << byte_bits) - 1;
    static constexpr std::uint64_t max_rack = (std::uint64_t{1} << (64 - byte_bits - state_bits)) - 1;

    constexpr block_word() noexcept = default;
    constexpr explicit block_word(std::uint64_t bits) noexcept : bits_(bits) {}

    /// Requires: `rack <= max_rack`, `bytes <= max_bytes`.
    static constexpr block_word of(std::uint64_t rack, state s, std::size_t bytes) noexcept {
        return block_word(rack << (byte_bits + state_bits) | std::uint64_t(s) << byte_bits | bytes);
    }

    [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
    [[nodiscard]] constexpr std::size_t bytes() const noexcept { return bits_ & max_bytes; }
    [[nodiscard]] constexpr std::uint64_t rack() const noexcept { return bits_ >> (byte_bits + state_bits); }
    [[nodiscard]] constexpr state what() const noexcept {
        return static_cast<state>(bits_ >> byte_bits & ((1u << state_bits) - 1));
    }
    [[nodiscard]] constexpr bool is_live() const noexcept { return what() >= state::live; }

  private:
    std::uint64_t bits_ = 0;
};

} // namespace tenure
