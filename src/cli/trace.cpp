#include "trace.hpp"

#include "trace_formats.hpp"

#include <tenure/core/bits.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

namespace tenure::cli {

namespace {

/// The device's clock counts nanoseconds in 63 bits.
constexpr std::uint64_t last_t_us = std::numeric_limits<std::int64_t>::max() / 1000;

constexpr std::uint64_t granule = 512;

std::string block_name(std::uint64_t id) {
    return "block " + std::to_string(id);
}

std::string trace_name(const std::string& path) {
    std::filesystem::path name = std::filesystem::path(path).filename();
    if (name.extension() == ".gz") name = name.stem();
    if (name.extension() == ".csv") name = name.stem();
    return name.string();
}

} // namespace

peaks peaks_of(const trace& t) {
    peaks now;
    peaks high;
    const auto end = [&](const block& b) {
        now.requested -= b.bytes;
        now.live -= round_up(b.bytes, granule);
    };
    // Sums of absurd sizes wrap, and come right again with the frees; a peak of them is as high as can be said.
    const auto add = [](std::uint64_t& sum, std::uint64_t& peak, std::uint64_t bytes) {
        sum += bytes;
        peak = sum < bytes ? std::numeric_limits<std::uint64_t>::max() : std::max(peak, sum);
    };
    for (const event& e : t.events) {
        if (e.kind == op::allocate) {
            add(now.requested, high.requested, e.bytes);
            add(now.live, high.live, round_up(e.bytes, granule));
        } else if (e.kind == op::free && !t.blocks[e.id].outlives_free) {
            end(t.blocks[e.id]);
        } else if (e.kind == op::complete && t.blocks[e.id].outlives_free) {
            end(t.blocks[e.id]);
        }
    }
    return high;
}

std::uint64_t most_needed(const trace& t, const peaks& p, std::uint64_t limit) {
    const std::uint64_t arenas = std::max<std::uint64_t>(t.arenas.size(), 1);
    return limit > std::numeric_limits<std::uint64_t>::max() / arenas ? p.live
                                                                      : std::min(p.live, limit * arenas);
}

std::uint32_t trace_builder::stream_index(std::uint64_t number) {
    const auto [at, is_new] = streams_.try_emplace(number, trace_.streams);
    if (is_new) {
        ++trace_.streams;
        alive_.push_back(true);
    }
    return at->second;
}

std::uint32_t trace_builder::arena_index(std::string_view name) {
    if (!trace_.arenas.empty() && trace_.arenas.back() == name)
        return static_cast<std::uint32_t>(trace_.arenas.size() - 1);
    const auto [at, is_new] =
        arenas_.try_emplace(std::string(name), static_cast<std::uint32_t>(trace_.arenas.size()));
    if (is_new) trace_.arenas.emplace_back(name);
    return at->second;
}

std::string trace_builder::add_to_block(const raw_event& e, event& out) {
    if (e.kind == op::allocate) {
        if (trace_.blocks.size() == std::numeric_limits<std::uint32_t>::max()) return "more than 2^32 blocks";
        const auto [at, is_new] = ids_.try_emplace(e.id, static_cast<std::uint32_t>(trace_.blocks.size()));
        if (!is_new) return block_name(e.id) + " is allocated a second time; an id names one allocation";
        trace_.blocks.push_back({.bytes = e.bytes});
        lives_.emplace_back().arena = out.arena;
        out.id = at->second;
        return {};
    }

    const char* deed = e.kind == op::free ? "free" : e.kind == op::complete ? "completed free" : "use";
    const auto known = ids_.find(e.id);
    if (known == ids_.end()) return std::string(deed) + " of unknown " + block_name(e.id);
    out.id = known->second;
    out.bytes = trace_.blocks[out.id].bytes;
    life& l = lives_[out.id];
    out.arena = l.arena;
    if (!e.arena.empty() && e.arena != trace_.arenas[l.arena]) {
        return block_name(e.id) + " belongs to arena \"" + trace_.arenas[l.arena] + "\", not to \"" +
               std::string(e.arena) + "\"";
    }
    const std::size_t index = trace_.events.size();
    switch (e.kind) {
    case op::free:
        if (l.freed != never) return "double free of " + block_name(e.id);
        l.freed = index;
        break;
    case op::complete:
        if (l.freed == never) return "completed free of " + block_name(e.id) + ", which is not freed";
        if (l.completed != never) return "free of " + block_name(e.id) + " is completed a second time";
        l.completed = index;
        has_completions_ = true;
        break;
    default:
        if (l.freed != never) return "use of " + block_name(e.id) + " after its free";
        l.used = true;
        break;
    }
    return {};
}

std::string trace_builder::add(const raw_event& e) {
    const std::uint64_t before = trace_.events.empty() ? 0 : trace_.events.back().t_us;
    if (e.t_us < before) {
        return "time runs backwards: " + std::to_string(e.t_us) + " us after " + std::to_string(before) +
               " us";
    }
    if (e.t_us > last_t_us - work_us_) return "t_us is out of range: " + std::to_string(e.t_us);

    event out{.t_us = e.t_us, .bytes = e.bytes, .id = 0, .stream = 0, .arena = 0, .kind = e.kind};
    if (e.kind != op::set_max) out.stream = stream_index(e.stream);
    if (e.kind == op::allocate || e.kind == op::set_max) out.arena = arena_index(e.arena);

    switch (e.kind) {
    case op::allocate:
    case op::free:
    case op::complete:
    case op::use: {
        std::string wrong = add_to_block(e, out);
        if (!wrong.empty()) return wrong;
        break;
    }
    case op::work:
        if (e.bytes > last_t_us - work_us_ - e.t_us)
            return "work is out of range: " + std::to_string(e.bytes) + " us";
        work_us_ += e.bytes;
        trace_.has_work = true;
        break;
    case op::stream_wait:
        out.id = stream_index(e.id);
        alive_[out.id] = true;
        break;
    case op::host_wait: break;
    case op::destroy:
        if (e.stream == 0) return "the default stream cannot be destroyed";
        if (!alive_[out.stream]) return "stream " + std::to_string(e.stream) + " is destroyed already";
        break;
    case op::set_max: trace_.sets_limits = true; break;
    }
    alive_[out.stream] = e.kind != op::destroy;
    trace_.events.push_back(out);
    return {};
}

/// Effects: gives each block that outlives its free a holder, whose blocks complete in the order they were freed. Each goes to
/// the holder that is free for it last, which is known to need the fewest (a cover of an order by chains).
void trace_builder::share_holders() {
    std::map<std::size_t, std::uint32_t> free_after; // completion of a holder's newest block -> the holder
    std::uint32_t holders = 0;
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
        const event& e = trace_.events[i];
        if (e.kind != op::free || !trace_.blocks[e.id].outlives_free) continue;
        const std::size_t until = lives_[e.id].completed; // `never` is the largest
        auto at = free_after.upper_bound(until);
        std::uint32_t& holder = trace_.blocks[e.id].holder;
        holder = at == free_after.begin() ? holders++ : std::prev(at)->second;
        if (at != free_after.begin()) free_after.erase(std::prev(at));
        free_after.emplace(until, holder);
    }
}

trace trace_builder::finish(bool names_arenas) {
    for (std::size_t i = 0; i < lives_.size(); ++i) {
        const life& l = lives_[i];
        if (l.freed == never) continue;
        // Without a completion of its own, a block waits for what it was used on (`u`), or, where the trace
        // records completions, was still waiting when the recording stopped.
        trace_.blocks[i].outlives_free =
            l.completed != never ? l.completed != l.freed + 1 : has_completions_ && !l.used;
    }
    share_holders();
    if (trace_.arenas.empty()) trace_.arenas.emplace_back();
    trace_.names_arenas = names_arenas;
    return std::move(trace_);
}

trace load_trace(const std::string& path) {
    line_reader lines(path);
    std::string_view header;
    if (!lines.next(header)) throw input_error(path, 1, "empty file");
    trace_builder builder(trace_name(path));
    return is_rmm_header(header) ? read_rmm_log(lines, std::move(builder))
                                 : read_event_table(lines, header, std::move(builder));
}

} // namespace tenure::cli
