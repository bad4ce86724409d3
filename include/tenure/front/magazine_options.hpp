#pragma once

/// \file
/// `magazine_options`: how much a thread may keep, and what a stream's handle is trusted for.

#include <tenure/core/units.hpp>

#include <cstddef>
#include <cstdint>

namespace tenure {

/// How the front end knows which stream a handle names, and whether it is being captured.
enum class stream_check : std::uint8_t {
    /// The device is asked on each call, except about handles that are permanent. Nothing is asked of the caller.
    every_call,
    /// The device is asked once. The caller promises to call `forget(stream)` before it destroys the stream or begins a
    /// capture on it, with no call on that stream in between on any thread.
    announced,
};

struct magazine_options {
    /// Off: every call goes to the pool.
    bool enabled = true;

    /// `every_call` because it is always right; `announced` saves two driver calls at each end of a pair.
    stream_check check = stream_check::every_call;

    /// Bytes that one thread may keep of one stream; or an eighth of what it has live there, if that is more. Between the
    /// threads of a front end (`depot`) lies a quarter of it for each of them and each stream at most. Parked memory is taken
    /// back before the pool buys any, unless it is less than a 4096th of what the pool has; so this bounds what other
    /// streams must ask back, not what the process needs. A block larger than this may still be kept alone.
    std::size_t max_parked_bytes = std::size_t{64} << 20;

    /// Bytes: larger blocks go to the pool. At most 32 MiB. A parked large block is a hole that best fit must work
    /// around: on the recorded programs `remap_pool` holds 1.048 times the live peak with 32 MiB here, and 1.020 with 1 MiB,
    /// as without magazines, while a 20 MiB pair that the pool serves costs some 100 ns more.
    std::size_t max_block_bytes = std::size_t{1} << 20;

    /// Streams of which one thread keeps blocks; beyond them, the one it met first is given up.
    std::size_t max_streams = 64;
};

/// Options of a pool and of the magazines in front of it.
template <class PoolOptions>
struct magazines_options {
    PoolOptions pool{};
    magazine_options magazines{};
};

} // namespace tenure
