#pragma once

/// \file
/// Random programs for policies, and a simple oracle of what a policy must answer.
///
///     make_program(seed) --> steps --> policy_runner --> checked_resource --> policy --> sim::device
///                                          |             live blocks disjoint, streams' order respected
///                                          +--> bytes and blocks that must be counted
///
/// A step names blocks and streams by numbers that are taken modulo what there is when it runs, so a program
/// stays runnable when some of its allocations fail, and the same seed gives the same program everywhere.
///
/// The programs keep the contract's rules: a block freed on another stream has its own stream recorded as a
/// user; a stream is destroyed only after the host has seen its work, and when no live block has it recorded.

#include <tenure/core/bits.hpp>
#include <tenure/core/units.hpp>
#include <tenure/device/sim_device.hpp>

#include "support/policy_world.hpp"
#include "support/random.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tenure::test {

enum class step_kind : std::uint8_t {
    allocate,
    allocate_sync,
    free, ///< on the block's stream
    free_elsewhere,
    free_sync,
    release,
    use,
    create_stream,
    destroy_stream,
    trim,
    advance,
};

struct step {
    step_kind kind = step_kind::allocate;
    std::uint64_t block = 0;
    std::uint64_t stream = 0;
    std::size_t bytes = 0;
    std::size_t alignment = default_alignment;
    std::chrono::nanoseconds length{0};
};

struct program_options {
    std::size_t steps = 400;
    std::size_t streams = 4;      ///< at the start
    std::size_t largest = 64_MiB; ///< bytes
    std::size_t largest_alignment = 2_MiB;
    bool short_lived_streams = true;
    std::size_t padding = 0; ///< bytes that large alignments may cost, see `disagreement`
};

inline std::vector<step> make_program(std::uint64_t seed, const program_options& o) {
    std::mt19937_64 rng(seed);
    std::vector<step> program;
    program.reserve(o.steps);
    while (program.size() < o.steps) {
        step s;
        s.block = rng();
        s.stream = rng();
        s.bytes = log_uniform(rng, 1, o.largest);
        if (chance(rng, 3)) s.bytes = 0;
        if (chance(rng, 15)) s.alignment = log_uniform(rng, 1, o.largest_alignment);
        s.alignment = std::size_t{1} << log2_floor(s.alignment);
        s.length = std::chrono::nanoseconds{log_uniform(rng, 100, 1'000'000)};
        const std::uint64_t dice = below(rng, 100);
        s.kind = dice < 38   ? step_kind::allocate
                 : dice < 41 ? step_kind::allocate_sync
                 : dice < 58 ? step_kind::free
                 : dice < 64 ? step_kind::free_elsewhere
                 : dice < 66 ? step_kind::free_sync
                 : dice < 70 ? step_kind::release
                 : dice < 84 ? step_kind::use
                 : dice < 86 ? step_kind::create_stream
                 : dice < 88 ? step_kind::destroy_stream
                 : dice < 90 ? step_kind::trim
                             : step_kind::advance;
        if (!o.short_lived_streams &&
            (s.kind == step_kind::create_stream || s.kind == step_kind::destroy_stream))
            continue;
        program.push_back(s);
    }
    return program;
}

class policy_runner {
  public:
    policy_runner(policy_world& world, const program_options& o) : world_(&world), padding_(o.padding) {
        for (std::size_t i = 0; i < o.streams; ++i) world.stream();
    }

    void run(const step& s) {
        switch (s.kind) {
        case step_kind::allocate: return allocate(s, false);
        case step_kind::allocate_sync: return allocate(s, true);
        case step_kind::free:
        case step_kind::free_elsewhere:
        case step_kind::free_sync:
        case step_kind::release: return free(s);
        case step_kind::use: return use(s);
        case step_kind::create_stream:
            if (world_->streams().size() < 12) world_->stream();
            return;
        case step_kind::destroy_stream: return destroy(stream(s));
        case step_kind::trim: world_->pool().trim(s.bytes); return;
        case step_kind::advance: world_->device.advance(s.length); return;
        }
    }

    /// Returns: "" when the policy's counters are what the program has done, else what is wrong.
    [[nodiscard]] std::string disagreement() const {
        const usage_counters u = world_->pool().usage();
        if (u.requested.current != requested_) return "requested bytes are not those of the live blocks";
        if (u.requested.total_in != flowed_) return "bytes ever requested differ";
        if (u.blocks.current != live_.size()) return "number of live blocks differs";
        if (u.reserved.current != world_->device.reserved())
            return "reserved is not what the device has given";
        for (const block& b : live_)
            if (!world_->pool().owns(b.p)) return "a live block is not owned";
        return test::disagreement(world_->pool().snapshot(), u, world_->traits, padding_);
    }

    /// Effects: frees everything.
    void free_all() {
        while (!live_.empty()) free({.kind = step_kind::free});
    }

    [[nodiscard]] std::size_t failures() const { return failures_; }

  private:
    struct block {
        void* p = nullptr;
        std::size_t n = 0;
        std::size_t a = 0;
        stream_handle home = default_stream;
        bool sync = false;
        bool orphan = false; ///< `home` was destroyed, after the host had seen its work
        std::vector<stream_handle> users;
    };

    stream_handle stream(const step& s) const {
        const auto& all = world_->streams();
        const std::size_t i = s.stream % (all.size() + 1);
        return i == all.size() ? default_stream : all[i];
    }

    void allocate(const step& s, bool sync) {
        block b{nullptr, s.bytes, s.alignment, sync ? default_stream : stream(s), sync, false, {}};
        if (sync) {
            try {
                b.p = world_->pool().allocate_sync(b.n, b.a);
            } catch (const std::exception&) {
                ++failures_;
                return;
            }
        } else {
            const allocate_result r = world_->pool().try_allocate(b.home, b.n, b.a);
            if (!r) {
                ++failures_;
                return;
            }
            b.p = *r;
        }
        if (b.p == nullptr) return;
        requested_ += b.n;
        flowed_ += b.n;
        if (!sync) world_->pool().use_own(b.p, b.home, s.length);
        live_.push_back(std::move(b));
    }

    void use(const step& s) {
        if (live_.empty()) return;
        block& b = live_[s.block % live_.size()];
        const stream_handle on = stream(s);
        world_->pool().use(b.p, on, s.length);
        b.users.push_back(on);
    }

    void free(const step& s) {
        if (live_.empty()) return;
        const std::size_t i = s.block % live_.size();
        block b = live_[i];
        live_[i] = live_.back();
        live_.pop_back();
        requested_ -= b.n;
        auto& pool = world_->pool();
        const bool homeless = b.sync || b.orphan;
        switch (s.kind) {
        case step_kind::free_sync: {
            bool seen = true;
            if (!homeless) seen = world_->device.synchronize(b.home) == status::ok;
            for (const stream_handle u : b.users) seen = world_->device.synchronize(u) == status::ok && seen;
            if (seen) return pool.deallocate_sync(b.p, b.n, b.a);
            break;
        }
        case step_kind::release:
            if (!b.orphan) return pool.release(b.p);
            break;
        case step_kind::free_elsewhere: {
            const stream_handle on = stream(s);
            if (!homeless && on != b.home) pool.record_use(b.p, b.home);
            return pool.deallocate(on, b.p, b.n, b.a);
        }
        default: break;
        }
        // Where the block has no stream (any more), nothing but its recorded users is left to be in order
        // with.
        pool.deallocate(homeless ? stream(s) : b.home, b.p, b.n, b.a);
    }

    void destroy(stream_handle s) {
        if (s == default_stream || world_->streams().size() < 2) return;
        for (const block& b : live_)
            if (std::find(b.users.begin(), b.users.end(), s) != b.users.end()) return;
        if (world_->device.synchronize(s) != status::ok) return;
        for (block& b : live_)
            if (b.home == s) b.orphan = true;
        world_->destroy(s);
    }

    policy_world* world_;
    std::size_t padding_;
    std::vector<block> live_;
    std::size_t requested_ = 0;
    std::size_t flowed_ = 0;
    std::size_t failures_ = 0;
};

} // namespace tenure::test
