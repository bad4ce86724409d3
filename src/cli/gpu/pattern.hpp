#pragma once

/// \file
/// The pattern that a verifying replay writes into blocks, as arithmetic that host and GPU share.
///
/// A block is seen as words of 16 bytes. What word i of a block holds depends on the block's key and on i:
///
///     x = key.low + i * odd constant          { x,  x ^ key.high,  ~x,  rotated x ^ key.high }
///
/// So a word tells whose it is (the first two give `key.high`, the third confirms it), and neither another block's
/// content, nor the same block's at another offset, nor old content of an earlier replay passes for it.

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define TENURE_HOST_DEVICE __host__ __device__
#else
#define TENURE_HOST_DEVICE
#endif

namespace tenure::cli {

struct pattern_key {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
};

struct pattern_word {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
    std::uint32_t c = 0;
    std::uint32_t d = 0;
};

inline constexpr std::size_t pattern_word_bytes = 16;

/// `salt` tells replays apart.
TENURE_HOST_DEVICE constexpr pattern_key key_of(std::uint64_t id, std::uint64_t salt) {
    std::uint64_t z = (salt << 40) + id + 0x9e3779b97f4a7c15u; // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return {static_cast<std::uint32_t>(z), static_cast<std::uint32_t>(z >> 32)};
}

TENURE_HOST_DEVICE constexpr pattern_word word_of(pattern_key key, std::size_t i) {
    const std::uint32_t x = key.low + static_cast<std::uint32_t>(i) * 0x9e3779b9u;
    return {x, x ^ key.high, ~x, ((x << 16) | (x >> 16)) ^ key.high};
}

/// Returns: the byte at this offset of the block.
TENURE_HOST_DEVICE constexpr unsigned char byte_of(pattern_key key, std::size_t offset) {
    const pattern_word w = word_of(key, offset / pattern_word_bytes);
    const std::size_t part = offset / 4 % 4;
    const std::uint32_t bits = part == 0 ? w.a : part == 1 ? w.b : part == 2 ? w.c : w.d;
    return static_cast<unsigned char>(bits >> (8 * (offset % 4)));
}

/// Returns: whether the word was written for some block whose key has this upper half.
TENURE_HOST_DEVICE constexpr bool written_for(pattern_key key, const pattern_word& w) {
    return (w.a ^ w.b) == key.high && w.c == ~w.a && w.d == (((w.a << 16) | (w.a >> 16)) ^ key.high);
}

/// One check that found something else than the pattern. Written by the GPU.
struct finding {
    unsigned long long check;     ///< number of the check, from 1; 0: unused
    unsigned long long first_bad; ///< byte offset of the first wrong word
    unsigned long long bad_words; ///< how many words were wrong
    unsigned long long found_at;  ///< byte offset of
    pattern_word found;           ///< one of them
};

/// What all checks of a replay found, in the GPU's memory.
struct findings {
    static constexpr unsigned capacity = 64;
    finding list[capacity];
    unsigned long long lost; ///< wrong words of checks that found no place in the list
};

} // namespace tenure::cli
