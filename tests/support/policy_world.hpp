#pragma once

/// \file
/// `policy_world`: a device (the simulated one, unless the program is for a GPU), a policy of the list on it, watched by `checked_resource`,
/// and streams.
///
///     policy_world w(subject);
///     const stream_handle s = w.stream();
///     void* p = w.pool().allocate(s, 1_MiB);
///     ...
///     w.finish();   // every test ends so: everything is accounted for, and nothing was ever unsafe

#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>

#include "support/catch.hpp"
#include "support/checked_resource.hpp"
#include "support/misuse_log.hpp"
#include "support/policy_list.hpp"
#include "support/world_device.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tenure::test {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// Longer than any work that a test launches.
inline constexpr nanoseconds long_time = std::chrono::seconds{100};

inline std::string joined(const std::vector<std::string>& lines) {
    std::string all;
    for (const std::string& line : lines) all += line + '\n';
    return all;
}

class policy_world {
  public:
    using pool_type = checked_resource<resource_ref>;

    explicit policy_world(const policy_subject& subject,
                          const sim::device_options& device_options = {.cost = sim::costs::zero()})
        : device(device_options)
        , traits(subject.traits)
        , policy_(subject.make(device))
        , bare_(policy_->ref()) {
        checked_.emplace(bare_, device);
    }

    policy_world(const policy_world&) = delete;
    policy_world& operator=(const policy_world&) = delete;

    /// The policy, watched, and as it is.
    [[nodiscard]] pool_type& pool() { return *checked_; }
    [[nodiscard]] resource_ref& bare() { return bare_; }

    void release_captured(std::uint64_t capture) { policy_->release_captured(capture); }

    stream_handle stream() {
        streams_.push_back(device.create_stream());
        return streams_.back();
    }

    [[nodiscard]] const std::vector<stream_handle>& streams() const { return streams_; }

    void destroy(stream_handle s) {
        streams_.erase(std::find(streams_.begin(), streams_.end(), s));
        device.destroy_stream(s);
    }

    /// Effects: a call that names the stream, for a policy that waits for one to record an event or to go on
    /// with a deferred free.
    void name(stream_handle s) {
        if (const allocate_result r = checked_->try_allocate(s, 1)) checked_->deallocate(s, *r, 1);
    }

    /// Effects: all work passes, the host has seen it, and the policy has had the chance to notice.
    void drain() {
        device.advance(long_time);
        for (int round = 0; round < 2; ++round) {
            for (const stream_handle s : streams_) {
                (void)device.synchronize(s);
                name(s);
                (void)device.synchronize(s);
            }
            name(default_stream);
            (void)device.synchronize(default_stream);
        }
    }

    /// Effects: the host sees all work pass, that of destroyed streams too.
    void synchronize_device() {
        device.advance(long_time);
        if (const result<void*, status> p = device.allocate(1)) CHECK(device.deallocate(*p, 1) == status::ok);
    }

    /// Effects: frees what the test left live (all work is over by then).
    void free_all() {
        drain();
        for (const auto& b : checked_->live()) checked_->deallocate_sync(b.pointer, b.bytes, b.alignment);
    }

    /// Effects: drains and trims. Checks: every counter is back at 0, the device has everything, nothing was
    /// unsafe.
    void finish() {
        CHECK(checked_->live().empty());
        drain();
        CHECK(checked_->validate());
        checked_->trim(0);
        synchronize_device();
        checked_->trim(0);
        CHECK(checked_->validate());
        const usage_counters u = checked_->usage();
        CHECK(u.requested.current == 0);
        CHECK(u.allocated.current == 0);
        CHECK(u.reserved.current == 0);
        CHECK(u.blocks.current == 0);
        CHECK(u.segments.current == 0);
        CHECK(u.pending == 0);
        CHECK(u.captured == 0);
        CHECK(u.requested.total_in == u.requested.total_out);
        CHECK(u.allocated.total_in == u.allocated.total_out);
        CHECK(u.reserved.total_in == u.reserved.total_out);
        CHECK(checked_->snapshot().segments.empty());
        CHECK(device.reserved() == 0);
        close();
    }

    /// Effects: destroys the policy. Checks: the device has everything back, nothing was unsafe.
    void close() {
        const std::string violations = joined(checked_->violations());
        CHECK(violations == "");
        checked_.reset();
        policy_.reset();
        CHECK(device.reserved() == 0);
        CHECK(device.live_allocations() == 0);
        CHECK(device.live_events() == 0);
        CHECK(device.live_pools() == 0);
        CHECK(joined(device.violations()) == "");
    }

    world_device device;
    const policy_traits& traits;

  private:
    std::unique_ptr<live_policy> policy_;
    resource_ref bare_;
    std::optional<pool_type> checked_;
    std::vector<stream_handle> streams_;
};

/// Returns: "" when the snapshot tiles its segments and its sums equal the counters, else what is wrong.
/// `padding`: bytes that may be reserved without being in a segment, where the policy pads segments.
inline std::string disagreement(const memory_snapshot& picture, const usage_counters& u,
                                const policy_traits& traits, std::size_t padding = 0) {
    std::size_t reserved = 0;
    std::size_t allocated = 0;
    std::size_t requested = 0;
    std::size_t blocks = 0;
    std::size_t pending = 0;
    std::size_t captured = 0;
    std::uint64_t end = 0;
    for (const segment_snapshot& s : picture.segments) {
        if (s.address < end) return "segments overlap or are out of order";
        end = s.address;
        for (const block_snapshot& b : s.blocks) {
            if (b.address != end) return "a segment has a hole or an overlap";
            if (b.size == 0) return "an empty block";
            end += b.size;
            if (b.requested > b.size) return "a block smaller than what was asked for";
            if (b.state == block_state::free) {
                if (b.requested != 0) return "a free block with a request";
                continue;
            }
            allocated += b.size;
            requested += b.requested;
            if (b.state == block_state::allocated && !b.continued) ++blocks;
            if (b.state == block_state::pending) pending += b.size;
            if (b.state == block_state::captured) captured += b.size;
        }
        if (end != s.address + s.size) return "blocks do not fill their segment";
        reserved += s.size;
    }
    if (requested != u.requested.current) return "requested bytes differ";
    if (allocated != u.allocated.current) return "allocated bytes differ";
    if (blocks != u.blocks.current) return "number of blocks differs";
    if (pending != u.pending) return "pending bytes differ";
    if (captured != u.captured) return "captured bytes differ";
    if (!traits.pads_segments) padding = 0;
    if (traits.shows_only_blocks) padding = no_limit;
    if (reserved > u.reserved.current || u.reserved.current - reserved > padding)
        return "reserved bytes differ";
    if (!traits.shows_only_blocks && picture.segments.size() != u.segments.current)
        return "number of segments differs";
    if (!(u.requested.current <= u.allocated.current && u.allocated.current <= u.reserved.current))
        return "not requested <= allocated <= reserved";
    for (const gauge* g : {&u.requested, &u.allocated, &u.reserved, &u.blocks, &u.segments}) {
        if (g->peak < g->current) return "a peak below its current value";
        if (g->total_in - g->total_out != g->current) return "what flowed in and out is not what is there";
    }
    return "";
}

} // namespace tenure::test
