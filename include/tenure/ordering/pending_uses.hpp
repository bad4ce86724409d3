#pragma once

/// \file
/// `pending_uses`: blocks that several streams use (`record_use`), and blocks whose free waits for those streams.
///
///     live block  --record_use(b, t)-->  a list of streams that use b besides its own
///     free of b   --begin_free(b)---->   one event on each of them, queued per stream in order of recording
///     poll()      ------------------->   b is complete when the last of its events has passed
///
/// Invariants:
///   1. A block is reported complete exactly once, and only after every event of it has passed, or as 6 says.
///   2. Events of one stream pass in the order of their queue. A poll asks about the newest, which tells of all, first if all
///      had passed at the last poll, else if the oldest has; and only if it has not, about those before, one by one.
///   3. An event is recorded only inside `begin_free`; the streams of `record_use` must live until then. Afterwards
///      they may be destroyed: events survive their stream.
///   4. Nothing is recorded on a capturing stream. A block used in a capture is reported as captured instead; if the
///      use is named in a capture and the block is freed after it, what the stream holds by then is waited for.
///   5. `begin_free`, `poll` and `forget` never need host memory.
///   6. Where the device keeps a book of what streams wait for, a block counts as complete, too, once the stream that it
///      was freed on stands behind what its events mark: it goes back to that stream.
///
/// If the driver fails to record, the free falls back to waiting for that stream; if that fails too, the block is
/// reported *lost to ordering*: it may be reused only by somebody who synchronises with the whole device (giving its
/// segment back does).
///
/// Complexity: O(streams of the block) at the free, one event record each (0.26 us); O(streams + completed) a poll.
/// Thread-safety: thread-compatible.

#include <tenure/core/cache_lines.hpp>
#include <tenure/core/node_table.hpp>
#include <tenure/device/device.hpp>
#include <tenure/device/stream_waits.hpp>
#include <tenure/layout/layout.hpp>
#include <tenure/ordering/event_cache.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace tenure {

template <device Device>
class pending_uses {
  public:
    using block_id = layout::block_id;

    /// Of a block that goes back to no stream in particular.
    static constexpr std::uint64_t no_owner = std::numeric_limits<std::uint64_t>::max();

    /// What the free of a block with uses has to wait for.
    struct free_outcome {
        bool pending = false;      ///< `poll` will report it
        bool lost = false;         ///< ordering unknown, see above
        std::uint64_t capture = 0; ///< it was used in this capture
    };

    pending_uses(Device& device, event_cache<Device>& events) noexcept : device_(&device), events_(&events) {}

    pending_uses(const pending_uses&) = delete;
    pending_uses& operator=(const pending_uses&) = delete;

    ~pending_uses() {
        for (queue& q : queues_)
            for (node_index i = q.head; i != no_node; i = nodes_[i].next_in_queue)
                events_->release(nodes_[i].event);
    }

    /// Effects: remembers that `stream` (with identity `id`) uses the live block; the second time does nothing.
    /// `in_capture`: the identity is one that a capture gave it; then the stream is known by its handle at the free.
    /// Throws: `std::bad_alloc`; then nothing has changed.
    void add(block_id block, stream_handle stream, std::uint64_t id, bool in_capture = false) {
        if (block >= blocks_.size()) blocks_.resize(std::size_t{block} + 1);
        for (node_index i = blocks_[block].uses; i != no_node; i = nodes_[i].next_of_block)
            if (queues_[nodes_[i].queue].id == id) return;
        nodes_.reserve(1);
        const node_index q = queue_of(stream, id, in_capture && !is_shared_handle(stream));
        const node_index use = nodes_.create();
        nodes_[use] = {block, q, no_node, blocks_[block].uses, nullptr, stream_waits::never};
        blocks_[block].uses = use;
    }

    /// Returns: whether the live block is used by other streams.
    [[nodiscard]] bool any(block_id block) const noexcept {
        return block < blocks_.size() && blocks_[block].uses != no_node;
    }

    /// Effects: forgets the uses of a live block.
    void forget(block_id block) noexcept {
        if (!any(block)) return;
        for (node_index i = blocks_[block].uses; i != no_node;) {
            const node_index next = nodes_[i].next_of_block;
            drop(nodes_[i].queue);
            nodes_.destroy(i);
            i = next;
        }
        blocks_[block].uses = no_node;
    }

    /// Effects: forgets the use of a live block by the stream with identity `id`.
    void forget(block_id block, std::uint64_t id) noexcept {
        if (!any(block)) return;
        for (node_index* link = &blocks_[block].uses; *link != no_node; link = &nodes_[*link].next_of_block) {
            const node_index i = *link;
            if (queues_[nodes_[i].queue].id != id) continue;
            *link = nodes_[i].next_of_block;
            drop(nodes_[i].queue);
            nodes_.destroy(i);
            return;
        }
    }

    /// Requires: `any(block)`. Effects: marks the work of every stream that uses the block. `owner`: identity of the stream
    /// that it goes back to, or `no_owner`.
    free_outcome begin_free(block_id block, std::uint64_t owner) noexcept {
        free_outcome outcome;
        blocks_[block].owner = owner;
        node_index i = blocks_[block].uses;
        blocks_[block].uses = no_node;
        while (i != no_node) {
            const node_index next = nodes_[i].next_of_block;
            if (!enqueue(block, i, outcome)) {
                drop(nodes_[i].queue);
                nodes_.destroy(i);
            }
            i = next;
        }
        outcome.pending = blocks_[block].waiting != 0;
        if (outcome.pending) {
            blocks_[block].capture = outcome.capture;
            blocks_[block].lost = outcome.lost;
            ++pending_;
        }
        return outcome;
    }

    /// Effects: asks which marked work has passed. Calls completed(block, free_outcome) for each block that is
    /// complete now (`pending` false; `lost` and `capture` as found at its free).
    /// Returns: whether there was one.
    template <class F>
    bool poll(F&& completed) {
        bool any = false;
        if constexpr (tells_waits<Device>)
            if (device_->waits().told()) any = learn(completed);
        return visit_asking(completed, [this](event_handle e) { return device_->query(e) == status::ok; }) ||
               any;
    }

    /// The same, but asks nobody: for what has been said in the device's book since the last time.
    template <class F>
    bool learn(F&& completed) requires tells_waits<Device> {
        const stream_waits& book = device_->waits();
        const std::uint64_t now = book.changes();
        if (pending_ == 0 || std::exchange(learned_, now) == now) return false;
        return visit(completed, [&](const queue& q) {
            const stream_waits::stamp passed = book.passed(q.id);
            node_index last = no_node;
            for (node_index i = q.head; i != no_node; last = std::exchange(i, nodes_[i].next_in_queue))
                if (nodes_[i].freed >= passed &&
                    nodes_[i].freed >= book.before(blocks_[nodes_[i].block].owner, q.id))
                    break;
            return last;
        });
    }

    /// The same as `poll`, but waits for all marked work. What the device refuses to wait for stays pending.
    template <class F>
    bool synchronize(F&& completed) {
        return visit_asking(completed,
                            [this](event_handle e) { return device_->synchronize(e) == status::ok; });
    }

    /// Returns: number of blocks that wait.
    [[nodiscard]] std::size_t pending() const noexcept { return pending_; }

  private:
    struct node {
        block_id block = 0;
        node_index queue = no_node;
        node_index next_in_queue = no_node;
        node_index next_of_block = no_node; ///< before the free
        event_handle event = nullptr;
        stream_waits::stamp freed = stream_waits::never; ///< of the free that the event marks
    };
    struct queue {
        std::uint64_t id = 0;
        stream_handle stream = nullptr;
        bool by_handle = false; ///< `id` is good in one capture only
        node_index head = no_node;
        node_index tail = no_node;
        std::uint32_t references = 0; ///< uses of live blocks and queued events
        bool had_passed = false;      ///< all of it, at the last look
    };
    struct block_waits {
        node_index uses = no_node;
        std::uint32_t waiting = 0;
        std::uint64_t capture = 0;
        std::uint64_t owner = no_owner; ///< stream that it goes back to
        bool lost = false;
    };

    /// Finds or makes the queue of a stream and takes a reference to it.
    node_index queue_of(stream_handle stream, std::uint64_t id, bool by_handle) {
        if (const auto it = by_id_.find(id); it != by_id_.end()) {
            ++queues_[it->second].references;
            return it->second;
        }
        node_index q = no_node;
        if (!idle_queues_.empty()) {
            q = idle_queues_.back();
        } else {
            idle_queues_.reserve(queues_.size() + 1);
            q = static_cast<node_index>(queues_.size());
            queues_.emplace_back();
            idle_queues_.push_back(q);
        }
        by_id_.emplace(id, q);
        idle_queues_.pop_back();
        // What was found of the stream that had this queue before is as good a guess as any.
        queues_[q] = {id, stream, by_handle, no_node, no_node, 1, queues_[q].had_passed};
        return q;
    }

    void drop(node_index q) noexcept {
        if (--queues_[q].references != 0) return;
        by_id_.erase(queues_[q].id);
        idle_queues_.push_back(q); // room was reserved when the queue was made
    }

    /// Returns: whether the node now waits in its queue (else the stream needs no waiting for, or cannot be).
    bool enqueue(block_id block, node_index i, free_outcome& outcome) noexcept {
        queue& q = queues_[nodes_[i].queue];
        const result<stream_state, status> state = device_->describe(q.stream);
        if (state && state->capturing()) {
            outcome.capture = state->capture;
            return false;
        }
        if (!state || (state->id != q.id &&
                       !q.by_handle)) { // unknown, or destroyed and its handle given to another stream
            outcome.lost = true;
            return false;
        }
        const result<event_handle, status> event = events_->mark(q.stream);
        if (!event) {
            if (device_->synchronize(q.stream) != status::ok) outcome.lost = true;
            return false;
        }
        nodes_[i].event = *event;
        if constexpr (tells_waits<Device>) nodes_[i].freed = device_->waits().freed();
        nodes_[i].next_in_queue = no_node;
        (q.head == no_node ? q.head : nodes_[q.tail].next_in_queue) = i;
        q.tail = i;
        ++blocks_[block].waiting;
        return true;
    }

    /// Requires: the queue is not empty. Returns: the newest node of it whose event is known to have passed, or `no_node`.
    template <class Passed>
    node_index last_passed(const queue& q, Passed& passed) const {
        const bool alone = q.head == q.tail;
        const bool newest_first = q.had_passed && !alone;
        if (newest_first && passed(nodes_[q.tail].event)) return q.tail;
        if (!passed(nodes_[q.head].event)) return no_node;
        if (alone || (!newest_first && passed(nodes_[q.tail].event))) return q.tail;
        node_index last = q.head;
        for (node_index i = nodes_[last].next_in_queue; i != q.tail && passed(nodes_[i].event);
             i = nodes_[i].next_in_queue)
            last = i;
        return last;
    }

    template <class F, class Passed>
    bool visit_asking(F& completed, Passed passed) {
        return visit(completed, [&](queue& q) {
            const node_index last = last_passed(q, passed);
            q.had_passed = last == q.tail;
            return last;
        });
    }

    /// `find`: the newest node of a queue that is over, or `no_node`.
    template <class F, class Find>
    bool visit(F& completed, Find find) {
        if (pending_ == 0) return false;
        bool any_completed = false;
        for (node_index qi = 0; qi < queues_.size(); ++qi) {
            if (queues_[qi].head == no_node) continue;
            const node_index last = find(queues_[qi]);
            for (bool more = last != no_node; more;) {
                queue& q = queues_[qi];
                const node_index i = q.head;
                const block_id id = nodes_[i].block;
                q.head = nodes_[i].next_in_queue;
                more = i != last;
                events_->release(nodes_[i].event);
                nodes_.destroy(i);
                drop(qi);
                if (--blocks_[id].waiting != 0) continue;
                --pending_;
                any_completed = true;
                const free_outcome outcome{false, blocks_[id].lost, blocks_[id].capture};
                blocks_[id].lost = false;
                blocks_[id].capture = 0;
                completed(id, outcome);
            }
        }
        return any_completed;
    }

    Device* device_;
    event_cache<Device>* events_;
    node_table<node> nodes_;
    own_lines_vector<queue> queues_;
    own_lines_vector<node_index> idle_queues_;
    std::unordered_map<std::uint64_t, node_index> by_id_; ///< no lines of their own: entries come and go
    own_lines_vector<block_waits> blocks_;                ///< by block id
    std::size_t pending_ = 0;
    std::uint64_t learned_ = 0; ///< as of which change of the book
};

} // namespace tenure
