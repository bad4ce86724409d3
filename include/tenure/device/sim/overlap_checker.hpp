#pragma once

/// \file
/// `sim::overlap_checker`: proves, for the run it watched, that no two blocks shared a physical byte at the
/// same time.
///
/// "At the same time" is meant in stream order, not by the clock: the next owner of a byte must stand *after*
/// every use by the owners before it, by an order that the program made (same stream, event, or the host that
/// waited or asked). A reuse that was merely lucky is a violation too.
///
///     bytes     |---- live block 7 ----|-- free, last used by {2: 31} --|------ live block 9 ------|
///                                         may go to stream 2 at once, to stream 3 only after it
///                                         stands after work 31 of stream 2
///
///   1. A block's uses are: its allocation on its own stream, each `used`, and its free.
///   2. Freed bytes keep their *ends*: the points that the next owner must stand after. On the freeing
///      stream that is its end at the free (the caller promises that the last use is ordered before it), on
///      every other stream of `used` that stream's end at the free, on the block's own its last known use.
///   3. Bytes are compared where they really are: mapped memory is translated first. Ends of mapped memory
///      are kept for the address as well: unmapping it under running work is fatal, whoever owns the bytes.
///   4. Memory that goes back to the device must hold no live block, and the host must have seen its ends.
///   5. Uses inside a stream capture are remembered with it, and checked whenever the graph is launched.
///      Until then the captured work binds nobody: it does not run.
///
/// Complexity: O(log n + k) per operation, for n live or freed ranges and k ranges touched.
/// Thread-compatible.

#include <tenure/device/sim/interval_map.hpp>
#include <tenure/device/sim/timelines.hpp>
#include <tenure/device/sim/violation_log.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tenure::sim {

class overlap_checker {
  public:
    /// The stream on which something happens, or, with timeline 0, the host.
    struct place {
        timeline_id timeline = 0;
        std::uint64_t capture = 0;
    };

    overlap_checker(timelines& lines, violation_log& log) : lines_(lines), log_(log) {}
    overlap_checker(const overlap_checker&) = delete;
    overlap_checker& operator=(const overlap_checker&) = delete;

    /// Effects: a block lives at `address` from now on, over the bytes `physical`.
    void allocated(extent address, std::vector<extent> physical, place at) {
        if (blocks_.count(address.begin) != 0) {
            log_.add("block at " + hex(address.begin) + " allocated while it is live");
            return;
        }
        block b;
        b.serial = ++last_serial_;
        b.address = address;
        b.owner = at.timeline;
        bool clean = true;
        for (const extent& e : physical) {
            live_.for_each(e, [&](extent part, const block* other) {
                clean = false;
                log_.add(name(address) + " allocated over live " + name(other->address) + at_bytes(part));
            });
            require_ended(e, at.timeline, [&] { return name(address) + " allocated"; });
        }
        b.physical = std::move(physical);
        block& stored = blocks_.emplace(address.begin, std::move(b)).first->second;
        for (const extent& e : stored.physical) {
            history_.erase(e);
            if (clean) live_.assign(e, &stored);
        }
        if (at.timeline != 0) use(stored, at);
    }

    void used(std::uint64_t address, place at) {
        if (block* b = find(address, "used")) use(*b, at);
    }

    /// Effects: the block is free; its uses end as rule 2 says.
    void freed(std::uint64_t address, place at) {
        block* b = find(address, "freed");
        if (b == nullptr) return;
        ends last = ends_of(*b);
        last.raise(lines_.advance(at.timeline));
        remove(*b, std::move(last));
    }

    /// Effects: the same, on a stream that is no more: nothing is promised beyond the uses known.
    void freed_nowhere(std::uint64_t address) {
        if (block* b = find(address, "freed")) remove(*b, ends_of(*b));
    }

    /// Effects: the block is free, for every stream: the host must have seen all its uses.
    void freed_sync(std::uint64_t address) {
        block* b = find(address, "freed");
        if (b == nullptr) return;
        for (const point& use : b->uses.entries())
            if (!lines_.seen(use))
                log_.add(name(b->address) + " freed by the host, which has not seen its use on " + text(use));
        remove(*b, {});
    }

    /// Effects: the bytes are filled by the work `p`: nothing may live there, and the next owner must stand after it.
    void filled(extent physical, point p) {
        live_.for_each(physical, [&](extent part, const block* b) {
            log_.add("memory filled under live " + name(b->address) + at_bytes(part));
        });
        require_ended(physical, p.timeline, [] { return std::string("memory filled"); });
        ends last;
        last.raise(p);
        history_.assign(physical, std::make_shared<const ends>(last));
    }

    /// Effects: `address` will show nothing from now on; its memory is given back, or unmapped.
    /// `known`: what is over by the driver's own knowledge, besides what the host has seen.
    void retire(extent address, const char* what, const vector_clock& known = {}) {
        auto it = blocks_.lower_bound(address.begin);
        if (it != blocks_.begin() && std::prev(it)->second.address.end > address.begin) --it;
        while (it != blocks_.end() && it->second.address.begin < address.end) {
            log_.add(std::string("memory ") + what + " under live " + name(it->second.address));
            bury(it->second, {});
            it = blocks_.erase(it);
        }
        history_.for_each(address, [&](extent part, const shared_ends& last) {
            for (const point& p : last->entries())
                if (!lines_.seen(p) && known.at(p.timeline) < p.position)
                    log_.add(std::string("memory ") + what + " under unfinished work on " + text(p) +
                             at_bytes(part));
        });
        history_.erase(address);
    }

    /// Effects: physical bytes that nothing shows any more.
    void vanish(extent physical) { history_.erase(physical); }

    // --- captures ---

    /// Effects: the graph is gone, or the capture never became one.
    void discard(std::uint64_t capture) { captures_.erase(capture); }

    /// Effects: checks that the memory which a graph uses is still the graph's to use, by work enqueued on
    /// `at`. `translate(extent)` gives the physical bytes at an address now, if there are any.
    template <class Translate>
    void replay_begins(std::uint64_t capture, timeline_id at, Translate&& translate) {
        const auto it = captures_.find(capture);
        if (it == captures_.end()) return;
        for (const extent& address : it->second.addresses) {
            const auto physical = translate(address);
            if (!physical) {
                log_.add("graph " + std::to_string(capture) +
                         " launched over memory given back:" + at_bytes(address));
                continue;
            }
            for (const extent& e : *physical) {
                live_.for_each(e, [&](extent part, const block* b) {
                    if (it->second.serials.count(b->serial) == 0)
                        log_.add("graph " + std::to_string(capture) + " launched over live " +
                                 name(b->address) + at_bytes(part));
                });
                require_ended(e, at, [&] { return "graph " + std::to_string(capture) + " launched"; });
            }
        }
    }

    /// Effects: the graph's memory has been used by the work `p`.
    template <class Translate>
    void replay_enqueued(std::uint64_t capture, point p, Translate&& translate) {
        const auto it = captures_.find(capture);
        if (it == captures_.end()) return;
        ends last;
        last.raise(p);
        for (const extent& address : it->second.addresses) {
            const auto physical = translate(address);
            if (!physical) continue;
            std::vector<extent> parts = *physical;
            if (mapped(address, parts)) parts.push_back(address);
            for (const extent& e : parts) {
                std::vector<std::pair<extent, block*>> owners;
                live_.for_each(e, [&](extent part, block* b) { owners.emplace_back(part, b); });
                history_.assign(e, std::make_shared<const ends>(last));
                for (const auto& [part, b] : owners) {
                    history_.erase(part);
                    b->uses.raise(p);
                }
            }
        }
    }

    // --- upkeep ---

    /// Effects: drops what the host has seen, and adds the timelines whose order may still be asked for.
    void mention(std::unordered_set<timeline_id>& asked_for) {
        history_.erase_if([this](const shared_ends& last) {
            return std::all_of(last->entries().begin(), last->entries().end(),
                               [this](const point& p) { return lines_.seen(p); });
        });
        history_.for_each([&](extent, const shared_ends& last) {
            for (const point& p : last->entries()) asked_for.insert(p.timeline);
        });
        for (const auto& [address, b] : blocks_)
            for (const point& p : b.uses.entries()) asked_for.insert(p.timeline);
    }

  private:
    using ends = vector_clock;                       ///< the points that must have passed
    using shared_ends = std::shared_ptr<const ends>; ///< cut intervals share them

    struct block {
        std::uint64_t serial = 0; ///< identity
        extent address;
        std::vector<extent> physical;
        timeline_id owner = 0;
        ends uses; ///< the last known use on each timeline
    };

    struct captured_uses {
        std::vector<extent> addresses;
        std::unordered_set<std::uint64_t> serials;
    };

    static std::string name(extent address) {
        return "block " + hex(address.begin) + " of " + std::to_string(address.end - address.begin) + " B";
    }
    static std::string at_bytes(extent e) { return " at " + hex(e.begin) + "-" + hex(e.end); }
    static std::string text(point p) {
        return "stream " + std::to_string(p.timeline) + " (work " + std::to_string(p.position) + ")";
    }

    static bool mapped(extent address, const std::vector<extent>& physical) {
        return physical.front().begin != address.begin;
    }

    block* find(std::uint64_t address, const char* what) {
        const auto it = blocks_.find(address);
        if (it != blocks_.end()) return &it->second;
        log_.add(hex(address) + " " + what + ", but no live block starts there");
        return nullptr;
    }

    void use(block& b, place at) {
        b.uses.raise(lines_.advance(at.timeline));
        if (at.capture == 0) return;
        captured_uses& c = captures_[at.capture];
        if (c.serials.insert(b.serial).second) c.addresses.push_back(b.address);
    }

    /// `who()`: the text's subject, asked for only when there is something to tell.
    template <class Who>
    void require_ended(extent e, timeline_id at, Who&& who) {
        history_.for_each(e, [&](extent part, const shared_ends& last) {
            for (const point& p : last->entries()) {
                if (at == 0 ? lines_.seen(p) : lines_.ordered(p, at)) continue;
                log_.add(who() + (at == 0 ? " for every stream" : " on stream " + std::to_string(at)) +
                         ", which does not stand after the last use of its bytes on " + text(p) +
                         at_bytes(part));
            }
        });
    }

    [[nodiscard]] ends ends_of(const block& b) const {
        ends last;
        for (const point& use : b.uses.entries()) {
            last.raise(use);
            if (use.timeline != b.owner) last.raise(lines_.current(use.timeline));
        }
        return last;
    }

    void remove(const block& b, ends last) {
        last.erase_if([this](const point& p) { return lines_.seen(p); });
        bury(b, last);
        blocks_.erase(blocks_.find(b.address.begin));
    }

    /// Takes the block's bytes out of the living and leaves `last` behind.
    void bury(const block& b, const ends& last) {
        const auto stored = last.empty() ? nullptr : std::make_shared<const ends>(last);
        for (const extent& e : b.physical) {
            bool owned = false; // a block allocated over another one never owned its bytes
            live_.for_each(e, [&](extent, const block* owner) { owned = owner == &b; });
            if (!owned) continue;
            live_.erase(e);
            if (stored) history_.assign(e, stored);
        }
        if (!mapped(b.address, b.physical)) return;
        if (stored)
            history_.assign(b.address, stored);
        else
            history_.erase(b.address);
    }

    timelines& lines_;
    violation_log& log_;
    std::map<std::uint64_t, block> blocks_; // by address
    interval_map<block*> live_;             // by physical byte
    interval_map<shared_ends> history_;     // by physical byte, and by address where that differs
    std::unordered_map<std::uint64_t, captured_uses> captures_;
    std::uint64_t last_serial_ = 0;
};

} // namespace tenure::sim
