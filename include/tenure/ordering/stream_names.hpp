#pragma once

/// \file
/// `stream_names`: under which identity a stream's memory is kept, although a capturing stream hides its own.
///
///     outside captures   handle h is stream 7            remembered: h was 7
///     in a capture       h is "made up, for h"           memory is kept for 7
///
/// While it is captured, a stream cannot be asked for its identity (`stream_state`). What is known is its handle, and
/// which stream had that handle when it was last named outside a capture. If nobody has named it before, the made-up
/// identity serves until somebody names the handle outside a capture; then what was kept under it is *renamed*.
///
/// Invariants:
///   1. Outside captures the answer is the stream's own identity.
///   2. In a capture, two streams get two answers.
///   3. In a capture the answer may be a destroyed stream's whose handle this one has now. Memory kept for that stream
///      reaches nobody but through proof that all work on it is over: a mistake costs memory, never order.
///   4. Handles that stand for many streams (`is_shared_handle`) are never remembered.
///
/// Complexity: constant; one comparison while the same stream is named again. One entry for each handle: handles are
/// recycled, so there are no more than streams that lived at once. Missing host memory only makes it forget.
/// Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/handles.hpp>
#include <tenure/device/device.hpp>

#include <cstdint>

namespace tenure {

class stream_names {
  public:
    /// Effects: takes note of what `describe(stream)` has just answered. Calls renamed(made_up, id) when the stream
    /// that was known only from captures, as `made_up`, turns out to be `id`.
    /// Returns: the identity under which to keep the stream's memory.
    template <class F>
    std::uint64_t note(stream_handle stream, const stream_state& state, F&& renamed) noexcept {
        if (is_shared_handle(stream)) return state.id;
        if (stream == last_ && state.id == last_id_) return state.id;
        try {
            name& n = by_handle_[stream];
            if (state.capturing()) {
                if (n.id != 0) return n.id;
                n.made_up = state.id;
                return state.id;
            }
            if (n.made_up != 0) renamed(n.made_up, state.id);
            n = {state.id, 0};
            last_ = stream;
            last_id_ = state.id;
        } catch (...) {
        }
        return state.id;
    }

  private:
    struct name {
        std::uint64_t id = 0;      ///< when last named outside a capture; 0: never
        std::uint64_t made_up = 0; ///< in captures, while `id` is 0
    };
    own_lines_map<stream_handle, name> by_handle_;
    stream_handle last_ = nullptr; ///< the last that was named outside a capture
    std::uint64_t last_id_ = 0;
};

} // namespace tenure
