#pragma once

/// \file
/// `verifier`: a watch (see `watch.hpp`) that gives every block a content on the GPU and looks whether it stays.
///
///     allocated on s      s:   fill
///     used on u           u:   [s's fill is before] spin, check
///     freed on s          u:   spin, check           for every u, as late as the contract protects it
///                         s:   spin, check           no spin on the default stream
///                         the policy gets the block back
///
/// The host waits for nothing on this way, so whatever the policy hands out too early is overwritten while, or before,
/// a check still reads it. The spins on other streams than the default one, 20 to 84 microseconds long by the block's
/// id, hold each check back and so widen that window. Every check reads every byte.
///
/// Differences are written into a list in the GPU's memory, which the host reads once, at the end.
///
/// Cost: two kernels a block, 2n bytes of traffic, as much again for each use. Externally synchronised.

#include "../trace.hpp"
#include "../verification.hpp"
#include "../watch.hpp"
#include "gpu.hpp"
#include "kernels.hpp"

#include <tenure/core/bits.hpp>
#include <tenure/core/handles.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace tenure::cli {

class verifier : public tally {
  public:
    static constexpr bool looks = true;

    /// `salt`: a number of this replay's own.
    verifier(const trace& t, std::uint64_t salt)
        : salt_(salt), blocks_(t.blocks.size()), begin_(std::chrono::steady_clock::now()) {
        findings empty{};
        for (finding& f : empty.list) f.first_bad = std::numeric_limits<unsigned long long>::max();
        must(cudaMalloc(reinterpret_cast<void**>(&found_), sizeof empty), "allocating the list of findings");
        must(cudaMemcpy(found_, &empty, sizeof empty, cudaMemcpyHostToDevice),
             "clearing the list of findings");
        // A copy from pageable memory may return before it has arrived, and other streams do not wait for it.
        must(cudaDeviceSynchronize(), "clearing the list of findings");
    }
    verifier(const verifier&) = delete;
    verifier& operator=(const verifier&) = delete;
    ~verifier() { (void)cudaFree(found_); }

    void allocated(std::uint32_t id, void* p, std::uint64_t bytes, stream_handle s) {
        if (p == nullptr) return;
        tally::allocated(id, p, bytes, s);
        blocks_[id] = {p, bytes, {}};
        must(gpu::fill(s, p, bytes, key_of(id, salt_)), "filling a block");
        ++seen_.blocks;
        seen_.bytes += bytes;
    }

    void used(std::uint32_t id, const void*, stream_handle s) {
        std::vector<stream_handle>& users = blocks_[id].users;
        if (std::find(users.begin(), users.end(), s) == users.end()) users.push_back(s);
        look(id, s, true);
    }

    void freed(std::uint32_t id, const void*, stream_handle s) {
        for (const stream_handle user : blocks_[id].users)
            if (user != s) look(id, user, true);
        look(id, s, false);
        blocks_[id].users = {};
    }

    /// Effects: the host waits until all is over. Returns: what was seen.
    [[nodiscard]] verification finish() {
        must(cudaDeviceSynchronize(), "the GPU has failed during the replay");
        seen_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
        findings found{};
        must(cudaMemcpy(&found, found_, sizeof found, cudaMemcpyDeviceToHost),
             "reading the list of findings");
        seen_.more = found.lost != 0;
        std::sort(std::begin(found.list), std::end(found.list),
                  [](const finding& x, const finding& y) { return x.check < y.check; });
        for (const finding& f : found.list)
            if (f.check != 0) seen_.mismatches.push_back(describe(f));
        return seen_;
    }

  private:
    struct filled {
        void* pointer = nullptr;
        std::uint64_t bytes = 0;
        std::vector<stream_handle> users{};
    };
    struct look_made {
        std::uint32_t id;
        bool side_stream;
        std::uint64_t address;
    };

    void look(std::uint32_t id, stream_handle s, bool side_stream) {
        const filled& b = blocks_[id];
        if (s != default_stream) {
            const std::chrono::microseconds window{20 + (std::uint64_t{id} * 37) % 65};
            must(gpu::spin(s, window), "spinning before a check");
        }
        looks_.push_back({id, side_stream, to_address(b.pointer)});
        must(gpu::check(s, b.pointer, b.bytes, key_of(id, salt_), looks_.size(), found_), "checking a block");
        ++seen_.checks;
        seen_.bytes += b.bytes;
    }

    [[nodiscard]] mismatch describe(const finding& f) const {
        const look_made& l = looks_[f.check - 1];
        mismatch m;
        m.block = l.id;
        m.bytes = blocks_[l.id].bytes;
        m.address = l.address;
        m.first_bad = f.first_bad;
        m.bad_words = f.bad_words;
        m.side_stream = l.side_stream;
        for (std::uint64_t id = 0; id < blocks_.size() && !m.owner; ++id)
            if (written_for(key_of(id, salt_), f.found)) m.owner = id;
        return m;
    }

    std::uint64_t salt_;
    std::vector<filled> blocks_;   ///< by id
    std::vector<look_made> looks_; ///< check i + 1 is the i-th
    findings* found_ = nullptr;    ///< on the GPU
    verification seen_;
    std::chrono::steady_clock::time_point begin_;
};

} // namespace tenure::cli
