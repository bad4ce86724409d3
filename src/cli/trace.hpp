#pragma once

/// \file
/// `trace`: a recorded allocation program, checked and ready to be replayed.
///
/// A trace is a list of events in time order. What the file calls ids, streams and arenas by any number or
/// name is renumbered densely here, in order of first appearance, so that a replay indexes arrays instead of
/// searching maps.
///
/// A block's life:
///
///     allocate ------------- free ------------- complete
///       |  the program holds it  |  other streams still use it  |  may be handed out again
///
/// Invariants of every `trace` that exists (whoever builds one goes through `trace_builder`, which checks
/// them):
///   1. `t_us` never falls; together with all enqueued work it fits the device's clock.
///   2. Each id is allocated once, then freed at most once, then completed at most once, in this order; it is
///   used
///      only while it is allocated.
///   3. The default stream, number 0, is never destroyed, and no other one twice without a mention in
///   between.
///   4. A block is freed, completed and used in the arena that it was allocated in.
///   5. There is at least one event and at least one arena.
///
/// Thread-compatible; immutable once loaded.

#include "line_reader.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tenure::cli {

enum class op : std::uint8_t {
    allocate,    ///< `a`
    free,        ///< `f`: the program's own end of the block
    complete,    ///< `c`: from here on every stream may have the memory
    use,         ///< `u`: the block is also used on `stream`
    work,        ///< `k`: work of `bytes` microseconds is enqueued on `stream`
    stream_wait, ///< `w`: `stream` is made to wait for all that the stream `id` holds now
    host_wait,   ///< `y`: the host waits for `stream`
    destroy,     ///< `d`: `stream` is destroyed; a later mention of the number is a new stream
    set_max,     ///< `m`: the arena's limit becomes `bytes`
};

struct event {
    std::uint64_t t_us = 0;
    std::uint64_t bytes = 0;
    std::uint32_t id = 0; ///< index of the block in `trace::blocks`; of `stream_wait`: of the other stream
    std::uint32_t stream = 0;
    std::uint32_t arena = 0;
    op kind = op::allocate;
};

struct block {
    std::uint64_t bytes = 0; ///< as requested
    /// Whether other events lie between the block's free and the moment when it may be handed out again. A
    /// completion right behind its free is one event in two lines: nothing can be handed out between them.
    bool outlives_free = false;
    /// Which of as few streams as can be may still use it between the two, where what is on one ends in order.
    std::uint32_t holder = 0;
};

struct trace {
    std::string name; ///< the file's name without folder and without `.gz`, `.csv`
    std::vector<event> events;
    std::vector<block> blocks;
    std::vector<std::string> arenas; ///< names; one without a name if the file has no column `arena`
    std::uint32_t streams = 1;       ///< number of distinct streams, the default stream (0) always among them
    bool names_arenas = false;       ///< the file has the column `arena`
    bool sets_limits = false;        ///< has `m`
    bool has_work = false;           ///< has `k`
};

/// Highest sums over the blocks that may not be handed out again yet, each from its allocation to its
/// completion.
struct peaks {
    std::uint64_t requested = 0;
    std::uint64_t live = 0; ///< each block rounded up to 512 bytes
};

/// Returns: what `t` needs at once if nothing is refused. Complexity: linear.
peaks peaks_of(const trace& t);

/// Returns: bytes that the trace's live blocks may take at once where each of its arenas has that limit.
std::uint64_t most_needed(const trace& t, const peaks& p, std::uint64_t limit);

/// One event as a file spells it. What an op does not need is ignored.
struct raw_event {
    std::uint64_t t_us = 0;
    op kind = op::allocate;
    std::uint64_t id = 0; ///< of a block; of `stream_wait`: number of the other stream
    std::uint64_t bytes = 0;
    std::uint64_t stream = 0;
    std::string_view arena;
};

/// Renumbers and checks events one by one.
class trace_builder {
  public:
    explicit trace_builder(std::string name) { trace_.name = std::move(name); }

    /// Returns: empty, or what is wrong with `e`. An event that is wrong leaves the builder unusable.
    std::string add(const raw_event& e);

    /// Requires: at least one event was added. Effects: moves the trace out.
    trace finish(bool names_arenas);

    [[nodiscard]] bool empty() const noexcept { return trace_.events.empty(); }

  private:
    static constexpr std::size_t never = static_cast<std::size_t>(-1);
    struct life {
        std::uint32_t arena = 0;
        std::size_t freed = never;     ///< index of the event
        std::size_t completed = never; ///< index of the event
        bool used = false;
    };

    std::uint32_t stream_index(std::uint64_t number);
    std::uint32_t arena_index(std::string_view name);
    std::string add_to_block(const raw_event& e, event& out);
    void share_holders();

    trace trace_;
    std::vector<life> lives_; ///< parallel to trace_.blocks
    std::unordered_map<std::uint64_t, std::uint32_t> ids_;
    std::unordered_map<std::uint64_t, std::uint32_t> streams_{{0, 0}};
    std::unordered_map<std::string, std::uint32_t> arenas_;
    std::vector<bool> alive_{true}; ///< by stream
    std::uint64_t work_us_ = 0;
    bool has_completions_ = false;
};

/// Reads a trace from a file, plain or gzip-compressed: the format of benchmarks/traces/README.md, or a log
/// of RMM's logging resource, recognised by its header line.
///
/// Throws: `input_error` for everything that is not a trace, with file and line.
/// Complexity: linear in the file; memory grows with events and blocks, never with the length of a line.
trace load_trace(const std::string& path);

} // namespace tenure::cli
