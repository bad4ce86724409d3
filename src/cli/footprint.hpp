#pragma once

/// \file
/// `footprint`: how many bytes lived and how many were reserved while a trace was replayed, and where they lay at the
/// peak; ready to be drawn.
///
///     events   0 ........ 999 | 1000 ..... 1999 | ...
///     spans    lowest, highest | lowest, highest | ...        at most `most_spans`, of equally many events
///     picture  [live| free |live|waiting|  free  ]           after `peak_event`
///
/// A span keeps the lowest and the highest value of its events, so no peak and no valley is lost however long the trace
/// is.
///
/// The peak is the moment with most live bytes of those with nearly the most (one percent) reserved. The very first moment
/// of the highest byte would say little: it is when a pool that has long been full bought some small segment.
///
/// Complexity: constant per event; the picture is linear in the blocks. Plain values; thread-compatible.

#include <tenure/resource/usage.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tenure::cli {

/// What a policy held, as runs of neighbouring bytes in one state.
struct memory_picture {
    enum class state : std::uint8_t { live, free, waiting }; ///< waiting: freed, and not yet anybody's

    struct run {
        std::uint64_t address = 0;
        std::uint64_t bytes = 0;
        state what = state::free;
    };

    std::vector<run> runs;               ///< in address order; no two neighbours of one segment are alike
    std::vector<std::size_t> boundaries; ///< indices in `runs` at which a segment begins
    std::uint64_t live = 0;              ///< bytes
    std::uint64_t rounding = 0;          ///< bytes of `live` that nobody asked for
    std::uint64_t free = 0;              ///< bytes
    std::uint64_t waiting = 0;           ///< bytes
    std::uint64_t unplaced = 0;          ///< bytes reserved that the policy cannot show (the driver's)
    std::uint64_t free_pieces = 0;
    std::uint64_t largest_free = 0; ///< bytes

    /// Effects: adds what one pool holds.
    void add(const memory_snapshot& pool);
    /// Effects: what is `reserved` beyond all that was added is `unplaced`.
    void finish(std::uint64_t reserved);
};

struct footprint {
    static constexpr std::size_t most_spans = 1000;

    struct span {
        std::uint64_t event = 0; ///< the first of the span
        std::uint64_t t_us = 0;  ///< its time
        std::uint64_t live_low = 0;
        std::uint64_t live_high = 0;
        std::uint64_t reserved_low = 0;
        std::uint64_t reserved_high = 0;
    };

    std::vector<span> spans;
    std::uint64_t peak_event = 0;    ///< after it comes the peak
    std::uint64_t peak_reserved = 0; ///< bytes reserved there
    std::uint64_t peak_live = 0;     ///< bytes live there
    bool pictured = false;
    memory_picture at_peak;
};

/// Collects a footprint event by event.
class footprint_recorder {
  public:
    explicit footprint_recorder(std::size_t events)
        : width_((events + footprint::most_spans - 1) / footprint::most_spans) {}

    void add(std::uint64_t event, std::uint64_t t_us, std::uint64_t live, std::uint64_t reserved);

    [[nodiscard]] const footprint& result() const noexcept { return seen_; }

  private:
    std::uint64_t width_; ///< events a span
    std::uint64_t most_reserved_ = 0;
    footprint seen_;
};

} // namespace tenure::cli
